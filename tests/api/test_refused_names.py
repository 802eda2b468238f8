"""Every name that decoding methods have elsewhere is a field with a meaning here, or is refused with a reason and what to do instead.

One table: it says nothing of which names are fields, so that it holds as names become fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import InvalidParamsError, SamplingParams, UnsupportedCombinationError
from llmi.params.foreign_options import CALL_FOREIGN
from llmi.params.options import CALL, Option
from llmi.params.sampling import ALIASES, SAMPLING

DOCS = Path(__file__).parents[2] / "docs"
#: A value that has an effect, in the form that the program of this name takes, with the values that it needs.
NAMES: dict[str, Any] = {
    # transformers
    "typical_p": 0.5,
    "epsilon_cutoff": 0.001,
    "eta_cutoff": 0.001,
    "top_h": 0.4,
    "guidance_scale": 1.5,
    "negative_prompt": "x",
    "negative_prompt_ids": [5],
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "length_penalty": 2.0,
    "early_stopping": True,
    "constraints": [object()],
    "force_words_ids": [[5]],
    "bad_words_ids": [[5]],
    "min_length": 5,
    "max_length": 50,
    "watermarking_config": {"bias": 2.0},
    "exponential_decay_length_penalty": (5, 1.1),
    "encoder_repetition_penalty": 1.2,
    "low_memory": True,
    # vLLM and SGLang
    "watermarking": {"algorithm": "kgw"},
    "use_beam_search": True,
    "beam_width": 4,
    "best_of": 4,
    "thinking_token_budget": 100,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    "logprob_token_ids": [5],
    "token_ids_logprob": [5],
    "stop_regex": "x+",
    # llama.cpp, koboldcpp, text-generation-webui, exllamav3
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "mirostat": 2,
    "mirostat_mode": 2,
    "mirostat_tau": 3.0,
    "mirostat_eta": 0.2,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "dry_sequence_breakers": ["x"],
    "adaptive_p": 0.4,
    "adaptive_target": 0.4,
    "adaptive_p_decay": 0.5,
    "adaptive_decay": 0.5,
    "repeat_last_n": 64,
    "penalty_last_n": 64,
    "sampler_order": ["top_k"],
    "top_a": 0.2,
    "tfs_z": 0.9,
    "smoothing_factor": 0.3,
    "smoothing_curve": 2.0,
    "samplers": ["top_k"],
    "sampler_priority": ["top_k"],
    # of papers
    "p_less": True,
    "dola_rule": "transformers",
    "steering": {1: [0.0]},
    "force_words": ["x"],
    "length_includes_prompt": True,
}
#: Words of a reason that say what to do, without naming a parameter.
_ADVICE = ("logits processor", "stopping criterion", "llmi.", "give its fields", "sampler", "choose among the outputs")
#: Names whose feature this version has not got: (a module of llmi or a field that will replace the reason).
_PENDING = {
    "guidance_scale": "guidance_scale",
    "negative_prompt": "guidance_scale",
    "negative_prompt_ids": "guidance_scale",
    "penalty_alpha": "penalty_alpha",
    "low_memory": "penalty_alpha",
    "dola_layers": "dola_layers",
    "dola_rule": "dola_layers",
    **dict.fromkeys(
        (
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "length_penalty",
            "early_stopping",
            "use_beam_search",
            "beam_width",
            "length_includes_prompt",
        ),
        "params.beams",
    ),
}


def exists(what: str) -> bool:
    return what in SAMPLING or (bool(what) and importlib.util.find_spec(f"llmi.{what}") is not None)


def meaning(name: str) -> Option | None:
    """What the name is here: a sampling parameter, or one of beam search, where this version has it."""
    if (field := ALIASES.get(name, name)) in SAMPLING:
        return SAMPLING[field]
    if not exists("params.beams"):
        return None
    beams = importlib.import_module("llmi.params.beams")
    found = beams.BEAMS.get(beams.BEAM_ALIASES.get(name, name))
    return found if isinstance(found, Option) else None


def sections(page: str) -> dict[str, str]:
    """A page's text by heading."""
    parts = re.split(r"^## (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_a_meaning_or_is_refused(name: str) -> None:
    option = meaning(name)
    if option is not None:
        assert option.doc
        option.parse(NAMES[name], name)
        return
    foreign = CALL_FOREIGN[name]
    if foreign.inert is not None:
        foreign.check(NAMES[name], "")
        return
    with pytest.raises(UnsupportedCombinationError) as error:
        SamplingParams(**{name: NAMES[name]})
    assert error.value.feature_a == name and foreign.why in str(error.value) and name in str(error.value)
    SamplingParams(**{name: None}).validate()
    for neutral in foreign.neutral:
        SamplingParams(**{name: neutral}).validate()


@pytest.mark.parametrize("name", [name for name in NAMES if name in CALL_FOREIGN and meaning(name) is None])
def test_each_reason_says_what_to_do_instead(name: str) -> None:
    why = CALL_FOREIGN[name].why
    assert len(why.split()) >= 4
    if "later version" in why:
        assert name in _PENDING and not exists(_PENDING[name]), f"{name}: this version has it"
        return
    given = [*re.findall(r"(\w+)=", why), *re.findall(r"give (\w*_\w*)", why)]
    assert given or any(words in why for words in _ADVICE) or CALL_FOREIGN[name].inert is not None, why
    unknown = [other for other in given if meaning(other) is None and other not in CALL]
    assert not unknown, f"{name}: there is no {unknown}"
    for module in re.findall(r"llmi\.(\w+)", why):
        assert hasattr(llmi, module) or exists(module), f"{name}: there is no llmi.{module}"


def test_the_docs_print_each_refusal() -> None:
    """docs/parameters.md by name; a value that changes nothing stands in brackets."""
    page = sections("parameters.md")
    for name in NAMES:
        if meaning(name) is None and CALL_FOREIGN[name].inert is None:
            assert f"`{name}`" in page["Refused by name"], name
    assert all(f"`{name}`" in page["Refused by name"] for name, foreign in CALL_FOREIGN.items() if foreign.inert is None)


@dataclasses.dataclass(frozen=True)
class Refused:
    """A combination: parameters that each are fine alone. `names`: those that the docs' line has."""

    names: tuple[str, ...]
    fields: dict[str, Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def speculation(verification: Any) -> dict[str, Any]:
    return {"speculative_config": llmi.SpeculativeConfig(llmi.PromptLookup(), 3, verification=verification)}


class Judge(llmi.Verification):
    """A judge of whole drafts."""

    lossless = True

    def verify(self, context: Any) -> Any:
        raise NotImplementedError


def take_first(context: Any, law: Any) -> int:
    return int(law.argmax())


_LOOKUP = speculation("coupled")
#: The closed list of docs/samplers.md and its like; another refusal needs a page in docs/decisions.
COMBINATIONS = [
    *(
        Refused(("mirostat",), {"mirostat": 2, name: value})
        for name, value in (
            ("top_k", 5),
            ("top_p", 0.9),
            ("min_p", 0.1),
            ("typical_p", 0.5),
            ("epsilon_cutoff", 0.1),
            ("eta_cutoff", 0.1),
            ("top_h", 0.5),
            ("top_n_sigma", 1.0),
            ("p_less", True),
            ("xtc_probability", 0.5),
            ("adaptive_p", 0.3),
        )
    ),
    Refused(("xtc_probability", "Verification.verify"), {"xtc_probability": 0.5}, speculation("block")),
    Refused(("xtc_probability", "Verification.verify"), {"xtc_probability": 0.5}, speculation(Judge())),
    Refused(("sampler_order",), {"sampler_order": ["top_p"], "top_k": 5}),
    Refused(("sampler_order",), {"sampler_order": ["top_k", "top_k"]}),
    Refused(("penalty_alpha",), {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0.0}, _LOOKUP),
    Refused(("penalty_alpha",), {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0.0, "n": 2}),
    Refused(("penalty_alpha",), {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0.7}),
    Refused(("guidance_scale", "sampler"), {"guidance_scale": 1.5, "negative_prompt": [5], "sampler": take_first}, _LOOKUP),
    Refused(("dola_layers", "sampler"), {"dola_layers": "low", "sampler": take_first}, _LOOKUP),
    Refused(("beam_width",), {"beam_width": 2}, _LOOKUP),
]


@pytest.mark.parametrize("case", COMBINATIONS, ids=lambda case: " ".join([*case.fields, *case.options]))
def test_the_closed_list_of_combinations(tiny: llmi.LLM, case: Refused) -> None:
    if any(meaning(name) is None for name in case.fields):
        pytest.skip("this version has not got all of these fields")
    kind = InvalidParamsError if "sampler_order" in case.fields else UnsupportedCombinationError
    with pytest.raises(kind) as error:
        tiny.generate([[5, 6, 7]], max_tokens=2, use_tqdm=False, **case.fields, **case.options)
    assert any(name in str(error.value) for name in case.names)
    lines = [line for page in DOCS.glob("*.md") for line in page.read_text().splitlines()]
    assert any(all(f"`{name}" in line for name in case.names) for line in lines), "the docs print it"
