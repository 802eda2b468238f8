"""Several ranks under random configurations, and ranks that are killed.

`python tests/support/rank_configurations.py --configs 2000 --kills 500`: random sets of parameters (random_configurations.py) on random models,
types, numbers of ranks and splits, whose outputs are compared with those of one rank; and engines of three processes of which one is killed
at a random moment under load. Half of them must say so, and the others must go on with the same outputs; no process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import random_configurations
import tiny_families
from llmi import LLM, Outputs, PromptLookup, SpeculativeConfig, WorkerDiedError
from llmi.errors import EngineClosedError, LlmiError
from llmi.ranks import workers
from llmi.testing import tiny_model
from mpi_threads import RanksOverMpi, build_mpi
from rank_threads import RankThreads

CHUNK = 16  # configurations on one pair of engines
LATENT_EVERY = 4  # of so many chunks one has a model with latent attention, which transformers makes


#: What carries the gathers, between threads of this process: MPI is its stand-in.
PLACES = ("shared memory", "shared memory", "messages of MPI", "emulated devices")


@functools.cache
def stand_in() -> Any:
    return build_mpi(Path(tempfile.mkdtemp()))


@contextlib.contextmanager
def ranks_of(place: str) -> Iterator[None]:
    """An LLM that is made meanwhile has such ranks."""
    own = workers.Ranks
    if place == "messages of MPI":
        RanksOverMpi.mpi = stand_in()
        workers.Ranks = RanksOverMpi  # type: ignore[misc]
    try:
        with unittest.mock.patch.dict(os.environ, LLMI_EMULATE_CUDA="1"):
            yield
    finally:
        workers.Ranks = own  # type: ignore[misc]


class Pair:
    """One rank with room, as random_configurations reads it, and several with little memory."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        hidden_size = rng.choice([64, 128])
        if seed % LATENT_EVERY == LATENT_EVERY - 1:
            hidden_size = 64
            model = tiny_families.make("deepseek_v2", Path(tempfile.mkdtemp()), kv_lora_rank=64).path
        else:
            model = tiny_model(rng.choice(["llama", "gemma3"]), vocab_size=257, num_layers=3, hidden_size=hidden_size)
        types: dict[str, Any] = rng.choice(
            [{}, {"quantization": "q8_0"}, {"quantization": "q8_0", "activation_bits": 8}, {"dtype": "bfloat16"}]
        )
        types |= {"kv_cache_dtype": rng.choice(["float16", "float32", "int8", "fp8", "bfloat16"]), "max_model_len": 160}
        count = rng.randint(1, hidden_size // 16)  # tiles
        cuts = [0.0, *sorted(rng.random() for _ in range(count - 1)), 1.0]
        split = rng.choice([None, [max(1e-9, cuts[i + 1] - cuts[i]) for i in range(count)]])
        place = rng.choice(PLACES)
        stages = rng.choice([1, 2, 3]) if place == "shared memory" else 1
        self.what = f"{count} ranks, {split}, {stages} stages, {types}, {place}"
        self.roomy = LLM(model, kv_cache_memory_bytes=1 << 23, **types)
        pages = 200 * self.roomy._page_bytes
        own = {"tensor_parallel_size": count, "tensor_split": split, "max_num_seqs": 12, "max_num_batched_tokens": 48}
        own["pipeline_parallel_size"] = stages
        if place == "emulated devices":
            own |= {"device": "cuda", "linear_dtype": "float32"}  # tensor cores, which one rank takes for bfloat16, have other bits
        with ranks_of(place):
            self.ranks = LLM(model, kv_cache_memory_bytes=pages, **types, **own)

    def close(self) -> None:
        self.roomy.close()
        self.ranks.close()


def runs_of(pair: Pair) -> Iterator[tuple[str, bool, Any]]:
    """As random_configurations.runs_of."""
    yield pair.what, False, lambda prompts, params: pair.ranks.generate(prompts, params, use_tqdm=False)
    config = SpeculativeConfig(PromptLookup(), 3)
    yield (
        f"{pair.what}, drafts",
        True,
        lambda prompts, params: pair.ranks.generate(prompts, params, use_tqdm=False, speculative_config=config),
    )


def check(seed: int) -> list[str]:
    """What differs in the CHUNK configurations of this seed."""
    pair = Pair(seed)
    own = random_configurations.runs_of
    try:
        random_configurations.runs_of = runs_of  # type: ignore[assignment]
        return random_configurations.check(pair, seed * CHUNK, CHUNK)  # type: ignore[arg-type]
    finally:
        random_configurations.runs_of = own
        pair.close()


ENGINE: dict[str, Any] = {"seed": 1, "num_threads": 1, "kv_cache_memory_bytes": 1 << 23, "tensor_parallel_size": 3}


def restart(model: Path, seed: int) -> list[str]:
    """What went wrong when ranks were killed, and started again."""
    rng = random.Random(seed)
    own = {name: value for name, value in ENGINE.items() if name != "tensor_parallel_size"}
    runs = [
        {"n": 3, "temperature": 0.8, "max_tokens": 100},
        {"speculative_config": SpeculativeConfig(PromptLookup(), 4), "temperature": 0, "max_tokens": 100},
        {"beam_width": 3, "max_tokens": 30},
    ]
    prompts = [[5, 6, seed % 250, index] for index in range(8)]
    with LLM(model, **own) as alone:
        expected = [alone.generate(prompts, use_tqdm=False, ignore_eos=True, **run) for run in runs]
    problems: list[str] = []
    seen: set[int] = set()
    with LLM(model, **ENGINE, on_worker_failure="restart") as llm:

        def strike() -> None:
            pids = [worker.pid for worker in llm.workers()[1:]]
            seen.update(pids)
            with contextlib.suppress(ProcessLookupError):  # the one before was noticed just now
                os.kill(rng.choice(pids), signal.SIGKILL)

        for index, run in enumerate(runs):
            killer = threading.Timer(rng.random() * 0.2, strike)
            killer.start()
            begun = time.monotonic()
            try:
                if llm.generate(prompts, use_tqdm=False, ignore_eos=True, **run) != expected[index]:
                    problems.append(f"restart {seed}: other outputs of {run}")
            except LlmiError as error:
                problems.append(f"restart {seed}: {error}")
            if time.monotonic() - begun > 10:
                problems.append(f"restart {seed}: it took {time.monotonic() - begun:.1f} s")
            killer.join()
        llm.generate(prompts, max_tokens=1, use_tqdm=False)
        seen.update(worker.pid for worker in llm.workers()[1:])
        if len(seen) < 4:
            problems.append(f"restart {seed}: nothing was started again")
    return problems + [f"restart {seed}: process {pid} is left" for pid in seen if Path(f"/proc/{pid}").exists()]


def kill(model: Path, seed: int) -> list[str]:
    """What went wrong when a rank was killed."""
    if seed % 2:
        return restart(model, seed)
    rng = random.Random(seed)
    with LLM(model, **ENGINE) as llm:
        pids = [worker.pid for worker in llm.workers()[1:]]
        victim = rng.choice(pids)
        killer = threading.Timer(rng.random() * 0.2, os.kill, [victim, signal.SIGKILL])
        killer.start()
        begun = time.monotonic()
        problems = []
        try:
            found = Outputs()
            while all(output.error is None for output in found):
                found = llm.generate([[5, 6]] * 8, max_tokens=100, on_error="return", use_tqdm=False)
            if not all(isinstance(output.error, WorkerDiedError) for output in found if output.error is not None):
                problems.append(f"kill {seed}: {found!r}")
        except EngineClosedError as error:  # it died between two calls
            if "SIGKILL" not in str(error):
                problems.append(f"kill {seed}: {error}")
        if time.monotonic() - begun > 10:
            problems.append(f"kill {seed}: it took {time.monotonic() - begun:.1f} s")
        killer.join()
    return problems + [f"kill {seed}: process {pid} is left" for pid in pids if Path(f"/proc/{pid}").exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    processes = workers.Ranks
    workers.Ranks = RankThreads  # type: ignore[misc]  # one process for many small engines
    problems = [problem for chunk in range(-(-arguments.configs // CHUNK)) for problem in check(arguments.first + chunk)]
    workers.Ranks = processes  # type: ignore[misc]
    model = tiny_model(vocab_size=257)
    problems += [problem for index in range(arguments.kills) for problem in kill(model, arguments.first + index)]
    print("\n".join([*problems, f"{arguments.configs} configurations, {arguments.kills} kills: {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
