"""Every way to end: whatever ends a wait ends its requests, Ctrl-C reaches hooks, streams keep their LLM and lose no text."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, AsyncLLM, EngineClosedError, GenerationInterrupted, SamplingParams, SpeculativeConfig
from llmi.requests import call as calls
from llmi.requests.call import Call
from waiting import HANG_S, wait_until

LONG = {"max_tokens": 1900, "temperature": 0, "ignore_eos": True}
SHORT = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


class SlowPolicy:
    """Takes its time where several wait."""

    def key(self, request: Any, now_s: float) -> tuple[float, ...]:
        time.sleep(0.003)
        return (request.arrival_time_s,)


def slow(context: Any) -> bool:
    time.sleep(0.004)
    return False


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_num_seqs=4, scheduling_policy=SlowPolicy()) as llm:
        yield llm


def rung(
    error: BaseException, call: Callable[[], Any], when: Callable[[], object] = lambda: True, after_s: float = 0.05, times: int = 1
) -> BaseException:
    """Calls, and raises `error` in the main thread once `when` holds, not before so many seconds, and again every few milliseconds.

    What came out of the call has its traceback, as a debugger or notebook would have it: what it holds is not dropped.
    """
    left = [times]

    def ring(number: int, frame: Any) -> None:
        # One that comes when the call has ended ends nothing, and an import takes a TimeoutError for one of the file system's.
        if frame.f_code is rung.__code__ or frame.f_code.co_filename.startswith("<frozen importlib") or not when():
            return
        if left[0] < times and not is_ending(frame):  # the first one is still on its way there
            return
        left[0] -= 1
        if left[0] <= 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # what a handler raises in a callback of the collector is lost
    limit = signal.setitimer(signal.ITIMER_REAL, after_s, 0.004)  # pytest's, for a test that hangs
    try:
        call()
    except BaseException as raised:
        return raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)
        gc.enable()
    raise AssertionError("the call ended before the alarm")


def is_ending(frame: Any) -> bool:
    """Whether the wait for the end of a call's requests has begun."""
    while frame is not None and frame.f_code not in (Call.abort_and_wait.__code__, Call.outputs.__code__):
        frame = frame.f_back
    return frame is not None


def is_idle(llm: LLM) -> bool:
    stats = llm.get_metrics()
    return bool(stats["num_running"] == stats["num_waiting"] == 0)


def has_stepped(llm: LLM, count: int = 3) -> Callable[[], bool]:
    """Whether the engine has made so many steps since now. It waits for nothing, as a handler of signals must not."""
    before = llm._engine.latest_stats()["num_steps"]
    return lambda: bool(llm._engine.latest_stats()["num_steps"] >= before + count)


# --- any exception in any call that waits

HELD = {**LONG, "stopping_criteria": [slow]}


def reads_stream(llm: LLM) -> None:
    for _ in llm.stream([[1], [2]], **HELD):
        pass


def steps(llm: LLM) -> None:
    llm.enqueue([[1], [2]], **HELD)
    while llm.step():
        pass


def completes(llm: LLM) -> None:
    llm.enqueue([[1], [2]], **HELD)
    llm.wait_for_completion()


def strategy(sequence: Any) -> Any:
    while True:
        yield llmi.Generate([sequence.fork()], SamplingParams(**HELD))


CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate([1], **HELD),
    "generate several": lambda llm: llm.generate([[1], [2]], use_tqdm=True, **HELD),
    "stream": reads_stream,
    "display": lambda llm: llm.stream([1], **HELD).display(),
    "step": steps,
    "wait_for_completion": completes,
    "loglikelihood": lambda llm: llm.loglikelihood([([1], [2])] * 60),
    "perplexity": lambda llm: llm.perplexity([[1, 2, 3]] * 60),
    "run": lambda llm: llm.run(strategy, [[1], [2]]),
}
ERRORS = [KeyboardInterrupt(), TimeoutError("alarm"), SystemExit(3), MemoryError(), RecursionError()]


