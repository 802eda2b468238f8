"""Kills and stops replicas at random moments under load, and compares every answer with that of one engine.

python tests/support/replica_kills.py --kills 500 [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from llmi import LLM
from llmi.replicas.router import Router
from llmi.testing import tiny_model

#: What a round's requests ask for: state of every kind that has to be rebuilt.
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 1},
    {"n": 3, "logprobs": 1, "min_p": 0.02},
    {"mirostat": 2, "logprobs": 0},
    {"presence_penalty": 0.5, "repetition_penalty": 1.2, "dry_multiplier": 0.8},
    {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    {"ignore_eos": False, "stop_token_ids": list(range(8))},
    {"beam_width": 3, "ignore_eos": False, "max_tokens": 40},
)
#: A pause between two chunks that is longer is a hang.
HANG_S = 10.0


class Kills:
    """How many replicas were hit, and what went wrong."""

    def __init__(self, alone: LLM, llm: LLM, rng: random.Random) -> None:
        assert isinstance(llm._router, Router)
        self.alone, self.llm, self.router, self.rng = alone, llm, llm._router, rng
        self.num_hit = self.num_wrong = self.num_hangs = self.num_answers = 0
        self.pids: set[int] = set()
        self.longest_s = 0.0

    def hit(self) -> None:
        """Kills or stops a replica that works, unless a request of it has seen a death and came no further: two such deaths end it."""
        working = [
            replica
            for replica in self.router.replicas
            if replica.under_way and all(entry.came_further or not entry.deaths for entry in list(replica.under_way.values()))
        ]
        ready = {replica.pid for replica in self.router.replicas if replica.state == "ready"}
        if working and not ready & self.pids:  # what goes to one whose death is not known yet sees a second one
            replica = self.rng.choice(working)
            number = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
            self.pids.add(replica.pid)
            with contextlib.suppress(ProcessLookupError):  # it stood still, and was killed meanwhile
                os.kill(replica.pid, number)
            self.num_hit += 1

    def round(self) -> None:
        """Several streams, whose replicas are hit with one chunk in twenty."""
        params = {"max_tokens": 300, "seed": self.rng.randrange(1000), "ignore_eos": True, **self.rng.choice(KINDS)}
        prompts = [[self.rng.randrange(250) for _ in range(self.rng.randint(1, 60))] for _ in range(self.rng.randint(1, 24))]
        want = self.alone.generate(prompts, **params)
        stream, last_s = self.llm.stream(prompts, **params), time.monotonic()
        for _ in stream:
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - last_s)
            self.num_hangs += now - last_s > HANG_S
            if self.rng.random() < 0.05:
                self.hit()
            last_s = time.monotonic()
        self.num_answers += len(prompts)
        self.num_wrong += sum(one != other for one, other in zip(stream.outputs, want, strict=True))


def main() -> int:
    """Runs until so many replicas were hit; prints what was found, and returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(vocab_size=257, path=Path(folder), max_position_embeddings=1024)
        arguments: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "num_threads": 3}
        with LLM(model, **arguments) as alone, LLM(model, data_parallel_size=3, **arguments) as llm:
            kills = Kills(alone, llm, random.Random(given.seed))
            while kills.num_hit < given.kills:
                kills.round()
            kills.pids.update(replica.pid for replica in kills.router.replicas)
    left = [pid for pid in kills.pids if Path(f"/proc/{pid}").exists()]
    print(
        f"{kills.num_hit} replicas killed or stopped, {kills.num_answers} answers: {kills.num_wrong} wrong, {kills.num_hangs} pauses over"
    )
    print(f"{HANG_S:g} s, longest {kills.longest_s:.2f} s; processes left: {len(left)}")
    return int(bool(kills.num_wrong or kills.num_hangs or left))


if __name__ == "__main__":
    raise SystemExit(main())
