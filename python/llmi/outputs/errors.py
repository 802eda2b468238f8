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


class GenerationInterrupted(Travels, KeyboardInterrupt):
    """Ctrl-C during generation. `outputs` holds what there was; the engine stays usable."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__("generation was interrupted; .outputs holds the partial results")
        self.outputs = outputs