@pytest.mark.parametrize("name", CALLS)
def test_what_ends_a_wait_ends_its_requests(llm: LLM, name: str) -> None:
    expected = llm.generate([5], SHORT)
    for error in ERRORS:
        llm.last_outputs = llmi.Outputs()
        raised = rung(error, lambda: CALLS[name](llm), has_stepped(llm))
        assert isinstance(raised, type(error))
        if name == "stream":  # it may have come between two reads: the stream ends when it is dropped
            raised = raised.with_traceback(None)
        elif name == "step" and llm._stepping._call is not None:  # or between two steps: a later one reaches the requests
            llm.abort([submission.hooks.request_id for submission in llm._stepping._call.submissions])
            llm.wait_for_completion()
        assert is_idle(llm), f"{name} left requests behind after {error!r}"
        if isinstance(error, KeyboardInterrupt):
            if name in ("stream", "run") and type(raised) is KeyboardInterrupt:  # between two reads
                continue
            assert isinstance(raised, GenerationInterrupted)
            outputs = raised.outputs
            assert outputs and llm.last_outputs is outputs
            assert all(output.finished and output.error is None for output in outputs)
            assert name in ("loglikelihood", "perplexity") or any(output.token_ids for output in outputs)
        assert llm.step() == [] and llm.generate([5], SHORT) == expected


