"""Lines of OpenAI's batch file: what is asked, what has been answered already, and how an answer is written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from llmi.base.whole_file import whole_file
from llmi.errors import InvalidParamsError
from llmi.server.answer import encode
from llmi.server.body import decode
from llmi.server.errors import ApiError

#: What a line may call. Answers are whole, so a body with "stream": true is refused.
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_FIELDS = ("custom_id", "method", "url", "body")
_LONGEST_ID = 512
#: Answers that another try may change; a resumed run computes them again.
_PASSING = (408, 429, 500, 503, 504)


class _Raw(msgspec.Struct):
    body: msgspec.Raw  # as it is written: numbers may lose digits when they are read and written again


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of the input. Either `error` says why it cannot be run, or `path` and `body` are the request.

    number : from 1.
    digest : of the request and of what answers it: an answer in the output is this line's if it has the same.
    """

    number: int
    custom_id: str | None
    digest: str
    path: str = ""
    body: bytes = b""
    error: ApiError | None = None


class BatchReader:
    """Reads lines in order. fingerprint_of gives, for the body's `model`, what its answers depend on; raises ApiError for a name that is
    not served."""

    def __init__(self, path: Path, fingerprint_of: Callable[[object], str]) -> None:
        self._path = path
        self._fingerprint_of = fingerprint_of
        self._seen: dict[str, int] = {}

    def __iter__(self) -> Iterator[BatchLine]:
        with self._path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if data.strip():
                    yield self._line(number, data.strip())

    def count(self) -> int:
        """Requests in the file."""
        with self._path.open("rb") as file:
            return sum(1 for data in file if data.strip())

    def _line(self, number: int, data: bytes) -> BatchLine:
        fields: dict[str, Any] = {}
        digest = hashlib.sha256(data)
        try:
            fields = decode(data)
            self._check(number, fields)
            body = fields["body"]
            digest.update(self._fingerprint_of(body.get("model")).encode())
            return BatchLine(
                number, fields["custom_id"], digest.hexdigest(), fields["url"], bytes(msgspec.json.decode(data, type=_Raw).body)
            )
        except ApiError as error:
            name = fields.get("custom_id")
            return BatchLine(number, name if isinstance(name, str) else None, digest.hexdigest(), error=error)

    def _check(self, number: int, fields: dict[str, Any]) -> None:
        for name in fields:
            if name not in _FIELDS:
                raise _bad(f"a line has {', '.join(_FIELDS)}, and no {name[:80]!r}", name[:80])
        for name in _FIELDS:
            if name not in fields:
                raise _bad(f"{name} is missing: a line has {', '.join(_FIELDS)}", name)
        custom_id = fields["custom_id"]
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _LONGEST_ID:
            raise _bad(f"custom_id must be a text of 1 to {_LONGEST_ID} characters", "custom_id")
        before = self._seen.setdefault(custom_id, number)
        if before != number:
            raise _bad(f"custom_id {custom_id[:80]!r} is that of line {before}: each line needs one of its own", "custom_id")
        if fields["method"] != "POST":
            raise _bad(f"method must be 'POST', not {str(fields['method'])[:80]!r}", "method")
        if fields["url"] not in PATHS:
            raise _bad(f"url must be one of {', '.join(PATHS)}, not {str(fields['url'])[:80]!r}", "url")
        if not isinstance(fields["body"], dict):
            raise _bad("body must be an object", "body")
        if fields["body"].get("stream"):
            raise _bad("body.stream: an answer of a batch is one line, so it cannot be streamed", "stream")


def _bad(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_line")


def answer_line(line: BatchLine, status: int, body: bytes, request_id: str) -> bytes:
    """The output's line for an answer of the server, an error among them."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _output(line, response, None)


def error_line(line: BatchLine, error: ApiError) -> bytes:
    """The output's line for a line that is no request."""
    return _output(line, None, {"code": error.code, "message": error.body()["error"]["message"], "param": error.param, "line": line.number})


def _output(line: BatchLine, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    own = {"line_digest": line.digest}
    value = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": line.custom_id, "response": response, "error": error, "llmi": own}
    return encode(value) + b"\n"


class Answered:
    """The output of an earlier run: what need not be computed again.

    A last line that was cut off, and answers that another try may change (a full queue, a deadline, an engine that ended), are taken out of
    the file.
    """

    def __init__(self, path: Path) -> None:
        self._by_id: dict[str, str] = {}
        self._errors: set[str] = set()  # digests of lines without a custom_id of their own
        self.path = path
        kept: list[bytes] = []
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, data in enumerate(lines, 1):
            is_whole = data.endswith(b"\n")
            if self._take(data, number, is_whole):
                kept.append(data)
        self.num_dropped = len(lines) - len(kept)
        if self.num_dropped:
            with whole_file(path) as file:
                file.write(b"".join(kept))

    def __len__(self) -> int:
        return len(self._by_id) + len(self._errors)

    def has(self, line: BatchLine) -> bool:
        """Whether the line has its answer. Raises InvalidParamsError if the answer of this custom_id is to another request."""
        if line.error is not None:
            return line.digest in self._errors
        known = self._by_id.get(line.custom_id or "")
        if known is None:
            return False
        if known != line.digest:
            raise InvalidParamsError(
                f"{self.path} has an answer for custom_id {line.custom_id!r} that is not to line {line.number}, or not of this model: give"
                " another output file",
                "output",
            )
        return True

    def _take(self, data: bytes, number: int, is_whole: bool) -> bool:
        """Whether the line stays."""
        try:
            value = json.loads(data)
            digest, name, response = value["llmi"]["line_digest"], value["custom_id"], value["response"]
            status = None if response is None else response["status_code"]
        except (ValueError, KeyError, TypeError):
            if not is_whole:
                return False
            raise InvalidParamsError(
                f"{self.path}: line {number} is no answer of `llmi batch`: give another output file, or one that does not exist", "output"
            ) from None
        if not is_whole or status in _PASSING:
            return False
        if status is None:
            self._errors.add(digest)
        else:
            self._by_id[name] = digest
        return True
