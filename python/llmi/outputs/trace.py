"""The decode trace of one continuation: every token that was tried, and what became of it."""

from __future__ import annotations

import dataclasses
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmi.base.travel import Alike, Record
from llmi.errors import InvalidParamsError, import_extra
from llmi.outputs.table import table_html

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray


COLUMNS = (
    "step", "position", "depth", "token_id", "raw_logprob", "processed_logprob", "rank", "num_kept", "noise", "draft_prob", "accepted",
    "time_s", "forbidden_mass", "mask_kl",
)  # fmt: skip
_MASK_COLUMNS = ("forbidden_mass", "mask_kl")


CANDIDATE_COLUMNS = ("position", "token_id", "raw", "masked", "penalised", "processed", "tempered", "drawn", "kept", "noise", "chosen")


class DecodeTrace(Alike):
    """One row a token tried, in the order of decoding.

    What masks cost the distribution of a position (`structured_outputs`, allowed and banned tokens) is in `forbidden_mass`, the probability
    that softmax of the row before them gives to what they forbid, and `mask_kl` = -log(1 - forbidden_mass), in nats, the KL of the masked
    distribution to the free one; both are NaN in a beam search.

    Parameters
    ----------
    columns : dict of arrays [num_rows]
        `step` of the engine; `position` in prompt and output; `depth` in its step (1 follows the last committed token); `token_id`;
        `raw_logprob` of the model, `processed_logprob` of the distribution drawn from (-inf where cut); `rank` by raw logit; `num_kept`
        tokens that the filters left; `noise`, log E of the exponential race that draws (NaN at temperature 0): the token with the least
        noise - logit / temperature wins; `drafted`; `draft_prob`; `accepted` (1, 0, or NaN for a token that was drawn and not drafted);
        `time_s` on a steady clock.
    tokens : list of str
        The rows' tokens as text: the column `token`.
    candidates : dict of arrays
        Likely tokens of each position, likewise.
    candidate_tokens : list of str
    masks : array, optional
        Allowed tokens by position, as bits.

    Examples
    --------
    >>> output = llm.generate("The sea is", max_tokens=8, seed=1, trace=True)[0]
    >>> trace = output.outputs[0].trace
    >>> list(trace.to_dict()["token_id"]) == output.token_ids
    True
    >>> trace.diff(trace) is None
    True
    """

    def __init__(
        self,
        columns: dict[str, NDArray[Any]],
        tokens: list[str],
        candidates: dict[str, NDArray[Any]],
        candidate_tokens: list[str],
        masks: NDArray[Any] | None = None,
    ) -> None:
        self._columns = columns
        self._masks = np.zeros((0, 3), np.int64) if masks is None else masks  # position, tokens allowed, whether the token was one
        self.tokens = tokens
        self._candidates = candidates
        self._candidate_tokens = candidate_tokens

    def __len__(self) -> int:
        return len(self._columns["step"])

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Columns by name."""
        accepted = self._columns["accepted"].astype(np.float64)
        accepted[accepted < 0] = np.nan
        drafted = self._columns["accepted"] >= 0
        return {**self._columns, "token": np.asarray(self.tokens, dtype=object), "drafted": drafted, "accepted": accepted}

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame (needs pandas)."""
        return import_extra("pandas", "pandas").DataFrame(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Writes .npz."""
        arrays: dict[str, Any] = {**self._columns, "tokens": _hex(self.tokens), "candidate_tokens": _hex(self._candidate_tokens)}
        arrays["masks"] = self._masks
        arrays.update({f"candidate_{name}": column for name, column in self._candidates.items()})
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> DecodeTrace:
        """Reads what `save` wrote. Raises InvalidParamsError if it is no trace."""
        try:
            with np.load(path, allow_pickle=False) as data:
                columns = {name: data[name] for name in COLUMNS}
                candidates = {name: data[f"candidate_{name}"] for name in CANDIDATE_COLUMNS}
                return cls(columns, _unhex(data["tokens"]), candidates, _unhex(data["candidate_tokens"]), data["masks"])
        except (OSError, ValueError, KeyError) as error:
            raise InvalidParamsError(f"{path}: not a trace ({error})", "path") from None

    def explain(self, position: int) -> TokenExplanation:
        """Why the token at `position` (in prompt and output) was drawn: its foremost rivals, stage by stage.

        The order is masks and bias, penalties, processors, temperature, filters, unless `sampler_order` gives another; then the
        token with the largest `drawn` - noise wins (the Gumbel maximum; at temperature 0 the largest logit). Under `structured_outputs`
        it also says how many tokens the mask allowed. Tokens of a beam search have no explanation: its trace has their scores.
        """
        rows = np.flatnonzero(self._candidates["position"] == position)
        if len(rows) == 0:
            known = self._candidates["position"]
            span = f"{known.min()} to {known.max()}" if len(known) else "none"
            raise InvalidParamsError(f"the trace has no position {position}: it has {span}", "position")
        columns = {name: column[rows] for name, column in self._candidates.items()}
        score = columns["drawn"].astype(np.float64) - np.nan_to_num(columns["noise"], nan=0.0)
        order = np.lexsort((columns["token_id"], -columns["raw"], -score, -columns["chosen"]))
        return TokenExplanation(
            position,
            {**{name: column[order] for name, column in columns.items() if name != "position"}, "score": score[order]},
            [self._candidate_tokens[rows[i]] for i in order],
            self._mask(position),
        )

    def allowed_counts(self) -> dict[int, int]:
        """How many tokens the mask of `structured_outputs` allowed at each position of the output; empty without one."""
        return {int(position): int(count) for position, count, _ in self._masks}

    def mask_cost(self) -> MaskCost:
        """The cost of masks at each position of the output."""
        kept = self._columns["accepted"] != 0  # one row a position: the token that was emitted
        return MaskCost(*(self._columns[name][kept] for name in ("position", *_MASK_COLUMNS)))

    def _mask(self, position: int) -> tuple[int, bool] | None:
        found = self._masks[self._masks[:, 0] == position]
        return (int(found[0, 1]), bool(found[0, 2])) if len(found) else None

    def diff(self, other: DecodeTrace) -> TraceDifference | None:
        """The first emitted token that differs in id or log-probabilities; None if all are equal, bit for bit."""
        mine, theirs = self._emitted(), other._emitted()
        for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a != b:
                return TraceDifference(i, a[0], b[0], a[1] - b[1], a[2] - b[2])
        if len(mine) != len(theirs):
            return TraceDifference(min(len(mine), len(theirs)), None, None, float("nan"), float("nan"))
        return None

    def _emitted(self) -> list[tuple[int, float, float]]:
        """(token, raw, processed) of what was emitted: accepted drafts, and tokens that were drawn."""
        columns = self._columns
        kept = columns["accepted"] != 0
        return list(
            zip(
                columns["token_id"][kept].tolist(),
                columns["raw_logprob"][kept].tolist(),
                columns["processed_logprob"][kept].tolist(),
                strict=True,
            )
        )

    def __repr__(self) -> str:
        drafted = int((self._columns["accepted"] >= 0).sum())
        return f"DecodeTrace({len(self)} tokens tried, {drafted} of them drafted, {int((self._columns['accepted'] == 1).sum())} accepted)"

    def _repr_html_(self) -> str:
        """The text with accepted drafts green, drawn tokens grey, and rejected drafts struck out."""
        columns = self.to_dict()
        spans = []
        for i, token in enumerate(self.tokens):
            accepted = columns["accepted"][i]
            colour, style = (
                ("#eee", "") if math.isnan(accepted) else ("#cfc", "") if accepted else ("#fdd", "text-decoration:line-through;")
            )
            title = f"position {columns['position'][i]}, rank {columns['rank'][i]}, log-probability {columns['processed_logprob'][i]:.3f}"
            spans.append(
                f'<span title="{title}" style="background:{colour};{style}color:#000;white-space:pre-wrap">{html.escape(token)}</span>'
            )
        return f"<div>{''.join(spans)}</div><small>{html.escape(repr(self))}</small>"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MaskCost(Record):
    """The cost of masks to the model's distribution, by position of the output.

    Attributes
    ----------
    positions : int64 array [num_tokens]
    forbidden_mass : float64 array [num_tokens]
        Probability of the tokens that masks forbid, before them.
    kl : float64 array [num_tokens]
        KL of the masked distribution to the free one, in nats: -log(1 - forbidden_mass).

    Examples
    --------
    >>> output = llm.generate("The sea is", allowed_token_ids=[50, 51, 52], max_tokens=8, seed=1, trace=True)[0]
    >>> cost = output.outputs[0].trace.mask_cost()
    >>> len(cost.kl) == len(output.token_ids) and cost.total_kl > 0
    True
    """

    positions: NDArray[np.int64]
    forbidden_mass: NDArray[np.float64]
    kl: NDArray[np.float64]

    @property
    def total_kl(self) -> float:
        """The sum over positions, in nats: exp(-total_kl) is the chance that free draws at temperature 1 keep to the masks here."""
        return float(self.kl.sum())

    def __repr__(self) -> str:
        limited = int((self.forbidden_mass > 0).sum())
        mean = float(self.forbidden_mass.mean()) if len(self.forbidden_mass) else float("nan")
        return (
            f"MaskCost({len(self.kl)} tokens, {limited} of them limited: {mean:.1%} of the mass forbidden on average, KL"
            f" {self.total_kl:.3f} nats in all)"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TraceDifference(Record):
    """The first difference of two traces.

    Attributes
    ----------
    position : int
        Of the output.
    token_id, other_token_id : int or None
        None past an end.
    raw_gap, processed_gap : float
        Of the log-probabilities.

    Examples
    --------
    >>> first, second = llm.generate(["The sea is"] * 2, [SamplingParams(seed=seed, max_tokens=8) for seed in (1, 2)], trace=True)
    >>> difference = first.outputs[0].trace.diff(second.outputs[0].trace)
    >>> first.token_ids[difference.position] == difference.token_id != difference.other_token_id
    True
    """

    position: int
    token_id: int | None
    other_token_id: int | None
    raw_gap: float
    processed_gap: float


class TokenExplanation(Alike):
    """One position on one page: the token that was drawn first, then its rivals.

    Parameters
    ----------
    position : int
        In prompt and output.
    columns : dict of arrays
        token_id; logits `raw`, `masked` (masks and bias), `penalised`, `processed` (the user's processors), `tempered`, `drawn` (after the
        filters and what `sampler_order` puts after the temperature; -inf where cut; contrastive search: what it compares, for its
        candidates); `kept` by the filters; `noise` (log E, NaN at temperature 0); `score` = drawn - noise: the largest is drawn; `chosen`.
    tokens : list of str
        The column `token` of `to_dict()`.
    mask : tuple of int and bool, optional
        `num_allowed`: how many tokens the mask of `structured_outputs` allowed; `is_allowed`: whether the token was one of them. Both are
        None without.

    Examples
    --------
    >>> output = llm.generate("The sea is", top_k=3, max_tokens=8, seed=1, trace=True)[0]
    >>> page = output.outputs[0].trace.explain(len(output.prompt_token_ids))
    >>> int(page.to_dict()["token_id"][0]) == output.token_ids[0], int(page.to_dict()["kept"].sum())
    (True, 3)
    """

    def __init__(self, position: int, columns: dict[str, NDArray[Any]], tokens: list[str], mask: tuple[int, bool] | None = None) -> None:
        self.position = position
        self.num_allowed: int | None = None if mask is None else mask[0]
        self.is_allowed: bool | None = None if mask is None else mask[1]
        self._columns = columns
        self.tokens = tokens

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Columns by name."""
        columns = {**self._columns, "token": np.asarray(self.tokens, dtype=object)}
        return {**columns, "kept": columns["kept"] == 1, "chosen": columns["chosen"] == 1}

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame (needs pandas)."""
        return import_extra("pandas", "pandas").DataFrame(self.to_dict())

    def table(self) -> tuple[list[str], list[list[str]]]:
        """(headings, rows of cells); a stage that changed nothing anywhere is left out."""
        columns = self._columns
        stages = ["raw"]
        for name in ("masked", "penalised", "processed", "tempered"):
            if not np.array_equal(columns[name], columns[stages[-1]]):
                stages.append(name)
        kept = columns["kept"] == 1
        if not np.array_equal(columns["drawn"][kept], columns["tempered"][kept]):
            stages.append("drawn")
        headings = ["", "token", "id", *stages, "kept", "noise", "score"]
        rows = [
            [
                "->" if columns["chosen"][i] else "",
                repr(token),
                str(columns["token_id"][i]),
                *(f"{columns[name][i]:.3f}" for name in stages),
                "yes" if columns["kept"][i] else "cut",
                f"{columns['noise'][i]:.3f}",
                f"{columns['score'][i]:.3f}",
            ]
            for i, token in enumerate(self.tokens)
        ]
        return headings, rows

    def __repr__(self) -> str:
        headings, rows = self.table()
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
        return f"{self._title()}\n" + "\n".join(lines)

    def _title(self) -> str:
        if self.num_allowed is None:
            return f"position {self.position}"
        what = "the token is one of them" if self.is_allowed else "the token is none of them"
        return f"position {self.position}: the mask allowed {self.num_allowed:,} token{'s' * (self.num_allowed != 1)}, {what}"

    def _repr_html_(self) -> str:
        return f"<b>{self._title()}</b>" + table_html(*self.table())


def _hex(texts: list[str]) -> NDArray[np.str_]:
    return np.asarray([text.encode("utf-8", "replace").hex() for text in texts], dtype=np.str_)


def _unhex(texts: NDArray[np.str_]) -> list[str]:
    return [bytes.fromhex(str(text)).decode("utf-8", "replace") for text in texts]
