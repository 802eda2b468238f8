"""One exception type per cause. Every one is an LlmiError and the built-in type that fits."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

from llmi._core import CoreError

P = ParamSpec("P")
R = TypeVar("R")
#: What must change so that an error does not come again: the request (its parameters, its length, its code), the model, or the machine.
Fault: TypeAlias = Literal["request", "model", "machine"]


def _restore(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An error from its class and args; its other fields follow."""
    base: type[BaseException] = kind
    while base.__module__ != "builtins":  # the built-in exception that it is laid out as
        parent = base.__base__
        assert parent is not None and issubclass(parent, BaseException)
        base = parent
    error = base.__new__(kind, *args)
    error.args = args
    return error


class Travels(BaseException):
    """Exceptions that go through copies and to other processes with their message and fields; only `__cause__` stays behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__


class LlmiError(Travels, Exception):
    """Root of all errors that llmi raises on purpose.

    Attributes
    ----------
    fault : {"request", "model", "machine"}
        What must change so that it does not come again: the request's parameters, length or code; the model's file or the numbers that it
        computes; memory, a device, or the engine's own state.
    parameter : str or None
        The parameter that it is about.
    """

    fault: Fault = "machine"
    parameter: str | None = None


class InvalidParamsError(LlmiError, ValueError):
    """A parameter is out of range or contradicts another; `parameter` names it."""

    fault: Fault = "request"

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class CannotTravelError(InvalidParamsError, TypeError):
    """An object that holds an engine was to be copied or sent to another process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} cannot be copied or pickled: it holds an engine and its threads. Make one in each process; "
            "outputs, parameters and receipts can travel",
            name,
        )


class UnsupportedCombinationError(InvalidParamsError):
    """Two features, or a feature and this path, do not work together."""

    def __init__(self, message: str, feature_a: str, feature_b: str) -> None:
        super().__init__(message, feature_a)
        self.feature_a = feature_a
        self.feature_b = feature_b


class PromptTooLongError(InvalidParamsError):
    """The prompt does not fit into the context. For a very long text only the least number of tokens is known."""

    def __init__(self, num_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if at_least else ''}{num_tokens:,} tokens, {num_tokens - max_model_len:,} more than max_model_len"
            f" = {max_model_len:,}",
            "prompt",
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


