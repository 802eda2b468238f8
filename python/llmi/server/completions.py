"""/v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.completion import CompletionOutput
from llmi.outputs.results import RequestOutput
from llmi.server import parameters
from llmi.server.answer import encode, event, llmi_object, score_of
from llmi.server.fields import COMPLETIONS, Taken
from llmi.server.generation import Job, new_job
from llmi.server.logprobs import Position, prompt_logprobs
from llmi.server.openai_form import OpenAIForm
from llmi.server.prompts import Prompt, read_prompts
from llmi.server.respond import respond
from llmi.server.state import take
from llmi.server.text_offsets import TextOffsets, prompt_offsets


async def completions(request: Request) -> Response:
    """Continuations of one or several prompts, whole or as they come."""
    taken, model = await take(request, COMPLETIONS)
    params = parameters.sampling(taken)
    top = parameters.completion_logprobs(taken, params)
    usage = parameters.stream_options(taken)
    stream = taken.flag("stream")
    prompts = await read_prompts(request, model, taken)
    parameters.completion_max_tokens(model, taken, params, prompts)
    echo = taken.flag("echo")
    if echo and top is not None:
        params.setdefault("prompt_logprobs", top)
    shows = (echo and top is not None, taken.own.get("prompt_logprobs") is not None)
    job = new_job(model, taken, prompts, params, prompts_each=sum(shows))
    return await respond(request, job, CompletionForm(job, taken, top, usage), stream)


class CompletionForm(OpenAIForm):
    """Answers of /v1/completions. The choices of prompt i have the indices i n to (i + 1) n - 1."""

    def __init__(self, job: Job, taken: Taken, top: int | None, usage: tuple[bool, bool]) -> None:
        super().__init__(job, taken, "cmpl-", "text_completion", top, usage)
        self._tokenizer = job.model.tokenizer
        self._echo = taken.flag("echo")
        self._asked_prompt_logprobs = taken.own.get("prompt_logprobs") is not None
        self._left = len(job.prompts)
        self._prompt_logprobs: dict[int, list[Position | None]] = {}  # of prompts whose first news have come
        self._offsets: dict[int, TextOffsets] = {}  # of the choices that have begun

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
        head = self._head("text_completion")
        return {**head, "choices": choices, "usage": self._counts.usage(), "llmi": llmi_object(self._job, [receipt])}

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
        return self._chunk_of(choice)

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
                data += self._end_of(number, completion, index, completion is output.outputs[-1])
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
        if self._is_bare:
            return self._bare(number, b',"text":' + encode(completion.text)) if completion.text else b""
        if not completion.token_ids and not completion.text:
            return b""
        return event(self._chunk(number, completion.text, completion))

    def _end_of(self, number: int, completion: CompletionOutput, index: int, is_last: bool) -> bytes:
        shows = self._asked_prompt_logprobs and index in self._prompt_logprobs
        more = {"prompt_logprobs": prompt_logprobs(self._prompt_logprobs[index])} if shows else {}
        return self._ended(self._chunk(number, ""), completion, is_last and not self._left, **more)
