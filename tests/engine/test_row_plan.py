"""The plan of each logits row: where it runs, what changes it, who decides and who reads it, for every feature on the host and on a device.

The table states the plans; then engines run the same requests, and each edit, decider and reader must be seen at work.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import ALL_FEATURES, BEAM_FEATURES, FEATURES, own_sampler, stateful
from llmi import LLM, BeamSearchParams, SamplingParams, SpeculativeConfig, _core
from llmi.testing import assert_same_tokens

pytestmark = pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
PROMPTS = [[5, 6, 7, 8] * 6, [9, 4] * 10, [3, 200, 17]]
EDITS = ("constraint", "combined", "parameters", "last_token", "batch_processors", "processors")
READERS = ("siblings", "criteria", "user_rule")
KEEPS = ("prompt_score", "logprobs", "draft_logprobs", "trace", "likeliest", "hidden")
CALLS: collections.Counter[str] = collections.Counter()


def words(plan: Any) -> str:
    """`place decider`, then what is set in the plan."""
    parts = [
        (plan.edits, EDITS),
        (plan.readers, READERS),
        (plan.keeps, KEEPS),
        (plan, ("in_parallel", "overwrites_logits", "lets_run_ahead")),
    ]
    return " ".join([plan.place, plan.decider, *(name for part, names in parts for name in names if getattr(part, name))])


# --- user code that counts its calls


def processor(context: llmi.TokenContext, logits: Any) -> None:
    CALLS["processor"] += 1
    logits[int(context.token_ids[-1])] -= 3.0


def sampler(context: llmi.TokenContext, law: Any) -> int:
    CALLS["sampler"] += 1
    return own_sampler(context, law)


def criterion(context: llmi.TokenContext) -> bool:
    CALLS["criterion"] += 1
    assert np.isfinite(context.logits).all(), "the raw logits, whatever the parameters cut"
    return False


class Batch:
    """An engine-wide processor."""

    def apply(self, contexts: list[llmi.TokenContext], logits: Any) -> None:
        CALLS["batch"] += 1
        CALLS["batch rows"] += len(contexts)
        for context, row in zip(contexts, logits, strict=True):
            row[int(context.token_ids[-1])] -= 3.0


class Pairs(llmi.Drafter):
    """Two tokens, one after the other: a root, an inner node and a leaf."""

    def propose(self, context: llmi.DraftContext) -> Any:
        return [7, 8][: context.num_speculative_tokens]


class Observer(Pairs):
    def observe(self, context: llmi.DraftContext, num_accepted: int, target_logprobs: Any) -> None:
        CALLS["observed"] += 1
        assert np.isfinite(target_logprobs[0]) or np.isneginf(target_logprobs[0])


class Half(llmi.Verification):
    """A rule."""

    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        CALLS["rule"] += 1
        return 0.5


class First(llmi.Verification):
    """A judge."""

    def verify(self, context: llmi.VerifyContext) -> tuple[list[int], int]:
        CALLS["judge"] += 1
        return [0], int(np.argmax(context.target_probs(0)))


def speculating(verification: Any = "coupled", drafter: type[llmi.Drafter] = Pairs) -> dict[str, Any]:
    return {"speculative_config": SpeculativeConfig(drafter(), 2, verification=verification)}


# --- the table: plans on a device; on the host they are the same with `host` and without lets_run_ahead


@dataclass
class Case:
    """A request, and what is planned for its rows by name: `first` is the last row of the prompt, `next` a later one; `sibling` the first
    row of another sample, `score` an earlier row of the prompt; `root`, `node` and `leaf` are rows of a draft of two tokens."""

    params: dict[str, Any]
    rows: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    batch: bool = False  # on an engine with batch processors
    # User code that must be called for each token (or draft), and not at all otherwise.
    calls: tuple[str, ...] = ()


ALONE = " in_parallel overwrites_logits lets_run_ahead"  # nothing but the draw reads the row
DRAWN = "device draw parameters" + ALONE
READ = " in_parallel"  # drawn apart from its logits, which are read afterwards


def plain(params: dict[str, Any], row: str, **more: Any) -> Case:
    """The same plan for the first and for later rows."""
    return Case(params, {"first": row, "next": row}, **more)


def drafting(root: str, node: str, leaf: str, following: str, params: dict[str, Any] | None = None, **more: Any) -> Case:
    """`following`: of a row without a draft."""
    return Case(params or {"top_p": 0.9}, {"root": root, "node": node, "leaf": leaf, "next": following}, **more)


FILTERED = "host draw parameters in_parallel overwrites_logits"
LAST_TOKEN = "device draw parameters last_token in_parallel overwrites_logits"
NO_AHEAD = "device draw parameters in_parallel overwrites_logits"
CONTRAST = "host contrast hidden"
FOUND = "device beams overwrites_logits"  # the candidates of a beam
LATER = "device draw parameters overwrites_logits"  # behind the first row of a draft: after the draw before it
CASES: dict[str, Case] = {
    **{
        name: plain(FEATURES[name], DRAWN)
        for name in (
            "greedy",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "filters",
            "penalties",
            "bias",
            "allowed",
            "min_tokens",
            "typical_p",
            "cutoffs",
            "p_less",
            "dynatemp",
        )
    },
    "neutral": plain({}, "device draw" + ALONE),
    "bad_words": plain(FEATURES["bad_words"], LAST_TOKEN),
    **{name: plain(FEATURES[name], LAST_TOKEN) for name in ("no_repeat_ngram", "penalty_last_n")},
    # Steps that a device does not know.
    **{name: plain(FEATURES[name], FILTERED) for name in ("mirostat 1", "dry", "sampler_order")},
    **{
        name: Case(
            FEATURES[name],
            {"first": "host draw parameters siblings in_parallel", "sibling": "host draw parameters overwrites_logits", "next": FILTERED},
        )
        for name in ("mirostat 2", "adaptive_p")
    },
    "xtc": Case(
        FEATURES["xtc"],
        {"first": "host draw parameters siblings in_parallel", "sibling": "host draw parameters overwrites_logits", "next": DRAWN},
    ),
    "filters at temperature 0": plain({"temperature": 0, "typical_p": 0.5, "mirostat": 0, "p_less": True}, DRAWN),
    # Rows that are made of several.
    "guidance": Case(
        FEATURES["guidance"],
        {
            "first": "host draw combined parameters siblings in_parallel",
            "sibling": "host draw combined parameters",
            "next": "host draw combined parameters" + READ,
        },
    ),
    "dola": Case(
        FEATURES["dola"],
        {"first": "host draw combined siblings in_parallel", "sibling": "host draw combined", "next": "host draw combined" + READ},
    ),
    **{
        name: plain(FEATURES[name], "host draw combined parameters" + READ)
        for name in ("guidance alone", "steering with guidance", "dola transformers")
    },
    "guidance, prompt_logprobs": Case(
        {"guidance_scale": 2.0, "prompt_logprobs": 1},
        {"score": "host nobody prompt_score", "first": "host draw combined" + READ, "next": "host draw combined" + READ},
    ),
    "guidance, a judge": drafting(
        *["host judge combined"] * 3,
        "host draw combined in_parallel",
        {"guidance_scale": 2.0},
        options=speculating(First()),
        calls=("judge",),
    ),
    "dola, rejection": drafting(
        "host rule combined",
        "host rule combined",
        "host draw combined",
        "host draw combined in_parallel",
        {"dola_layers": [1]},
        options=speculating("rejection"),
    ),
    "stop": plain(FEATURES["stop"], "device draw" + ALONE),
    "stop_ids": plain(FEATURES["stop_ids"], "device draw" + ALONE),
    "no_text": plain(FEATURES["no_text"], "device draw" + ALONE),
    "steering": Case(
        FEATURES["steering"],
        {"first": "host draw parameters siblings in_parallel", "sibling": "host draw parameters overwrites_logits", "next": DRAWN},
    ),
    "n": Case(
        FEATURES["n"],
        {"first": "host draw parameters siblings in_parallel", "sibling": "host draw parameters overwrites_logits", "next": DRAWN},
    ),
    "logprobs": plain(FEATURES["logprobs"], "host draw logprobs" + READ),
    "prompt_logprobs": Case(FEATURES["prompt_logprobs"], {"score": "host nobody parameters prompt_score", "first": DRAWN, "next": DRAWN}),
    "prompt_logprobs of a neutral law": Case(
        {"prompt_logprobs": 2}, {"score": "host nobody prompt_score", "first": "device draw" + ALONE, "next": "device draw" + ALONE}
    ),
    "processor": Case(
        FEATURES["processor"],
        {"first": "host draw processors siblings", "sibling": "host draw processors", "next": "host draw processors" + READ},
    ),
    # The core fills a grammar's masks; a processor in addition to it is user code.
    "grammar": Case(
        FEATURES["grammar"],
        {
            name: f"host draw constraint parameters processors{more}"
            for name, more in (("first", " siblings"), ("sibling", ""), ("next", READ))
        },
    ),
    "grammar to its end": plain(FEATURES["grammar to its end"], "host draw constraint parameters in_parallel overwrites_logits"),
    "grammar, a judge": drafting(
        *["host judge constraint parameters overwrites_logits"] * 3,
        "host draw constraint parameters in_parallel overwrites_logits",
        {"structured_outputs": {"regex": "[a-z]{2,40}"}},
        options=speculating("block"),
    ),
    "one processor": plain({"logits_processors": [processor]}, "host draw processors" + READ, calls=("processor",)),
    "sampler": plain(FEATURES["sampler"], "host sampler overwrites_logits"),
    "counted sampler": plain({"sampler": sampler}, "host sampler overwrites_logits", calls=("sampler",)),
    "criterion": plain(FEATURES["criterion"], "host draw criteria" + READ),
    "counted criterion": plain(
        {"stopping_criteria": [criterion], "top_k": 5}, "host draw parameters criteria" + READ, calls=("criterion",)
    ),
    "contrastive": Case(FEATURES["contrastive"], {"first": CONTRAST, "next": CONTRAST, "node": CONTRAST, "leaf": CONTRAST}),
    "contrastive, prompt_logprobs": Case(
        {**FEATURES["contrastive"], "prompt_logprobs": 2}, {"score": "host nobody prompt_score hidden", "first": CONTRAST, "next": CONTRAST}
    ),
    "contrastive with a processor": plain(FEATURES["contrastive with a processor"], "host contrast parameters processors hidden"),
    "contrastive, batch processors": plain(
        {**FEATURES["contrastive"], "max_tokens": 12}, "host contrast batch_processors hidden", batch=True, calls=("batch",)
    ),
    "contrastive, what is read and kept": plain(
        {**FEATURES["contrastive"], "logprobs": 1, "stopping_criteria": [criterion]},
        "host contrast criteria logprobs hidden",
        calls=("criterion",),
    ),
    **{name: plain(BEAM_FEATURES[name], FOUND) for name in ("beams", "beams that end", "groups of beams", "steered beams")},
    "beams and stops": plain(BEAM_FEATURES["beams and stops"], "host beams parameters last_token overwrites_logits"),
    "beam-sample": plain(BEAM_FEATURES["beam-sample"], "host beams parameters overwrites_logits"),
    "beam-sample of the raw row": plain({"beam_width": 2, "do_sample": True}, "host beams overwrites_logits"),
    "beams and a processor": plain(BEAM_FEATURES["beams and a processor"], "host beams parameters processors"),
    "beams, what is read and kept": plain(
        {"beam_width": 2, "logprobs": 1, "stopping_criteria": [lambda context: False]}, "host beams criteria logprobs"
    ),
    "beams, batch processors": plain({"beam_width": 2}, "host beams batch_processors", batch=True, calls=("batch",)),
    "beams, trace": plain({"beam_width": 2}, "host beams trace", options={"trace": True}),
    "trace": plain({"top_p": 0.9}, "host draw parameters trace", options={"trace": True}),
    "batch processors": plain({}, "host draw batch_processors" + READ, batch=True, calls=("batch",)),
    "batch processors and one's own": plain(
        {"logits_processors": [processor]}, "host draw batch_processors processors" + READ, batch=True, calls=("batch", "processor")
    ),
    "batch processors, n": Case(
        {"n": 2},
        {"first": "host draw batch_processors siblings", "sibling": "host draw processors", "next": "host draw batch_processors" + READ},
        batch=True,
        calls=("batch",),
    ),
    "coupled": drafting(NO_AHEAD, LATER, LATER, NO_AHEAD, options=speculating()),
    "coupled, a sampler": drafting(
        *["host sampler overwrites_logits"] * 4, {"sampler": sampler}, options=speculating(), calls=("sampler",)
    ),
    "coupled, a processor": drafting(
        "host draw processors in_parallel",
        "host draw processors",
        "host draw processors",
        "host draw processors in_parallel",
        {"logits_processors": [processor]},
        options=speculating(),
        calls=("processor",),
    ),
    "coupled, batch processors": drafting(
        "host draw batch_processors in_parallel",
        "host draw processors",
        "host draw processors",
        "host draw batch_processors in_parallel",
        {"temperature": 1.0},
        options=speculating(),
        batch=True,
        calls=("batch",),
    ),
    "coupled, observed": drafting(
        "host draw parameters draft_logprobs in_parallel",
        "host draw parameters draft_logprobs",
        "host draw parameters draft_logprobs",
        NO_AHEAD,
        options=speculating(drafter=Observer),
        calls=("observed",),
    ),
    "coupled, learning": drafting(
        "host draw parameters likeliest in_parallel",
        *["host draw parameters likeliest"] * 2,
        "host draw parameters likeliest in_parallel",
        options={"speculative_config": SpeculativeConfig(llmi.TokenRecycling(), 2)},
    ),
    "rejection": drafting(
        "device rule parameters overwrites_logits",
        "device rule parameters overwrites_logits",
        LATER,
        NO_AHEAD,
        options=speculating("rejection"),
    ),
    "rejection, log-probabilities": drafting(
        "host rule parameters logprobs",
        "host rule parameters logprobs",
        "host draw parameters logprobs",
        "host draw parameters logprobs in_parallel",
        {"top_p": 0.9, "logprobs": 1},
        options=speculating("rejection"),
    ),
    "a user's rule": drafting(
        "host rule parameters user_rule",
        "host rule parameters user_rule",
        "host draw parameters user_rule",
        NO_AHEAD,
        options=speculating(Half()),
        calls=("rule",),
    ),
    "a user's rule, batch processors": drafting(
        "host rule batch_processors user_rule",
        "host rule processors user_rule",
        "host draw processors user_rule",
        "host draw batch_processors in_parallel",
        {"temperature": 1.0},
        options=speculating(Half()),
        batch=True,
        calls=("rule", "batch"),
    ),
    "typical": drafting(
        "host rule parameters user_rule",
        "host rule parameters user_rule",
        "host draw parameters user_rule",
        NO_AHEAD,
        options=speculating("typical"),
    ),
    "block": drafting(*["host judge parameters overwrites_logits"] * 3, NO_AHEAD, options=speculating("block")),
    "a judge": drafting(*["host judge parameters overwrites_logits"] * 3, NO_AHEAD, options=speculating(First()), calls=("judge",)),
    "a judge, batch processors": drafting(
        *["host judge processors"] * 3,
        "host draw batch_processors in_parallel",
        {"temperature": 1.0},
        options=speculating(First()),
        batch=True,
        calls=("judge", "batch"),
    ),
}


def test_each_feature_has_its_row() -> None:
    assert set(ALL_FEATURES) <= set(CASES)


# --- engines, and the requests that they get


@pytest.fixture(scope="module")
def engines(tiny_path: Callable[..., Path]) -> Iterator[dict[tuple[str, bool], LLM]]:
    """By device, and whether there are batch processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_EMULATE_CUDA", "1")
        made = {
            (device, batch): LLM(tiny_path(), device=device, kv_cache_memory_bytes=1 << 22, batch_processors=[Batch()] if batch else [])
            for device in ("cpu", "cuda")
            for batch in (False, True)
        }
        yield made
        for llm in made.values():
            llm.close()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Core requests, as they are built for the calls of a test."""
    built: list[Any] = []
    make = _core.Request

    def record(**fields: Any) -> Any:
        built.append(make(**fields))
        return built[-1]

    monkeypatch.setattr(_core, "Request", record)
    return built


def params_of(case: Case) -> SamplingParams | BeamSearchParams:
    if "beam_width" in case.params:
        return BeamSearchParams(**{"max_tokens": 12, "seed": 3, "ignore_eos": "eos_token_id" not in case.params, **case.params})
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 12, "seed": 3, "ignore_eos": True, **case.params})


def row_case(name: str, prompt_len: int, *, is_observed: bool = False) -> Any:
    """A row by the names of `Case`."""
    row = _core.testing.RowCase()
    row.position = prompt_len - 1 if name in ("first", "sibling") else 0 if name == "score" else prompt_len + 5
    row.draws = name != "score"
    row.started = name not in ("first", "sibling", "score")
    row.sample_index = 1 if name == "sibling" else 0
    if name in ("root", "node", "leaf"):
        row.draft_token_ids = [7, 8]
        row.node = ("root", "node", "leaf").index(name) - 1
        row.is_observed = is_observed
    return row


@pytest.mark.parametrize("name", CASES)
def test_plans(engines: dict[tuple[str, bool], LLM], requests: list[Any], name: str) -> None:
    case = CASES[name]
    engines["cpu", case.batch].generate([PROMPTS[0]], params_of(case), use_tqdm=False, **case.options)
    (request,) = requests
    for row_name, expected in case.rows.items():
        row = row_case(row_name, len(PROMPTS[0]), is_observed="observed" in case.calls)
        row.has_batch_processors = case.batch
        assert words(_core.testing.plan_row(request, row)) == expected.replace("device", "host").replace(" lets_run_ahead", ""), row_name
        row.has_device = True
        assert words(_core.testing.plan_row(request, row)) == expected, row_name
        row.finished = True
        assert words(_core.testing.plan_row(request, row)) == "host nobody overwrites_logits", "a row of a static batch that has ended"


def test_rows_that_no_token_follows(engines: dict[tuple[str, bool], LLM], requests: list[Any]) -> None:
    """max_tokens=0, as perplexity wants: every row scores, and none is drawn from."""
    for device in ("cpu", "cuda"):
        before = engines[device, False].get_metrics()
        engines[device, False].perplexity([PROMPTS[0]], use_tqdm=False)
        after = engines[device, False].get_metrics()
        assert after["num_generated_tokens"] == before["num_generated_tokens"] and after["num_device_draws"] == before["num_device_draws"]
    request = requests[0]
    prompt_len = 1 + len(request.prompt_logprobs)
    for draws in (False, True):
        row = _core.testing.RowCase()
        row.position, row.draws, row.started, row.has_device = prompt_len - 2, draws, False, True
        assert words(_core.testing.plan_row(request, row)) == "host nobody prompt_score"
    row.position = prompt_len - 1
    assert words(_core.testing.plan_row(request, row)) == "host nobody overwrites_logits", "no prompt token follows"


def test_rows_of_which_the_hidden_state_is_kept(engines: dict[tuple[str, bool], LLM], requests: list[Any]) -> None:
    """Contrastive search reads that of each prompt token: no logits are computed for it, on a device either."""
    engines["cpu", False].generate([PROMPTS[0]], params_of(CASES["contrastive"]), use_tqdm=False)
    row = row_case("score", len(PROMPTS[0]))
    for row.has_device in (False, True):
        plan = _core.testing.plan_row(requests[0], row)
        assert words(plan) == "host nobody hidden" and not plan.needs_logits
    assert _core.testing.plan_row(requests[0], row_case("first", len(PROMPTS[0]))).needs_logits


def test_requests_that_user_code_steps(engines: dict[tuple[str, bool], LLM], requests: list[Any]) -> None:
    """Each step of theirs waits for a call, so none runs ahead. On an engine with batch processors none does either."""
    engines["cpu", False].enqueue([PROMPTS[0]], params_of(CASES["top_p"]))
    engines["cpu", False].wait_for_completion()
    row = row_case("next", len(PROMPTS[0]))
    row.has_device = True
    assert words(_core.testing.plan_row(requests[0], row)) == NO_AHEAD
    engines["cpu", False].generate([PROMPTS[0]], params_of(CASES["top_p"]), use_tqdm=False)
    assert words(_core.testing.plan_row(requests[1], row)) == DRAWN
    row.has_batch_processors = True
    assert words(_core.testing.plan_row(requests[1], row)) == NO_AHEAD, "a request without hooks"


# --- who is at work in an engine


@pytest.mark.parametrize("name", CASES)
def test_plans_are_carried_out(engines: dict[tuple[str, bool], LLM], name: str) -> None:
    """The same tokens in both places; rows are drawn on the device, and steps run ahead, exactly where the table says; user code is
    called."""
    case = CASES[name]
    params = params_of(case)
    outputs = {}
    for device in ("cpu", "cuda"):
        llm = engines[device, case.batch]
        llm.reset_prefix_cache()
        CALLS.clear()
        before = llm.get_metrics()
        outputs[device] = llm.generate(PROMPTS, params, use_tqdm=False, **case.options)
        after = llm.get_metrics()
        num_tokens, num_draws, num_ahead = (
            after[key] - before[key] for key in ("num_generated_tokens", "num_device_draws", "num_steps_ahead")
        )
        on_device = [row for row in case.rows.values() if row.startswith("device")] if device == "cuda" else []
        assert (num_draws > 0) == bool(on_device), num_draws
        assert (num_ahead > 0) == any("lets_run_ahead" in row for row in on_device), num_ahead
        if len(on_device) == len(case.rows) and "beam_width" not in case.params:  # a beam's row may give several tokens, or none
            assert num_draws >= num_tokens
        check_calls(case, outputs[device], num_tokens)
        check_records(case, outputs[device])
    assert_same_tokens(outputs["cuda"], outputs["cpu"])


def check_calls(case: Case, outputs: llmi.Outputs, num_tokens: int) -> None:
    """How often user code was called."""
    per_token = {"processor", "sampler", "criterion"}
    for hook in per_token & set(case.calls):
        assert CALLS[hook] == num_tokens, (hook, CALLS)
    for hook in {"processor", "sampler", "criterion", "batch", "rule", "judge", "observed"} - set(case.calls):
        assert CALLS[hook] == 0, hook
    if "batch" in case.calls:
        assert CALLS["batch rows"] >= num_tokens and CALLS["batch"] > 0
        assert "speculative_config" in case.options or (params_of(case).n or 1) > 1 or CALLS["batch rows"] > 2 * CALLS["batch"], (
            "rows of one step share a call"
        )
    num_drafts = sum(s.spec_decode_metrics.num_drafts for o in outputs for s in o.outputs if s.spec_decode_metrics is not None)
    assert (num_drafts > 0) == ("root" in case.rows)
    for hook in {"rule", "judge", "observed"} & set(case.calls):
        assert CALLS[hook] >= num_drafts, (hook, CALLS)


def check_records(case: Case, outputs: llmi.Outputs) -> None:
    """What is kept of the rows."""
    kept = {word for row in case.rows.values() for word in row.split()}
    for output in outputs:
        assert (output.prompt_logprobs is not None) == ("prompt_score" in kept)
        scores = [entry for entries in output.prompt_logprobs or [] for entry in (entries or {}).values()]
        by_parameters = "parameters" in case.rows.get("score", "").split()
        assert any(score.processed_logprob != score.logprob for score in scores) == by_parameters
        for sample in output.outputs:
            assert (sample.logprobs is not None and len(sample.logprobs) == len(sample.token_ids)) == ("logprobs" in kept)
            assert (sample.trace is not None and len(sample.trace.to_dict()["token_id"]) > 0) == ("trace" in kept)


def test_sequences_of_the_lab_have_no_rows(engines: dict[tuple[str, bool], LLM]) -> None:
    """User code holds their logits and draws itself; a request that begins with one is planned as any other."""
    for device in ("cpu", "cuda"):
        llm = engines[device, False]
        before = llm.get_metrics()
        with llm.sequence(PROMPTS[0]) as sequence:
            token = sequence.sample(SamplingParams(seed=3))
            sequence.extend([token])
            alone = llm.get_metrics()
            assert (
                alone["num_device_draws"] == before["num_device_draws"] and alone["num_generated_tokens"] == before["num_generated_tokens"]
            )
            output = llm.generate([sequence], params_of(CASES["top_p"]), use_tqdm=False)[0]
        drawn = llm.get_metrics()["num_device_draws"] - alone["num_device_draws"]
        assert (drawn >= len(output.outputs[0].token_ids)) == (device == "cuda")


def test_states_are_copied_before_the_leader_draws(engines: dict[tuple[str, bool], LLM]) -> None:
    """The first row of n samples with processors is drawn in order: siblings begin with the leader's state as it was before that row."""
    params = params_of(CASES["processor"])
    for device in ("cpu", "cuda"):
        together = engines[device, False].generate(PROMPTS, params, use_tqdm=False)
        lone = [engines[device, False].generate([prompt], params, use_tqdm=False)[0] for prompt in PROMPTS]
        assert [[s.token_ids for s in o.outputs] for o in together] == [[s.token_ids for s in o.outputs] for o in lone]
    assert stateful in params.logits_processors