class ModelFileError(LlmiError, ValueError):
    """A model file is missing, truncated, corrupt or inconsistent."""

    fault: Fault = "model"

    def __init__(self, message: str, path: str | Path | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.field = field


class UnsupportedModelError(ModelFileError):
    """The file is sound, but of a kind that llmi does not run."""


class TokenizerError(ModelFileError):
    """The vocabulary is missing, broken, or of an unknown kind; or a text or token id is none of it, which is the request's fault."""

    def __init__(self, message: str, path: str | Path | None = None, field: str | None = None, fault: Fault = "model") -> None:
        super().__init__(message, path, field)
        self.fault = fault


class ChatTemplateError(ModelFileError):
    """The chat template is missing, broken, or exceeds its limits; or it refuses the messages."""

    fault: Fault = "request"


class OutOfMemoryError(LlmiError, MemoryError):
    """Memory does not suffice; the message carries the arithmetic. It is the request's fault where the cache has too few pages for it
    alone."""

    def __init__(self, message: str, needed_bytes: int = 0, available_bytes: int = 0, advice: str = "", fault: Fault = "machine") -> None:
        super().__init__(message + (f": {advice}" if advice else ""))
        self.fault = fault
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.advice = advice


class HookError(LlmiError, RuntimeError):
    """User code raised; `__cause__` is its exception."""

    fault: Fault = "request"

    def __init__(self, message: str, hook: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.hook = hook
        self.request_id = request_id


class DraftError(HookError):
    """A drafter raised, or proposed what it may not."""


class ConstraintError(HookError):
    """A constraint allows no token, or answered with what is no mask."""


class NonFiniteLogitsError(LlmiError, RuntimeError):
    """Logits are NaN or infinite, or no token is left to draw: by the model's own numbers, or by what the request's parameters made of
    them."""

    def __init__(self, message: str, fault: Fault = "model", parameter: str | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.parameter = parameter


class EngineError(LlmiError, RuntimeError):
    """The engine cannot go on."""


class EngineClosedError(EngineError):
    """The LLM was closed, or belongs to the parent of a fork."""


class WorkerDiedError(EngineError):
    """A process that computed for this one died, and what it did cannot go on elsewhere. `worker` names it; `pid` was its number."""

    def __init__(self, message: str, worker: str = "", pid: int = 0) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid


class EngineBusyError(EngineError):
    """The engine was called from inside one of its own hooks."""

    fault: Fault = "request"


class QueueFullError(EngineError):
    """As many requests wait as may; `retry_after_s` is when there may be room, by the rate at which requests have ended lately."""

    def __init__(self, message: str, num_waiting: int = 0, max_queue: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.num_waiting = num_waiting
        self.max_queue = max_queue
        self.retry_after_s = retry_after_s


class GrammarTimeoutError(LlmiError, TimeoutError):
    """A grammar was still compiling when its request had waited long enough; `retry_after_s`: when to send it again."""

    parameter = "structured_outputs"

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimeoutError(LlmiError, TimeoutError):
    """A request did not end within its `deadline_s`, which counts from its arrival. `num_tokens`: of its output that had been delivered."""

    fault: Fault = "request"

    def __init__(self, message: str, deadline_s: float = 0.0, elapsed_s: float = 0.0, num_tokens: int = 0) -> None:
        super().__init__(message)
        self.deadline_s = deadline_s
        self.elapsed_s = elapsed_s
        self.num_tokens = num_tokens


class SlowReaderError(LlmiError, BufferError):
    """More of a request's output waited for its reader than may wait, and it was ended."""

    fault: Fault = "request"


class DeviceError(EngineError):
    """The machine lacks a device or feature that the options need."""


class MissingExtraError(LlmiError, ImportError):
    """An optional dependency is absent; `extra` names what to install."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"this needs {package}: pip install 'llmi[{extra}]'")
        self.extra = extra


def import_extra(module: str, extra: str) -> Any:
    """An optional module; raises MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(extra, module.partition(".")[0]) from None


def call_core(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls into the core; its errors come as ours."""
    try:
        return function(*args, **kwargs)
    except CoreError as error:
        raise from_core(error) from None


def from_core(error: CoreError, path: str | Path | None = None) -> LlmiError:
    """The exception of the package for an error of the core. path: the file that was read, if one was."""
    message, field = error.message, error.field
    match error.kind:
        case "invalid_argument":
            return InvalidParamsError(message, field or None)
        case "model_file":
            return ModelFileError(message, path, field or None)
        case "unsupported_model":
            return UnsupportedModelError(message, path, field or None)
        case "out_of_memory":
            return OutOfMemoryError(message, error.needed_bytes, error.available_bytes, fault=error.fault)
        case "non_finite_logits":
            return NonFiniteLogitsError(message, error.fault)
        case "hook":
            return HookError(message)
        case "constraint":
            return ConstraintError(message)
        case "draft":
            return DraftError(message, field)
        case "busy":
            return EngineBusyError(message)
        case "worker_died":
            rank, _, pid = field.partition(" ")
            return WorkerDiedError(message, f"rank {rank}" if rank else "", int(pid or 0))
        case "device":
            return DeviceError(message)
        case "closed":
            if _program_ends and threading.current_thread() is not threading.main_thread():
                raise SystemExit  # a daemon thread that was waiting: it ends without a word, as the program does
            return EngineClosedError(message)
    return EngineError(message)


_program_ends = False


def end_of_program() -> None:
    """From now on engines close because the interpreter goes down, which is no error."""
    global _program_ends
    _program_ends = True
