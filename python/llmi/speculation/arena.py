"""The gain of drafters before they are used: replays of recorded outputs, and a prediction of the speed-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from llmi import _core
from llmi.errors import InvalidParamsError, UnsupportedCombinationError, import_extra
from llmi.lab.tree import TokenTree
from llmi.outputs.results import Outputs, RequestOutput
from llmi.params.sampling import FIELDS, SamplingParams
from llmi.speculation.config import parse_speculation
from llmi.speculation.context import DraftContext
from llmi.speculation.drafters import Drafter, plain_proposal

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from llmi.lab.sequence import TokenSequence
    from llmi.session import Session

    Source = TokenSequence | NDArray[np.float32] | tuple[NDArray[np.int32], NDArray[np.float32]]

_MAX_LENGTH = 16


class _ReplayContext(DraftContext):
    """A context over recorded tokens; laws are processed by the draft model's own engine."""

    def __init__(self, output: RequestOutput, index: int, llm: Session | None) -> None:
        values = {name: output.params_resolved[name][0] for name in FIELDS if name in output.params_resolved}
        self.request_id = output.request_id
        self.index = index
        self.prompt_len = len(output.prompt_token_ids)
        self.num_speculative_tokens = _MAX_LENGTH
        self.sampling_params = SamplingParams(**{**values, "seed": output.seed})
        self.state = None
        self.hidden_states = {}
        self.hidden_rows, self.first_row, self._asked = {}, 0, False
        self._sequences = {}
        self._round = 0
        self._sampler_state = _core.SamplerState()
        if llm is not None:
            self._llm = llm
            self._core_params = llm._builder.core_params(self.sampling_params, output.seed, 1)

    def head(self, hidden: ArrayLike, *, shortlist: Iterable[int] | None = None) -> NoReturn:
        """The arena runs no target."""
        raise UnsupportedCombinationError("the arena runs no target, whose head this drafter asks: run the drafter", "head", "arena")

    def draw(self, source: Source, *, num_tokens: int = 1, path: Iterable[int] = ()) -> tuple[list[int], list[NDArray[np.float32]]]:
        """As the target would draw; needs a model to process laws."""
        if not hasattr(self, "_llm"):
            raise UnsupportedCombinationError(
                "the arena has no target to draw for: give it a DraftModel, or run the drafter", "draw", "arena"
            )
        return super().draw(source, num_tokens=num_tokens, path=path)

    def _law(self, source: TokenSequence | NDArray[np.float32], path: Iterable[int]) -> tuple[list[int], NDArray[np.float32], int]:
        if self.sampling_params.mirostat or self.sampling_params.adaptive_p >= 0:
            raise UnsupportedCombinationError(
                "the arena does not know what mirostat and adaptive_p remember of the recorded tokens: run the drafter", "draw", "arena"
            )
        return super()._law(source, path)


@dataclasses.dataclass(slots=True)
class ArenaRow:
    """One drafter over all outputs: `tried[i]` drafts reached depth i + 1, `accepted[i]` of them went on."""

    drafter: str
    num_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    tried: list[int]
    accepted: list[int]

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted"""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else float("nan")

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts"""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else float("nan")


