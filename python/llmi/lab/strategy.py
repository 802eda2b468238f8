"""Strategies: generators written for one prompt, run for all prompts in one batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from llmi.base.kinds import callable_object, show
from llmi.base.progress import progress
from llmi.errors import EngineBusyError, EngineClosedError, InvalidParamsError, LlmiError
from llmi.lab.capture import Capture
from llmi.lab.generate import Batched, Generate, generate_all
from llmi.lab.sequence import OWNER, TokenSequence, extend
from llmi.outputs.errors import GenerationInterrupted, StrategyErrors, StrategyInterrupted
from llmi.outputs.results import Outputs
from llmi.requests.resolve import derive_seed
from llmi.text.prompts import Prompt

if TYPE_CHECKING:
    from llmi.lab.sequence import F32
    from llmi.lab.tree import TokenTree
    from llmi.session import Session

    Extension: TypeAlias = "Mapping[TokenSequence, Iterable[int] | TokenTree]"
    Yielded: TypeAlias = "Generate | Extension"

R = TypeVar("R")


def begin(
    llm: Session,
    strategy: Callable[..., Generator[Yielded, Any, R]],
    prompts: list[Prompt],
    seed: int | None,
    capture: Capture | None,
    kwargs: Mapping[str, object],
) -> list[Task[R]]:
    """A task for each prompt, which has not begun to run."""
    if not callable_object(strategy):
        raise InvalidParamsError(f"strategy must be a generator function, not {show(strategy)}", "strategy")
    if capture is not None and not isinstance(capture, Capture):
        raise InvalidParamsError(f"capture must be None or a Capture, not {show(capture)}", "capture")
    return [Task(llm, strategy, prompt, derive_seed(seed, index), capture, kwargs) for index, prompt in enumerate(prompts)]


def run(llm: Session, tasks: list[Task[R]], on_error: str, use_tqdm: bool | None) -> list[R | Exception]:
    """The results of LLM.run."""
    try:
        _run_to_end(llm, tasks, use_tqdm if use_tqdm is not None or len(tasks) > 1 else False)
    except KeyboardInterrupt as error:
        results, finished = [task.result for task in tasks], {index for index, task in enumerate(tasks) if task.has_result}
        outputs = error.outputs if isinstance(error, GenerationInterrupted) else Outputs()
        raise StrategyInterrupted(results, finished, outputs) from None
    finally:
        for task in tasks:
            task.close()
    errors = {index: task.error for index, task in enumerate(tasks) if task.error is not None}
    if errors and on_error == "raise":
        raise errors[0] if len(tasks) == 1 else StrategyErrors(errors, [task.result for task in tasks])
    return [cast("R", task.result) if task.error is None else task.error for task in tasks]


def _run_to_end(llm: Session, tasks: list[Task[R]], use_tqdm: bool | None) -> None:
    with contextlib.suppress(LlmiError):  # of one prompt, or of all at once: its own generator meets it
        extend({task.sequence: [] for task in tasks if task.sequence is not None and len(task.sequence)})
    with progress(len(tasks), "run", "prompt", use_tqdm) as bar:
        for task in tasks:
            task.begin()
        shown = 0
        while active := [task for task in tasks if not task.done]:
            _answer(llm, active)
            for task in active:
                task.go_on()
            done = sum(task.done for task in tasks)
            bar.update(done - shown)
            shown = done


class Task(Generic[R]):
    """One prompt's generator, and the sequences it made.

    done : its generator has ended, with a result or an error.
    step : what it has yielded. answer, problem : what it gets back for that; a problem is thrown into it.
    """

    def __init__(
        self,
        llm: Session,
        strategy: Callable[..., Generator[Yielded, Any, R]],
        prompt: Prompt,
        seed: int,
        capture: Capture | None,
        kwargs: Mapping[str, object],
    ) -> None:
        self.seed = seed
        self.num_generated = 0
        self.sequences: list[TokenSequence] = []
        self.done = self.has_result = False
        self.result: R | None = None  # an R, once has_result
        self.error: Exception | None = None
        self.step: Yielded | None = None
        self.answer: dict[TokenSequence, F32] | Outputs | None = None
        self.problem: Exception | None = None
        self.sequence: TokenSequence | None = None
        self.generator: Generator[Yielded, Any, R] | None = None
        token = OWNER.set(self.sequences)
        try:
            self.sequence = llm.sequence(prompt, seed=seed, capture=capture)
        except LlmiError as error:  # of this prompt alone
            self.done, self.error = True, error
            return
        finally:
            OWNER.reset(token)
        token = OWNER.set(self.sequences)
        try:
            self.generator = strategy(self.sequence, **kwargs)
        finally:
            OWNER.reset(token)
        if not isinstance(self.generator, Generator):
            raise InvalidParamsError("a strategy is a generator function: it yields what to extend", "strategy")

    def begin(self) -> None:
        """Runs the generator to its first yield or its end."""
        if self.generator is not None:
            generator = self.generator
            self._run(lambda: next(generator))

    def go_on(self) -> None:
        """Hands the answer of the last yield over, or throws its problem, and runs the generator to its next yield or its end."""
        assert self.generator is not None
        generator, answer, problem = self.generator, self.answer, self.problem
        self.answer = self.problem = None
        self._run(lambda: generator.send(answer) if problem is None else generator.throw(problem))

    def _run(self, resume: Callable[[], Yielded]) -> None:
        token = OWNER.set(self.sequences)
        try:
            self.step = resume()
            if not isinstance(self.step, Generate | Mapping):
                raise InvalidParamsError(f"a strategy yields {{sequence: tokens}} or Generate(...), not {show(self.step)}", "strategy")
        except StopIteration as stop:
            self.done, self.has_result, self.result = True, True, stop.value
        except Exception as error:
            self.done, self.error = True, error
        finally:
            OWNER.reset(token)
        if self.done:
            self.close()

    def close(self) -> None:
        """Ends the generator and gives its sequences' cache back."""
        if self.generator is not None:
            self.generator.close()
        for sequence in self.sequences:
            sequence.close()


def _answer(llm: Session, active: list[Task[R]]) -> None:
    """One forward for each LLM for all that was yielded, and one batch for all that is to be generated."""
    extending: dict[Task[R], Extension] = {}
    taken: set[object] = set()
    for task in active:
        if isinstance(task.step, Mapping):
            if taken.isdisjoint(task.step):
                extending[task] = task.step
                taken.update(task.step)
            else:
                task.problem = InvalidParamsError("two prompts of a strategy extend the same sequence", "strategy")
    _extend_all(extending)
    generating = [(task, task.step) for task in active if isinstance(task.step, Generate)]
    wanted = []
    for task, step in generating:
        wanted.append(Batched(step, task.seed, task.num_generated))
        task.num_generated += len(step.prompts)
    if wanted:
        generate_all(llm, wanted)
    for (task, _), batched in zip(generating, wanted, strict=True):
        if isinstance(batched.result, Exception):
            task.problem = batched.result
        else:
            task.answer = batched.result


def _extend_all(extending: Mapping[Task[R], Extension]) -> None:
    """Extends all together; where that fails each prompt's alone, so that an error reaches the generator that it belongs to."""
    try:
        rows = extend({sequence: tokens for step in extending.values() for sequence, tokens in step.items()})
    except (EngineClosedError, EngineBusyError):
        raise
    except LlmiError:
        for task, step in extending.items():
            try:
                task.answer = extend(step)
            except LlmiError as error:
                task.problem = error
        return
    for task, step in extending.items():
        task.answer = {sequence: rows[sequence] for sequence in step}
