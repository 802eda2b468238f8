"""What the answers of /v1/chat/completions and /v1/completions have alike: their head, their chunks, and how a stream ends."""

from __future__ import annotations

from typing import Any

from llmi.outputs.completion import CompletionOutput
from llmi.server import parameters
from llmi.server.answer import DONE, Counts, created, encode, event, llmi_object, new_id, score_of
from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.generation import Job
from llmi.server.logprobs import LogprobForm


class OpenAIForm:
    """An answer to one job.

    prefix, chunk_kind : of the answer's id, and the `object` of a chunk.
    top : alternatives of each token, None without log-probabilities.
    usage : as parameters.stream_options gives it.
    """

    def __init__(self, job: Job, taken: Taken, prefix: str, chunk_kind: str, top: int | None, usage: tuple[bool, bool]) -> None:
        self.id = new_id(prefix)
        self._job = job
        self._chunk_kind = chunk_kind
        self._counts = Counts(job)
        self._created = created()
        as_ids = taken.flag("return_tokens_as_token_ids")
        self._logprobs = None if top is None else LogprobForm(job.model.tokenizer, top, as_ids, parameters.logprob_ids(job.params))
        self._with_ids = taken.flag("return_token_ids")
        self._include_usage, self._always = usage
        self._last: dict[str, Any] | None = None  # the chunk that ends the last choice
        self._prefix = b"data: " + encode(self._head(chunk_kind))[:-1] + b',"choices":[{"index":'

    def _head(self, kind: str) -> dict[str, Any]:
        model = self._job.model
        return {"id": self.id, "object": kind, "created": self._created, "model": model.name, "system_fingerprint": model.fingerprint}

    def _chunk_of(self, *choices: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head(self._chunk_kind), "choices": [*choices]}
        if self._include_usage or self._always:
            chunk["usage"] = self._counts.usage() if self._always else None
        return chunk

    @property
    def _is_bare(self) -> bool:
        """Whether a chunk's choice is its text alone, so that it can be written without an object."""
        return self._logprobs is None and not self._with_ids and not self._always

    def _bare(self, number: int, choice: bytes) -> bytes:
        """The event of a bare chunk. choice: what its choice has besides the index, from a comma on."""
        tail = b',"usage":null}\n\n' if self._include_usage else b"}\n\n"
        return self._prefix + b"%d" % number + choice + b',"logprobs":null,"finish_reason":null}]' + tail

    def _ended(self, chunk: dict[str, Any], completion: CompletionOutput, is_last: bool, **more: object) -> bytes:
        """A chunk as the end of its choice, which has `more`; the last one of all waits for `end`."""
        ends = {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}
        chunk["choices"][0] |= {**ends, **score_of(completion), **more}
        if not is_last:
            return event(chunk)
        self._last = chunk
        return b""

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The chunk that ends the last choice, the chunk with the usage if the body wants it, and [DONE]."""
        assert self._last is not None
        llmi = llmi_object(self._job, [receipt])
        if not self._include_usage:
            return event({**self._last, "llmi": llmi}) + DONE
        usage = {**self._head(self._chunk_kind), "choices": [], "usage": self._counts.usage(), "llmi": llmi}
        return event(self._last) + event(usage) + DONE

    def failed(self, error: ApiError) -> bytes:
        """An error event."""
        return event(error.body()) + DONE
