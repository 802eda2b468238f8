"""Random runs of engines that share folders of saved prefixes, with kills, flipped bits, full disks and two writers, and of consumers whose
producers fail in every way: each output equals that of an engine alone.

`PYTHONPATH=tests/support python tests/support/tier_runs.py --runs 1000` runs many; tests/cache/test_saved_prefixes.py runs a few.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from llmi import LLM, SamplingParams
from llmi.handover import peers, shared_folder
from llmi.handover.settings import FRONT
from llmi.testing import assert_same_tokens, tiny_model

KV_TYPES = ("float16", "float32", "bfloat16", "int8", "fp8")
ARCHITECTURES = ("llama", "gemma3")
MAX_LEN = 260
PRODUCER = {"kv_connector": "local", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "local", "kv_role": "kv_consumer", "kv_peers": [FRONT], "kv_min_tokens": 32}
#: What a producer does with a question. The first two are as they should be.
FATES = ("answers", "answers", "harms", "dies", "other tokens", "other salt", "foreign", "no answer")

#: An engine that is killed, or whose files may have few bytes only, as on a full disk.
CHILD = """
import json, resource, sys
from llmi import LLM
asked = json.loads(sys.argv[1])
if asked["most_file_bytes"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (asked["most_file_bytes"],) * 2)
with LLM(**asked["engine"]) as llm:
    print("ready", flush=True)
    for prompt in asked["prompts"]:
        print(json.dumps(llm.generate(prompt, max_tokens=6, temperature=0, ignore_eos=True)[0].outputs[0].token_ids), flush=True)
        llm.save_prefix(prompt)
