"""How programs end with engines in them: exits with daemon threads, and children of forks. All end in peace: their own status, no word on
stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from waiting import HANG_S

BEGIN = """
import asyncio, atexit, gc, multiprocessing, os, signal, sys, threading, time
import llmi
from llmi import LLM, AsyncLLM, EngineClosedError, SamplingParams
path = sys.argv[1]
LONG = dict(max_tokens=1900, temperature=0, ignore_eos=True)
def load():
    return LLM(path, kv_cache_memory_bytes=1 << 22)
def slow(context):
    time.sleep(0.002)
def beside(function, *args):
    threading.Thread(target=function, args=args, daemon=True).start()
class Slow:  # the interpreter takes a moment to go down
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
keeps = Slow()
"""

#: Programs, and the status that they end with.
EXITS: dict[str, tuple[str, int]] = {
    "daemon threads in every call": (
        """
llm, server = load(), AsyncLLM(path, kv_cache_memory_bytes=1 << 22)
def generate():
    while True:
        llm.generate([[1], [2]], max_tokens=20, ignore_eos=True, stopping_criteria=[slow])
def read():
    while True:
        for chunk in llm.stream([1], **LONG, stopping_criteria=[slow]):
            pass
def step():
    while True:
        llm.enqueue([[3]], **LONG)
        llm.wait_for_completion()
def extend():
    while True:
        with llm.sequence([1, 2, 3]) as sequence:
            sequence.extend([4])
async def serve():
    async for output in server.generate([1], SamplingParams(**LONG, stopping_criteria=[slow])):
        pass
for call in (generate, generate, read, step, extend, lambda: asyncio.run(serve())):
    beside(call)
time.sleep(0.5)
sys.exit(7)
""",
        7,
    ),
    "a hook that does not return": (
        """
llm, started = load(), threading.Event()
def spin(context):
    started.set()
    while True:
        pass
beside(lambda: llm.generate([1], **LONG, stopping_criteria=[spin]))
started.wait()
sys.exit(0)
""",
        0,
    ),
    "a hook that is blocked in C": (
        """
llm, started = load(), threading.Event()
def block(context):
    started.set()
    time.sleep(3600)
beside(lambda: llm.generate([1], **LONG, stopping_criteria=[block]))
started.wait()
""",
        0,
    ),
    "streams, sequences and servers left as they are": (
        """
llm = load()
stream = llm.stream([1], **LONG)
next(stream)
sequence = llm.sequence([1, 2])
sequence.logits
server = AsyncLLM(llm=load())
loop = asyncio.new_event_loop()
reader = server.generate([1], SamplingParams(**LONG))
loop.run_until_complete(anext(reader))
llm.enqueue([[1]], **LONG)
llm.step()
cycle = [llm, stream, sequence, server, reader]
cycle.append(cycle)
""",
        0,
    ),
    "no goodbye": ("llm = load()\nstream = llm.stream([1], **LONG, stopping_criteria=[slow])\nnext(stream)\nos._exit(4)", 4),
    "an LLM in a handler of the end": (
        """
def late():
    with load() as llm:
        assert len(llm.generate([1], max_tokens=3, ignore_eos=True)[0].token_ids) == 3
atexit.register(late)
llm = load()
def after():  # registered later, runs before
    assert llm.generate([1], max_tokens=1)[0].token_ids
atexit.register(after)
""",
        0,
    ),
}


def ends_of(programs: dict[str, str], path: Path) -> dict[str, tuple[int | str, str, str]]:
    """(status, stdout, stderr) of programs that run side by side: each waits more than it works."""
    command = [sys.executable, "-W", "ignore", "-c"]
    running = {
        name: subprocess.Popen([*command, BEGIN + code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, code in programs.items()
    }
    ends: dict[str, tuple[int | str, str, str]] = {}
    for name, process in running.items():
        try:
            out, err = process.communicate(timeout=HANG_S)
            ends[name] = (process.returncode, out, err)
        except subprocess.TimeoutExpired:
            process.kill()
            ends[name] = ("does not end", *process.communicate())
    return ends


def test_programs_end_in_peace(tiny_path: Callable[..., Path]) -> None:
    ends = ends_of({name: code for name, (code, _) in EXITS.items()}, tiny_path())
    assert ends == {name: (status, "", "") for name, (_, status) in EXITS.items()}


FORKS = """
def child(check):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(300)  # a child that hangs is killed
    try:
        check()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(5)
    sys.exit(0)
def refused(call):
    try:
        call()
    except EngineClosedError as error:
        assert "fork" in str(error), error
        return
    raise AssertionError("the child got an answer")
