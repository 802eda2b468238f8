"""Renders chat templates, in a process of its own.

The process has little memory, may open no file, and ends when its processor time is up: whatever a template does ends
there. Requests come on standard input and answers go to standard output, each as a length (8 bytes, little endian) and
JSON. It is started by process.py, without the rest of llmi.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from llmi.chat import traced as tracing
from llmi.chat.environment import Cache, Refused, SecurityError, Template, TemplateError, environment
from llmi.chat.recorded import Recorded, is_taken, recorded, unread
from llmi.chat.traced import ASSISTANT, CONTENT, FINAL, Traced

MAX_MEMORY_BYTES = 512 << 20
MAX_CPU_S = 2.0
MAX_OUTPUT_CHARS = 8 << 20
#: Roles become parts of markup: '<|' + message.role + '|>'. So do short words among the arguments.
IDENTIFIER = re.compile(r"[\w .-]{0,64}")
TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # as in transformers: its end, a space, tells whether a template trims

_cache = Cache()


def _joined(message: dict[str, Any], index: int) -> dict[str, Any]:
    """The message with the text parts of its content joined by newlines."""
    texts = []
    for number, part in enumerate(message["content"]):
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refused(f"content[{number}] of message {index} is of type {kind!r}, but the template takes a message's content as text")
        texts.append(text)
    return {**message, "content": "\n".join(texts)}


# --- rendering


def _traced(value: object, letter: str) -> Any:
    if isinstance(value, str):
        return Traced(value, letter * len(value))
    if isinstance(value, list):
        return [_traced(entry, letter) for entry in value]
    if isinstance(value, dict):
        return {_key(key, letter): _traced(entry, letter) for key, entry in value.items()}
    return value


def _key(key: str, letter: str) -> str:
    return key if IDENTIFIER.fullmatch(key) else Traced(key, letter * len(key))


def _traced_message(message: dict[str, Any], final: bool) -> dict[str, Any]:
    role = message.get("role")
    letter = ASSISTANT if role == "assistant" else CONTENT
    copy: dict[str, Any] = _traced({key: value for key, value in message.items() if key != "content"}, letter)
    if isinstance(role, str) and IDENTIFIER.fullmatch(role):
        copy["role"] = role
    if "content" in message:
        copy["content"] = _traced(message["content"], FINAL if final else letter)
    return {key: copy[key] for key in message}


def _with_tag(messages: list[Any]) -> list[Any]:
    """The messages with a tag at the end of the last one's text."""
    last = dict(messages[-1])
    if isinstance(last["content"], str):
        last["content"] += TAG
    else:
        parts = list(last["content"])
        number = max(index for index, part in enumerate(parts) if isinstance(part, dict) and isinstance(part.get("text"), str))
        parts[number] = {**parts[number], "text": parts[number]["text"] + TAG}
        last["content"] = parts
    return [*messages[:-1], last]


class _Clock:
    def __init__(self, now: str) -> None:
        self._now = datetime.datetime.fromisoformat(now)

    def __call__(self, form: str) -> str:
        return self._now.strftime(form)


def _written(compiled: Template, variables: Mapping[str, Any], messages: object) -> str:
    chunks, size = [], 0
    for chunk in compiled.generate({**variables, "messages": messages}):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT_CHARS:
            raise SecurityError(f"it writes more than {MAX_OUTPUT_CHARS:,} characters")
    return tracing.join(chunks)


def _render_parts(
    compiled: Template, variables: Mapping[str, Any], messages: list[Any], continued: bool
) -> tuple[str, list[Any], list[Recorded]]:
    """The text, the messages with those contents joined whose parts the template does not take, and what it read."""
    while True:
        given = _with_tag(messages) if continued else messages
        records = [recorded(message) for message in given]
        failure: Exception | None = None
        text = ""
        try:
            text = _written(compiled, variables, records)
        except MemoryError:
            raise
        except Exception as error:
            failure = error
        untaken = [index for index, record in enumerate(records) if not is_taken(record)]
        if not untaken:
            if failure is not None:
                raise failure
            return text, messages, records
        messages = [_joined(message, index) if index in untaken else message for index, message in enumerate(messages)]


