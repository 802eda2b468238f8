"""From an HTTP answer to what a user saw: text, token times, usage; or the kind of failure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from llmi.loadtest.http_answer import HttpAnswer, HttpError, parse_answer


class BadAnswer(ValueError):
    """An answer that breaks the form; its text is the kind of failure."""


@dataclasses.dataclass
class Answer:
    """One answer. Times are of `time.perf_counter`; `token_times` has one entry for each event that brought text, or the end of an answer
    in one."""

    text: str = ""
    finish_reason: str | None = None
    is_streamed: bool = True
    token_times: list[float] = dataclasses.field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str | None = None
    retry_after_s: float | None = None


def sse_events(body: list[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """The `data` of each event, with the time at which its end came. Comments and other fields are skipped."""
    waiting = b""
    for when, data in body:
        waiting += data
        *blocks, waiting = waiting.replace(b"\r\n", b"\n").split(b"\n\n")
        for block in blocks:
            lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                try:
                    yield when, b"\n".join(lines).decode("utf-8")
                except UnicodeDecodeError:
                    raise BadAnswer("malformed event: no UTF-8") from None
    if waiting.strip():
        raise BadAnswer("dropped stream: it ended within an event")


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise BadAnswer(f"malformed event: no JSON: {text[:40]!r}") from None
    if not isinstance(value, dict):
        raise BadAnswer(f"malformed event: no object: {text[:40]!r}")
    return value


def _text_of(choice: dict[str, Any]) -> str:
    """What a choice, or a part of one, says: text, reasoning and tool calls."""
    said = choice.get("delta") or choice.get("message") or choice
    calls = "".join(
        str(call.get("function", {}).get("name") or "") + str(call.get("function", {}).get("arguments") or "")
        for call in said.get("tool_calls") or []
    )
    return str(said.get("reasoning_content") or said.get("reasoning") or "") + str(said.get("content") or said.get("text") or "") + calls


def _take(answer: Answer, value: dict[str, Any]) -> bool:
    """Adds an object of OpenAI's form. Returns whether it brought text."""
    if value.get("error"):
        error = value["error"]
        raise BadAnswer(f"error event: {(error.get('message') if isinstance(error, dict) else error)!s:.80}")
    before = len(answer.text)
    choices = value.get("choices")
    if not isinstance(choices, list):
        raise BadAnswer("malformed event: no choices")
    for choice in choices:
        answer.text += _text_of(choice)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if isinstance(usage := value.get("usage"), dict):
        answer.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        answer.output_tokens = int(usage.get("completion_tokens") or 0)
    return len(answer.text) > before


def _read(http: HttpAnswer, answer: Answer) -> None:
    if not http.headers.get("content-type", "").startswith("text/event-stream"):
        if not http.whole:
            raise BadAnswer("dropped answer: shorter than its Content-Length")
        _take(answer, _object(http.data))
        answer.is_streamed = False
        answer.token_times = [http.body[-1][0]]
        return
    done = False
    for when, data in sse_events(http.body):
        if data == "[DONE]":
            done = True
        elif _take(answer, _object(data)):
            answer.token_times.append(when)
    if not done:
        raise BadAnswer("dropped stream: no [DONE]")
    answer.output_tokens = answer.output_tokens or len(answer.token_times)


def read_answer(pieces: list[tuple[float, bytes]], failure: str | None = None) -> Answer:
    """The answer of one connection; never raises: what is wrong with it is `failure`, whose words before the colon are the kind."""
    answer = Answer(end_s=pieces[-1][0] if pieces else 0.0, failure=failure)
    if failure is not None:
        return answer
    try:
        http = parse_answer(pieces)
        if http.status != 200:
            after = http.headers.get("retry-after", "")
            answer.retry_after_s = float(after) if after.replace(".", "", 1).isdigit() else None
            raise BadAnswer(f"status {http.status}: {http.data[:120].decode('utf-8', 'replace')}")
        _read(http, answer)
    except HttpError as error:
        answer.failure = f"no HTTP: {error}"
    except BadAnswer as error:
        answer.failure = str(error)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        answer.failure = f"malformed event: {error}"
    return answer
