"""What an evaluation finds, as a record, a table and a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmi.base.travel import Record
from llmi.errors import InvalidParamsError, import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Difference:
    """A question that two models answer differently.

    Attributes
    ----------
    question : str
    place : int
        The first token of the answers that differs, from 0.
    base_text, text : str
        Both answers.

    Examples
    --------
    >>> from llmi.compress import Difference
    >>> Difference("Where is Rome?", place=4, base_text="Rome is in Italy.", text="Rome is in Europe.").place
    4
    """

    question: str
    place: int
    base_text: str
    text: str


@dataclasses.dataclass(slots=True, eq=False)
class Evaluation(Record):
    """A model compared with its base. What needs a base is None without one.

    Attributes
    ----------
    model, base : str
        Names of the files.
    bytes : int
        Of the model's files.
    num_tokens : int
        Scored tokens.
    perplexity, base_perplexity : float
    perplexity_error : float
        Of the ratio of both, or without a base of the perplexity itself: relative, one standard error over windows.
    kl, kl_error : float
        Mean of KL(base || model) over the whole vocabulary in nats, and its standard error over windows (nan with one window).
    kl_median, kl_99, kl_max : float
    same_top : float
        Share of tokens at which both find the same token likeliest.
    probability_changes : dict
        Percentile: change of the probability of the text's token.
    answers, answers_equal : int
        Greedy answers, and how many of them are the base's; `differences` has the others.
    prompt_tokens_per_s, tokens_per_s : float
        Of a prompt, and of one sequence.
    base_types : list of str
        Quantised types of the base: on its own grid rounding costs nothing, so that a KL against it tells too little.

    Examples
    --------
    >>> from llmi.compress import evaluate
    >>> from llmi.testing import tiny_model
    >>> result = evaluate(tiny_model(), texts=[[5, 9, 2, 7, 1, 8, 3, 6]], window=8)
    >>> result.num_tokens, result.kl is None
    (7, True)
    """

    model: str
    base: str | None
    text: str
    bytes: int
    num_tokens: int
    perplexity: float
    perplexity_error: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    base_perplexity: float | None = None
    kl: float | None = None
    kl_error: float | None = None
    kl_median: float | None = None
    kl_99: float | None = None
    kl_max: float | None = None
    same_top: float | None = None
    probability_changes: dict[int, float] = dataclasses.field(default_factory=dict)
    answers: int = 0
    answers_equal: int | None = None
    differences: list[Difference] = dataclasses.field(default_factory=list)
    base_types: list[str] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return table([self])


def table(results: Sequence[Evaluation]) -> str:
    """A line a model, beside what they were judged on.

    Raises
    ------
    IndexError
        There is no result.
    """
    first = results[0]
    with_base = first.base is not None
    heads = ["model", "MB", "ppl", "prompt t/s", "t/s"]
    if with_base:
        heads[3:3] = ["+-", "KL", "+-", "median", "99 %", "max", "same top"]
        if first.answers:
            heads.append(f"of {first.answers} answers equal")
    lines = [heads]
    for result in results:
        line = [result.model, f"{result.bytes / 1e6:,.1f}", f"{result.perplexity:,.3f}"]
        if with_base:
            line += [f"{result.perplexity_error:.2%}"]
            line += [_number(value) for value in (result.kl, result.kl_error, result.kl_median, result.kl_99, result.kl_max)]
            line += [f"{result.same_top or 0.0:.1%}"]
        line += [f"{result.prompt_tokens_per_s:,.0f}", f"{result.tokens_per_s:,.1f}"]
        if with_base and first.answers:
            line.append(str(result.answers_equal))
        lines.append(line)
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    text = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    text.append("")
    text.append(
        f"{first.num_tokens:,} tokens of {first.text}" + (f", base {first.base} (ppl {first.base_perplexity:,.3f})" if with_base else "")
    )
    if first.base_types:
        text.append(
            f"the base is quantised itself ({', '.join(first.base_types)}): what is rounded to its own grid costs nothing here, and the KL"
            " tells too little"
        )
    return "\n".join(text)


def differences(result: Evaluation) -> str:
    """The answers that are not the base's, a paragraph each."""
    return "".join(
        f"\n{result.model}: {each.question!r}: from token {each.place} on\n  base: {each.base_text!r}\n  here: {each.text!r}\n"
        for each in result.differences
    )


def plot(results: Sequence[Evaluation]) -> Figure:
    """KL over bytes (needs matplotlib). Raises InvalidParamsError without a base."""
    points = [(result.bytes / 1e6, result.kl, result.model) for result in results if result.kl is not None]
    if not points:
        raise InvalidParamsError("a plot of KL over bytes needs a base", "base")
    pyplot = import_extra("matplotlib.pyplot", "plot")
    figure: Figure
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.scatter([size for size, _, _ in points], [kl for _, kl, _ in points])
    for size, kl, name in points:
        axes.annotate(name, (size, kl), fontsize=8)
    axes.set_xlabel("MB")
    axes.set_ylabel("KL(base || model), nats")
    axes.set_yscale("symlog", linthresh=1e-4)
    return figure


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
