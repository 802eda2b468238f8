"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server import parameters
from llmi.server.answer import encode, event, llmi_object, score_of
from llmi.server.fields import CHAT, Taken
from llmi.server.generation import Job, new_job
from llmi.server.logprobs import Position, prompt_logprobs
from llmi.server.openai_form import OpenAIForm
from llmi.server.parts import PartStream, news_of
from llmi.server.prompts import chat_of, render, with_tools
from llmi.server.respond import respond
from llmi.server.state import prepare, take
from llmi.tools.calls import ToolEvent
from llmi.tools.chat import Answer


async def chat_completions(request: Request) -> Response:
    """An answer to a chat, whole or as it comes."""
    taken, model = await take(request, CHAT)
    params = parameters.sampling(taken)
    top = parameters.chat_logprobs(taken, params)
    parameters.chat_max_tokens(model, taken, params)
    usage = parameters.stream_options(taken)
    prompt = await prepare(request, taken, lambda: render(model, chat_of(taken)))
    parameters.check_room(model, taken, params, prompt)
    job = new_job(model, taken, [prompt], with_tools(prompt, params))
    return await respond(request, job, ChatForm(job, taken, top, usage), taken.flag("stream"))


class ChatForm(OpenAIForm):
    """Answers of /v1/chat/completions."""

    def __init__(self, job: Job, taken: Taken, top: int | None, usage: tuple[bool, bool]) -> None:
        super().__init__(job, taken, "chatcmpl-", "chat.completion.chunk", top, usage)
        self._with_reasoning = taken.flag("include_reasoning", True)
        self._streams = job.prompts[0].streams(job.seeds[0])
        self._is_plain = job.prompts[0].is_plain
        self._open: dict[int, PartStream] = {}  # of choices that have begun
        self._called: set[int] = set()  # choices that have called a tool
        self._prompt_logprobs: list[Position | None] | None = None

    # --- whole

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """A chat.completion."""
        [output] = outputs
        self._counts.add(0, output)
        result = {
            **self._head("chat.completion"),
            "choices": [self._choice(completion) for completion in output.outputs],
            "usage": self._counts.usage(),
            "llmi": llmi_object(self._job, [receipt]),
        }
        if output.prompt_logprobs is not None:
            result["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self._with_ids:
            result["prompt_token_ids"] = output.prompt_token_ids
        return result

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        answer = self._job.prompts[0].read(completion.text, self._job.seeds[0], completion.index)
        if answer.tool_calls:
            self._called.add(completion.index)
        choice: dict[str, Any] = {
            "index": completion.index,
            "message": _message(answer, self._with_reasoning),
            "logprobs": self._logprobs_of(completion),
            "finish_reason": self._reason(completion),
            "stop_reason": completion.stop_reason,
            **score_of(completion),
        }
        if self._with_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    def _reason(self, completion: CompletionOutput) -> str | None:
        return "tool_calls" if completion.index in self._called and completion.finish_reason == "stop" else completion.finish_reason

    def _logprobs_of(self, completion: CompletionOutput) -> dict[str, Any] | None:
        if self._logprobs is None or completion.logprobs is None:
            return None
        return self._logprobs.chat(completion.logprobs)

    # --- as it comes

    def begin(self) -> bytes:
        """A chunk with the role for each choice; the first one says what repeats the answer. Choices of beams after the first come at the
        end, or never."""
        chunks = []
        for index in range(1 if self._job.is_beams else self._job.num_choices):
            chunk = self._role(index)
            if index == 0:
                chunk["llmi"] = llmi_object(self._job)
                if self._with_ids:
                    chunk["prompt_token_ids"] = self._job.prompts[0].ids
            chunks.append(event(chunk))
        return b"".join(chunks)

    def _role(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: dict[str, Any], completion: CompletionOutput | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if completion is not None:
            choice["logprobs"] = self._logprobs_of(completion)
            if self._with_ids:
                choice["token_ids"] = completion.token_ids
        return self._chunk_of(choice)

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Chunks of each choice that has grown, and of each that has ended."""
        self._counts.add(0, output)
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        data = b""
        for completion in output.outputs:
            if self._job.is_beams and completion.index:
                data += event(self._role(completion.index))
            data += self._grown(completion) if self._is_plain else self._told(completion, output.finished)
            if completion.finish_reason is not None and output.finished:
                data += self._end_of(completion, completion is output.outputs[-1])
        return data

    def _grown(self, completion: CompletionOutput) -> bytes:
        if not completion.token_ids and not completion.text:
            return b""
        if self._is_bare:
            return self._bare(completion.index, b',"delta":{"content":' + encode(completion.text) + b"}") if completion.text else b""
        return event(self._chunk(completion.index, {"content": completion.text}, completion))

    def _told(self, completion: CompletionOutput, is_end: bool) -> bytes:
        """Chunks with the parts that have come; log-probabilities come with their tokens, in whatever part they are."""
        stream = self._open.setdefault(completion.index, self._streams(completion.index))
        deltas = _deltas(news_of(stream, completion.text, is_end), self._with_reasoning)
        if any("tool_calls" in delta for delta in deltas):
            self._called.add(completion.index)
        if not deltas and completion.token_ids and (self._logprobs is not None or self._with_ids):
            deltas = [{}]
        data = b""
        for number, delta in enumerate(deltas):
            data += event(self._chunk(completion.index, delta, completion if number == 0 else None))
        return data

    def _end_of(self, completion: CompletionOutput, is_last: bool) -> bytes:
        chunk = self._chunk(completion.index, {})
        if is_last and self._prompt_logprobs is not None:
            chunk["prompt_logprobs"] = prompt_logprobs(self._prompt_logprobs)
        return self._ended(chunk, completion, is_last, finish_reason=self._reason(completion))


def _message(answer: Answer, with_reasoning: bool) -> dict[str, Any]:
    """The assistant's message; content is null where there are calls alone."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.tool_calls else ""), "refusal": None}
    if answer.reasoning and with_reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
            for call in answer.tool_calls
        ]
    return message


def _deltas(parts: Sequence[ToolEvent], with_reasoning: bool) -> list[dict[str, Any]]:
    """The deltas of parts that have come. A chunk has one entry of a call, and nothing else, then: clients read the first entry, or parse
    each as it comes."""
    deltas: list[dict[str, Any]] = []
    for part in parts:
        if part.kind == "call":
            entry = {"index": part.call_index, "id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.text}}
            deltas.append({"tool_calls": [entry]})
        elif part.kind == "arguments":
            deltas.append({"tool_calls": [{"index": part.call_index, "function": {"arguments": part.text}}]})
        elif part.kind == "text" or with_reasoning:
            key = "content" if part.kind == "text" else "reasoning_content"
            if not deltas or "tool_calls" in deltas[-1]:
                deltas.append({})
            deltas[-1][key] = deltas[-1].get(key, "") + part.text
    return deltas
