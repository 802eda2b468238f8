"""What an LLM shows of its model without generating: hidden states of prompts, the head, the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import Flag, array_of, parse, show
from llmi.errors import InvalidParamsError, OutOfMemoryError, PromptTooLongError, call_core
from llmi.lab.expert_use import ExpertUse, expert_use
from llmi.lab.weights import Weights
from llmi.params.options import option
from llmi.params.sampling import SAMPLING
from llmi.requests.sparse import core_view
from llmi.text.prompts import Prompt, as_list, check_unsteered, token_list, tokenize, warn_of_markup

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np

_MOST_AT_ONCE = 256  # prompts of one call into the core


class ModelRows:
    """The part of LLM that shows its model."""

    def hidden_states(
        self: Session,
        prompts: Prompt | Iterable[Prompt],
        layers: Iterable[int] = (-1,),
        *,
        normed: bool = False,
        parse_special: bool | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> list[dict[int, F32]]:
        """Hidden states at every token of prompts. No head runs, so a row costs what a prompt's token costs; other prompts change no bit of
        it.

        Parameters
        ----------
        prompts : str, list of int, dict, TokenSequence, or an iterable of these
        layers : iterable of int
            0 is the embedding's output, i the residual stream after layer i, -1 that after the last one.
        normed : bool
            After the model's final norm: of the last layer, what the head reads and transformers calls the last hidden state.
        parse_special : bool, optional
            As in generate.
        sparse_attention : mapping, optional
            As in SamplingParams.

        Returns
        -------
        list of dict
            For each prompt {layer: float32 array [num_tokens, hidden_size]}, read-only; the layers as they were given.

        Raises
        ------
        InvalidParamsError, PromptTooLongError, OutOfMemoryError

        Examples
        --------
        >>> rows = llm.hidden_states("The sea", normed=True)[0][-1]  # doctest: +SKIP
        >>> (llm.head(rows[-1:])[0] == llm.sequence("The sea").logits).all()  # doctest: +SKIP
        True
        """
        sees = SAMPLING["sparse_attention"].parse(sparse_attention)
        return hidden_states(self, prompts, layers, parse(Flag(), "normed", normed), parse_special, core_view(sees))

    def head(self: Session, hidden: ArrayLike, *, shortlist: Iterable[int] | None = None) -> F32 | tuple[I32, F32]:
        """Logits of hidden states, from the engine's own packed head: the bits that a step computes for such a row.

        Parameters
        ----------
        hidden : array [num_rows, hidden_size]
            After the final norm, as `hidden_states(..., normed=True)` gives them; float32, finite.
        shortlist : iterable of int, optional
            Token ids, each once. Only the tiles of 16 rows that hold them are read, so a shortlist of neighbours costs least.

        Returns
        -------
        float32 array [num_rows, vocab_size], or with a shortlist (int32 ids [num_ids], float32 array [num_rows, num_ids]), the ids in their
        given order.

        Raises
        ------
        InvalidParamsError
            Another shape, a value that is no finite number, an id outside the vocabulary or twice.
        EngineBusyError
            Called from inside this engine's own hook or drafter; a drafter calls `context.head`.
        """
        return head(self, hidden, shortlist)

    def expert_use(self: Session) -> ExpertUse:
        """Which experts the rows used, by layer and by pairs of consecutive layers; see ExpertUse.

        Raises
        ------
        EngineBusyError
            Called from inside this engine's own hook or drafter.

        Examples
        --------
        >>> use = llm.expert_use()  # doctest: +SKIP
        >>> use.counts[3] / use.counts[3].sum()  # doctest: +SKIP
        """
        return expert_use(self)

    @property
    def weights(self: Session) -> Weights:
        """{name: float32 array}: the model's tensors, named as in its files, each read on access; see Weights."""
        made: Weights | None = vars(self).get("_weights")
        if made is None:
            made = vars(self)["_weights"] = Weights(self)
        return made


