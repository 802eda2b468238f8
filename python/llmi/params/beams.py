"""Parameters of beam search: its own, and those that it shares with SamplingParams by the same tables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from llmi.base.kinds import Choice, Either, Flag, Maybe, Neutral, Real, Whole, materialised, plain, show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.fields import DrawFields, EditFields, OutputFields, RowFields
from llmi.params.options import Documented, about, field, options_of
from llmi.params.sampling import SAMPLING, HookFields, SamplingParams, canonical
from llmi.params.steering import comparable

MAX_WIDTH = 4096
_LARGEST = 1e30


@dataclasses.dataclass(kw_only=True)
class BeamFields:
    """What beam search has of its own; transformers' other names as aliases."""

    beam_width: int = dataclasses.field(
        metadata=about(Whole(1, MAX_WIDTH), "Hypotheses that are kept at each step; at most max_num_seqs of the engine.", ("num_beams",))
    )
    n: int | None = field(
        None,
        Maybe(Whole(1, MAX_WIDTH)),
        "Hypotheses that come back, best first, at most beam_width; None: beam_width, or 1 where the width was given as num_beams.",
        ("num_return_sequences",),
    )
    length_penalty: float = field(
        1.0,
        Neutral(Real(-50, 50), 1.0),
        "score = sum of log-probabilities / length^length_penalty. Above 0 favours long texts, below 0 short ones; 0 compares plain sums.",
    )
    length_includes_prompt: bool = field(
        False, Flag(), "The length counts the prompt, and no end-of-text: vLLM's score, not transformers'."
    )
    early_stopping: bool | Literal["never"] = field(
        False,
        Neutral(Either((Flag(), Choice(("never",))), "True, False or 'never'"), False),
        "True: end when beam_width hypotheses are finished; False: when a better one is unlikely, for the best running one has no better"
        " score now; 'never': when none is possible.",
    )
    do_sample: bool = field(
        False,
        Neutral(Flag(), False),
        "Draw candidates without replacement (beam-sample) instead of taking the best. They are drawn from the softmax of their sums.",
    )
    num_beam_groups: int = field(1, Neutral(Whole(1, MAX_WIDTH), 1), "Groups of beams, which choose in turn; a divisor of beam_width.")
    diversity_penalty: float = field(
        0.0,
        Neutral(Real(0, _LARGEST), 0.0),
        "Subtracted from a token for each beam of an earlier group that took it at this step. Needs num_beam_groups above 1.",
    )


BEAMS = options_of(BeamFields)

#: Fields of SamplingParams that beams have not, each with the reason.
NOT_SHARED: Mapping[str, str] = {
    "sampler": "beam search chooses tokens by its own rule",
    **dict.fromkeys(options_of(RowFields), "a beam's row is the model's own (docs/decisions/0008)"),
}
SHARED = tuple(name for name in SAMPLING if name not in NOT_SHARED and name not in BEAMS)


@dataclasses.dataclass(kw_only=True)
class BeamSearchParams(OutputFields, HookFields, EditFields, DrawFields, BeamFields):
    """How beam search looks for the best continuations. transformers' rule (docs/numerics.md).

    The score of a hypothesis is the sum of its tokens' log-probabilities divided by length^length_penalty, where end-of-text counts as a
    token. Masks, bias, penalties and processors act on log-probabilities, as in transformers: a repetition penalty then makes every seen
    token less likely. A beam with nothing allowed is dropped. No noise is drawn unless do_sample.

    Mutable; copied and validated when a request is submitted. Further fields have SamplingParams' names and meaning; `sampler` is
    missing. Names of transformers are accepted (num_beams, num_return_sequences, max_new_tokens and others); unknown names raise TypeError.

    Examples
    --------
    >>> output = llm.generate("The sea is", BeamSearchParams(beam_width=4, n=2, max_tokens=8))[0]
    >>> best, second = output.outputs
    >>> best.score >= second.score
    True
    """

    def replace(self, **changes: object) -> BeamSearchParams:
        """A copy with these fields changed; aliases are understood, unknown names raise TypeError."""
        return dataclasses.replace(self, **canonical_beams(changes, "BeamSearchParams.replace")[0])

    def validate(self) -> None:
        """Raise InvalidParamsError for the first value that is not what it must be or contradicts another."""
        dataclasses.replace(self)._settle()

    def _settle(self) -> SamplingParams:
        """Replaces every value by its plain form and checks them together; returns the part that SamplingParams has, for n results."""
        for name, option in BEAMS.items():
            setattr(self, name, option.parse(getattr(self, name)))
        self.n = self.beam_width if self.n is None else self.n
        sampling = SamplingParams(**{name: getattr(self, name) for name in SHARED})
        sampling._settle()
        for name in SHARED:
            setattr(self, name, getattr(sampling, name))
        _check_together(self)
        sampling.n = self.n
        return sampling

    def _materialise(self) -> None:
        """Reads iterators into tuples, so that every prompt and the next call get their values."""
        for name in SHARED:
            value = getattr(self, name)
            again = materialised(name, value)
            if again is not value:
                setattr(self, name, again)
        self.steering = comparable(self.steering)


Params: TypeAlias = SamplingParams | BeamSearchParams


def with_logprobs(params: object) -> BeamSearchParams:
    """Parameters whose results have log-probabilities."""
    if not isinstance(params, BeamSearchParams):
        raise InvalidParamsError(f"params must be BeamSearchParams, not {show(params)}", "params")
    return params if params.logprobs is not None else params.replace(logprobs=0)


