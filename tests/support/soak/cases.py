"""Requests whose right answers are known: bodies for each endpoint, and what LLM.generate says to them alone."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from llmi.llm import LLM
from llmi.outputs.completion import CompletionOutput
from soak.wire import Answer

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
#: As most prompts are; each case has one of some beginnings, so that the prefix cache has hits.
_STEMS = ("The sea is wide. ", "Count: one two three four five. ", "A B C D E F G H I J K L M N O P ", "In the year of the long winter ")
_LEAST = -9999.0  # OpenAI's value of a token that is impossible


@dataclasses.dataclass(slots=True)
class Told:
    """One continuation as an answer tells it. None: this endpoint does not tell it."""

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    processed: list[float | None] | None = None
    finish_reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One request and its right answer, of each of its continuations."""

    path: str
    body: dict[str, Any]
    right: tuple[Told, ...]

    def difference(self, answer: Answer, stream: bool) -> str:
        """Where an answer is another one; "" if it is right."""
        told = read(self.path, answer, stream, len(self.right))
        for index, (is_, right) in enumerate(zip(told, self.right, strict=True)):
            for field in dataclasses.fields(Told):
                got, wanted = getattr(is_, field.name), getattr(right, field.name)
                if got is not None and got != wanted:
                    return f"{self.path} continuation {index} {field.name}: {got!r:.300} and not {wanted!r:.300}"
        return ""


def read(path: str, answer: Answer, stream: bool, count: int) -> list[Told]:
    """An answer's continuations. Raises RuntimeError for an error event."""
    if path in (CHAT, COMPLETIONS):
        return _of_choices(answer.events() if stream else [answer.json()], path == CHAT, count)
    if stream:
        return [Told("".join(_deltas(answer.events())))]
    value = answer.json()
    blocks = value["content"] if path == MESSAGES else [part for item in value["output"] for part in item.get("content", ())]
    return [Told("".join(block["text"] for block in blocks))]


def error_of(event: dict[str, Any]) -> dict[str, Any] | None:
    """The error that an event of a stream tells, in any endpoint's form."""
    error = event.get("error") or (event.get("response") or {}).get("error")
    return dict(error) if error else None


def _deltas(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        if error := error_of(event):
            raise RuntimeError(str(error))
        if event["type"] == "response.output_text.delta":
            yield event["delta"]
        elif event["type"] == "content_block_delta":
            yield event["delta"].get("text", "")


def _of_choices(values: list[dict[str, Any]], is_chat: bool, count: int) -> list[Told]:
    result = [Told(token_ids=[]) for _ in range(count)]
    for value in values:
        if error := error_of(value):
            raise RuntimeError(str(error))
        for choice in value["choices"]:
            told = result[choice["index"]]
            message = choice.get("message") or choice.get("delta") or choice
            told.text += message.get("content" if is_chat else "text") or ""
            assert told.token_ids is not None
            told.token_ids += choice.get("token_ids") or []
            told.finish_reason = choice["finish_reason"] or told.finish_reason
            if choice["logprobs"] is not None:
                raw, processed = _logprobs(choice["logprobs"])
                told.logprobs = [*(told.logprobs or ()), *raw]
                told.processed = [*(told.processed or ()), *processed]
    return result


def _logprobs(value: dict[str, Any]) -> tuple[list[float], list[float | None]]:
    if "content" in value:
        entries = value["content"]
        return [entry["logprob"] for entry in entries], [entry["llmi"]["processed_logprob"] for entry in entries]
    return value["token_logprobs"], value["llmi"]["processed_logprobs"]


def _right(completion: CompletionOutput) -> Told:
    told = Told(completion.text, completion.token_ids, finish_reason=completion.finish_reason)
    if completion.logprobs is not None:
        pairs = [position[token] for token, position in zip(completion.token_ids, completion.logprobs, strict=True)]
        told.logprobs = [entry.logprob if math.isfinite(entry.logprob) else _LEAST for entry in pairs]
        told.processed = [entry.processed_logprob if math.isfinite(entry.processed_logprob) else None for entry in pairs]
    return told


def _params(rng: random.Random, structured: bool) -> dict[str, Any]:
    """Arguments that LLM.generate and a body have in common."""
    params: dict[str, Any] = {"max_tokens": rng.randint(1, 96), "seed": rng.getrandbits(53)}
    params |= rng.choice(
        [
            {"temperature": 0.0},
            {"temperature": 0.8},
            {"temperature": 1.3, "top_k": 12, "repetition_penalty": 1.1},
            {"top_p": 0.9, "min_p": 0.02, "presence_penalty": 0.4},
            {"temperature": 1.0, "stop": ["e", "th"]},
            {"temperature": 1.0, "ignore_eos": True, "frequency_penalty": 0.3},
        ]
    )
    if structured and rng.random() < 0.15:
        params["structured_outputs"] = rng.choice([{"choice": ["yes", "no", "perhaps not"]}, {"regex": "[0-9]{3}-[a-f]{2,9}"}])
        params["max_tokens"] = 48
    return params


def make_cases(llm: LLM, model: str, count: int, seed: int, structured: bool) -> list[Case]:
    """Cases of all endpoints with the answers that an LLM gives to each of them alone."""
    rng = random.Random(seed)
    return [_case(llm, model, rng, structured) for _ in range(count)]


def _case(llm: LLM, model: str, rng: random.Random, structured: bool) -> Case:
    path = rng.choice([COMPLETIONS, COMPLETIONS, CHAT, CHAT, MESSAGES, RESPONSES])
    prompt = rng.choice(_STEMS) * rng.randint(1, 3) + "".join(rng.choices("abcdefghij ", k=rng.randint(1, 60)))
    params = _params(rng, structured)
    if path in (CHAT, COMPLETIONS):
        params |= {"n": rng.choice([1, 1, 1, 2, 3])}
        if rng.random() < 0.6:
            params["logprobs"] = rng.randint(0, 3)
    chat = [{"role": "user", "content": prompt}]
    [output] = llm.generate(prompt, use_tqdm=False, **params) if path == COMPLETIONS else llm.chat(chat, use_tqdm=False, **params)
    return Case(path, _body(path, model, prompt, chat, params), tuple(map(_right, output.outputs)))


def _body(path: str, model: str, prompt: str, chat: Sequence[dict[str, str]], params: dict[str, Any]) -> dict[str, Any]:
    body = {"model": model, **params}
    if path == COMPLETIONS:
        return {**body, "prompt": prompt, "return_token_ids": True}
    if path == RESPONSES:
        body["max_output_tokens"] = body.pop("max_tokens")
        return {**body, "input": prompt}
    body["messages"] = list(chat)
    if path == MESSAGES:
        if "stop" in body:
            body["stop_sequences"] = body.pop("stop")
        return body
    body["return_token_ids"] = True
    if "logprobs" in body:
        body |= {"top_logprobs": body["logprobs"], "logprobs": True}
    return body
