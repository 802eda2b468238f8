"""/v1/responses, without state: each request holds its whole chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.errors import UnsupportedCombinationError
from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server import parameters
from llmi.server.answer import Counts, created, encode, llmi_object, new_id
from llmi.server.errors import ApiError
from llmi.server.fields import RESPONSES, Taken
from llmi.server.generation import Job, new_job
from llmi.server.logprobs import LogprobForm, Position
from llmi.server.parts import news_of, num_reasoning_tokens
from llmi.server.prompts import render, with_tools
from llmi.server.respond import respond
from llmi.server.responses_chat import chat_of_response, text_format
from llmi.server.state import prepare, take
from llmi.tools.calls import ToolEvent

_TEXT, _REASONING = "output_text", "reasoning_text"


async def responses(request: Request) -> Response:
    """A response, whole or as it comes."""
    taken, model = await take(request, RESPONSES)
    params = parameters.sampling(taken)
    parameters.one_choice(model, params)
    top = parameters.response_logprobs(taken, params)
    parameters.add_format(params, "text.format", text_format(taken))
    given = taken.own.get("max_output_tokens")
    if given is not None:
        params["max_tokens"] = parameters.MAX_TOKENS.parse("max_output_tokens", given)
    else:
        parameters.chat_max_tokens(model, taken, params)
    prompt = await prepare(request, taken, lambda: render(model, chat_of_response(taken)))
    parameters.check_room(model, taken, params, prompt)
    if top is not None and not prompt.is_plain:
        raise UnsupportedCombinationError(
            "log-probabilities next to tools or reasoning are not offered here, where they belong to the text alone: ask"
            " /v1/chat/completions",
            "include",
            "tools",
        )
    job = new_job(model, taken, [prompt], with_tools(prompt, params))
    return await respond(request, job, ResponseForm(job, taken, top), taken.flag("stream"))


class ResponseForm:
    """Answers of /v1/responses. A whole answer is the last event of a stream, so that the two are the same.

    top: alternatives of each token, None without log-probabilities, which only plain answers have: all of their tokens are text.
    """

    def __init__(self, job: Job, taken: Taken, top: int | None) -> None:
        self.id = new_id("resp_")
        self._job, self._own = job, taken.own
        self._counts = Counts(job)
        self._created = created()
        self._stream = job.prompts[0].streams(job.seeds[0])(0)
        self._number = 0  # of the next event
        self._items: list[dict[str, Any]] = []
        self._open = ""  # the type of the part that is open
        self._last: CompletionOutput | None = None
        self._token_ids: list[int] = []
        self._logprobs = None if top is None else LogprobForm(job.model.tokenizer, top, also=parameters.logprob_ids(job.params))
        self._positions: list[Position] = []  # of tokens whose text has not been told

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """A response."""
        self.news(0, outputs[0])
        self._close()
        return self._response(self._status(), receipt)

    def _status(self) -> str:
        return "incomplete" if self._last is not None and self._last.finish_reason == "length" else "completed"

    def _response(self, status: str, receipt: dict[str, Any] | None = None) -> dict[str, Any]:
        own, counts = self._own, self._counts
        used = {
            "input_tokens": counts.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": counts.num_cached[0]},
            "output_tokens": counts.num_completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning() if receipt is not None else 0},
            "total_tokens": counts.num_prompt_tokens + counts.num_completion_tokens,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": own.get("instructions"),
            "max_output_tokens": own.get("max_output_tokens"),
            "model": self._job.model.name,
            "output": self._items,
            "parallel_tool_calls": own.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": own.get("reasoning"),
            "store": False,
            "temperature": self._job.params.get("temperature"),
            "text": own.get("text") or {"format": {"type": "text"}},
            "tool_choice": own.get("tool_choice") or "auto",
            "tools": own.get("tools") or [],
            "top_p": self._job.params.get("top_p"),
            "truncation": "disabled",
            "usage": None if receipt is None else used,
            "metadata": {},
            "system_fingerprint": self._job.model.fingerprint,
            "llmi": llmi_object(self._job, [receipt or {}]),
        }

    def _num_reasoning(self) -> int:
        skip, model, prompt = bool(self._job.params.get("skip_special_tokens", True)), self._job.model, self._job.prompts[0]
        return num_reasoning_tokens(
            self._token_ids, lambda ids: prompt.read(model.text_of(ids, skip), self._job.seeds[0], 0).reasoning or ""
        )

    # --- as it comes

    def _event(self, kind: str, **fields: object) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode(value) + b"\n\n"

    def begin(self) -> bytes:
        """response.created and response.in_progress."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Items that begin, grow and end."""
        self._counts.add(0, output)
        [completion] = output.outputs
        self._token_ids += completion.token_ids
        self._positions += completion.logprobs or ()
        if output.finished:
            self._last = completion
        data = self._told(news_of(self._stream, completion.text, output.finished))
        if output.finished and self._open == _TEXT and self._positions:  # of tokens without text, such as an end-of-text
            data += self._item_event("response.output_text.delta", content_index=0, delta="", logprobs=self._told_logprobs())
        return data

    def _told(self, parts: Sequence[ToolEvent]) -> bytes:
        data = b""
        for part in parts:
            if part.kind == "call":
                data += self._begin("function_call", {"call_id": part.id, "name": part.name, "arguments": ""})
            if part.kind in ("call", "arguments"):
                self._items[-1]["arguments"] += part.text
                data += self._item_event("response.function_call_arguments.delta", delta=part.text) if part.text else b""
                continue
            kind = _TEXT if part.kind == "text" else _REASONING
            data += self._begin_part(kind)
            self._items[-1]["content"][0]["text"] += part.text
            more: dict[str, object] = {"logprobs": self._told_logprobs()} if kind == _TEXT else {}
            data += self._item_event(f"response.{kind}.delta", content_index=0, delta=part.text, **more)
        return data

    def _told_logprobs(self) -> list[dict[str, Any]]:
        """Log-probabilities of the tokens whose text is told now; they are the open part's, too."""
        positions, self._positions = self._positions, []
        if self._logprobs is None or not positions:
            return []
        entries: list[dict[str, Any]] = self._logprobs.chat(positions)["content"]
        self._items[-1]["content"][0]["logprobs"] += entries
        return entries

    def _item_event(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _begin(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = self._close()
        prefix = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[kind]
        self._items.append({"type": kind, "id": new_id(prefix), "status": "in_progress", **fields})
        self._open = kind
        return data + self._event("response.output_item.added", output_index=len(self._items) - 1, item=self._items[-1])

    def _begin_part(self, kind: str) -> bytes:
        """Begins an item with a part of this kind, unless one is open."""
        if self._open == kind:
            return b""
        empty: dict[str, Any] = (
            {"type": _TEXT, "text": "", "annotations": [], "logprobs": []} if kind == _TEXT else {"type": _REASONING, "text": ""}
        )
        if kind == _TEXT:
            data = self._begin("message", {"role": "assistant", "content": []})
        else:
            data = self._begin("reasoning", {"summary": [], "content": []})
        data += self._item_event("response.content_part.added", content_index=0, part=empty)
        self._items[-1]["content"].append(empty)
        self._open = kind
        return data

    def _close(self) -> bytes:
        """Ends the item that is open."""
        if not self._open:
            return b""
        item, kind = self._items[-1], self._open
        self._open = ""
        if kind == "function_call":
            data = self._item_event("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            [part] = item["content"]
            more: dict[str, object] = {"logprobs": part["logprobs"]} if kind == _TEXT else {}
            data = self._item_event(f"response.{kind}.done", content_index=0, text=part["text"], **more)
            data += self._item_event("response.content_part.done", content_index=0, part=part)
        item["status"] = self._status()
        return data + self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The last item's end, and response.completed or response.incomplete."""
        data = self._close()
        status = self._status()
        return data + self._event(f"response.{status}", response=self._response(status, receipt))

    def failed(self, error: ApiError) -> bytes:
        """response.failed, and an error event."""
        failed = {**self._response("failed"), "error": {"code": error.code or error.type, "message": error.message}}
        return self._event("response.failed", response=failed)
