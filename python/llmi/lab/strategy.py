"""Strategies: generators written for one prompt, run for all prompts in one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from llmi.base.kinds import callable_object, show
from llmi.base.progress import progress
from llmi.base.travel import Alike
from llmi.errors import InvalidParamsError
from llmi.lab.capture import Capture
from llmi.lab.sequence import OWNER, TokenSequence, extend
from llmi.outputs.results import Outputs
from llmi.params.beams import BeamSearchParams
from llmi.params.sampling import SamplingParams
from llmi.requests.resolve import derive_seed, resolve_params
from llmi.text.prompts import Prompt, PromptList, as_list

if TYPE_CHECKING:
    from llmi.lab.sequence import F32
    from llmi.lab.tree import TokenTree
    from llmi.session import Session

    Yielded: TypeAlias = "Generate | Mapping[TokenSequence, Iterable[int] | TokenTree]"

R = TypeVar("R")


class Generate(Alike):
    """Yielded by a strategy: continue these prompts in the shared batch. The yield returns their Outputs.

    Parameters are those of `LLM.generate`.
    """

    def __init__(
        self, prompts: Iterable[Prompt], sampling_params: SamplingParams | BeamSearchParams | None = None, **params: object
    ) -> None:
        self.prompts = as_list(prompts)
        self.sampling_params = sampling_params
        self.params = params


def run(
    llm: Session,
    strategy: Callable[..., Generator[Yielded, Any, R]],
    prompts: list[Prompt],
    seed: int | None,
    capture: Capture | None,
    use_tqdm: bool | None,
    kwargs: Mapping[str, object],
) -> list[R]:
    """llm.run()."""
    if not callable_object(strategy):
        raise InvalidParamsError(f"strategy must be a generator function, not {show(strategy)}", "strategy")
    if capture is not None and not isinstance(capture, Capture):
        raise InvalidParamsError(f"capture must be None or a Capture, not {show(capture)}", "capture")
    tasks = [_Task(llm, strategy, prompt, derive_seed(seed, index), capture, kwargs) for index, prompt in enumerate(prompts)]
    try:
        ready = [task.sequence for task in tasks if len(task.sequence)]
        extend({sequence: [] for sequence in ready})
        shown = use_tqdm if use_tqdm is not None or len(tasks) > 1 else False
        with progress(len(tasks), "run", "prompt", shown) as bar:
            active = tasks
            for task in active:
                task.send(None)
            while active := [task for task in active if not task.done]:
                _answer(llm, active)
                for task in active:
                    task.send(task.answer)
                bar.update(sum(task.done for task in active))
        return [task.result for task in tasks]
    finally:
        for task in tasks:
            task.close()


class _Task(Generic[R]):
    """One prompt's generator, and the sequences it made."""

    result: R  # once it is done

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
        self.done = False
        self.step: Yielded | None = None
        self.answer: dict[TokenSequence, F32] | Outputs | None = None
        token = OWNER.set(self.sequences)
        try:
            self.sequence = llm.sequence(prompt, seed=seed, capture=capture)
            self.generator = strategy(self.sequence, **kwargs)
        finally:
            OWNER.reset(token)
        if not isinstance(self.generator, Generator):
            raise InvalidParamsError("a strategy is a generator function: it yields what to extend", "strategy")

    def send(self, value: object) -> None:
        """Runs the generator to its next yield or its end."""
        token = OWNER.set(self.sequences)
        try:
            self.step = self.generator.send(value)
            if not isinstance(self.step, Generate | Mapping):
                raise InvalidParamsError(f"a strategy yields {{sequence: tokens}} or Generate(...), not {show(self.step)}", "strategy")
        except StopIteration as stop:
            self.done, self.result = True, stop.value
            self.close()
        finally:
            OWNER.reset(token)

    def generate_params(self, llm: Session, step: Generate) -> list[SamplingParams | BeamSearchParams]:
        """Parameters of each prompt of a yielded Generate; their noise depends on this prompt's seed alone."""
        resolved = resolve_params(step.sampling_params, step.params, llm._defaults)
        params: SamplingParams | BeamSearchParams = resolved.params if resolved.beams is None else resolved.beams
        result = []
        for _ in step.prompts:
            self.num_generated += 1
            seed = derive_seed(self.seed, self.num_generated) if params.seed is None else params.seed
            result.append(dataclasses.replace(params, seed=seed))
        return result

    def close(self) -> None:
        """Ends the generator and gives its sequences' cache back."""
        self.generator.close()
        for sequence in self.sequences:
            sequence.close()


def _answer(llm: Session, active: list[_Task[R]]) -> None:
    """One forward for each LLM for all that was yielded, and one batch for all that is to be generated."""
    extensions: dict[TokenSequence, Iterable[int] | TokenTree] = {}
    for task in active:
        if isinstance(task.step, Mapping):
            for sequence in task.step:
                if sequence in extensions:
                    raise InvalidParamsError("two prompts of a strategy extend the same sequence", "strategy")
            extensions.update(task.step)
    rows = extend(extensions)
    generating = [(task, task.step) for task in active if isinstance(task.step, Generate)]
    for task in active:
        if isinstance(task.step, Mapping):
            task.answer = {sequence: rows[sequence] for sequence in task.step}
    if not generating:
        return
    prompts = PromptList(prompt for _, step in generating for prompt in step.prompts)
    params = [entry for task, step in generating for entry in task.generate_params(llm, step)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    begin = 0
    for task, step in generating:
        task.answer = Outputs(outputs[begin : begin + len(step.prompts)])
        begin += len(step.prompts)
