"""Training text: what the model itself answers, seeded, half of it greedy and half at T = 1."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmi.base.whole_file import whole_file
from llmi.outputs.results import Outputs
from llmi.params.sampling import SamplingParams
from llmi.requests.prepare import CallOptions
from llmi.session import Session
from llmi.training.turns import Turn, turn

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
MAX_ANSWER = 160  # tokens
_MAX_TURN = 60  # tokens of a user's turn that the model begins
_TURN_CHARACTERS = (8, 500)
#: Sequences are cut here: room for a text of MAX_ANSWER tokens in the prompt.
MAX_SEQUENCE = 512


@dataclasses.dataclass
class Text:
    """Sequences of prompt and answer.

    Attributes
    ----------
    token_ids : int32 [num_tokens]
        One sequence after the other.
    offsets : int64 [num_sequences + 1]
    prompt_lens : int64 [num_sequences]
    turns_of : int64 [num_sequences]
        The number of the turn that each one comes from, ascending.
    warm : bool [num_sequences]
        Whether the answer was drawn at T = 1, not greedily.
    """

    token_ids: I32
    offsets: I64
    prompt_lens: I64
    turns_of: I64
    warm: NDArray[np.bool_]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[Any]]) -> Text:
        """From (turn, prompt, answer, warm) each, cut at MAX_SEQUENCE."""
        cut = [(number, len(prompt), [*prompt, *answer][:MAX_SEQUENCE], warm) for number, prompt, answer, warm in sequences]
        lengths = [len(ids) for _, _, ids, _ in cut]
        return cls(
            np.array([token for _, _, ids, _ in cut for token in ids], np.int32),
            np.cumsum([0, *lengths]).astype(np.int64),
            np.array([prompt_len for _, prompt_len, _, _ in cut], np.int64),
            np.array([entry[0] for entry in cut], np.int64),
            np.array([entry[3] for entry in cut], bool),
        )

    def __len__(self) -> int:
        return len(self.prompt_lens)

    def __add__(self, other: Text) -> Text:
        return Text(
            np.concatenate([self.token_ids, other.token_ids]),
            np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.prompt_lens, other.prompt_lens]),
            np.concatenate([self.turns_of, other.turns_of]),
            np.concatenate([self.warm, other.warm]),
        )

    def sequence(self, index: int) -> I32:
        """Tokens of one sequence."""
        return self.token_ids[self.offsets[index] : self.offsets[index + 1]]

    def of_turns(self, count: int) -> Text:
        """The sequences of turns 0 to count - 1."""
        return self.first(int(np.searchsorted(self.turns_of, count)))

    def first(self, count: int) -> Text:
        """The first sequences."""
        return self._part(0, count)

    def last(self, count: int) -> Text:
        """The last sequences."""
        return self._part(len(self) - count, len(self))

    def _part(self, first: int, end: int) -> Text:
        start, stop = self.offsets[first], self.offsets[end]
        return Text(
            self.token_ids[start:stop],
            self.offsets[first : end + 1] - start,
            self.prompt_lens[first:end],
            self.turns_of[first:end],
            self.warm[first:end],
        )

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the model wrote."""
        return int(np.maximum(np.diff(self.offsets) - self.prompt_lens, 0).sum())

    def digest(self) -> str:
        """SHA-256 of tokens and offsets."""
        digest = hashlib.sha256()
        for values in (self.token_ids, self.offsets, self.prompt_lens):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """One .npz, whole or not at all."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        with whole_file(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Text:
        """Reads a file that save wrote."""
        return cls(**np.load(path, allow_pickle=False))


Moved = Callable[[float], object]


class Writer(Protocol):
    """(first, end) to the sequences of these turns. `moved` hears how many more turns are written, in parts of them."""

    moved: Moved

    def __call__(self, first: int, end: int) -> Text: ...


def _is_warm(number: int) -> bool:
    """Turns are alternately greedy and at T = 1, and change places every hundred, since kinds come round as often."""
    return (number + number // 100) % 2 == 1


def _answers(
    llm: Session,
    numbers: Sequence[int],
    prompts: Sequence[Sequence[int]],
    seed: int,
    is_warm: Callable[[int], bool] = _is_warm,
    moved: Moved = lambda count: None,
) -> list[list[int]]:
    """The answer to each prompt. moved: hears how many more answers there are."""
    if not prompts:
        return []
    params = [
        SamplingParams(temperature=float(is_warm(number)), seed=(seed << 32) + number, max_tokens=MAX_ANSWER, detokenize=False)
        for number in numbers
    ]
    return [list(output.token_ids) for output in _generated(llm, [list(ids) for ids in prompts], params, moved)]


def _generated(llm: Session, prompts: list[list[int]], params: list[SamplingParams], moved: Moved) -> Outputs:
    call = llm._call(prompts, params, {}, CallOptions(speculative_config=None))
    llm._run_to_end(call, False, moved)
    call.raise_errors()
    return call.outputs()


class OwnTurns:
    """The turns of llmi.training.turns, answered by the model."""

    def __init__(self, llm: Session, seed: int) -> None:
        self.llm, self.seed = llm, seed
        self.moved: Moved = lambda count: None

    def _prompt(self, user: str) -> list[int]:
        tokenizer = self.llm.tokenizer
        if not tokenizer.chat_template:
            return list(tokenizer.encode(user + "\n"))
        ids = tokenizer.apply_chat_template([{"role": "user", "content": user}], add_generation_prompt=True)
        assert isinstance(ids, list)
        return ids

    def _begun(self, numbers: list[int], moved: Moved) -> dict[int, str]:
        """User turns that the model writes itself, where they have a usual length."""
        tokenizer = self.llm.tokenizer
        if not tokenizer.chat_template or not numbers:
            return {}
        mark = "@@"
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=False)
        assert isinstance(rendered, str)
        before = list(tokenizer.encode(rendered.split(mark)[0], parse_special=True))
        params = [SamplingParams(temperature=1.0, top_p=0.98, seed=(self.seed << 32) + number, max_tokens=_MAX_TURN) for number in numbers]
        outputs = _generated(self.llm, [before] * len(numbers), params, moved)
        shortest, longest = _TURN_CHARACTERS
        texts = {number: output.text.strip() for number, output in zip(numbers, outputs, strict=True)}
        return {number: text for number, text in texts.items() if shortest < len(text) < longest}

    def __call__(self, first: int, end: int) -> Text:
        turns: dict[int, Turn] = {number: turn(self.seed, number) for number in range(first, end)}
        users = {number: made.text for number, made in turns.items() if made.text}
        num_texts = len(turns) + sum(not made.text for made in turns.values()) + sum(bool(made.around) for made in turns.values())

        def moved(count: float) -> None:
            self.moved(count * len(turns) / num_texts)

        users |= self._begun([number for number, made in turns.items() if not made.text], moved)
        numbers = sorted(users)
        prompts = [self._prompt(users[number]) for number in numbers]
        answers = _answers(self.llm, numbers, prompts, self.seed, moved=moved)
        written = [(number, ids, answer, _is_warm(number)) for number, ids, answer in zip(numbers, prompts, answers, strict=True)]
        around = [(number, answer) for number, _, answer, _ in written if turns[number].around]
        texts = [self._prompt(turns[number].around.replace("{x}", self.llm._decode(answer).strip())) for number, answer in around]
        again = _answers(self.llm, [number for number, _ in around], texts, self.seed + 1, moved=moved)
        written += [(number, ids, answer, _is_warm(number)) for (number, _), ids, answer in zip(around, texts, again, strict=True)]
        return Text.of(sorted(written, key=lambda entry: entry[0]))


class GivenPrompts:
    """The caller's prompts, answered one after the other, and again with other seeds when they have all been."""

    def __init__(self, llm: Session, prompts: list[list[int]], seed: int) -> None:
        self.llm, self.prompts, self.seed = llm, prompts, seed
        self.moved: Moved = lambda count: None

    def _is_warm(self, number: int) -> bool:
        """A prompt is answered greedily once."""
        cycle = number // len(self.prompts)
        return cycle > 1 or (number % len(self.prompts) + cycle) % 2 == 1

    def __call__(self, first: int, end: int) -> Text:
        numbers = list(range(first, end))
        prompts = [self.prompts[number % len(self.prompts)] for number in numbers]
        answers = _answers(self.llm, numbers, prompts, self.seed, self._is_warm, self.moved)
        entries = zip(numbers, prompts, answers, strict=True)
        return Text.of([(number, ids, answer, self._is_warm(number)) for number, ids, answer in entries])