def _check_together(params: BeamSearchParams) -> None:
    """Refuses values that contradict each other, in their plain form."""
    width, groups = params.beam_width, params.num_beam_groups
    if (params.n or 0) > width:
        raise InvalidParamsError(f"n = {params.n} exceeds beam_width = {width}: no more hypotheses are kept", "n")
    if width % groups:
        raise InvalidParamsError(f"num_beam_groups = {groups} does not divide beam_width = {width}", "num_beam_groups")
    if params.diversity_penalty and groups == 1:
        _contradiction("diversity_penalty", params.diversity_penalty, "num_beam_groups", "it needs num_beam_groups above 1")
    if groups > 1 and not params.diversity_penalty:
        _contradiction("num_beam_groups", groups, "diversity_penalty", "it needs a diversity_penalty above 0, or all groups would be alike")
    if params.do_sample and groups > 1:
        _contradiction("do_sample", True, "num_beam_groups", "groups of beams take the best candidates")
    if params.do_sample and params.temperature == 0:
        _contradiction("do_sample", True, "temperature", "temperature = 0 draws nothing")


def _contradiction(name: str, value: object, other: str, why: str) -> None:
    raise UnsupportedCombinationError(f"{name} = {show(value)}: {why}", name, other)


BEAM_FIELDS = tuple(field.name for field in dataclasses.fields(BeamSearchParams))
#: transformers' names for beam search's own parameters.
BEAM_ALIASES = {alias: option.name for option in BEAMS.values() for alias in option.aliases}
_fields_init = BeamSearchParams.__init__


@functools.wraps(_fields_init)
def _init(self: BeamSearchParams, **params: object) -> None:
    _fields_init(self, **canonical_beams(params, "BeamSearchParams")[0])
    self._materialise()


BeamSearchParams.__init__ = _init  # type: ignore[method-assign]
BeamSearchParams.__doc__ = Documented(BeamSearchParams.__doc__, BEAMS)  # type: ignore[assignment]


def means_beams(params: Mapping[str, object]) -> bool:
    """Whether a call's keywords mean beam search: beam_width, or num_beams above transformers' default of 1."""
    beams = plain(params.get("num_beams"))
    return params.get("beam_width") is not None or (beams is not None and not (isinstance(beams, int) and beams == 1))


def num_results(params: Mapping[str, object], default: int) -> tuple[int, str]:
    """(how many continuations a call's keywords want, the keyword that says so). default: n of the model's own defaults.

    Raises InvalidParamsError for a number that is none.
    """
    option = BEAMS["n"] if means_beams(params) else SAMPLING["n"]
    for name in ("n", *option.aliases):
        if params.get(name) is not None:
            return option.parse(params[name], name), name
    if not means_beams(params):
        return default, "n"
    return _width(params) if params.get("beam_width") is not None else (1, "num_beams")


def num_sequences(params: Mapping[str, object], default: int) -> tuple[int, str]:
    """(how many sequences run for a prompt, the keyword that says so), as `num_results` tells the results: the beams of a search, not those
    that come back."""
    results = num_results(params, default)
    return max(results, _width(params), key=lambda found: found[0]) if means_beams(params) else results


def _width(params: Mapping[str, object]) -> tuple[int, str]:
    name = "beam_width" if params.get("beam_width") is not None else "num_beams"
    return BEAMS["beam_width"].parse(params[name], name), name


def canonical_beams(params: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(values by field name, arguments without effect), as `canonical` gives them for SamplingParams."""
    own: dict[str, Any] = {}
    source: dict[str, str] = {}
    for name, value in params.items():
        field = BEAM_ALIASES.get(name, name)
        if field not in BEAMS or (value is None and name != field):
            continue
        given = value if name == field else BEAMS[field].parse(value, name)
        if field in own and BEAMS[field].parse(own[field], source[field]) != BEAMS[field].parse(given, name):
            raise InvalidParamsError(f"{source[field]} and {name} contradict each other: {show(own[field])} and {show(given)}", field)
        own[field], source[field] = given, name
    if "beam_width" in own and params.get("beam_width") is None and own.get("n") is None:
        own["n"] = 1
    _refuse_not_shared(params, where)
    rest = {name: value for name, value in params.items() if BEAM_ALIASES.get(name, name) not in BEAMS and name not in NOT_SHARED}
    shared, no_effect = canonical(rest, where)
    return own | shared, no_effect


def _refuse_not_shared(params: Mapping[str, Any], where: str) -> None:
    for name, why in NOT_SHARED.items():
        if name in params and SAMPLING[name].parse(params[name]) != SAMPLING[name].default:
            raise UnsupportedCombinationError(f"{name} = {show(params[name])} does not go with beam search: {why}", name, where)
    if Maybe(Flag()).parse("renormalize_logits", params.get("renormalize_logits")):
        raise UnsupportedCombinationError(
            "renormalize_logits = True does not go with beam search: rows that filters have cut are not normalised again",
            "renormalize_logits",
            where,
        )


def beams_for_core(params: BeamSearchParams) -> dict[str, object]:
    """The core's BeamParams, from settled parameters."""
    stops = {False: "no", True: "yes"}
    return {
        "width": params.beam_width,
        "num_returned": params.n,
        "length_penalty": params.length_penalty,
        "length_includes_prompt": params.length_includes_prompt,
        "early_stopping": "never" if params.early_stopping == "never" else stops[bool(params.early_stopping)],
        "do_sample": params.do_sample,
        "num_groups": params.num_beam_groups,
        "diversity_penalty": params.diversity_penalty,
    }