def _spans(text: str) -> list[list[Any]]:
    """Runs of equal letters that are not the template's: [start, end, letter]."""
    return [[match.start(), match.end(), match.group()[0]] for match in re.finditer(r"c+|a+|f+|u+", tracing.origin_of(text))]


def _handle(request: dict[str, Any]) -> dict[str, Any]:
    compiled, names = _cache[request["template"]]
    continued, kwargs = request["continue_final_message"], request["kwargs"]
    clock = _Clock(request["clock"])
    variables = {**request["variables"], **kwargs, "strftime_now": clock}
    text, messages, records = _render_parts(compiled, variables, request["messages"], continued)
    here = environment()
    here.tracing, here.untracked = True, False
    spans: list[list[Any]] | None = None
    try:
        safe = {
            name: value if isinstance(value, str) and IDENTIFIER.fullmatch(value) else _traced(value, CONTENT)
            for name, value in kwargs.items()
        }
        given = _with_tag(messages) if continued else messages
        copies = [_traced_message(message, continued and index == len(given) - 1) for index, message in enumerate(given)]
        shadow = _written(compiled, {**variables, **safe}, copies)
        if str.__eq__(shadow, text) and not here.untracked:
            spans = _spans(shadow)
    except MemoryError:
        raise
    except Exception:
        pass  # without spans, the caller decides by the texts alone
    finally:
        here.tracing = False
    if continued:
        text = _cut_at_tag(text, spans, messages[-1]["content"])
        spans = None if spans is None else [[start, min(end, len(text)), letter] for start, end, letter in spans if start < len(text)]
    for match in tracing.ADDRESS.finditer(text):
        if (
            spans is not None
            and match.group() not in request["template"]
            and not any(span[0] < match.end() and match.start() < span[1] for span in spans)
        ):
            raise SecurityError(tracing.NO_ADDRESS)
    return {"text": text, "spans": spans, "unused": [name for name in request["asked"] if name not in names], "unread": unread(records)}


def _cut_at_tag(text: str, spans: list[list[Any]] | None, content: str | list[object]) -> str:
    texts = [content] if isinstance(content, str) else [part["text"] for part in content if isinstance(part, dict) and "text" in part]
    tag, final = TAG.strip(), texts[-1]
    ends = [end for _, end, letter in spans or [] if letter == FINAL]
    place = text.rfind(tag, 0, ends[-1] if ends else len(text))
    if place < 0 or final.strip() not in text[:place]:
        raise Refused("it drops the last message, or a part of it, so that message cannot be continued")
    kept = text[:place]
    return kept if text[place:].startswith(TAG) else kept.rstrip()


# --- the process


def _protect() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    for kind, limit in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _frame(answer: dict[str, Any]) -> bytes:
    data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data


def _answer(data: bytes) -> tuple[bytes, bool]:
    """The answer to a request, and whether the process is good for another."""
    try:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # SIGPROF ends the process
        return _frame(_handle(json.loads(data.decode("utf-8", "surrogatepass")))), True
    except MemoryError:
        return _frame({"error": "memory"}), False
    except Refused as error:
        return _frame({"error": "refused", "message": str(error)[:2000]}), True
    except Exception as error:
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        line = getattr(error, "lineno", None)
        return _frame({"error": "failed", "message": f"{kind}{str(error)[:2000]}{f' (line {line})' if line else ''}"}), True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        os._exit(0)  # the parent has gone
    return data


def main() -> None:
    """Answers requests until standard input ends."""
    _cache["{{ '\\n\\N{BULLET}' ~ ([1]|tojson) }}{{ [] is mapping }}"]  # what is imported at the first use is imported now
    _protect()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    good = True
    while good:
        answer, good = _answer(_read(source, int.from_bytes(_read(source, 8), "little")))
        sink.write(answer)
        sink.flush()
    os._exit(0)
