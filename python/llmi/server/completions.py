"""/v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server import parameters
from llmi.server.answer import DONE, Counts, created, encode, event, llmi_object, new_id, score_of
from llmi.server.errors import ApiError
from llmi.server.fields import COMPLETIONS, Taken
from llmi.server.generation import Job, new_job
from llmi.server.logprobs import LogprobForm, Position, prompt_logprobs
from llmi.server.prompts import Prompt, read_prompts
from llmi.server.respond import respond
from llmi.server.state import take
from llmi.server.text_offsets import TextOffsets, prompt_offsets


async def completions(request: Request) -> Response:
    """Continuations of one or several prompts, whole or as they come."""
    taken, model = await take(request, COMPLETIONS)
    params = parameters.sampling(taken)
    top = parameters.completion_logprobs(taken, params)
    include_usage, always = parameters.stream_options(taken)
    stream = taken.flag("stream")
    prompts = await read_prompts(request, model, taken)
    parameters.completion_max_tokens(model, taken, params, prompts)
    echo = taken.flag("echo")
    if echo and top is not None:
        params.setdefault("prompt_logprobs", top)
    shows = (echo and top is not None, taken.own.get("prompt_logprobs") is not None)
    job = new_job(model, taken, prompts, params, prompts_each=sum(shows))
    return await respond(request, job, CompletionForm(job, taken, top, include_usage, always), stream)


class CompletionForm:
    """Answers of /v1/completions. The choices of prompt i have the indices i n to (i + 1) n - 1."""

    def __init__(self, job: Job, taken: Taken, top: int | None, include_usage: bool, always: bool) -> None:
        self.id = new_id("cmpl-")
        self._job = job
        self._counts = Counts(job)
        self._created = created()
        self._tokenizer = job.model.tokenizer
        self._logprobs = (
            None
            if top is None
            else LogprobForm(self._tokenizer, top, taken.flag("return_tokens_as_token_ids"), parameters.logprob_ids(job.params))
        )
        self._with_ids = taken.flag("return_token_ids")
        self._echo = taken.flag("echo")
        self._asked_prompt_logprobs = taken.own.get("prompt_logprobs") is not None
        self._include_usage, self._always = include_usage, always
        self._left = len(job.prompts)
        self._last: dict[str, Any] | None = None  # the chunk that ends the last choice
        self._prompt_logprobs: dict[int, list[Position | None]] = {}  # of prompts whose first news have come
        self._offsets: dict[int, TextOffsets] = {}  # of the choices that have begun
        self._prefix = b"data: " + encode(self._head())[:-1] + b',"choices":[{"index":'

    def _head(self) -> dict[str, Any]:
        model = self._job.model
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self._created,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def _echoed(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode([token for token in prompt.ids if token < self._tokenizer.vocab_size])

    # --- whole

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """A text_completion."""
        choices = []
        for index, output in enumerate(outputs):
            self._counts.add(index, output)
            choices += [self._choice(index, output, completion) for completion in output.outputs]
        return {**self._head(), "choices": choices, "usage": self._counts.usage(), "llmi": llmi_object(self._job, [receipt])}

    def _choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        prompt = self._job.prompts[index]
        text = self._echoed(prompt) + completion.text if self._echo else completion.text
        choice: dict[str, Any] = {
            "index": index * self._job.num_choices + completion.index, "text": text, "logprobs": None,
            "finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason, **score_of(completion),
        }  # fmt: skip
        if self._logprobs is not None:
            choice["logprobs"] = self._logprobs.completion(*self._positions(index, output, completion))
        if self._asked_prompt_logprobs and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self._with_ids:
            choice |= {"token_ids": completion.token_ids, "prompt_token_ids": output.prompt_token_ids}
        return choice

    def _positions(
        self, index: int, output: RequestOutput, completion: CompletionOutput
    ) -> tuple[list[int], list[Position | None], list[int | None]]:
        """The tokens whose log-probabilities a choice shows, with these and their places: with echo the prompt's stand in front."""
        positions: list[Position | None] = list(completion.logprobs or ())
        offsets: list[int | None] = [*self._text_offsets(index).of(completion.token_ids)]
        if not self._echo or output.prompt_logprobs is None:
            return completion.token_ids, positions, offsets
        before = prompt_offsets(self._tokenizer, output.prompt_token_ids, self._job.prompts[index].text)
        return [*output.prompt_token_ids, *completion.token_ids], [*output.prompt_logprobs, *positions], [*before, *offsets]

    def _text_offsets(self, index: int) -> TextOffsets:
        """The places of a choice of the prompt at `index`, whose text is in front of it with echo."""
        begin = len(self._echoed(self._job.prompts[index])) if self._echo else 0
        return TextOffsets(self._tokenizer, begin, bool(self._job.params.get("skip_special_tokens", True)))

    # --- as it comes

    def begin(self) -> bytes:
        """The first chunks: with echo each choice's prompt, else one without text, which says what repeats the answer.

        A beam search is sure to find its first choice.
        """
        count = self._job.num_choices
        data = b""
        for number in range(0, count * len(self._job.prompts), count if self._job.is_beams else 1) if self._echoes_at_once else (0,):
            chunk = self._opening(number)
            if number == 0:
                chunk["llmi"] = llmi_object(self._job)
            data += event(chunk)
        return data

    @property
    def _echoes_at_once(self) -> bool:
        """Whether the prompt comes without its log-probabilities, for which it would wait."""
        return self._echo and self._logprobs is None

    def _opening(self, number: int) -> dict[str, Any]:
        prompt = self._job.prompts[number // self._job.num_choices]
        chunk = self._chunk(number, self._echoed(prompt) if self._echoes_at_once else "")
        if self._with_ids:
            chunk["choices"][0]["prompt_token_ids"] = prompt.ids
        return chunk

    def _chunk(self, number: int, text: str, completion: CompletionOutput | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "text": text, "logprobs": None, "finish_reason": None}
        if completion is not None and self._logprobs is not None:
            if number not in self._offsets:
                self._offsets[number] = self._text_offsets(number // self._job.num_choices)
            offsets = self._offsets[number].of(completion.token_ids)
            choice["logprobs"] = self._logprobs.completion(completion.token_ids, completion.logprobs or [], offsets)
        if completion is not None and self._with_ids:
            choice["token_ids"] = completion.token_ids
        chunk = {**self._head(), "choices": [choice]}
        if self._include_usage or self._always:
            chunk["usage"] = self._counts.usage() if self._always else None
        return chunk

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Chunks of each choice that has grown, and of each that has ended."""
        self._counts.add(index, output)
        if output.prompt_logprobs is not None:  # in the first news alone
            self._prompt_logprobs[index] = output.prompt_logprobs
        data = self._echo_events(index, output)
        self._left -= output.finished
        for completion in output.outputs:
            number = index * self._job.num_choices + completion.index
            if self._job.is_beams and completion.index and self._echoes_at_once:
                data += event(self._opening(number))
            data += self._grown(number, completion)
            if completion.finish_reason is not None and output.finished:
                data += self._ended(number, completion, index, completion is output.outputs[-1])
        return data

    def _echo_events(self, index: int, output: RequestOutput) -> bytes:
        """The prompt with its log-probabilities, for each of its choices."""
        positions = output.prompt_logprobs
        if not self._echo or self._logprobs is None or positions is None:
            return b""
        data = b""
        text = self._echoed(self._job.prompts[index])
        offsets = prompt_offsets(self._tokenizer, output.prompt_token_ids, self._job.prompts[index].text)
        for completion in output.outputs:
            number = index * self._job.num_choices + completion.index
            chunk = self._chunk(number, text)
            chunk["choices"][0]["logprobs"] = self._logprobs.completion(output.prompt_token_ids, positions, offsets)
            data += event(chunk)
        return data

    def _grown(self, number: int, completion: CompletionOutput) -> bytes:
        if self._logprobs is None and not self._with_ids and not self._always:
            if not completion.text:
                return b""
            tail = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null}\n\n' if self._include_usage else b"}\n\n")
            return self._prefix + b"%d" % number + b',"text":' + encode(completion.text) + tail
        if not completion.token_ids and not completion.text:
            return b""
        return event(self._chunk(number, completion.text, completion))

    def _ended(self, number: int, completion: CompletionOutput, index: int, is_last: bool) -> bytes:
        chunk = self._chunk(number, "")
        chunk["choices"][0] |= {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason, **score_of(completion)}
        if self._asked_prompt_logprobs and index in self._prompt_logprobs:
            chunk["choices"][0]["prompt_logprobs"] = prompt_logprobs(self._prompt_logprobs[index])
        if self._left or not is_last:
            return event(chunk)
        self._last = chunk
        return b""

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The chunk that ends the last choice, the chunk with the usage if the body wants it, and [DONE]."""
        llmi = llmi_object(self._job, [receipt])
        last = self._last if self._last is not None else self._chunk(0, "")
        if not self._include_usage:
            return event({**last, "llmi": llmi}) + DONE
        return event(last) + event({**self._head(), "choices": [], "usage": self._counts.usage(), "llmi": llmi}) + DONE

    def failed(self, error: ApiError) -> bytes:
        """An error event."""
        return event(error.body()) + DONE
