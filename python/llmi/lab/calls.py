"""The part of LLM that drives sequences and strategies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from llmi.base.kinds import parse
from llmi.params.options import SEED, option
from llmi.text.prompts import Prompt, as_list

if TYPE_CHECKING:
    from llmi.lab.capture import Capture
    from llmi.lab.sequence import TokenSequence
    from llmi.lab.tree import TokenTree
    from llmi.session import Session

R = TypeVar("R")


class LabCalls:
    """Methods of LLM."""

    def sequence(
        self: Session,
        prompt: Prompt = "",
        *,
        seed: int | None = None,
        capture: Capture | None = None,
        steering: Mapping[int, Any] | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> TokenSequence:
        """A token sequence to extend, fork and roll back by hand. Nothing is computed until logits are read.

        Parameters
        ----------
        prompt : str, list of int, dict or TokenSequence
        seed : int, optional
            Key of its noise; None draws one.
        capture : Capture, optional
            Inner values to keep.
        steering : mapping of int to array [hidden_size], optional
        sparse_attention : mapping, optional
            As in SamplingParams.
        """
        from llmi.lab.sequence import open_sequence  # noqa: PLC0415 (which loads NumPy)

        return open_sequence(self, prompt, seed, capture, steering, sparse_attention)

    def extend(self: Session, tokens: Mapping[TokenSequence, Iterable[int] | TokenTree]) -> dict[TokenSequence, Any]:
        """Extends several sequences in one forward: {sequence: logits [num_new, vocab_size]}. An empty list only prefills."""
        from llmi.lab.sequence import _extend  # noqa: PLC0415 (loads NumPy)

        return _extend(self, tokens)

    @overload
    def run(
        self: Session,
        strategy: Callable[..., Generator[Any, Any, R]],
        prompts: Iterable[Prompt],
        *,
        seed: int | None = None,
        capture: Capture | None = None,
        on_error: Literal["raise"] = "raise",
        use_tqdm: bool | None = None,
        **kwargs: object,
    ) -> list[R]: ...

    @overload
    def run(
        self: Session,
        strategy: Callable[..., Generator[Any, Any, R]],
        prompts: Iterable[Prompt],
        *,
        seed: int | None = None,
        capture: Capture | None = None,
        on_error: Literal["return"],
        use_tqdm: bool | None = None,
        **kwargs: object,
    ) -> list[R | Exception]: ...

    def run(
        self: Session,
        strategy: Callable[..., Generator[Any, Any, R]],
        prompts: Iterable[Prompt],
        *,
        seed: int | None = None,
        capture: Capture | None = None,
        on_error: Literal["raise", "return"] = "raise",
        use_tqdm: bool | None = None,
        **kwargs: object,
    ) -> list[Any]:  # Any: as the overloads say
        """Runs a decoding strategy for all prompts at once.

        Parameters
        ----------
        strategy : generator function
            `strategy(sequence, **kwargs)` is written for one prompt. It yields `{sequence: tokens}` to extend (sequences of
            other LLMs too) or `Generate(...)`, and gets back what these return. What all prompts yield meets in one forward. An error of a
            yield is raised there, where the strategy may catch it.
        prompts : iterable of prompts
        seed : int, optional
            Each prompt's sequence gets a seed derived from it and the prompt's index.
        capture : Capture, optional
            Inner values that each prompt's sequence keeps.
        on_error : {"raise", "return"}
            What becomes of a prompt whose generator raises. "raise": after all others have finished its error is raised, or, of several
            prompts, StrategyErrors, which carries errors and results. "return": the error is in the list instead of a result.

        Returns
        -------
        list
            What each generator returned.

        Raises
        ------
        StrategyErrors, StrategyInterrupted
            Both hold the results of the prompts that had finished.
        """
        from llmi.lab.strategy import begin, run  # noqa: PLC0415 (loads NumPy)

        seed = parse(SEED, "seed", seed)
        shown = option("use_tqdm", use_tqdm)
        own_seed = seed if seed is not None else self._seed
        how = option("on_error", on_error)
        return run(self, begin(self, strategy, as_list(prompts), own_seed, capture, kwargs), how, shown)
