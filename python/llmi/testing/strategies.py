"""Decoding strategies compared on the same prompts: what each costs, and how good its answers are."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from llmi.base.kinds import show
from llmi.errors import InvalidParamsError, LlmiError, import_extra
from llmi.llm import LLM
from llmi.outputs.results import Outputs, RequestOutput
from llmi.outputs.table import table_html
from llmi.params.beams import BeamSearchParams
from llmi.params.sampling import SamplingParams
from llmi.smc.filter import ParticleFilter
from llmi.text.prompts import Prompt, as_list, tokenize

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_COLUMNS = ("strategy", "tokens", "forwards", "rows", "seconds", "score")


@dataclasses.dataclass(slots=True)
class StrategyRow:
    """One strategy over all prompts.

    num_tokens : of its answers, as the tokenizer counts them.
    num_forwards, num_rows : forwards of the model, and tokens that they computed, prompts among them: what its steps cost.
    seconds : from the first prompt to the last answer.
    score : mean of `scores`, one for each prompt.
    texts : its answers.
    """

    name: str
    num_tokens: int
    num_forwards: int
    num_rows: int
    seconds: float
    scores: list[float]
    texts: list[str]

    @property
    def score(self) -> float:
        """The mean score."""
        return sum(self.scores) / len(self.scores)


class StrategyReport(list[StrategyRow]):
    """One row a strategy."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """(headings, rows of cells)."""
        rows = [
            [row.name, f"{row.num_tokens:,}", f"{row.num_forwards:,}", f"{row.num_rows:,}", f"{row.seconds:.2f}", f"{row.score:.3f}"]
            for row in self
        ]
        return list(_COLUMNS), rows

    def to_pandas(self) -> pandas.DataFrame:
        """One row a strategy and prompt (needs pandas)."""
        frame = import_extra("pandas", "pandas").DataFrame
        return frame(
            [
                {"strategy": row.name, "prompt": index, "score": score, "text": text}
                for row in self
                for index, (score, text) in enumerate(zip(row.scores, row.texts, strict=True))
            ]
        )

    def plot(self) -> Figure:
        """Score over the rows that the model computed, and the time of each (needs matplotlib)."""
        pyplot = import_extra("matplotlib.pyplot", "plot")
        figure: Figure
        figure, (quality, cost) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        for index, row in enumerate(self):
            quality.plot(row.num_rows, row.score, "o", color=f"C{index}")
            quality.annotate(row.name, (row.num_rows, row.score), textcoords="offset points", xytext=(5, 5))
        quality.set(xscale="log", xlabel="rows that the model computed", ylabel="mean score")
        quality.margins(x=0.25, y=0.15)
        cost.barh([row.name for row in self], [row.seconds for row in self], color=[f"C{index}" for index in range(len(self))])
        cost.invert_yaxis()
        cost.set_xlabel("seconds for all prompts")
        return figure

    def __repr__(self) -> str:
        headings, rows = self.table()
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        return "\n".join(
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in [headings, *rows]
        )

    def _repr_html_(self) -> str:
        return table_html(*self.table())


def compare_strategies(
    strategies: Mapping[str, Any],  # Any: what LLM.generate and LLM.run take, told apart below
    prompts: Prompt | Iterable[Prompt],
    *,
    score: Callable[[str, str], float] | None = None,
    llm: LLM | None = None,
    seed: int = 0,
) -> StrategyReport:
    """Runs each strategy on all prompts, from an empty prefix cache, and compares tokens, forwards, time and scores.

    Parameters
    ----------
    strategies : {name: strategy}
        SamplingParams, BeamSearchParams, or a dict of generate's arguments: the first answer counts. A ParticleFilter, or (ParticleFilter,
        parameters by name): its heaviest text. A generator function, or (function, arguments by name), as LLM.run takes: it returns a text,
        token ids, or the output of a Generate.
    prompts : as for LLM.generate
    score : function of (prompt, answer), optional
        None: the mean log-probability of the answer's tokens by the model; NaN for an empty answer.
    llm : LLM, optional
        None: the default model.
    seed : int
        Of strategies that name none.

    Returns
    -------
    StrategyReport
        In the order of `strategies`.

    Raises
    ------
    InvalidParamsError, RequestErrors, StrategyErrors
        What the strategies' own calls raise.

    Examples
    --------
    >>> strategies = {
    ...     "greedy": llmi.SamplingParams(temperature=0, max_tokens=8),
    ...     "4 beams": llmi.BeamSearchParams(beam_width=4, max_tokens=8),
    ...     "contrastive": {"penalty_alpha": 0.6, "top_k": 4, "max_tokens": 8},
    ... }
    >>> [row.name for row in compare_strategies(strategies, ["The sea is"], llm=llm)]
    ['greedy', '4 beams', 'contrastive']
    """
    if not strategies:
        raise InvalidParamsError("strategies is empty: give at least one", "strategies")
    if llm is None:
        with LLM() as own:
            return compare_strategies(strategies, prompts, score=score, llm=own, seed=seed)
    listed = as_list(prompts)
    asked = [tokenize(prompt, llm.tokenizer)[0] or llm.tokenizer.decode(tokenize(prompt, llm.tokenizer)[1]) for prompt in listed]
    report = StrategyReport()
    for name, strategy in strategies.items():
        llm.reset_prefix_cache()
        before, began_s = llm.get_metrics(), time.perf_counter()
        try:
            texts = _answers(llm, strategy, listed, seed)
        except LlmiError as error:
            error.args = (f"{name}: {error}", *error.args[1:])
            raise
        seconds, after = time.perf_counter() - began_s, llm.get_metrics()
        num_tokens = sum(len(llm.tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        scores = _scores(llm, score, asked, texts)
        spent = {key: after[key] - before[key] for key in ("num_forwards", "num_forward_rows")}
        report.append(StrategyRow(name, num_tokens, spent["num_forwards"], spent["num_forward_rows"], seconds, scores, texts))
    return report


def _answers(llm: LLM, strategy: object, prompts: list[Prompt], seed: int) -> list[str]:
    """The text of each prompt's answer."""
    what, arguments = strategy if isinstance(strategy, tuple) and len(strategy) == 2 else (strategy, {})
    if isinstance(what, ParticleFilter):
        return [
            _heaviest(what.run(llm, prompt, use_tqdm=False, **{"seed": seed + index, **arguments}).texts())
            for index, prompt in enumerate(prompts)
        ]
    if isinstance(what, Mapping):
        return [output.text for output in llm.generate(prompts, use_tqdm=False, **{"seed": seed, **what})]
    if isinstance(what, SamplingParams | BeamSearchParams):
        seeded = what if what.seed is not None else dataclasses.replace(what, seed=seed)
        return [output.text for output in llm.generate(prompts, seeded, use_tqdm=False)]
    if callable(what):
        return [
            _text_of(llm, result)
            for result in llm.run(cast("Callable[..., Generator[Any, Any, object]]", what), prompts, seed=seed, use_tqdm=False, **arguments)
        ]
    raise InvalidParamsError(f"a strategy is parameters, a ParticleFilter or a generator function, not {show(what)}", "strategies")


def _heaviest(texts: Mapping[str, float]) -> str:
    return max(texts, key=lambda text: texts[text])


def _text_of(llm: LLM, result: object) -> str:
    """What a generator function returned, as text."""
    if isinstance(result, Outputs):
        result = result[0]
    if isinstance(result, str | RequestOutput):
        return result if isinstance(result, str) else result.text
    try:
        return llm.tokenizer.decode([int(token) for token in cast("Iterable[Any]", result)])
    except (TypeError, ValueError):
        raise InvalidParamsError(
            f"a strategy to compare returns a text, token ids or the output of Generate, not {show(result)}", "strategies"
        ) from None


def _scores(llm: LLM, score: Callable[[str, str], float] | None, prompts: list[str], texts: list[str]) -> list[float]:
    if score is not None:
        return [float(score(prompt, text)) for prompt, text in zip(prompts, texts, strict=True)]
    found = iter(llm.loglikelihood([pair for pair in zip(prompts, texts, strict=True) if pair[1]], use_tqdm=False))
    return [float(next(found).token_logprobs.mean()) if text else float("nan") for text in texts]
