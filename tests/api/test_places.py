"""Where llmi runs: without a console, a home, a place to write, /proc; in control groups; and what it says in its log."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmi import LLM, InvalidParamsError, ModelFileError, _core
from llmi.base import progress
from llmi.models import by_name
from llmi.models import environment as environment_module
from waiting import HANG_S

ROOMY = 1 << 50


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path(vocab_size=260)


def run(command: str, model: Path | str, cwd: Path | None = None, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """A command line in bash; `llmi` is the command, `$M` the model. A variable that is None is taken away."""
    variables = {**os.environ, "M": str(model), "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PYTHONUNBUFFERED": "", **environment}
    script = f"llmi() {{ '{sys.executable}' $PYTHON_FLAGS -m llmi \"$@\"; }}\n{command}"
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=HANG_S,
        check=False,
        errors="replace",
        env={name: value for name, value in variables.items() if value is not None},
    )


GENERATE = "llmi generate -m $M -p x --max-tokens 2"


@dataclasses.dataclass
class Place:
    """What is run, and how it must end. `error`: of the one line on stderr; "" for none."""

    command: str
    status: int = 0
    error: str = ""
    environment: dict[str, str | None] = dataclasses.field(default_factory=dict)


PLACES = {
    "no stdin": Place(f"{GENERATE} <&-"),
    "no stdout": Place(f"{GENERATE} >&-"),
    "no stderr": Place(f"{GENERATE} 2>&-"),
    "nothing": Place(f"{GENERATE} <&- >&- 2>&-"),
    "help without streams": Place("llmi --help >&- 2>&-"),
    "chat without stdin": Place("llmi chat -m $M <&-", 2, "standard input is closed"),
    "full": Place(f"{GENERATE} > /dev/full", 1, "No space left"),
    "full, help": Place("llmi chat --help > /dev/full", 1, "No space left"),
    "full, unbuffered": Place(f"{GENERATE} > /dev/full", 1, "No space left", {"PYTHONUNBUFFERED": "1"}),
    "full stderr": Place(f"{GENERATE} -v 2> /dev/full"),
    "reader gone": Place("llmi generate -m $M -p x --max-tokens 200 --ignore-eos | true; exit ${PIPESTATUS[0]}", 1),
    "ascii": Place("llmi generate -m $M -p 'é😀' --max-tokens 2", 0, "", {"PYTHONIOENCODING": "ascii"}),
    "posix": Place(
        "llmi generate -m $M -p 'é😀' --max-tokens 2", 0, "", {"LC_ALL": "POSIX", "PYTHON_FLAGS": "-X utf8=0", "PYTHONCOERCECLOCALE": "0"}
    ),
    "posix, stdin": Place(
        "echo 'é😀' | llmi generate -m $M --max-tokens 2", 0, "", {"LC_ALL": "C", "PYTHON_FLAGS": "-X utf8=0", "PYTHONCOERCECLOCALE": "0"}
    ),
    "no UTF-8": Place("printf 'a\\377' | llmi generate -m $M", 2, "byte 0xff at 1 is not UTF-8"),
    "no UTF-8 in the prompt": Place("llmi generate -m $M -p $'a\\377'", 2, "byte 0xff at 1 is not UTF-8"),
    "no temporary folder": Place(GENERATE, 0, "", {"TMPDIR": "/nonexistent"}),
    "dumb": Place(GENERATE, 0, "", {"TERM": "dumb", "COLUMNS": "0"}),
    "narrow help": Place("llmi chat --help", 0, "", {"COLUMNS": "1"}),
    "optimised": Place(GENERATE, 0, "", {"PYTHON_FLAGS": "-OO"}),
    "strict": Place(GENERATE, 0, "", {"PYTHON_FLAGS": "-W error -X dev"}),
    "no variables": Place(f"exec env -i M=$M {sys.executable} -m llmi generate -m $M -p x --max-tokens 2"),
    "working directory gone": Place(f"mkdir gone; cd gone; rmdir ../gone; {GENERATE}"),
    "strict umask": Place(f"umask 777; {GENERATE}"),
    "threads": Place(GENERATE, 2, 'LLMI_NUM_THREADS = "many" in the environment is no number of threads', {"LLMI_NUM_THREADS": "many"}),
    "no threads": Place(GENERATE, 2, 'LLMI_NUM_THREADS = "0"', {"LLMI_NUM_THREADS": "0"}),
    "doctor, threads": Place("llmi doctor", 2, 'LLMI_NUM_THREADS = "2x"', {"LLMI_NUM_THREADS": "2x"}),
    "OpenMP's list": Place(GENERATE, 0, "", {"OMP_NUM_THREADS": "1,2"}),
    "OpenMP's nonsense": Place(GENERATE, 2, "OMP_NUM_THREADS", {"OMP_NUM_THREADS": "none"}),
    "instruction set": Place(GENERATE, 2, "LLMI_ISA", {"LLMI_ISA": "mmx"}),
    "audit": Place(GENERATE, 2, "LLMI_AUDIT = 'yes'", {"LLMI_AUDIT": "yes"}),
    "misspelt": Place(GENERATE, 0, "did you mean LLMI_NUM_THREADS?", {"LLMI_NUM_THREAD": "2"}),
    "no command": Place("llmi", 2, "usage: llmi"),
    "wrong flag": Place("llmi chat --temp 0.5", 2, "unrecognized arguments: --temp"),
    "abbreviated flag": Place("llmi generate --max-tok 5 -p x", 2, "unrecognized arguments: --max-tok"),
    "no prompt": Place("llmi generate -m $M < /dev/null", 2, "the prompt is empty"),
    "wrong value": Place("llmi chat -p x --top-k 1.5", 2, "--top-k must be"),
    "unwritable result": Place("llmi bench -m $M --rounds 0", 2, "--rounds"),
    "path too long": Place("llmi inspect $(printf 'a%.0s' {1..5000})", 2, "File name too long"),
    "path not UTF-8": Place("mkdir $'\\377'; llmi inspect $'\\377'", 2, "not UTF-8"),
    "cache not UTF-8": Place("mkdir -p $'\\377/models'; ln -s $F $'\\377/models/'; LLMI_CACHE=$'\\377' llmi inspect", 2, "not UTF-8"),
    "home not there": Place("llmi inspect u/r", 2, "set HF_HOME", {"HF_HOME": "~nobody-at-all/x"}),
    "no such home": Place("llmi inspect '~nobody-at-all/x'", 2, "~nobody-at-all/x"),
    "cache that is a file": Place(
        "llmi generate -p x", 2, "cannot be made or written (Not a directory): set LLMI_CACHE", {"LLMI_CACHE": "/dev/null/x"}
    ),
    "hub's cache that is a file": Place("llmi inspect u/r", 2, "u/r", {"HF_HOME": "/dev/null/x"}),
}


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str, model: Path, smollm_path: Path, tmp_path: Path) -> None:
    """Each ends as it should, in one line at most, and with nothing from the interpreter."""
    place = PLACES[name]
    done = run(place.command, model, tmp_path, **{"F": str(smollm_path), **place.environment})
    assert done.returncode == place.status, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr and "Error" not in done.stderr, done.stderr
    if name != "no command":
        assert len(done.stderr.splitlines()) == bool(place.error), done.stderr
    assert place.error in done.stderr


@pytest.mark.parametrize("name", ["a b", "100%d", "é", "-x", "#", "a:b", "😀'\""])
def test_names_of_folders(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(model)
    done = run('llmi generate -m "$M" -p x --max-tokens 2 -v', f"./{name}", tmp_path)
    assert done.returncode == 0 and f"loaded ./{name}".replace("./", "") in done.stderr.replace("./", ""), done.stderr


NO_HOME = "import os, pwd; [os.environ.pop(n, None) for n in ('HOME', 'LLMI_CACHE', 'XDG_CACHE_HOME', 'HF_HOME')]; pwd.getpwuid = lambda uid: {}[uid]; "


def without_home(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", NO_HOME + code], capture_output=True, text=True, cwd=cwd, timeout=HANG_S, check=False)


def test_no_home(model: Path, tmp_path: Path) -> None:
    """Models given by path work; what needs a cache says which variable names one; nothing is written to a folder called ~."""
    main = "import sys; from llmi.cli.commands import main; sys.exit(main({!r}))"
    works = without_home(main.format(["chat", "-m", str(model), "-p", "x", "--max-tokens", "1"]), tmp_path)
    assert works.returncode == 2 and "chat template" in works.stderr  # the tiny model has none: it was loaded
    assert without_home(main.format(["generate", "-m", str(model), "-p", "x", "--max-tokens", "1"]), tmp_path).returncode == 0
    for arguments, variable in (
        (["generate", "-p", "x"], "LLMI_CACHE"),
        (["inspect", "u/r"], "HF_HOME"),
        (["cache", "list"], "LLMI_CACHE"),
    ):
        done = without_home(main.format(arguments), tmp_path)
        assert done.returncode == 2 and f"set {variable}" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    doctor = without_home(main.format(["doctor"]), tmp_path)
    assert doctor.returncode == 0 and "set LLMI_CACHE" in doctor.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_library_without_stderr(model: Path, tmp_path: Path) -> None:
    """What is said is lost, and never lands on stdout."""
    code = (
        "import sys; sys.stderr = None; from llmi import LLM; from llmi.base import progress; progress.say('lost');"
        f"llm = LLM({str(model)!r}, kv_cache_memory_bytes=1 << 22); print(len(llm.generate(['a', 'b'], max_tokens=2, use_tqdm=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")
    closed = open(os.devnull, "w")  # noqa: SIM115, PTH123
    closed.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", closed)
        assert not progress.interactive()
        progress.say("lost")


@pytest.mark.parametrize("name", [3, 1.5, b"\xff", "", " ", "a\0b", ["x"], object()])
def test_what_is_no_model(name: object) -> None:
    with pytest.raises((InvalidParamsError, ModelFileError)) as caught:
        LLM(name)  # type: ignore[arg-type]
    assert "model" in str(caught.value) or "UTF-8" in str(caught.value)


# --- control groups


@dataclasses.dataclass
class Group:
    """One control group: None is a file that is absent, -1 no limit."""

    limit: int | None = None
    high: int | None = None
    used: int = 0
    inactive: int = 0
    quota: int | None = None
    period: int = 100_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(
    root: Path, version: int, groups: list[Group], seen_from: int = 0, mountinfo: bool = True, controller: str = "cpu,cpuacct"
) -> str:
    """A root with /proc and /sys. `groups` are nested, the outermost first; the mounts show those from `seen_from` on."""
    names = ["", *(f"/g{index}" for index in range(1, len(groups)))]
    path = "".join(names) or "/"
    top = "".join(names[: seen_from + 1]) or "/"
    write(root / "proc/meminfo", f"MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: {ROOMY // 1024} kB\n")
    folders = {
        2: {"memory": "sys/fs/cgroup", "cpu": "sys/fs/cgroup"},
        1: {"memory": "sys/fs/cgroup/memory", "cpu": f"sys/fs/cgroup/{controller}"},
    }
    lines = [f"0::{path}\n"] if version == 2 else [f"12:pids:{path}\n", f"4:memory:{path}\n", f"3:{controller}:{path}\n", "0::/elsewhere\n"]
    write(root / "proc/self/cgroup", "".join(lines))
    mounts = ["22 1 0:1 / / rw - ext4 /dev/vda rw\n"]
    if version == 2:
        mounts.append(f"30 22 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
    else:
        mounts += [
            f"3{i} 22 0:2{i} {top} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
            for i, name in enumerate(("pids", "memory", controller))
        ]
    if mountinfo:
        write(root / "proc/self/mountinfo", "".join(mounts))
    for index, group in enumerate(groups[seen_from:], start=seen_from):
        below = "".join(names[seen_from + 1 : index + 1])
        memory, cpu = (root / (folders[version][kind] + below) for kind in ("memory", "cpu"))
        if version == 2:
            for file, value in (("memory.max", group.limit), ("memory.high", group.high)):
                if value is not None:
                    write(memory / file, "max\n" if value < 0 else f"{value}\n")
            write(memory / "memory.current", f"{group.used}\n")
            write(memory / "memory.stat", f"anon 5\nfile 7\ninactive_file {group.inactive}\nactive_file 3\n")
            if group.quota is not None:
                write(cpu / "cpu.max", f"{'max' if group.quota < 0 else group.quota} {group.period}\n")
        else:
            if group.limit is not None:
                write(memory / "memory.limit_in_bytes", f"{9223372036854771712 if group.limit < 0 else group.limit}\n")
            write(memory / "memory.usage_in_bytes", f"{group.used}\n")
            write(memory / "memory.stat", f"cache 5\ninactive_file 0\ntotal_inactive_file {group.inactive}\n")
            if group.quota is not None:
                write(cpu / "cpu.cfs_quota_us", f"{group.quota}\n")
                write(cpu / "cpu.cfs_period_us", f"{group.period}\n")
    return str(root)


def expected_memory(version: int, groups: list[Group]) -> int:
    room = ROOMY
    for group in groups:
        limits = [limit for limit in (group.limit, group.high if version == 2 else None) if limit is not None and limit >= 0]
        if limits:
            room = min(room, max(0, min(limits) - max(0, group.used - group.inactive)))
    return room


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_nested_groups(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and processors under random groups equal what the rules say: the least of all groups from the process's own up to the one
    mounted."""
    monkeypatch.delenv("LLMI_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rng = random.Random(version)
    cpus = len(os.sched_getaffinity(0))
    for trial in range(60):
        groups = [
            Group(
                limit=rng.choice([None, -1, rng.randrange(1, 1 << 40)]),
                high=rng.choice([None, -1, rng.randrange(1, 1 << 40)]),
                used=rng.randrange(1 << 38),
                inactive=rng.choice([0, rng.randrange(1 << 38)]),
                quota=rng.choice([None, -1, rng.randrange(1000, 500_000)]),
                period=rng.choice([100_000, 50_000]),
            )
            for _ in range(rng.randrange(1, 5))
        ]
        seen_from = rng.randrange(len(groups))
        mountinfo = seen_from > 0 or rng.random() < 0.5
        root = machine(
            tmp_path / str(trial), version, groups, seen_from, mountinfo, rng.choice(["cpu,cpuacct", "cpu"]) if mountinfo else "cpu"
        )
        info = _core.system_info(root)
        seen = groups[seen_from:]
        assert info["available_memory_bytes"] == expected_memory(version, seen), (trial, seen)
        quotas = [group.quota / group.period for group in seen if group.quota is not None and group.quota > 0]
        assert info["num_threads"] == min(cpus, max(1, int(min([*quotas, 256.0]) + 0.5))), (trial, seen)


def test_odd_machines(tmp_path: Path) -> None:
    """No /proc, no /sys, or files that say nothing: what the kernel itself tells, and no crash."""
    info = _core.system_info(str(tmp_path / "nothing"))
    assert 0 < info["available_memory_bytes"] < ROOMY and info["num_threads"] >= 1
    write(tmp_path / "only/sys/fs/cgroup/memory.max", "1000000\n")  # /proc is not mounted, the group is
    write(tmp_path / "only/sys/fs/cgroup/memory.current", "400000\n")
    assert _core.system_info(str(tmp_path / "only"))["available_memory_bytes"] == 600_000
    root = machine(tmp_path / "odd", 2, [Group(limit=5000, used=1000)])
    assert _core.system_info(root)["available_memory_bytes"] == 4000
    for file, text in (
        ("sys/fs/cgroup/memory.max", "many\n"),
        ("proc/self/cgroup", "\0\n::\n0"),
        ("proc/self/mountinfo", "x - y\n - \n"),
        ("proc/meminfo", "MemAvailable:\n"),
    ):
        write(Path(root) / file, text)
        assert _core.system_info(root)["available_memory_bytes"] > 0
    write(Path(root) / "proc/self/cgroup", "0::/../../outside\n")
    assert _core.system_info(root)["num_threads"] >= 1


# --- the log


def test_the_log_says_what_was_loaded(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llmi")
    with LLM(model, kv_cache_memory_bytes=1 << 22, max_model_len=64, num_threads=1):
        pass
    (record,) = [record for record in caplog.records if record.message.startswith("loaded ")]
    for part in (str(model), "llama", "MB of weights", "1 threads", "max_model_len = 64 (as given)", "KV cache", "llmi3-cpu"):
        assert part in record.message
    caplog.clear()
    with LLM(model, kv_cache_memory_bytes=1 << 16):
        pass
    assert "what the KV cache holds; the model's is" in caplog.text


def test_nothing_is_printed_unless_asked(model: Path) -> None:
    code = f"import sys; from llmi import LLM; llm = LLM({str(model)!r}, kv_cache_memory_bytes=1 << 22); next(llm.stream('a')); print('logging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "LLMI_NONE": "1"})
    assert (done.stdout, done.stderr) == ("False\n", "")
    done = subprocess.run(
        [sys.executable, "-c", "import logging; " + code], capture_output=True, text=True, check=True, env={**os.environ, "LLMI_NONE": "1"}
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_every_variable_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, allowed in environment_module.VARIABLES.items():
        for value in allowed or ():
            monkeypatch.setenv(name, value)
            environment_module.check_environment()
        if allowed:
            monkeypatch.setenv(name, "yes")
            with pytest.raises(InvalidParamsError, match=name):
                by_name.resolve("nothing")
            monkeypatch.delenv(name)
