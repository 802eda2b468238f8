"""Hostile files, templates and arguments against the public API: no crash, no hang, no flood of memory, no unclear error.

    python tests/fuzz_surface.py [--seconds 1200] [--seed N] [--area NAME] [--output FILE]
    python tests/fuzz_surface.py --replay AREA:SEED
    python tests/fuzz_surface.py --slow [--cases 1000] [--seed N] [--area PASS] [--output FILE]

Cases come from tests/support/fuzz_inputs.py, each from its area and seed alone. Two child processes run them, so that one that dies or hangs is
seen, named and replaced. A case fails if the process dies, a call takes over 5 s, the process holds over 1 GB, or a call raises what is no
error of llmi's own (TypeError is one where an argument's name is unknown). Exits with 1 if any case fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "support"))

MAX_CALL_S = 5.0
MAX_MEMORY_MB = 1000
NUM_WORKERS = 2
#: What Python, pybind11 and Rust say when nobody looked at a value first.
_UNCLEAR = (
    "incompatible function arguments",
    "object has no attribute",
    "__init__() ",
    "not subscriptable",
    "NoneType",
    "pyo3",
    "panicked",
)
_UNKNOWN_NAMES = ("unknown", "LLM() has no argument")


# --- the child: runs cases that it reads by name


def memory_mb() -> float:
    """The most that this process and its children have held since the last reset, in MB."""
    total = 0
    for process in ["self", *children()]:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            total += next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    return total / 1024


def children() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += (task / "children").read_text().split()
    return found


def unclear(error: BaseException) -> str | None:
    """Why an error is no good answer; None if it is one."""
    from llmi import ChatTemplateError, LlmiError

    text = str(error)
    if isinstance(error, TypeError) and text.startswith(_UNKNOWN_NAMES):
        return None
    if not isinstance(error, LlmiError):
        return f"{type(error).__name__} is no error of llmi's: {text}"
    if isinstance(error, ChatTemplateError):  # it quotes what the template did wrong
        return None
    if len(text.strip()) < 8 or any(word in text for word in _UNCLEAR):
        return f"{type(error).__name__} does not say what is wrong: {text}"
    return None


PLANTED: dict[str, Callable[[], object]] = {
    "crash": lambda: os.abort(),
    "slow": lambda: time.sleep(1.0),
    "hang": lambda: time.sleep(60),
    "memory": lambda: len(b"x" * (1200 << 20)),
    "unclear": lambda: {}["a key"],
}


def run_case(area: str, seed: int, max_call_s: float = MAX_CALL_S) -> tuple[str, str]:
    """("ok" or what failed, details)."""
    from fuzz_inputs import AREAS

    rng = random.Random(f"{area}:{seed}")
    folder = Path(tempfile.mkdtemp(prefix="llmi-fuzz-"))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the most memory held counts from here
    try:
        calls = [PLANTED[area]] if area in PLANTED else AREAS[area](rng, folder)
        for index, call in enumerate(calls):
            begin = time.monotonic()
            try:
                call()
            except BaseException as error:
                if why := unclear(error):
                    return "unclear error", f"call {index}: {why[:300]}"
            if time.monotonic() - begin > max_call_s:
                return "hang", f"call {index} took {time.monotonic() - begin:.1f} s"
        held = memory_mb()
        return ("memory", f"{held:.0f} MB") if held > MAX_MEMORY_MB else ("ok", "")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def child(max_call_s: float) -> None:
    """Answers each line "area seed" by one of JSON."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = io.StringIO()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        area, seed = line.split()
        kind, detail = run_case(area, int(seed), max_call_s)
        out.write(json.dumps([kind, detail]) + "\n")
        sys.stdout = io.StringIO()
    os._exit(0)  # engines of the last case need no goodbye


# --- the parent: hands out cases, watches the clock, replaces children


class Worker:
    """A child process and the thread that reads its answers."""

    def __init__(self, max_call_s: float) -> None:
        self.wait_s = 3 * max_call_s + min(10.0, 4 * max_call_s)  # a case makes at most three calls
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", str(max_call_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        self.answers: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def _read(self, pipe: Any) -> None:
        with pipe:
            for line in pipe:
                self.answers.put(line)
        self.answers.put("")

    def run(self, area: str, seed: int) -> tuple[str, str]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{area} {seed}\n")
            self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=self.wait_s)
        except queue.Empty:
            self.process.kill()
            return "hang", f"no answer within {self.wait_s:.0f} s"
        if not answer:
            status = self.process.wait()
            self.log.seek(0)
            return "crash", f"status {status}: {self.log.read()[-300:].decode(errors='replace')}"
        kind, detail = json.loads(answer)
        return kind, detail

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.log.close()


def fuzz(areas: list[str], first_seed: int, seconds: float, num_cases: int | None = None, max_call_s: float = MAX_CALL_S) -> dict[str, Any]:
    """Runs cases of all areas in turn; returns counts and findings."""
    end = time.monotonic() + seconds
    lock, counts, findings = threading.Lock(), Counter[str](), list[dict[str, Any]]()
    numbers = iter(range(num_cases if num_cases is not None else 10**12))

    def work() -> None:
        worker = Worker(max_call_s)
        while time.monotonic() < end:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            area, seed = areas[number % len(areas)], first_seed + number // len(areas)
            kind, detail = worker.run(area, seed)
            with lock:
                counts[area] += 1
                if kind != "ok":
                    findings.append({"case": f"{area}:{seed}", "kind": kind, "detail": detail})
                    print(f"{kind}: {area}:{seed}: {detail}", flush=True)
            if kind != "ok":
                worker.end()
                worker = Worker(max_call_s)
        worker.end()

    threads = [threading.Thread(target=work) for _ in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "cases": dict(counts),
        "findings": findings,
        "first_seed": first_seed,
        "kinds": dict(Counter(entry["kind"] for entry in findings)),
    }


def main() -> int:
    from fuzz_inputs import AREAS
    from fuzz_slow import PASSES, run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--area", choices=[*AREAS, *PLANTED, *PASSES], action="append")
    parser.add_argument("--slow", action="store_true", help="texts that take long to read, against a server (tests/support/fuzz_slow.py)")
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--output", type=Path, help="write the report here, as JSON")
    parser.add_argument("--replay", metavar="AREA:SEED", help="run one case in this process")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child)
    if arguments.replay:
        area, seed = arguments.replay.split(":")
        kind, detail = run_case(area, int(seed))
        print(f"{kind} {detail}")
        return int(kind != "ok")
    if arguments.slow:
        report = run(arguments.area or list(PASSES), arguments.seed, arguments.cases or 1000)
        if arguments.output:
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{len(report['findings'])} findings {report['findings'][:10]}")
        return int(bool(report["findings"]))
    report = fuzz(arguments.area or list(AREAS), arguments.seed, arguments.seconds, arguments.cases)
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{sum(report['cases'].values())} cases ({report['cases']}), {len(report['findings'])} findings {report['kinds']}")
    return int(bool(report["findings"]))


if __name__ == "__main__":
    sys.exit(main())
