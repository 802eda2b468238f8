"""Errors that carry outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmi.errors import LlmiError, Travels
from llmi.outputs.results import Outputs


class RequestErrors(LlmiError, ExceptionGroup[LlmiError]):
    """Some requests failed; all others finished. `errors` maps the prompt's index to its error. An ExceptionGroup of them, too."""

    errors: dict[int, LlmiError]
    outputs: Outputs

    def __new__(cls, errors: dict[int, LlmiError], outputs: Outputs) -> RequestErrors:
        first = min(errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        message = f"request {first} of {len(outputs)} failed: {errors[first]}{more}; the others are in .outputs"
        return super().__new__(cls, message, list(errors.values()))

    def __init__(self, errors: dict[int, LlmiError], outputs: Outputs) -> None:
        super().__init__(self.message, list(errors.values()))
        self.errors = errors
        self.outputs = outputs

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors, self.outputs), self.__dict__

    def derive(self, excs: Sequence[Any]) -> ExceptionGroup[Any]:
        """The group that `except*` and split() pass on: a plain one."""
        return ExceptionGroup(self.message, excs)


class StrategyErrors(LlmiError, ExceptionGroup[Exception]):
    """The strategy of some prompts of LLM.run failed; all others finished. An ExceptionGroup of the errors, too.

    Attributes
    ----------
    errors : dict
        {index of the prompt: what its generator raised}
    results : list
        What each generator returned; None for those that failed.
    """

    errors: dict[int, Exception]
    results: list[Any]

    def __new__(cls, errors: dict[int, Exception], results: list[Any]) -> StrategyErrors:
        first = min(errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        what = f"{type(errors[first]).__name__}: {errors[first]}"
        message = f"the strategy of prompt {first} of {len(results)} failed: {what}{more}; the others' results are in .results"
        return super().__new__(cls, message, list(errors.values()))

    def __init__(self, errors: dict[int, Exception], results: list[Any]) -> None:
        super().__init__(self.message, list(errors.values()))
        self.errors = errors
        self.results = results

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors, self.results), self.__dict__

    def derive(self, excs: Sequence[Any]) -> ExceptionGroup[Any]:
        """The group that `except*` and split() pass on: a plain one."""
        return ExceptionGroup(self.message, excs)


class GenerationInterrupted(Travels, KeyboardInterrupt):
    """Ctrl-C during generation. `outputs` holds what there was; the engine stays usable."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__("generation was interrupted; .outputs holds the partial results")
        self.outputs = outputs


class StrategyInterrupted(GenerationInterrupted):
    """Ctrl-C during LLM.run.

    Attributes
    ----------
    results : list
        What the generators that had finished returned; None for the others.
    finished : set
        The indices of their prompts.
    outputs : Outputs
        What there was of a `Generate` under way.
    """

    def __init__(self, results: list[Any], finished: set[int], outputs: Outputs) -> None:
        super().__init__(outputs)
        self.args = (f"the run was interrupted; .results holds what {len(finished)} of {len(results)} prompts returned",)
        self.results = results
        self.finished = finished