class ArenaReport(list[ArenaRow]):
    """One row a drafter. `to_pandas()` has one row a drafter and depth."""

    def to_pandas(self) -> pandas.DataFrame:
        """Needs pandas."""
        pandas = import_extra("pandas", "pandas")
        rows = [
            {
                "drafter": row.drafter,
                "depth": depth + 1,
                "tried": tried,
                "accepted": accepted,
                "acceptance": accepted / tried if tried else None,
            }
            for row in self
            for depth, (tried, accepted) in enumerate(zip(row.tried, row.accepted, strict=True))
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        lines = [f"{'drafter':<20} {'drafted':>8} {'rate':>6} {'tokens a step':>14}"]
        lines += [
            f"{row.drafter:<20} {row.num_draft_tokens:>8} {row.acceptance_rate:>6.2f} {row.mean_acceptance_length:>14.2f}" for row in self
        ]
        return "\n".join(lines)

    def plot(self) -> Figure:
        """A heat map of acceptance, drafter by depth (needs matplotlib)."""
        pyplot = import_extra("matplotlib.pyplot", "plot")
        rates = np.array([[a / t if t else np.nan for a, t in zip(row.accepted, row.tried, strict=True)] for row in self])
        figure: Figure
        figure, axes = pyplot.subplots(figsize=(8, 1 + 0.5 * len(self)))
        image = axes.imshow(rates, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto", extent=(0.5, rates.shape[1] + 0.5, len(self) - 0.5, -0.5))
        axes.set_yticks(range(len(self)), [row.drafter for row in self])
        axes.set_xlabel("depth in the draft")
        figure.colorbar(image, label="accepted, of those that were tried")
        return figure

    def _repr_html_(self) -> str:
        import html

        def cell(tried: int, accepted: int) -> str:
            rate = accepted / tried if tried else 0.0
            return f'<td style="background:hsl({120 * rate:.0f},70%,85%);color:#000">{rate:.2f}</td>' if tried else "<td></td>"

        depths = max((len(row.tried) for row in self), default=0)
        head = "".join(f"<th>{depth + 1}</th>" for depth in range(depths))
        body = "".join(
            f"<tr><td>{html.escape(row.drafter)}</td><td>{row.acceptance_rate:.2f}</td><td>{row.mean_acceptance_length:.2f}</td>"
            + "".join(cell(tried, accepted) for tried, accepted in zip(row.tried, row.accepted, strict=True))
            + "</tr>"
            for row in self
        )
        return f"<table><thead><tr><th>drafter</th><th>rate</th><th>tokens a step</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def drafter_arena(outputs: Outputs, drafters: Mapping[str, Any]) -> ArenaReport:
    """Replays recorded outputs through drafters, without the target: how many tokens each would have had accepted.

    Parameters
    ----------
    outputs : Outputs
    drafters : {name: drafter}
        Drafters, functions or draft models; coupled verification is assumed.
    """
    report = ArenaReport()
    for name, entry in drafters.items():
        config = parse_speculation(entry)
        if config is None or len(config._drafters) != 1:
            raise InvalidParamsError(f"{name!r}: the arena takes one drafter each", "drafters")
        drafter = config._drafters[0]
        if drafter.capture is not None:
            raise UnsupportedCombinationError(
                f"{name!r}: the arena runs no target, whose hidden states this drafter wants (capture)", "capture", "arena"
            )
        row = ArenaRow(name, 0, 0, 0, 0, [0] * _MAX_LENGTH, [0] * _MAX_LENGTH)
        for output in outputs:
            for completion in output.outputs:
                context = _ReplayContext(output, completion.index, getattr(drafter, "llm", None))
                _replay(drafter, context, [*output.prompt_token_ids, *completion.token_ids], row)
                context._close()
        report.append(row)
    return report


def _replay(drafter: Drafter, context: DraftContext, ids: list[int], row: ArenaRow) -> None:
    position = context.prompt_len + 1  # the first token comes with the prefill
    row.num_tokens += max(0, len(ids) - context.prompt_len)
    while position + 1 < len(ids):  # the last token is always drawn: nothing is drafted for its place alone
        context.token_ids = np.asarray(ids[:position], np.int32)
        proposal = drafter.propose_batch([context])[0]
        token_ids, parents = plain_proposal(proposal)
        accepted = 0
        if token_ids:
            tree = TokenTree(token_ids, parents)
            depths: list[int] = []
            for node in range(len(tree)):
                parent = int(tree.parents[node])
                depths.append(1 if parent < 0 else depths[parent] + 1)
            node = -1
            while position + accepted + 1 < len(ids):
                children = [i for i in range(len(tree)) if tree.parents[i] == node and tree.token_ids[i] == ids[position + accepted]]
                if not children:
                    break
                node = children[0]
                accepted += 1
            limit = len(ids) - position - 1  # an engine cuts deeper nodes
            depth = min(max(depths), limit)
            for i in range(min(depth, accepted + 1, _MAX_LENGTH)):
                row.tried[i] += 1
                row.accepted[i] += i < accepted
            row.num_drafts += 1
            row.num_draft_tokens += sum(one <= limit for one in depths)
            row.num_accepted_tokens += accepted
        position += accepted + 1


@dataclasses.dataclass(slots=True)
class ForecastRow:
    """The prediction for one configuration: the best draft length, and its tokens per second over plain decoding."""

    name: str
    acceptance: list[float]
    best_length: int
    speed_up: float
    speed_up_by_length: list[float]


class SpeculationForecast(list[ForecastRow]):
    """One row a configuration; `cost_curve` is {rows: seconds of a step}."""

    cost_curve: dict[int, float]

    def __repr__(self) -> str:
        lines = [f"{'drafter':<20} {'first token':>12} {'best length':>12} {'speed-up':>9}"]
        lines += [f"{row.name:<20} {row.acceptance[0]:>12.2f} {row.best_length:>12} {row.speed_up:>9.2f}" for row in self]
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Speed-up by draft length (needs matplotlib)."""
        pyplot = import_extra("matplotlib.pyplot", "plot")
        figure: Figure
        figure, axes = pyplot.subplots()
        for row in self:
            axes.plot(range(len(row.speed_up_by_length)), row.speed_up_by_length, label=row.name)
        axes.set_xlabel("draft length")
        axes.set_ylabel("tokens per second over plain decoding")
        axes.axhline(1.0, color="grey", linewidth=0.5)
        axes.legend()
        return figure


def speculation_forecast(
    llm: Session, prompts: Iterable[Any], configs: Mapping[str, Any], sampling_params: SamplingParams | None = None
) -> SpeculationForecast:
    """Predicts what speculation would gain for one sequence, from one plain run, replays, and the measured cost of a step.

    The expected gain at length K: (1 + a1 + a1 a2 + ... ) tokens for a step of 1 + K rows, over one token for one row
    (Leviathan et al., 2023, with the machine's own cost curve instead of a constant). Drafting itself counts as free.
    """
    outputs = llm.generate(list(prompts), sampling_params, speculative_config=None, use_tqdm=False)
    curve = llm.cost_curve()
    sizes = sorted(curve)
    seconds = [float(np.interp(1 + length, sizes, [curve[size] for size in sizes])) for length in range(_MAX_LENGTH + 1)]
    forecast = SpeculationForecast()
    forecast.cost_curve = curve
    for arena in drafter_arena(outputs, configs):
        acceptance = [accepted / tried if tried else 0.0 for accepted, tried in zip(arena.accepted, arena.tried, strict=True)]
        steps = arena.num_tokens - arena.num_accepted_tokens
        proposing = arena.num_drafts / steps if steps else 0.0  # steps in which it has something to say
        ratios = []
        for length in range(_MAX_LENGTH + 1):
            gain = float(np.cumprod(acceptance[:length]).sum())
            ratios.append((1 + proposing * gain) * seconds[0] / (proposing * seconds[length] + (1 - proposing) * seconds[0]))
        best = int(np.argmax(ratios))
        forecast.append(ForecastRow(arena.drafter, acceptance, best, ratios[best], ratios))
    return forecast
