"""What the answers of all endpoints hold alike: ids, usage, and the object `llmi`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server.generation import Job

_encode = msgspec.json.Encoder().encode
#: Characters that JSON takes as they are, and that end a line for clients which cut streams as Python's str.splitlines does, in UTF-8; how
#: they are escaped.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
DONE = b"data: [DONE]\n\n"


def encode(value: object) -> bytes:
    """JSON on one line, whatever a reader takes for the end of a line."""
    data = _encode(value)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)  # they stand in texts alone
    return data


def new_id(prefix: str) -> str:
    """An id of an answer: "chatcmpl-" and 24 hexadecimal digits."""
    return f"{prefix}{secrets.token_hex(12)}"


def event(value: object) -> bytes:
    """A server-sent event with a JSON value."""
    return b"data: " + encode(value) + b"\n\n"


def usage(num_prompt_tokens: int, num_cached_tokens: int, num_completion_tokens: int) -> dict[str, Any]:
    """OpenAI's `usage`; cached_tokens is there on a miss, too."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }


class Counts:
    """Tokens of a job's answers, as they come."""

    def __init__(self, job: Job) -> None:
        self.num_prompt_tokens = job.num_prompt_tokens
        self.num_cached = [0] * len(job.prompts)
        self.num_completion_tokens = 0

    def add(self, index: int, output: RequestOutput) -> None:
        """Takes in an output of the prompt at `index`: the whole, or what is new."""
        if output.num_cached_tokens > self.num_cached[index]:
            self.num_cached[index] = output.num_cached_tokens
        for completion in output.outputs:
            self.num_completion_tokens += len(completion.token_ids)

    def usage(self) -> dict[str, Any]:
        """The `usage` so far."""
        return usage(self.num_prompt_tokens, sum(self.num_cached), self.num_completion_tokens)


def score_of(completion: CompletionOutput) -> dict[str, float]:
    """The `score` of a choice that a beam search has found; nothing of another one."""
    return {} if completion.score is None else {"score": completion.score}


def llmi_object(job: Job, receipts: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """The answer's own object: what repeats it (`seed`, `date`), what of the body has no effect (`ignored`), and its receipt."""
    result: dict[str, Any] = {"seed": job.seeds[0], "ignored": list(dict.fromkeys(job.ignored))}
    if len(job.seeds) > 1:
        result["seeds"] = job.seeds
    dates = [prompt.date for prompt in job.prompts if prompt.date is not None]
    result["date"] = dates[0] if dates else None
    for receipt in receipts:
        result |= receipt
    return result


def created() -> int:
    """Now, in seconds since 1970."""
    return int(time.time())