def hidden_states(
    llm: Session,
    prompts: Prompt | Iterable[Prompt],
    layers: Iterable[int],
    normed: bool,
    parse_special: bool | None,
    view: _core.SparseView,
) -> list[dict[int, F32]]:
    """LLM.hidden_states."""
    from llmi.lab.capture import Capture, capture_layers  # noqa: PLC0415 (loads NumPy)

    named = list(Capture(hidden_states=layers).hidden_states)
    if not named:
        raise InvalidParamsError("layers is empty: name at least one, such as -1 for the last", "layers")
    counted, _, _ = capture_layers(Capture(hidden_states=named), llm.model_info.num_layers)
    rows: list[dict[int, F32]] = []
    for group in _groups(_ids_of(llm, prompts, parse_special), llm._engine_args.max_num_batched_tokens):
        rows += _rows(llm, group, sorted(set(counted)), normed, view)
    return [{layer: row[place] for layer, place in zip(named, counted, strict=True)} for row in rows]


def _ids_of(llm: Session, prompts: Prompt | Iterable[Prompt], parse_special: bool | None) -> list[list[int]]:
    given = as_list(prompts)
    if parse_special is None:
        warn_of_markup(given, llm.tokenizer, stacklevel=5)
    else:
        parse_special = option("parse_special", parse_special)
    limit = llm.model_info.max_model_len
    result = []
    for index, prompt in enumerate(given):
        check_unsteered(prompt, "hidden_states")
        ids = tokenize(prompt, llm.tokenizer, "prompts", parse_special, limit)[1]
        if not ids and isinstance(prompt, str) and llm.tokenizer.bos_token_id is not None:
            ids = [llm.tokenizer.bos_token_id]  # an empty text begins with beginning-of-text
        if not ids:
            raise InvalidParamsError(f"prompts: prompt {index} has no token, so it has no hidden state", "prompts")
        if len(ids) > limit:
            raise PromptTooLongError(len(ids), limit)
        _check_ids(ids, "prompts", llm.model_info.vocab_size)
        result.append(ids)
    return result


def _groups(sequences: list[list[int]], num_tokens: int) -> Iterator[list[list[int]]]:
    """The sequences in their order, as many at once as one step takes."""
    group: list[list[int]] = []
    total = 0
    for ids in sequences:
        if group and (total + len(ids) > num_tokens or len(group) == _MOST_AT_ONCE):
            yield group
            group, total = [], 0
        group.append(ids)
        total += len(ids)
    if group:
        yield group


def _rows(llm: Session, group: list[list[int]], layers: list[int], normed: bool, view: _core.SparseView) -> list[dict[int, F32]]:
    try:
        return call_core(_core.hidden_rows, llm._engine, group, layers, normed, view=view)
    except OutOfMemoryError:  # of KV cache, for all of them at once
        if len(group) == 1:
            raise
    return [row for ids in group for row in _rows(llm, [ids], layers, normed, view)]


def head(llm: Session, hidden: object, shortlist: Iterable[int] | None, in_drafter: bool = False) -> F32 | tuple[I32, F32]:
    """LLM.head; in_drafter: the caller is a drafter on the engine's own thread."""
    rows = hidden_array(hidden, llm.model_info.hidden_size)
    if shortlist is None:
        return call_core(_core.head, llm._engine, rows, None, in_drafter)
    ids = token_list(shortlist, "shortlist")
    if not ids:
        raise InvalidParamsError("shortlist is empty: None stands for the whole vocabulary", "shortlist")
    _check_ids(ids, "shortlist", llm.model_info.vocab_size)
    if len(set(ids)) < len(ids):
        twice = next(token for place, token in enumerate(ids) if token in ids[:place])
        raise InvalidParamsError(f"shortlist: token {twice} stands in it twice", "shortlist")
    return np.asarray(ids, np.int32), call_core(_core.head, llm._engine, rows, ids, in_drafter)


def hidden_array(hidden: object, hidden_size: int) -> F32:
    """Rows for the head as float32 [num_rows, hidden_size]. Raises InvalidParamsError."""
    rows = array_of("hidden", hidden)
    if rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != hidden_size:
        raise InvalidParamsError(
            f"hidden must be numbers [num_rows, hidden_size] = [num_rows, {hidden_size}], not {show(hidden)} of shape {rows.shape}",
            "hidden",
        )
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(rows, np.float32)
    finite = np.isfinite(result).all(axis=1)
    if not finite.all():
        raise InvalidParamsError(f"hidden: row {int(finite.argmin())} holds NaN or a value beyond float32", "hidden")
    return result


def _check_ids(ids: list[int], name: str, vocab_size: int) -> None:
    if max(ids) >= vocab_size:
        raise InvalidParamsError(f"{name}: token id {max(ids)} is outside [0, {vocab_size})", name)