llm = load()
expected = llm.generate([[1, 2]], max_tokens=30, temperature=0, ignore_eos=True)
"""

#: What is done around forks; the last line must be reached, and children must end with status 0.
PROGRAMS: dict[str, str] = {
    "a child that only exits, while the parent streams": """
stream = llm.stream([1, 2], max_tokens=30, temperature=0, ignore_eos=True, stopping_criteria=[slow])
got = next(stream).token_ids
assert child(lambda: None) == 0
got += [token for chunk in stream for token in chunk.token_ids]
assert got == expected[0].token_ids
""",
    "a child that calls": """
params = SamplingParams(**LONG, stopping_criteria=[slow])
server, stream, sequence, started = AsyncLLM(llm=llm), llm.stream([1], params), llm.sequence([1, 2]), []
next(stream)
beside(lambda: [started.append(1), llm.generate([3], params)])
async def ask():
    return [output async for output in server.generate([1], params)]
def check():
    for call in (lambda: llm.generate([1]), lambda: llm.stream([1]), lambda: list(stream), lambda: sequence.logits, lambda: sequence.extend([1]),
                 lambda: llm.enqueue([[1]]), lambda: llm.step(), lambda: llm.wait_for_completion(), lambda: llm.get_metrics(), lambda: llm.memory_report(),
                 lambda: llm.loglikelihood([([1], [2])]), lambda: llm.cost_curve(), lambda: llm.reset_prefix_cache(), lambda: llm.sequence([1]).sample(),
                 lambda: asyncio.run(ask()), lambda: llm.run(lambda s: (yield {s: [1]}), [[1]])):
        refused(call)
    stream.close()
    sequence.close()
    assert llm.tokenizer.encode("a") and stream.outputs
    llm.close()
    llm.close()
while not started:
    time.sleep(0.01)
for _ in range(3):
    assert child(check) == 0
assert llm.generate([[1, 2]], max_tokens=30, temperature=0, ignore_eos=True) == expected
""",
    "a child that drops everything": """
stream, server = llm.stream([1], **LONG, stopping_criteria=[slow]), AsyncLLM(llm=llm)
def check():
    global llm, stream, server
    del llm, stream, server
    gc.collect()
assert child(check) == 0
next(stream)
stream.close()
""",
    "a child with an LLM of its own": """
def check():
    with load() as own:
        assert own.generate([[1, 2]], max_tokens=30, temperature=0, ignore_eos=True) == expected
assert child(check) == 0
""",
    "a fork while a hook runs": """
started = threading.Event()
def hook(context):
    started.set()
    time.sleep(0.3)
beside(lambda: llm.generate([1], **LONG, stopping_criteria=[hook]))
started.wait()
assert child(lambda: refused(lambda: llm.generate([1]))) == 0
""",
    "a hook that forks": """
pids = []
def hook(context):
    if len(context.token_ids) == 4:
        pids.append(os.fork())  # the child comes back from the hook, too
outputs = llm.generate([[1, 2]], max_tokens=30, temperature=0, ignore_eos=True, stopping_criteria=[hook])
assert outputs == expected and len(pids) == 1
signal.alarm(300)
assert os.waitpid(pids[0], 0)[1] == 0
""",
    "multiprocessing": """
def work(outputs, queue):
    refused(lambda: llm.generate([1]))
    queue.put(outputs)
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=work, args=(expected, queue))
process.start()
assert queue.get(timeout=300) == expected
process.join(300)
assert process.exitcode == 0
try:
    multiprocessing.get_context("spawn").Process(target=print, args=(llm,)).start()
except llmi.InvalidParamsError as error:
    assert "in each process" in str(error)
""",
}


def test_children_of_forks_end_in_peace(tiny_path: Callable[..., Path]) -> None:
    ends = ends_of({name: FORKS + code + "\nprint('whole')" for name, code in PROGRAMS.items()}, tiny_path())
    assert ends == dict.fromkeys(PROGRAMS, (0, "whole\n", ""))


def test_ctrl_c_while_loading(tiny_path: Callable[..., Path]) -> None:
    code = """
import llmi._core
engine = llmi._core.Engine
interrupted = threading.Event()
def ring(*_):
    interrupted.set()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, ring)
def packs(*args, dropped, **kwargs):
    print("loading", flush=True)
    interrupted.wait(300)  # a model that takes longer
    return engine(*args, dropped=dropped, **kwargs)
llmi._core.Engine = packs
try:
    load()
except KeyboardInterrupt:
    print("interrupted", flush=True)
llmi._core.Engine = engine
with load() as llm:
    print(len(llm.generate([1], max_tokens=3, ignore_eos=True)[0].token_ids))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, str(tiny_path())], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out.split(), err) == (0, ["interrupted", "3"], "")
