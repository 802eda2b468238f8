"""Errors as a client sees them: always OpenAI's form, with a status that says whose turn it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from llmi.errors import (
    ChatTemplateError,
    ConstraintError,
    EngineError,
    GrammarTimeoutError,
    InvalidParamsError,
    LlmiError,
    MissingExtraError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
    RequestTimeoutError,
    SlowReaderError,
    TokenizerError,
    UnsupportedCombinationError,
)

log = logging.getLogger("llmi.server")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}
#: (errors, status, code), the first that fits, whosever fault it is.
_STATUSES: tuple[tuple[type[BaseException], int, str], ...] = (
    (QueueFullError, 429, "queue_full"),
    (GrammarTimeoutError, 503, "grammar_compiling"),
    (SlowReaderError, 408, "slow_reader"),
    (TimeoutError, 504, "timeout"),
    (EngineError, 503, "engine_unavailable"),
    (MissingExtraError, 400, "missing_extra"),
)
#: (errors that are 400 where they are the request's fault, code, the body's field where the error names none), the first that fits. A hook
#: is none of them: over HTTP it is the server's own.
_REFUSALS: tuple[tuple[type[LlmiError], str, str | None], ...] = (
    (PromptTooLongError, "context_length_exceeded", None),
    (UnsupportedCombinationError, "unsupported_combination", None),
    (InvalidParamsError, "invalid_value", None),
    (ConstraintError, "constraint", None),
    (NonFiniteLogitsError, "non_finite_logits", None),
    (ChatTemplateError, "chat_template_error", "messages"),
    (TokenizerError, "invalid_value", "prompt"),
    (OutOfMemoryError, "kv_cache_exceeded", None),
)
_LONGEST = 2000  # characters of a message


class ApiError(LlmiError):
    """An answer that is an error.

    Attributes
    ----------
    status : int
        Of HTTP.
    message : str
        One that a person can act on.
    type : str
        OpenAI's name of the kind of error; None: the one of the status.
    param : str or None
        The field of the body that is wrong.
    code : str or None
        A word for programs.
    headers : dict
        Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "api_error")
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The answer's body."""
        return error_body(self.status, self.message, self.type, self.param, self.code)


def shutting_down() -> ApiError:
    """The answer for a request that comes, or still runs, while the server ends."""
    return ApiError(503, "the server is shutting down", code="shutting_down", headers={"connection": "close", "retry-after": "5"})


def error_body(status: int, message: str, type: str | None = None, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's form of an error. The message is ASCII, whatever is quoted in it, and at most 2,000 characters long."""
    text = message if len(message) <= _LONGEST else message[:_LONGEST] + "..."
    text = text.encode("ascii", "backslashreplace").decode()
    return {"error": {"message": text, "type": type or _TYPES.get(status, "api_error"), "param": param, "code": code}}


def public_text(error: LlmiError) -> str:
    """The message of an error without the place of its file on the server's disk, which is nobody's matter."""
    text, path = str(error), getattr(error, "path", None)
    return text if path is None else text.replace(f"{path}: ", "").replace(str(path), Path(path).name)


def api_error(error: BaseException) -> ApiError:
    """The answer for an exception: 4xx for what the client can change, 503 where the engine cannot go on, 500 for all else."""
    if isinstance(error, ApiError):
        return error
    status, code, param = _kind_of(error)
    if status == 500:
        log.error("a request failed", exc_info=error)
    text = public_text(error) if isinstance(error, LlmiError) else f"an error inside the server: {type(error).__name__}"
    if isinstance(error, RequestTimeoutError):  # in the words of a body
        text = (
            f"the answer did not end within timeout_s = {error.deadline_s:g}: {error.elapsed_s:.3f} s have passed since the request"
            f" arrived, and {error.num_tokens:,} tokens had come; give a longer timeout_s (at most the server's --deadline-s), or fewer"
            " max_tokens"
        )
    headers = {}
    retry = getattr(error, "retry_after_s", None)
    if retry is not None:
        headers["retry-after"] = str(max(1, round(retry)))
    return ApiError(status, " ".join(text.split()), None, param, code, headers)


def _kind_of(error: BaseException) -> tuple[int, str | None, str | None]:
    """(status, code, the field)."""
    param = error.parameter if isinstance(error, LlmiError) else None
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, code, param
    for refusal, code, field in _REFUSALS:
        if isinstance(error, refusal) and error.fault == "request":
            return 400, code, param or field
    return 500, None, None