def test_what_a_progress_bar_raises_ends_the_call(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bar:
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def update(self, count: int) -> None:
            raise OSError("the terminal has gone")

    monkeypatch.setattr("llmi.llm.progress", lambda *args: Bar())
    with pytest.raises(OSError, match="terminal"):
        llm.generate([[1], [2]], **HELD)
    assert is_idle(llm)


def test_one_ctrl_c_ends_one_call_and_keeps_what_is_finished(llm: LLM) -> None:
    expected = llm.generate([5], SHORT)[0].token_ids
    other = llm.stream([6], max_tokens=60, ignore_eos=True)
    num_tokens = itertools.count()
    ended = threading.Event()

    def beside(context: Any) -> bool:
        if next(num_tokens) == 12:  # the other request has four
            ended.set()
        return slow(context)

    raised = rung(
        KeyboardInterrupt(), lambda: llm.generate([[5], [1]], [SHORT, SamplingParams(**LONG, stopping_criteria=[beside])]), ended.is_set
    )
    assert isinstance(raised, GenerationInterrupted) and llm.last_outputs is raised.outputs
    done, cut = (output.outputs[0] for output in raised.outputs)
    assert (done.finish_reason, done.token_ids, cut.finish_reason) == ("length", expected, "abort")
    assert sum(len(chunk.token_ids) for chunk in other) == 60, "another call goes on"


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("hook", ["slow", "never returns", "swallows it"])
def test_a_second_ctrl_c_ends_the_wait_and_leaves_the_engine_usable(llm: LLM, hook: str, times: int) -> None:
    expected = llm.generate([5], SHORT)
    hooks = {"slow": lambda context: time.sleep(0.3), "never returns": spin, "swallows it": swallow}
    for error in (KeyboardInterrupt(), TimeoutError("alarm")):
        RUNNING.clear()
        llm.last_outputs = llmi.Outputs()
        when = has_stepped(llm, 2) if hook == "slow" else RUNNING.is_set
        raised = rung(error, lambda: llm.generate([[1], [2]], **LONG, stopping_criteria=[hooks[hook]]), when, times=times)
        assert isinstance(raised, type(error))
        if times == 2 and isinstance(error, KeyboardInterrupt):  # a third one may come while the results are kept
            assert isinstance(raised, GenerationInterrupted) and llm.last_outputs is raised.outputs
            assert len(raised.outputs) == 2
        wait_until(lambda: not SPINNING.is_set(), "the end of a hook that did not return")
        assert llm.generate([5], SHORT) == expected
        wait_until(lambda: is_idle(llm), "the requests end without their caller")


@pytest.mark.parametrize("call", ["extend", "logits", "cost_curve", "reset_prefix_cache", "memory_report", "get_metrics"])
def test_waits_for_the_engine_thread_end_too(llm: LLM, call: str) -> None:
    """Another request's hook holds the engine up: who waits for the engine may leave, and what it asked for is not done."""
    held, inside, ended = threading.Event(), threading.Event(), []
    sequence = llm.sequence([1, 2, 3], seed=1)

    def hold(context: Any) -> None:
        inside.set()
        ended.append(held.wait(HANG_S))

    stream = llm.stream([1], max_tokens=2, ignore_eos=True, stopping_criteria=[hold])
    assert inside.wait(HANG_S)
    calls: dict[str, Callable[[], Any]] = {"extend": lambda: sequence.extend([4]), "logits": lambda: sequence.logits}
    assert type(rung(KeyboardInterrupt(), calls.get(call, lambda: getattr(llm, call)()))) is KeyboardInterrupt
    assert not ended, "it waited for the hook"
    held.set()
    assert sum(len(chunk.token_ids) for chunk in stream) == 2
    assert sequence.token_ids.tolist() == [1, 2, 3]
    with llm.sequence([1, 2, 3], seed=1) as fresh:
        assert_same_bits(sequence.extend([4]), fresh.extend([4]))
    sequence.close()


# --- Ctrl-C in hooks that do not return

RUNNING, SPINNING = threading.Event(), threading.Event()
REPEATS = [0]


def spin(*args: Any) -> Any:
    SPINNING.set()
    RUNNING.set()
    try:
        while True:
            pass
    finally:
        SPINNING.clear()


def swallow(*args: Any) -> Any:
    for _ in range(3):
        try:
            spin()
        except KeyboardInterrupt:
            REPEATS[0] += 1


def block(*args: Any) -> Any:
    RUNNING.set()
    time.sleep(0.6)


class Spins(llmi.Constraint[int]):
    def initial_state(self) -> int:
        return 0

    allowed = spin


class Batch:
    def apply(self, contexts: Any, logits: Any) -> None:
        if any(context.sampling_params.min_p == 0.5 for context in contexts):
            spin()


class Drafts(llmi.Drafter):
    def propose(self, context: Any) -> list[int]:
        return [7]


class Observes(Drafts):
    observe = spin


class Proposes(llmi.Drafter):
    propose = spin


class ProposesMany(llmi.Drafter):
    propose_batch = spin


class Accepts(llmi.Verification):
    accept_probability = spin


class Verifies(llmi.Verification):
    verify = spin


class Lengths:
    choose = spin


class Policy:
    def key(self, request: Any, now_s: float) -> Any:
        return spin() if request.priority == 7 else (0.0,)


HOOKS: dict[str, dict[str, Any]] = {
    "logits processor": {"logits_processors": [spin]},
    "stopping criterion": {"stopping_criteria": [spin]},
    "sampler": {"sampler": spin},
    "constraint": {"structured_outputs": Spins()},
    "batch processor": {"min_p": 0.5},
    "drafter": {"speculative_config": SpeculativeConfig(Proposes(), 1)},
    "drafter of batches": {"speculative_config": SpeculativeConfig(ProposesMany(), 1)},
    "observer": {"speculative_config": SpeculativeConfig(Observes(), 1)},
    "length policy": {"speculative_config": SpeculativeConfig(Drafts(), Lengths())},
    "accept_probability": {"speculative_config": SpeculativeConfig(Drafts(), 1, Accepts()), "temperature": 1.0, "seed": 1},
    "verify": {"speculative_config": SpeculativeConfig(Drafts(), 1, Verifies()), "temperature": 1.0, "seed": 1},
    "scheduling policy": {"priority": 7},
    "swallows it": {"stopping_criteria": [swallow]},
    "blocks in C": {"stopping_criteria": [block]},
}


@pytest.fixture(scope="module")
def hooked(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, scheduling_policy=Policy(), batch_processors=[Batch()]) as llm:
        yield llm


@pytest.mark.parametrize("name", HOOKS)
def test_ctrl_c_reaches_a_hook_that_does_not_return(hooked: LLM, name: str) -> None:
    """The call ends with what there was; another thread's request, in the same batch, goes on as if nothing had been."""
    expected = hooked.generate([[5, 6]], max_tokens=60, temperature=0, ignore_eos=True)
    other: list[Any] = []

    def beside() -> None:
        other.append(hooked.generate([[5, 6]], max_tokens=60, temperature=0, ignore_eos=True, stopping_criteria=[slow]))

    RUNNING.clear()
    REPEATS[0] = 0
    thread = threading.Thread(target=beside)
    thread.start()
    wait_until(lambda: other or hooked._engine.latest_stats()["num_running"] == 1)
    raised = rung(KeyboardInterrupt(), lambda: hooked.generate([[1], [2]], **{**LONG, **HOOKS[name]}), RUNNING.is_set)
    thread.join(HANG_S)
    assert isinstance(raised, GenerationInterrupted)
    assert RUNNING.is_set() and is_idle(hooked)
    assert other == [expected]
    assert all(completion.finish_reason == "abort" for output in raised.outputs for completion in output.outputs)
    assert all(output.error is None for output in raised.outputs)
    assert name != "swallows it" or REPEATS[0] >= 3
    assert hooked.generate([5], SHORT)[0].error is None, "no later hook gets the interrupt"


def test_exceptions_beyond_exception_end_their_request_alone(hooked: LLM) -> None:
    def leave(*args: Any) -> Any:
        raise SystemExit(4)

    drafts = SpeculativeConfig(leave, 1)  # of a fixed length: "auto" may ask for no draft
    for hooks in ({"logits_processors": [leave]}, {"stopping_criteria": [leave]}, {"sampler": leave}, {"speculative_config": drafts}):
        bad, good = (
            hooked.generate([[1], [5]], SHORT, on_error="return", speculative_config=[hooks.pop("speculative_config", None), None])
            if ("speculative_config" in hooks)
            else hooked.generate([[1], [5]], [SHORT.replace(**hooks), SHORT], on_error="return")
        )
        assert isinstance(bad.error, llmi.HookError) and isinstance(bad.error.__cause__, SystemExit)
        assert good.error is None and len(good.token_ids) == 4


# --- streams and who holds them


def test_a_stream_keeps_its_llm(tiny_path: Callable[..., Path]) -> None:
    def streams(**args: Any) -> Any:
        return LLM(tiny_path(), kv_cache_memory_bytes=1 << 22).stream([5, 6], max_tokens=60, ignore_eos=True, **args)

    stream = streams()
    engine = weakref.ref(stream._llm)
    gc.collect()
    assert sum(len(chunk.token_ids) for chunk in stream) == 60
    assert engine() is None, "a stream that was read to the end holds no engine"
    stream = streams()
    engine = weakref.ref(stream._llm)
    stream.close()
    assert engine() is None and stream.outputs[0].finished
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22).sequence([1, 2]) as sequence:
        assert sequence.extend([3]).shape == (1, 257)