"""


class Runs:
    """Runs over folders of their own, all below `place`."""

    def __init__(self, place: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._kind = (ARCHITECTURES[0], KV_TYPES[0], 16)
        self._place = place
        self._models = {name: tiny_model(name, path=place / name, vocab_size=257, num_layers=3) for name in ARCHITECTURES}
        self._plain: dict[tuple[str, str], LLM] = {}
        self.counts: dict[str, int] = collections.Counter()
        beginnings = [[self._rng.randrange(3, 250) for _ in range(160)] for _ in range(4)]
        self._prompts = [
            beginning[: self._rng.randrange(40, 160)] + [self._rng.randrange(3, 250) for _ in range(self._rng.randrange(1, 60))]
            for beginning in beginnings * 4
        ]

    def run(self, count: int) -> dict[str, int]:
        """Raises AssertionError at the first output that differs. Returns what happened how often."""
        try:
            for _ in range(count):
                self._run_one()
        finally:
            for llm in self._plain.values():
                llm.close()
            self._plain.clear()
        return dict(self.counts)

    def _run_one(self) -> None:
        rng = self._rng
        if rng.random() < 0.4:  # else blocks of the run before may serve
            self._kind = rng.choice(ARCHITECTURES), rng.choice(KV_TYPES), rng.choice([16, 16, 16, 32])
        architecture, kv_type, block_size = self._kind
        folder = self._place / f"folder-{architecture}"
        folder.mkdir(exist_ok=True, mode=0o700)
        self._harm(folder, rng)
        engine: dict[str, Any] = {
            "model": str(self._models[architecture]), "kv_cache_dtype": kv_type, "prefix_cache_dir": str(folder), "max_model_len": MAX_LEN,
            "prefix_cache_disk_bytes": rng.choice([1 << 20, 1 << 22, 1 << 30]), "block_size": block_size,
            "kv_cache_memory_bytes": rng.choice([3 << 18, 1 << 20, 1 << 22]), "num_threads": rng.choice([1, 2]),
            "max_num_batched_tokens": rng.choice([17, 64, 2048]),
        }  # fmt: skip
        prompts: list[Any] = rng.sample(self._prompts, rng.randrange(1, 8))
        if rng.random() < 0.2:
            self._run_child(engine, prompts, architecture, kv_type)
            return
        if rng.random() < 0.25:
            self._run_handed_over(prompts, architecture, kv_type, block_size)
            return
        salts = [rng.choice(["", "", "", "a", "b"]) for _ in prompts]
        salted = [{"prompt_token_ids": prompt, "cache_salt": salt} for prompt, salt in zip(prompts, salts, strict=True)]
        params = SamplingParams(temperature=rng.choice([0.0, 0.8]), seed=7, max_tokens=rng.randrange(1, 20), ignore_eos=True)
        plain = self._reference(architecture, kv_type).generate(prompts, params)
        others = LLM(**engine) if rng.random() < 0.2 else None  # a second writer
        with LLM(**engine) as llm:
            for _ in range(rng.randrange(1, 3)):
                for each in (llm, others):
                    if each is not None:
                        assert_same_tokens(each.generate(salted, params), plain)
                if rng.random() < 0.3:
                    llm.reset_prefix_cache()
            stats = llm.get_metrics()
            assert stats["audit"] == "", stats["audit"]
            for name in ("fetched", "saved", "unsaved", "missing", "cut", "damaged", "exchanged", "late"):
                self.counts[name] += stats[f"num_{name}_blocks"]
            self.counts["cached"] += stats["num_prefix_hit_tokens"]
        if others is not None:
            others.close()
        self.counts["runs"] += 1

    def _reference(self, architecture: str, kv_type: str) -> LLM:
        key = (architecture, kv_type)
        if key not in self._plain:
            memory = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": MAX_LEN}
            self._plain[key] = LLM(self._models[architecture], kv_cache_dtype=kv_type, **memory)
        return self._plain[key]

    def _run_child(self, engine: dict[str, Any], prompts: list[Any], architecture: str, kv_type: str) -> None:
        rng = self._rng
        full = rng.random() < 0.5
        asked = {"engine": engine, "prompts": prompts, "most_file_bytes": rng.choice([100, 3000, 20_000]) if full else 0}
        command = [sys.executable, "-c", CHILD, json.dumps(asked)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            most = len(prompts) if full else rng.randrange(len(prompts) + 1)
            lines = [child.stdout.readline() for _ in range(most)]
            if not full:
                child.send_signal(signal.SIGKILL)
                self.counts["kills"] += 1
            else:
                self.counts["full disks"] += 1
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        plain = self._reference(architecture, kv_type).generate(prompts, params)
        for line, output in zip(lines, plain, strict=False):
            assert json.loads(line) == list(output.outputs[0].token_ids)
        self.counts["runs"] += 1

    def _run_handed_over(self, prompts: list[Any], architecture: str, kv_type: str, block_size: int) -> None:
        """A consumer, whose producer does with each question what was drawn for it."""
        rng = self._rng
        place = self._place / "shared-memory"
        place.mkdir(exist_ok=True)
        engine: dict[str, Any] = {
            "model": str(self._models[architecture]), "kv_cache_dtype": kv_type, "block_size": block_size, "max_model_len": MAX_LEN,
        }  # fmt: skip
        fates = iter([(rng.choice(FATES), rng.random()) for _ in range(100)])
        salted = [{"prompt_token_ids": prompt, "cache_salt": rng.choice(["", "a"])} for prompt in prompts]
        params = SamplingParams(temperature=rng.choice([0.0, 0.8]), seed=7, max_tokens=rng.randrange(1, 20), ignore_eos=True)
        plain = self._reference(architecture, kv_type).generate(prompts, params)
        sizes = [{"num_threads": rng.choice([1, 2]), "max_num_batched_tokens": rng.choice([17, 64, 2048])} for _ in range(2)]
        with (
            mock.patch.object(shared_folder, "_ROOT", place),
            mock.patch.object(peers, "_DELAYS_S", (0.0,)),
            mock.patch.object(peers, "front", lambda body, _: front(body)),
            LLM(**engine, **sizes[0], kv_transfer_config=PRODUCER, kv_cache_memory_bytes=1 << 22) as producer,
            LLM(**engine, **sizes[1], kv_transfer_config=CONSUMER, kv_cache_memory_bytes=rng.choice([3 << 18, 1 << 22])) as llm,
        ):
            front = self._producer(producer, place / f"llmi-kv-{os.geteuid()}", lambda: next(fates))
            for _ in range(rng.randrange(1, 3)):
                assert_same_tokens(llm.generate(salted, params), plain)
                if rng.random() < 0.5:
                    llm.reset_prefix_cache()
            stats = llm.get_metrics()
            assert stats["audit"] == "", stats["audit"]
            for name in ("asked", "late", "failed", "foreign", "short"):
                self.counts[f"{name} prefills"] += stats[f"num_{name}_prefills"]
            self.counts["handed over"] += stats["num_fetched_blocks"]
        self.counts["runs"] += 1

    def _producer(
        self, producer: LLM, folder: Path, next_fate: Callable[[], tuple[str, float]]
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """What carries a question to it."""

        def ask(body: dict[str, Any]) -> dict[str, Any]:
            fate, seed = next_fate()
            asked = dict(body)
            if fate == "other tokens":
                asked["prompt_token_ids"] = [3, *body["prompt_token_ids"][1:]]
            if fate == "other salt":
                asked["cache_salt"] = "other"
            assert producer._handover is not None
            told = producer._handover.answer(producer, asked)
            if fate == "harms":
                self._harm(folder, random.Random(seed))
            if fate == "dies":
                for path in sorted(folder.glob("*.kv1"))[::2]:
                    path.unlink(missing_ok=True)
                raise ConnectionResetError("it has died")
            if fate == "foreign":
                told["identity"] = {**told["identity"], "model": "another"}
            return {"identity": None} if fate == "no answer" else told

        return ask

    def _harm(self, folder: Path, rng: random.Random) -> None:
        """Does something to some of the folder's files."""
        paths = sorted(folder.glob("*.kv1"))
        for _ in range(rng.choice([0, 0, 1, 3])):
            if len(paths) < 2:
                return
            self.counts["harmed"] += 1
            path, other = rng.sample(paths, 2)
            if not path.exists() or not other.exists():
                continue
            kind = rng.randrange(5)
            if kind == 0 and path.stat().st_size:
                data = bytearray(path.read_bytes())
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
            elif kind == 1:
                os.truncate(path, rng.randrange(path.stat().st_size + 1))
            elif kind == 2:
                path.unlink()
            elif kind == 3:
                shutil.copy(other, path)
            else:
                path.write_bytes(rng.randbytes(rng.randrange(3000)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        counts = Runs(Path(place), arguments.seed).run(arguments.runs)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) + ": 0 outputs differ")


if __name__ == "__main__":
    main()
