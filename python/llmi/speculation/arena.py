"""The gain of drafters before they are used: replays of recorded outputs, and a prediction of the speed-up."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from llmi import _core
from llmi.errors import DraftError, InvalidParamsError, UnsupportedCombinationError, import_extra
from llmi.lab.tree import TokenTree
from llmi.outputs.results import Outputs, RequestOutput
from llmi.outputs.trace import DecodeTrace
from llmi.params.sampling import FIELDS, SamplingParams
from llmi.speculation.auto import AutoDrafters
from llmi.speculation.config import SpeculativeConfig, parse_speculation
from llmi.speculation.context import DraftContext
from llmi.speculation.drafters import Drafter, LoadedDrafter, drafter_name, plain_proposal

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from llmi.lab.sequence import TokenSequence
    from llmi.session import Session

    Source = TokenSequence | NDArray[np.float32] | tuple[NDArray[np.int32], NDArray[np.float32]]

_MAX_LENGTH = 16


class _ReplayContext(DraftContext):
    """A context over recorded tokens; distributions are processed by the draft model's own engine."""

    def __init__(self, output: RequestOutput, index: int, llm: Session | None, length: int) -> None:
        self.request_id = output.request_id
        self.index = index
        self.prompt_len = len(output.prompt_token_ids)
        self.num_speculative_tokens = length
        self.sampling_params = _recorded_params(output)
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
        raise UnsupportedCombinationError("the arena runs no target, whose head this drafter asks: give it llm=", "head", "arena")

    def draw(self, source: Source, *, num_tokens: int = 1, path: Iterable[int] = ()) -> tuple[list[int], list[NDArray[np.float32]]]:
        """As the target would draw; needs a model to process distributions."""
        if not hasattr(self, "_llm"):
            raise UnsupportedCombinationError("the arena has no target to draw for: give it llm=, or a DraftModel", "draw", "arena")
        return super().draw(source, num_tokens=num_tokens, path=path)

    def _law(self, source: TokenSequence | NDArray[np.float32], path: Iterable[int]) -> tuple[list[int], NDArray[np.float32], int]:
        if self.sampling_params.mirostat or self.sampling_params.adaptive_p >= 0:
            raise UnsupportedCombinationError(
                "the arena does not know what mirostat and adaptive_p remember of the recorded tokens: run the drafter, or give llm=",
                "draw",
                "arena",
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

    def count(self, depth: int, num_accepted: int) -> None:
        """Notes a draft of this depth, of which a path of num_accepted tokens was accepted."""
        for i in range(min(depth, num_accepted + 1)):
            self.tried[i] += 1
            self.accepted[i] += i < num_accepted

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


def drafter_arena(outputs: Outputs, drafters: Mapping[str, Any], *, llm: Session | None = None) -> ArenaReport:
    """Replays recorded outputs through drafters: how many tokens each would have had accepted.

    A drafter that sees tokens alone, or has a model of its own, is replayed without the target. One that reads the target's rows (Eagle,
    Medusa, TokenRecycling, Lookahead, "auto", a `capture`, `context.head`) is run: `llm` generates the recorded requests once more with it.

    Parameters
    ----------
    outputs : Outputs
    drafters : {name: drafter}
        Each as in `speculative_config`: one drafter, with its num_speculative_tokens. "auto" drafts 16 tokens, so that depths can be
        compared. Verification is coupled.
    llm : LLM, optional
        The target, as it was when the outputs were recorded.

    Returns
    -------
    ArenaReport
        A row for each drafter: tokens tried and accepted, by depth.

    Raises
    ------
    UnsupportedCombinationError
        A drafter needs `llm`; a verification that is not coupled; a LengthPolicy, which asks a running engine.

    Examples
    --------
    >>> outputs = llm.generate(["one two one two one", "a b a b a"], max_tokens=24, temperature=0)
    >>> report = drafter_arena(outputs, {"short": PromptLookup(2), "long": PromptLookup(4)})
    >>> [row.drafter for row in report]
    ['short', 'long']
    """
    report = ArenaReport()
    for name, entry in drafters.items():
        config = _checked(name, entry)
        length = _length(config)
        row = ArenaRow(name, 0, 0, 0, 0, [0] * max(length, _MAX_LENGTH), [0] * max(length, _MAX_LENGTH))
        if llm is not None:
            llm._speculate(config)  # which attaches the drafter, or refuses it
        if not _reads_tokens_alone(config._drafters[0]):
            row = _run_recorded(llm, outputs, config, row)
        else:
            try:
                _replay_all(config._drafters[0], outputs, length, row)
            except UnsupportedCombinationError as error:  # it needs the target
                if llm is None or error.parameter not in ("head", "draw"):
                    raise
                empty = ArenaRow(name, 0, 0, 0, 0, [0] * len(row.tried), [0] * len(row.tried))
                row = _run_recorded(llm, outputs, config, empty)
        report.append(row)
    width = max((len(row.tried) for row in report), default=0)
    for row in report:
        row.tried += [0] * (width - len(row.tried))
        row.accepted += [0] * (width - len(row.accepted))
    return report


def _checked(name: str, entry: object) -> SpeculativeConfig:
    config = parse_speculation(entry)
    if config is None or len(config._drafters) != 1:
        raise InvalidParamsError(f"{name!r}: the arena takes one drafter each", "drafters")
    if config.verification != "coupled":
        raise UnsupportedCombinationError(
            f"{name!r}: the arena counts tokens that coupled verification accepts, not {config.verification_name!r}: run it, and look at"
            " spec_decode_metrics",
            "verification",
            "arena",
        )
    if not isinstance(config.num_speculative_tokens, int | str):
        raise UnsupportedCombinationError(
            f"{name!r}: a LengthPolicy asks an engine that runs: give the arena a number", "num_speculative_tokens", "arena"
        )
    return config


def _length(config: SpeculativeConfig) -> int:
    length = config.num_speculative_tokens
    return length if isinstance(length, int) else _MAX_LENGTH


def _reads_tokens_alone(drafter: Drafter) -> bool:
    """Whether it proposes from Python without the target's rows."""
    kind = type(drafter)
    has_python = kind.propose is not Drafter.propose or kind.propose_batch is not Drafter.propose_batch
    return has_python and drafter.capture is None and not isinstance(drafter, LoadedDrafter)


def _run_recorded(llm: Session | None, outputs: Outputs, config: SpeculativeConfig, row: ArenaRow) -> ArenaRow:
    """Generates the recorded requests again, and counts what the engine counts. Raises if other tokens come."""
    drafter = config._drafters[0]
    if llm is None:
        what = "the target's hidden states (capture)" if drafter.capture is not None else "the target's rows"
        raise UnsupportedCombinationError(
            f"{row.drafter!r}: the arena runs no target, and {drafter_name(drafter)} drafts from {what}: give it llm=", "llm", "arena"
        )
    if config.num_speculative_tokens == "auto" and not isinstance(drafter, AutoDrafters):
        config = dataclasses.replace(config, num_speculative_tokens=_MAX_LENGTH)
    params = [_recorded_params(output) for output in outputs]
    prompts = [output.prompt_token_ids for output in outputs]
    again = llm.generate(prompts, params, speculative_config=config, trace=True, use_tqdm=False)
    for output, other in zip(outputs, again, strict=True):
        for known, completion in zip(output.outputs, other.outputs, strict=True):
            if known.token_ids != completion.token_ids:
                raise UnsupportedCombinationError(
                    f"{row.drafter!r}: request {output.request_id} gives other tokens on this LLM: give the one that the outputs are of",
                    "llm",
                    "arena",
                )
            row.num_tokens += len(completion.token_ids)
            metrics, trace = completion.spec_decode_metrics, completion.trace
            if metrics is not None and trace is not None:
                row.num_drafts += metrics.num_drafts
                row.num_draft_tokens += metrics.num_draft_tokens
                row.num_accepted_tokens += metrics.num_accepted_tokens
                _count_depths(trace, row)
    return row


def _count_depths(trace: DecodeTrace, row: ArenaRow) -> None:
    columns = trace.to_dict()
    drafted = columns["drafted"]
    steps, depths, accepted = columns["step"][drafted], columns["depth"][drafted], columns["accepted"][drafted] == 1
    for step in np.unique(steps):
        of_step = steps == step
        row.count(int(depths[of_step].max()), int(accepted[of_step].sum()))


def _recorded_params(output: RequestOutput) -> SamplingParams:
    values = {name: output.params_resolved[name][0] for name in FIELDS if name in output.params_resolved}
    return SamplingParams(**{**values, "seed": output.seed})


def _replay_all(drafter: Drafter, outputs: Outputs, length: int, row: ArenaRow) -> None:
    for output in outputs:
        for completion in output.outputs:
            context = _ReplayContext(output, completion.index, getattr(drafter, "llm", None), length)
            try:
                _replay(drafter, context, [*output.prompt_token_ids, *completion.token_ids], row)
            finally:
                context._close()


def _replay(drafter: Drafter, context: DraftContext, ids: list[int], row: ArenaRow) -> None:
    position = context.prompt_len + 1  # the first token comes with the prefill
    row.num_tokens += max(0, len(ids) - context.prompt_len)
    while position + 1 < len(ids):  # the last token is always drawn: nothing is drafted for its place alone
        context.token_ids = np.asarray(ids[:position], np.int32)
        proposal = drafter.propose_batch([context])[0]
        token_ids, parents = plain_proposal(proposal)
        if len(token_ids) > context.num_speculative_tokens:
            raise DraftError(
                f"{row.drafter!r} proposed {len(token_ids)} tokens where at most {context.num_speculative_tokens} may be proposed"
            )
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
            row.count(min(max(depths), limit), accepted)
            row.num_drafts += 1
            row.num_draft_tokens += sum(one <= limit for one in depths)
            row.num_accepted_tokens += accepted
        position += accepted + 1


@dataclasses.dataclass(slots=True)
class ForecastRow:
    """The prediction for one configuration: the best draft length, and tokens per second over plain decoding, at the given length or else
    at the best."""

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

    Drafters are those of `drafter_arena`, which runs with this `llm` those that read its rows. With a number of num_speculative_tokens,
    `speed_up` is that at this length, and lengths up to it are predicted; with "auto" it is that at the best of 0 to 16.

    Parameters
    ----------
    llm : LLM
    prompts : iterable of prompts
        As in `generate`.
    configs : {name: drafter}
        Each as in `speculative_config`.
    sampling_params : SamplingParams, optional

    Returns
    -------
    SpeculationForecast
        An entry for each drafter, and `cost_curve`, the seconds of a step by its rows.

    Raises
    ------
    RequestErrors, UnsupportedCombinationError
        As `drafter_arena`.

    Examples
    --------
    >>> params = SamplingParams(temperature=0, max_tokens=24)
    >>> forecast = speculation_forecast(llm, ["one two one two one"], {"lookup": PromptLookup()}, params)
    >>> forecast[0].speed_up > 0
    True
    """
    outputs = llm.generate(list(prompts), sampling_params, speculative_config=None, use_tqdm=False)
    curve = llm.cost_curve()
    forecast = SpeculationForecast()
    forecast.cost_curve = curve
    for arena, config in zip(drafter_arena(outputs, configs, llm=llm), configs.values(), strict=True):
        forecast.append(_forecast(arena, curve, _checked(arena.drafter, config)))
    return forecast


def _forecast(arena: ArenaRow, curve: Mapping[int, float], config: SpeculativeConfig) -> ForecastRow:
    length, sizes = _length(config), sorted(curve)
    seconds = [float(np.interp(1 + rows, sizes, [curve[size] for size in sizes])) for rows in range(length + 1)]
    acceptance = [accepted / tried if tried else 0.0 for accepted, tried in zip(arena.accepted, arena.tried, strict=True)][:length]
    steps = arena.num_tokens - arena.num_accepted_tokens
    proposing = arena.num_drafts / steps if steps else 0.0  # steps in which it has something to say
    ratios = []
    for rows in range(length + 1):
        gain = float(np.cumprod(acceptance[:rows]).sum())
        ratios.append((1 + proposing * gain) * seconds[0] / (proposing * seconds[rows] + (1 - proposing) * seconds[0]))
    best = int(np.argmax(ratios))
    given = isinstance(config.num_speculative_tokens, int)
    return ForecastRow(arena.drafter, acceptance, best, ratios[length if given else best], ratios)