def test_an_llm_may_go_with_its_last_hook(tiny_path: Callable[..., Path]) -> None:
    """The last reference may be one of a hook's, which the engine's own thread drops."""
    llm = LLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
    gone = weakref.ref(llm)

    def hook_of(held: LLM) -> Callable[[Any], bool]:
        return lambda context: held.model_info.vocab_size == 0 or slow(context)

    stream = llm.stream([1], **LONG, stopping_criteria=[hook_of(llm)])
    next(stream)
    del stream, llm
    gc.collect()
    wait_until(lambda: gone() is None)


def test_closing_tells_who_waits(tiny_path: Callable[..., Path]) -> None:
    llm = LLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
    errors: list[BaseException] = []

    def reads(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    held = {**LONG, "stopping_criteria": [slow]}
    calls = [
        lambda: list(llm.stream([1], **held)),
        lambda: llm.generate([1], **held),
        lambda: completes(llm),
        lambda: [chunk for _ in range(10**6) for chunk in [llm.sequence([1]).logits]],
    ]
    threads = [threading.Thread(target=reads, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    wait_until(lambda: llm._engine.latest_stats()["num_running"] >= 4, "four requests")
    closers = [threading.Thread(target=llm.close) for _ in range(3)]
    for thread in closers:
        thread.start()
    for thread in [*closers, *threads]:
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert len(errors) == len(calls) and all(isinstance(error, EngineClosedError) for error in errors), errors
    llm.close()


def test_close_ends_a_hook_that_does_not_return(tiny_path: Callable[..., Path]) -> None:
    llm = LLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
    RUNNING.clear()
    stream = llm.stream([1], **LONG, stopping_criteria=[spin])
    assert RUNNING.wait(HANG_S)
    llm.close()
    with pytest.raises(EngineClosedError):
        list(stream)


def test_objects_that_never_were_end_in_peace() -> None:
    for kind in (LLM, AsyncLLM, llmi.TextStream):
        kind.__new__(kind).__del__()  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        LLM(1, 2)  # type: ignore[misc]


# --- asyncio


def test_a_cancelled_read_loses_no_text(llm: LLM) -> None:
    """A token comes once a read was cancelled, at about the time of the next read's end."""
    gate = threading.Semaphore(0)
    args: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    expected = llm.generate([5, 6], **args)[0].token_ids
    args["stopping_criteria"] = [lambda context: not gate.acquire(timeout=HANG_S)]

    async def poll(reader: Any, take: Callable[[Any], list[int]]) -> tuple[list[int], int]:
        got: list[int] = []
        timeouts = 0
        while True:
            try:
                got += take(await asyncio.wait_for(anext(reader), 0.003))
            except TimeoutError:
                timeouts += 1
                gate.release()
            except StopAsyncIteration:
                return got, timeouts

    async def main() -> None:
        got, timeouts = await poll(llm.stream([5, 6], **args), lambda chunk: chunk.token_ids)
        assert got == expected and timeouts >= 40
        while gate.acquire(blocking=False):
            pass
        async with AsyncLLM(llm=llm) as server:
            params = SamplingParams(**args, output_kind="delta")
            got, timeouts = await poll(server.generate([5, 6], params), lambda output: output.token_ids)
            assert got == expected and timeouts >= 40

    asyncio.run(main())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["AsyncLLM", "stream"])
def test_an_interrupted_loop_ends_its_request(llm: LLM, kind: str, named: bool) -> None:
    """Also where somebody keeps the exception, whose traceback holds the loop, as a notebook does."""

    async def main() -> None:
        server = AsyncLLM(llm=llm)
        begun = asyncio.Event()
        streams, num_tokens = [], 0

        def count(context: Any) -> bool:
            nonlocal num_tokens
            num_tokens += 1
            return slow(context)

        async def cell() -> None:
            held = {**LONG, "stopping_criteria": [count]}
            stream = server.generate([1], SamplingParams(**held)) if kind == "AsyncLLM" else llm.stream([1], **held)
            if named:
                streams.append(stream)
            async for _ in stream:
                begun.set()

        task = asyncio.ensure_future(cell())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task
        await asyncio.to_thread(wait_until, lambda: is_idle(llm))
        assert num_tokens < LONG["max_tokens"] // 2, "it ended early"
        assert kept.value.__traceback__ is not None
        for stream in streams:  # it can be read to its early end
            async for _ in stream:
                pass
        await server.shutdown()

    asyncio.run(main())


def test_a_cancelled_loop_says_so_when_it_is_read_again(llm: LLM) -> None:
    """Not an end of the text: StopAsyncIteration would look like one."""

    async def main() -> None:
        loop = aiter(llm.stream([1], **HELD))
        await anext(loop)
        reads = asyncio.current_task()
        assert reads is not None
        asyncio.get_running_loop().call_later(0.02, reads.cancel)
        with pytest.raises(asyncio.CancelledError):
            while True:
                await anext(loop)
        with pytest.raises(llmi.LlmiError, match=r"call anext\(\) on the stream"):
            await anext(loop)

    asyncio.run(main())
    wait_until(lambda: is_idle(llm))


def test_two_tasks_read_one_stream(llm: LLM) -> None:
    expected = llm.generate([5, 6], max_tokens=40, temperature=0, ignore_eos=True)[0].token_ids

    async def read(stream: Any, got: list[int]) -> None:
        async for chunk in stream:
            got += chunk.token_ids

    async def main() -> list[int]:
        got: list[int] = []
        stream = llm.stream([5, 6], max_tokens=40, temperature=0, ignore_eos=True)
        await asyncio.gather(read(stream, got), read(stream, got))
        return got

    assert asyncio.run(main()) == expected


def test_leaving_ends_the_requests(llm: LLM) -> None:
    async def main() -> None:
        async for _ in llm.stream([1], **HELD):
            break
        task = asyncio.create_task(anext(aiter(llm.stream([1], **{**HELD, "stopping_criteria": [lambda context: time.sleep(0.5)]}))))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server = AsyncLLM(llm=llm)
        async for _ in server.generate([1], SamplingParams(**HELD)):
            break
        reader = server.generate([2], SamplingParams(**HELD))
        await anext(reader)
        await reader.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(reader)

    asyncio.run(main())
    del main
    wait_until(lambda: is_idle(llm))


def test_an_async_llm_goes_with_its_last_reference(tiny_path: Callable[..., Path]) -> None:
    async def main() -> tuple[Any, Any, int]:
        reader = AsyncLLM(tiny_path(), kv_cache_memory_bytes=1 << 22).generate([5, 6], SHORT)
        server = reader._host
        llm, pump = weakref.ref(server.llm), server._pump.thread
        del server
        outputs = [output async for output in reader]
        del reader
        return llm, pump, len(outputs[-1].token_ids)

    llm, pump, num_tokens = asyncio.run(main())
    gc.collect()
    assert num_tokens == 4 and llm() is None
    wait_until(lambda: not pump.is_alive())


def test_closing_the_llm_tells_async_readers(tiny_path: Callable[..., Path]) -> None:
    async def main() -> None:
        server = AsyncLLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
        reader = server.generate([1], SamplingParams(**HELD))
        await anext(reader)
        await asyncio.to_thread(server.llm.close)
        with pytest.raises(EngineClosedError):
            while True:
                await anext(reader)
        await server.shutdown()

    asyncio.run(main())


def test_what_an_engine_tells_while_it_ends(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that finds the engine closed takes what the engine told its requests since the call looked last."""
    may_end = threading.Event()

    def closed(place: calls.Alone) -> None:
        may_end.set()
        raise EngineClosedError("it has just ended")

    def hold(token_ids: Any, logits: Any) -> Any:
        assert may_end.wait(HANG_S)
        return logits

    monkeypatch.setattr(calls.Alone, "check_open", closed)
    monkeypatch.setattr(calls, "_END_S", HANG_S)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22) as llm:
        (output,) = llm.generate([[5, 6]], max_tokens=1, logits_processors=[hold])
    assert len(output.outputs[0].token_ids) == 1
