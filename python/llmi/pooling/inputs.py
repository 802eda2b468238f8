"""From texts and pairs of texts to the token ids that a model reads: prompts in front, special tokens around, and no more than fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import Maybe, Whole, parse
from llmi.errors import InvalidParamsError, PromptTooLongError
from llmi.pooling import judge
from llmi.pooling.settings import Classifier, PoolingSettings, Tokens
from llmi.text.prompts import Prompt, as_list, check_unsteered, tokenize

if TYPE_CHECKING:
    from llmi.session import Session

_TRUNCATE = Maybe(Whole(-1, 2**31 - 1, "None, -1 or a number of tokens, 1 or more"))


@dataclasses.dataclass(slots=True)
class Input:
    """What the model reads of a text or of a pair.

    Attributes
    ----------
    ids : list of int
    second : int or None
        Where a second text begins whose tokens are of another type.
    num_unpooled : int
        The first rows that are not pooled.
    """

    ids: list[int]
    second: int | None = None
    num_unpooled: int = 0


class Inputs:
    """Makes inputs of texts, by a model's settings and a call's arguments."""

    def __init__(self, llm: Session, settings: PoolingSettings, truncate_prompt_tokens: object, parse_special: bool) -> None:
        self.llm, self.settings, self.parse_special = llm, settings, parse_special
        self.tokenizer = llm.tokenizer
        limit = llm.model_info.max_model_len
        if llm._spec.two_sided:  # all tokens of a text run in one step
            limit = min(limit, llm._engine_args.max_num_batched_tokens)
        self.limit = limit if settings.max_length is None else min(limit, settings.max_length)
        truncate = parse(_TRUNCATE, "truncate_prompt_tokens", truncate_prompt_tokens)
        if truncate is not None and (truncate == 0 or truncate > self.limit):
            raise InvalidParamsError(
                f"truncate_prompt_tokens = {truncate} is neither -1 nor in [1, {self.limit}], the model's longest text",
                "truncate_prompt_tokens",
            )
        self.most = None if truncate is None else self.limit if truncate == -1 else truncate

    def prompt_named(self, name: str | None) -> str:
        """The text that stands in front. Raises InvalidParamsError for an unknown name."""
        prompts = self.settings.prompts
        if name is not None and name not in prompts:
            listed = ", ".join(sorted(prompts)) or "none"
            raise InvalidParamsError(f"prompt_name: the model has no prompt {name!r:.60} (it has {listed})", "prompt_name")
        name = self.settings.default_prompt if name is None else name
        return "" if name is None else prompts[name]

    def of_texts(self, prompts: object, prompt_name: str | None) -> list[Input]:
        """One input for each text; token ids are taken as they are."""
        before = self.prompt_named(prompt_name)
        inputs = []
        for index, prompt in enumerate(as_list(prompts)):
            check_unsteered(prompt, "embed")
            text = _text_of(prompt)
            if text is None:
                ids = self._cut(tokenize(prompt, self.tokenizer, "prompts", self.parse_special)[1], index)
                inputs.append(Input(self._checked(ids, index)))
            else:
                inputs.append(self._wrapped(before, text, index))
        return inputs

    def _letters(self, text: str) -> list[int]:
        text = text.lower() if self.settings.lowercase else text
        return self.tokenizer.encode(text, add_special_tokens=False, parse_special=self.parse_special)

    def _wrapped(self, before: str, text: str, index: int) -> Input:
        if not text:
            raise InvalidParamsError(f"prompts: text {index} is empty", "prompts")
        prefix, suffix = self.tokenizer._loaded.prefix, self.tokenizer._loaded.suffix
        ids = self._cut(self._letters(before + text), index, len(prefix) + len(suffix))
        num_unpooled = 0 if self.settings.counts_prompt or not before else len(prefix) + len(self._letters(before))
        whole = [*prefix, *ids, *suffix]
        return Input(self._checked(whole, index), num_unpooled=min(num_unpooled, len(whole) - 1))

    def _cut(self, ids: list[int], index: int, num_around: int = 0) -> list[int]:
        """The first ids, of which no more than allowed are left with those around them. Raises PromptTooLongError where nothing says so."""
        if len(ids) + num_around <= (self.limit if self.most is None else self.most):
            return ids
        if self.most is None:
            raise PromptTooLongError(len(ids) + num_around, self.limit)
        room = self.most - num_around
        if room < 1:
            raise InvalidParamsError(
                f"truncate_prompt_tokens = {self.most} leaves no token of text {index} beside the {num_around} around it",
                "truncate_prompt_tokens",
            )
        return ids[:room]

    def _checked(self, ids: list[int], index: int) -> list[int]:
        vocab_size = self.llm.model_info.vocab_size
        if not ids:
            raise InvalidParamsError(f"prompts: text {index} has no token", "prompts")
        if max(ids) >= vocab_size:
            raise InvalidParamsError(f"prompts: token id {max(ids)} is outside [0, {vocab_size})", "prompts")
        return ids

    def of_pairs(self, pairs: list[tuple[str, str]], instruction: str | None) -> list[Input]:
        """One input for each pair of a query and a document."""
        scorer = self.settings.scorer
        if isinstance(scorer, Tokens) or (isinstance(scorer, Classifier) and scorer.is_judge):
            return [self._judged(query, document, instruction or judge.INSTRUCTION) for query, document in pairs]
        if instruction is not None:
            raise InvalidParamsError("instruction is for Qwen3-Reranker, whose prompt has one: this model's has none", "instruction")
        return [self._pair(query, document) for query, document in pairs]

    def _judged(self, query: str, document: str, instruction: str) -> Input:
        before, behind = (
            self.tokenizer.encode(text, add_special_tokens=False, parse_special=True) for text in (judge.BEFORE, judge.BEHIND)
        )
        ids = self._letters(judge.pair(query, document, instruction))
        return Input([*before, *self._cut(ids, 0, len(before) + len(behind)), *behind])

    def _pair(self, query: str, document: str) -> Input:
        pair = self.tokenizer._loaded.pair
        if pair is None:
            raise InvalidParamsError("the model's tokenizer.json has no template for a query and then a document", "documents")
        first, second = self._letters(query), self._letters(document)
        num_around = len(pair.before) + len(pair.between) + len(pair.behind)
        excess = len(first) + len(second) + num_around - (self.limit if self.most is None else self.most)
        if excess > 0 and self.most is None:
            raise PromptTooLongError(len(first) + len(second) + num_around, self.limit)
        for _ in range(max(0, excess)):  # the longer one gets shorter, as transformers has it
            (first if len(first) > len(second) else second).pop()
        if not first or not second:
            raise InvalidParamsError("a query and a document have a token or more each", "documents")
        begun = [*pair.before, *first, *pair.between]
        return Input([*begun, *second, *pair.behind], len(begun) if pair.has_types else None)


def _text_of(prompt: Prompt) -> str | None:
    """The text of a prompt that is one."""
    if isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is None and set(prompt) == {"prompt"}:
        prompt = prompt["prompt"]
    return prompt if isinstance(prompt, str) else None


def pairs_of(queries: object, documents: object) -> list[tuple[str, str]]:
    """(query, document): one query with each document, or as many queries as documents. Raises InvalidParamsError."""
    lists: list[list[Any]] = []
    for name, given in (("queries", queries), ("documents", documents)):
        listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else None
        if not listed or not all(isinstance(text, str) for text in listed):
            raise InvalidParamsError(f"{name} must be a text or a list of texts, not {given!r:.60}", name)
        if not all(listed):
            raise InvalidParamsError(f"{name} holds an empty text", name)
        lists.append(listed)
    first, second = lists
    first = first * len(second) if len(first) == 1 else first
    if len(first) != len(second):
        raise InvalidParamsError(f"{len(first)} queries and {len(second)} documents: give one query, or as many", "documents")
    return list(zip(first, second, strict=True))
