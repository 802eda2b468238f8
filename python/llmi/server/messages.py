"""/v1/messages and /v1/messages/count_tokens: Anthropic's form, for coding agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.base.kinds import Listed, Text
from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server import parameters
from llmi.server.answer import Counts, encode, llmi_object, new_id
from llmi.server.anthropic_chat import chat_of_messages, output_format
from llmi.server.errors import ApiError, api_error
from llmi.server.fields import COUNT_TOKENS, MESSAGES, Endpoint, Taken
from llmi.server.generation import Job, new_job
from llmi.server.nested import wrong
from llmi.server.parts import news_of
from llmi.server.prompts import Prompt, render, with_tools
from llmi.server.respond import json_response, respond
from llmi.server.served import Served
from llmi.server.state import prepare, take
from llmi.tools.calls import ToolEvent

_STOPS = Listed(Text(4096), "a list of strings", 64)


async def messages(request: Request) -> Response:
    """An answer to a chat in Anthropic's form, whole or as it comes."""
    try:
        return await _messages(request)
    except Exception as error:
        return _failure(error)


async def count_tokens(request: Request) -> Response:
    """How many tokens a chat has as a prompt."""
    try:
        taken, _, prompt = await _prepared(request, COUNT_TOKENS)
        output_format(taken)
    except Exception as error:
        return _failure(error)
    return json_response({"input_tokens": len(prompt.ids)})


def _failure(error: BaseException) -> Response:
    known = api_error(error)
    return json_response({"type": "error", **known.body()}, known.status, known.headers)


async def _prepared(request: Request, endpoint: Endpoint) -> tuple[Taken, Served, Prompt]:
    taken, model = await take(request, endpoint)

    def prepared() -> Prompt:
        return render(model, chat_of_messages(taken, model.tokenizer.template_for(None, {"tools": taken.own.get("tools") or None})))

    return taken, model, await prepare(request, taken, prepared)


async def _messages(request: Request) -> Response:
    taken, model, prompt = await _prepared(request, MESSAGES)
    if taken.own.get("max_tokens") is None:
        raise wrong("max_tokens", "is missing", "missing_field")
    params = parameters.sampling(taken)
    parameters.one_choice(model, params)
    given = parameters.MAX_TOKENS.parse("max_tokens", taken.own["max_tokens"])
    room = max(1, model.max_model_len - len(prompt.ids) + 1)
    params["max_tokens"] = min(given, room)  # agents send the most that their own models can do
    stops = taken.own.get("stop_sequences")
    if stops is not None:
        if params.get("stop") is not None:
            raise ApiError(400, "stop and stop_sequences are given together", param="stop", code="contradiction")
        params["stop"] = _STOPS.parse("stop_sequences", stops)
    parameters.add_format(params, "output_config.format", output_format(taken))
    job = new_job(model, taken, [prompt], with_tools(prompt, params))
    return await respond(request, job, MessageForm(job, given > room), taken.flag("stream"))


class MessageForm:
    """Answers of /v1/messages. is_cut: max_tokens was more than the context has room for, and ends with it."""

    def __init__(self, job: Job, is_cut: bool) -> None:
        self.id = new_id("msg_")
        self._job = job
        self._counts = Counts(job)
        self._is_cut = is_cut
        self._stream = job.prompts[0].streams(job.seeds[0])(0)
        self._blocks = 0  # that have begun
        self._open = ""  # the kind of the block that is open; "" for none
        self._has_called = False
        self._last: CompletionOutput | None = None

    def _llmi(self, receipt: dict[str, Any]) -> dict[str, Any]:
        cut = {"max_tokens": self._job.params["max_tokens"]} if self._is_cut else {}
        return {**llmi_object(self._job, [receipt]), "system_fingerprint": self._job.model.fingerprint, **cut}

    def _usage(self) -> dict[str, Any]:
        cached = self._counts.num_cached[0]
        return {
            "input_tokens": self._counts.num_prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._counts.num_completion_tokens,
        }

    def _stops(self, completion: CompletionOutput) -> dict[str, Any]:
        if completion.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._has_called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(completion.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _message(self, content: list[dict[str, Any]], stops: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._job.model.name, "content": content}
        return {**head, **stops, "usage": self._usage()}

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """A message."""
        self._counts.add(0, outputs[0])
        [completion] = outputs[0].outputs
        content = _content(news_of(self._stream, completion.text, True))
        self._has_called = any(block["type"] == "tool_use" for block in content)
        return {**self._message(content, self._stops(completion)), "llmi": self._llmi(receipt)}

    # --- as it comes

    def begin(self) -> bytes:
        """message_start; its usage knows the prompt alone, message_delta the rest."""
        start = {**self._message([], {"stop_reason": None, "stop_sequence": None}), "llmi": self._llmi({})}
        return _event({"type": "message_start", "message": start}) + _event({"type": "ping"})

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Blocks that begin, grow and end."""
        self._counts.add(0, output)
        [completion] = output.outputs
        if output.finished:
            self._last = completion
        return self._told(news_of(self._stream, completion.text, output.finished))

    def _told(self, parts: Sequence[ToolEvent]) -> bytes:
        data = b""
        for part in parts:
            if part.kind == "call":
                self._has_called = True
                data += self._block("tool_use", {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}, always=True)
                if part.text:
                    data += self._delta({"type": "input_json_delta", "partial_json": part.text})
            elif part.kind == "arguments":
                data += self._delta({"type": "input_json_delta", "partial_json": part.text})
            elif part.kind == "reasoning":
                data += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                data += self._delta({"type": "thinking_delta", "thinking": part.text})
            else:
                data += self._block("text", {"type": "text", "text": ""})
                data += self._delta({"type": "text_delta", "text": part.text})
        return data

    def _block(self, kind: str, block: dict[str, Any], always: bool = False) -> bytes:
        """Begins a block, and ends the one before, unless a block of this kind is open."""
        if self._open == kind and not always:
            return b""
        data = self._close()
        self._open = kind
        self._blocks += 1
        return data + _event({"type": "content_block_start", "index": self._blocks - 1, "content_block": block})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event({"type": "content_block_stop", "index": self._blocks - 1})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The last block's end, message_delta and message_stop."""
        data = b"" if self._blocks else self._block("text", {"type": "text", "text": ""})
        data += self._close()
        assert self._last is not None
        stops = {"type": "message_delta", "delta": self._stops(self._last), "usage": self._usage(), "llmi": self._llmi(receipt)}
        return data + _event(stops) + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        """An error event."""
        return _event({"type": "error", **error.body()})


def _content(parts: Sequence[ToolEvent]) -> list[dict[str, Any]]:
    """The blocks of a whole answer, in the order in which a stream begins them."""
    blocks: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.kind == "call":
            calls.append({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
            blocks.append(calls[-1])
        elif part.kind == "arguments":  # all of them at once
            calls[-1]["input"] = json.loads(part.text)
        else:
            kind, more = ("text", {}) if part.kind == "text" else ("thinking", {"signature": ""})
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append({"type": kind, kind: "", **more})
            blocks[-1][kind] += part.text
    return blocks or [{"type": "text", "text": ""}]


def _event(value: dict[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + encode(value) + b"\n\n"
