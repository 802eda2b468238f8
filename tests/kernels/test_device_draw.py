"""Draws where the logits lie: each row's token is that of the host's law and draw, whatever its parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SamplingParams, SpeculativeConfig, _core

T = _core.testing
Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
KEPT_MASS = [1.0, 0.95, 0.5, 1e-9, 1 - 1e-12]


def random_params(rng: np.random.Generator, vocab: int, ids: Array) -> Any:
    """Each parameter by itself on or off."""
    p = _core.SamplingParams()
    p.max_tokens = 100
    p.seed = int(rng.integers(1 << 62))
    p.temperature = float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.0, 2.5, 50.0]))
    p.top_k = int(rng.choice([0, 0, 1, 2, 7, 50, 300, vocab - 1, vocab]))
    p.top_p = float(rng.choice(KEPT_MASS))
    p.min_p = float(rng.choice([0.0, 0.0, 0.01, 0.3, 1.0]))
    if rng.random() < 0.5:
        p.repetition_penalty = float(rng.choice([0.8, 1.3]))
    if rng.random() < 0.5:
        p.frequency_penalty, p.presence_penalty = (float(x) for x in rng.uniform(-1, 1, 2))
    if rng.random() < 0.5:
        biased = rng.choice(ids, 5, replace=False)
        p.logit_bias = [(int(i), float(b)) for i, b in zip(biased, rng.normal(0, 5, 5), strict=True)]
    if rng.random() < 0.5:
        p.bad_words = [[int(i)] for i in rng.choice(ids, 3)] + [[int(ids[0]), int(ids[1])]]
    if rng.random() < 0.5:
        p.min_tokens, p.stop_token_ids, p.eos_token_ids = 50, [int(ids[2]), int(ids[3])], [int(ids[3])]
    if rng.random() < 0.3:
        p.allowed_token_ids = [int(i) for i in np.unique(np.concatenate([ids, rng.integers(0, vocab, vocab // 3)]))]
    return p


def copy_of(p: Any) -> Any:
    """Other parameters with the same values."""
    other = _core.SamplingParams()
    for name in (name for name in dir(p) if not name.startswith("_")):
        if not callable(getattr(p, name)):
            setattr(other, name, getattr(p, name))
    return other


def random_row(rng: np.random.Generator, vocab: int) -> Array:
    """Spread, flat, full of ties, of zeros of both signs, mostly cut already, or all far below zero."""
    kind = rng.integers(6)
    row = rng.normal(0, 3, vocab).astype(np.float32)
    if kind == 1:
        row[:] = 1.5
    elif kind == 2:
        row = np.round(row).astype(np.float32)
    elif kind == 3:
        row = rng.choice(np.array([0.0, -0.0, -1e-30], np.float32), vocab)
    elif kind == 4:
        row[rng.random(vocab) < 0.99] = -np.inf
        row[rng.integers(vocab)] = 20
    elif kind == 5:
        row -= 50
    return row


def host_token(p: Any, tokens: list[int], prompt_len: int, sample_index: int, row: Array) -> int:
    """What the host draws; -1 where it refuses."""
    try:
        law = T.process_logits(p, tokens, prompt_len, row, sample_index)
    except _core.CoreError:
        return -1
    return int(T.argmax("reference", law)) if p.temperature == 0 else int(T.draw(p.seed, len(tokens), sample_index, law))


@pytest.mark.parametrize(
    ("vocab", "num_rows", "seed"), [(61, 60, 1), (257, 60, 2), (4096, 40, 3), (5003, 40, 4), (49_152, 12, 5), (262_145, 4, 6)]
)
def test_every_row_is_the_hosts(device: str, vocab: int, num_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.stack([random_row(rng, vocab) for _ in range(num_rows)])
    params, histories = [], []
    for _ in range(num_rows):
        ids = rng.choice(vocab, 20, replace=False)
        params.append(random_params(rng, vocab, ids))
        histories.append([int(i) for i in rng.choice(ids, 30)] + ([int(ids[0])] if rng.random() < 0.5 else [int(ids[1])]))
    expected = [host_token(p, tokens, 11, 2, row) for p, tokens, row in zip(params, histories, rows, strict=True)]
    assert T.draw_on_device(device, params, histories, 11, 2, rows) == expected
    assert len(set(expected)) > num_rows // 4, "the rows must not be all alike"


#: Values of each filter that a device has beside temperature, min-p, top-k and top-p.
FILTERS: dict[str, list[Any]] = {
    "top_n_sigma": [0.5, 1.0, 3.0],
    "dynatemp_range": [0.3, 2.0],
    "typical_p": [0.1, 0.7, 0.95, 1 - 1e-12],
    "epsilon_cutoff": [1e-4, 0.02, 0.5],
    "eta_cutoff": [1e-4, 0.02, 0.5],
    "top_h": [0.05, 0.4, 1.0],
    "p_less": [True],
    "xtc_probability": [0.5, 1.0],
}


def with_filters(rng: np.random.Generator, p: Any, names: list[str]) -> Any:
    """The parameters with these filters, at times in an order of their own."""
    for name in names:
        setattr(p, name, type(getattr(p, name))(rng.choice(FILTERS[name])))
    p.xtc_threshold, p.dynatemp_exponent = float(rng.choice([0.0, 0.05, 0.3, 0.6])), float(rng.choice([0.0, 0.5, 1.0, 3.0]))
    if rng.random() < 0.5:
        steps = ["temperature", "min_p", "top_k", "top_p", *(name for name in FILTERS if name != "dynatemp_range")]
        p.sampler_order = ["repetition_penalty", "frequency_penalty", "presence_penalty", *(str(name) for name in rng.permutation(steps))]
    return p


@pytest.mark.parametrize(("vocab", "num_rows", "seed"), [(61, 60, 1), (257, 60, 2), (4100, 30, 3), (49_152, 9, 4)])
def test_every_filter_is_the_hosts(device: str, vocab: int, num_rows: int, seed: int) -> None:
    """Each row has one filter, then several, in any order; each cuts a token that would have been drawn without it."""
    rng = np.random.default_rng(seed)
    rows = np.stack([random_row(rng, vocab) for _ in range(num_rows)])
    params, plain, histories = [], [], []
    for i in range(num_rows):
        ids = rng.choice(vocab, 20, replace=False)
        several = [str(name) for name in rng.choice([*FILTERS], int(rng.integers(2, 5)), replace=False)]
        p = random_params(rng, vocab, ids)
        p.temperature = p.temperature or 1.0
        plain.append(copy_of(p))
        params.append(with_filters(rng, p, [[*FILTERS][i % len(FILTERS)]] if i < num_rows // 2 else several))
        histories.append([int(j) for j in rng.choice(ids, 30)])
    expected = [host_token(p, tokens, 11, 2, row) for p, tokens, row in zip(params, histories, rows, strict=True)]
    assert T.draw_on_device(device, params, histories, 11, 2, rows) == expected
    without = [host_token(p, tokens, 11, 2, row) for p, tokens, row in zip(plain, histories, rows, strict=True)]
    assert sum(a != b for a, b in zip(expected, without, strict=True)) > num_rows // 8


def test_filters_at_their_borders(device: str) -> None:
    """Ties, tokens without mass, a single token, temperatures that leave no finite logit, and the kept sets one by one."""
    row = np.concatenate([np.full(3, 2.0), np.full(40, 1.0), np.full(60, -26.2), np.full(60, -26.6), np.full(60, -40.0)]).astype(np.float32)
    np.random.default_rng(7).shuffle(row)
    alone = np.full(len(row), -np.inf, np.float32)
    alone[5] = 1.0
    params, rows = [], []
    for name, values in FILTERS.items():
        for value in values:
            for seed in range(8):
                p = _core.SamplingParams()
                p.seed, p.temperature = seed, [1.0, 8.0][seed % 2]
                setattr(p, name, value)
                p.xtc_threshold, p.dynatemp_exponent = 0.01, 0.5
                params.append(p)
                rows.append(alone if seed == 7 else -30 * row if seed == 6 else row)
    for temperature in (1e-30, 1e-38):  # a logit of more than the largest float
        p = _core.SamplingParams()
        p.p_less, p.temperature, p.sampler_order = True, max(temperature, 1e-30), ["temperature", "p_less"]
        params.append(p)
        rows.append(1e20 * row)
    expected = [host_token(p, [1], 1, 2, row) for p, row in zip(params, rows, strict=True)]
    assert T.draw_on_device(device, params, [[1]] * len(params), 1, 2, np.stack(rows)) == expected
    assert expected[-1] == -1


def test_rows_that_cannot_be_drawn_are_left_to_the_host(device: str) -> None:
    rows = np.zeros((6, 300), np.float32)
    rows[0, 7] = np.nan
    rows[1, 299] = np.inf
    rows[2] = -np.inf
    rows[4] = 3e38
    params = [_core.SamplingParams() for _ in range(6)]
    params[3].allowed_token_ids, params[3].bad_words = [5], [[5]]
    params[4].temperature = 1e-3
    params[5].temperature = 0.0
    drawn = T.draw_on_device(device, params, [[1, 2]] * 6, 1, 0, rows)
    assert drawn == [-1, -1, -1, -1, -1, 0]
    assert drawn == [host_token(p, [1, 2], 1, 0, row) for p, row in zip(params, rows, strict=True)]


def test_parameters_that_meet_the_same_rank_keys(device: str) -> None:
    """Ties at the cut, and top-p whose last token shares its leading bits with tokens that have no mass."""
    rng = np.random.default_rng(7)
    row = np.concatenate([np.full(3, 2.0), np.full(40, 1.0), np.full(60, -26.2), np.full(60, -26.6), np.full(60, -40.0)]).astype(np.float32)
    rng.shuffle(row)
    for top_k in (0, 2, 3, 10, 43, 44, 120):
        for top_p in (1.0, 0.7, 0.9999, 1 - 1e-12, 1 - 1e-16):
            params = []
            for seed in range(20):
                p = _core.SamplingParams()
                p.seed, p.top_k, p.top_p, p.temperature = seed, top_k, top_p, 8.0 if seed % 2 else 1.0
                params.append(p)
            rows = np.tile(row, (20, 1))
            expected = [host_token(p, [1], 1, 0, row) for p in params]
            assert T.draw_on_device(device, params, [[1]] * 20, 1, 0, rows) == expected, (top_k, top_p)


#: What params_resolved says of the cases below, for those that are not drawn on the device.
PLACES = {
    "a rule of one's own": ("host", "verification"),
    "log-probabilities": ("host", "logprobs"),
    "a processor": ("host", "logits_processors"),
    "DRY": ("host", "dry_multiplier"),
    "mirostat": ("host", "mirostat"),
    "adaptive-p": ("host", "adaptive_p"),
    "a penalty after a filter": ("host", "repetition_penalty, frequency_penalty"),
}
ANY_ORDER = ["repetition_penalty", "frequency_penalty", "top_h", "min_p", "temperature", "top_n_sigma", "top_p", "top_k"]


@pytest.mark.usefixtures("device")
def test_which_rows_an_engine_draws_there(tiny_path: Any, tmp_path: Path) -> None:
    """Plain rows, and all rows of a draft that is coupled or judged by the exact rule; what the host must see comes to it. The tokens are
    the CPU's in every case."""
    plain = SamplingParams(
        temperature=0.9,
        top_p=0.9,
        top_k=40,
        min_p=0.01,
        max_tokens=24,
        seed=3,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        bad_words=["a"],
        logit_bias={5: 2.0, 9: -1.0},
        min_tokens=4,
    )
    prompts = [[5, 6, 7, 8] * 9, [9, 4] * 12, [3]]

    def same(context: Any, logits: Array) -> Array:
        return logits

    class Flat(llmi.Drafter):
        """Two siblings, each with its law."""

        def propose(self, context: llmi.DraftContext) -> Any:
            ids, laws = context.draw(np.linspace(0, 1, 257, dtype=np.float32), num_tokens=2)
            return llmi.Draft(ids, [-1, -1], laws)

    def rejection(drafter: llmi.Drafter) -> SpeculativeConfig:
        return SpeculativeConfig(drafter, 4, verification="rejection")

    coupled = SpeculativeConfig(llmi.PromptLookup(), 4)
    cases: list[tuple[str, bool | None, SamplingParams, dict[str, Any]]] = [
        ("plain", True, plain, {}),
        ("greedy", True, plain.replace(temperature=0), {}),
        ("coupled drafts", True, plain, {"speculative_config": coupled}),
        ("coupled drafts, greedy", True, plain.replace(temperature=0), {"speculative_config": coupled}),
        ("rejection", True, plain, {"speculative_config": rejection(llmi.PromptLookup())}),
        ("rejection, greedy", True, plain.replace(temperature=0), {"speculative_config": rejection(llmi.PromptLookup())}),
        ("rejection by laws", True, plain, {"speculative_config": rejection(Flat())}),
        ("a rule of one's own", None, plain, {"speculative_config": SpeculativeConfig(llmi.PromptLookup(), 4, verification="typical")}),
        ("log-probabilities", False, plain.replace(logprobs=1), {}),
        ("a processor", False, plain.replace(logits_processors=[same]), {}),
        ("several samples", True, plain.replace(n=3), {}),
        ("filters", True, plain.replace(typical_p=0.9, eta_cutoff=1e-3, xtc_probability=0.5, xtc_threshold=0.02), {}),
        ("filters in another order", True, plain.replace(top_n_sigma=2.0, top_h=0.8, sampler_order=ANY_ORDER), {}),
        ("filters and drafts", True, plain.replace(p_less=True, dynatemp_range=0.5), {"speculative_config": coupled}),
        ("filters and rejection", True, plain.replace(typical_p=0.9), {"speculative_config": rejection(llmi.PromptLookup())}),
        ("DRY", False, plain.replace(dry_multiplier=0.8), {}),
        ("mirostat", False, SamplingParams(mirostat=2, max_tokens=24, seed=3), {}),
        ("adaptive-p", False, plain.replace(adaptive_p=0.4), {}),
        (
            "a penalty after a filter",
            False,
            plain.replace(sampler_order=["top_k", "repetition_penalty", "frequency_penalty", "min_p", "temperature", "top_p"]),
            {},
        ),
    ]
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22}
    with LLM(tiny_path(), **engine) as cpu, LLM(tiny_path(), device="cuda", **engine) as llm:
        for name, there, params, options in cases:
            before = llm.get_metrics()["num_device_draws"]
            expected = cpu.generate(prompts, params, **options)
            seen = llm.generate(prompts, params, **options)
            assert [s.token_ids for o in seen for s in o.outputs] == [s.token_ids for o in expected for s in o.outputs], name
            drawn = llm.get_metrics()["num_device_draws"] - before
            assert there is None or ((drawn > 40) if there else (drawn == 0)), (name, drawn)
            assert {output.params_resolved["drawn_on"] for output in seen} == {PLACES.get(name, ("device", "default"))}, name
            assert all("drawn_on" not in output.params_resolved for output in expected)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5003])
def test_laws_are_summed_in_lanes(size: int) -> None:
    """512 of them, folded by halves: the order that devices have, too."""
    weights = np.random.default_rng(size).exponential(size=size) ** 9
    lanes = np.zeros(512)
    for begin in range(0, size, 512):
        part = weights[begin : begin + 512]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert T.sum_of_law(weights.tolist()) == lanes[0]


def random_siblings(rng: np.random.Generator, row: Array) -> tuple[list[int], list[Array]]:
    """None, or up to four: without laws, or drawn without replacement from one that is near the row's or far from it."""
    count = int(rng.choice([0, 1, 1, 2, 4]))
    likely = np.argsort(-row, kind="stable")[: max(8, count)]
    if rng.random() < 0.4:
        return [int(i) for i in rng.choice(likely, count, replace=False)], []
    logits = np.where(np.isfinite(row), row, -80.0).astype(np.float64)
    if rng.random() < 0.5:
        logits = logits[::-1]
    elif rng.random() < 0.5:
        logits = logits + rng.normal(0, 0.5, len(row))
    law = np.exp(logits - logits.max())
    siblings, laws = [], []
    for _ in range(count):
        law = law / law.sum()
        laws.append(law.astype(np.float32))
        siblings.append(int(rng.choice(len(law), p=law)))
        law[siblings[-1]] = 0
    return siblings, laws


@pytest.mark.parametrize(("vocab", "num_rows", "seed"), [(61, 40, 1), (511, 40, 2), (513, 40, 3), (5003, 30, 4), (49_152, 8, 5)])
def test_every_verdict_is_the_hosts(device: str, vocab: int, num_rows: int, seed: int) -> None:
    """Drafted tokens are accepted or rejected there, and what they leave is drawn from, as the host does it; rows without any are drawn."""
    rng = np.random.default_rng(seed)
    rows = np.stack([random_row(rng, vocab) for _ in range(num_rows)])
    params, histories, siblings = [], [], []
    for row in rows:
        ids = rng.choice(vocab, 20, replace=False)
        params.append(random_params(rng, vocab, ids))
        if len(params) % 3 == 0:
            with_filters(rng, params[-1], [str(name) for name in rng.choice([*FILTERS], 2, replace=False)])
        histories.append([int(i) for i in rng.choice(ids, 30)])
        siblings.append(random_siblings(rng, row))
    while sum(len(laws) for _, laws in siblings) > 64:  # most that one draw takes
        siblings[int(rng.integers(num_rows))] = ([], [])

    def expected(i: int) -> tuple[int, int]:
        token = host_token(params[i], histories[i], 11, 2, rows[i])
        if token < 0 or not siblings[i][0]:
            return token, -1
        return T.verify_on_host(params[i], histories[i], rows[i], siblings[i], prompt_len=11, sample_index=2, round=7)

    verdicts = [expected(i) for i in range(num_rows)]
    assert T.verify_on_device(device, params, histories, rows, siblings, prompt_len=11, sample_index=2, round=7) == verdicts
    judged = [verdict for verdict, (ids, _) in zip(verdicts, siblings, strict=True) if ids and verdict[0] >= 0]
    assert {child >= 0 for _, child in judged} == {False, True}, "some must be accepted, some rejected"


def test_a_draft_of_the_rows_own_law_is_accepted(device: str) -> None:
    """Equal laws leave nothing: where rounding rejects the token all the same, the whole law is drawn from."""
    vocab = 300
    rng = np.random.default_rng(8)
    row = np.log(rng.dirichlet(np.ones(vocab))).astype(np.float32)
    p = _core.SamplingParams()
    law = T.process_logits(p, [1], 1, row).astype(np.float64)
    target = np.exp(law - law.max())
    target = (target / target.sum()).astype(np.float32)
    siblings = [([int(i)], [target]) for i in np.argsort(-row)[:40]]
    params = []
    for seed in range(40):
        p = _core.SamplingParams()
        p.seed = seed
        params.append(p)
    rows = np.tile(row, (40, 1))
    place = {"prompt_len": 1, "sample_index": 0, "round": 1}
    verdicts = T.verify_on_device(device, params, [[1]] * 40, rows, siblings, **place)
    assert verdicts == [T.verify_on_host(p, [1], row, s, **place) for p, s in zip(params, siblings, strict=True)]
    assert [child for _, child in verdicts] == [0] * 40
    # A point mass whose token has all of the row's mass cannot be rejected, one that has none must be.
    sure = np.full(vocab, -np.inf, np.float32)
    sure[7] = 0
    assert T.verify_on_device(device, params[:2], [[1]] * 2, np.stack([sure, sure]), [([7], []), ([8], [])], **place) == [(7, 0), (7, -1)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_drafts_of_more_rows_than_one_draw_has(tiny_path: Any, verification: str) -> None:
    """The rows of one sequence's draft come in two lots: the second's know what the first accepted."""
    params = SamplingParams(temperature=0.2, max_tokens=40, seed=5, ignore_eos=True, repetition_penalty=1.1)
    prompts = [[5 + i, 6, 7, 8] for i in range(40)]
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_num_seqs": 40, "max_num_batched_tokens": 1024}

    class Known(llmi.Drafter):
        """What plain decoding writes, with a wrong token now and then."""

        def propose(self, context: llmi.DraftContext) -> Any:
            done = len(context.token_ids) - 4
            ids = list(plain[int(context.token_ids[0]) - 5].token_ids[done : done + 12])
            if done % 3 == 0:
                ids[done % len(ids)] = 9
            return llmi.Draft(ids)

    drafting: Any = {"speculative_config": SpeculativeConfig(Known(), 12, verification=verification)}
    with LLM(tiny_path(), **engine) as cpu, LLM(tiny_path(), device="cuda", **engine) as llm:
        plain = cpu.generate(prompts, params)
        expected = cpu.generate(prompts, params, **drafting)
        seen = llm.generate(prompts, params, **drafting)
        counts = [o.outputs[0].spec_decode_metrics for o in seen]
        assert sum(c.num_draft_tokens for c in counts) > 1.2 * 256 * max(c.num_drafts for c in counts)
        assert sum(c.num_accepted_tokens for c in counts) > 100
        assert [o.token_ids for o in seen] == [o.token_ids for o in expected]


#: How a reduction, scan, sort or count looks that is written by hand.
BY_HAND = {
    "halves": r"half > 0; half /= 2",
    "fold": r"\bFoldSum\(",
    "maximum": r"reference::Max\(",
    "in order": r"\b(sum|own|total) (\+=|= \1 \+) |Rows::Add\(",
    "atomic": r"AtomicAdd\(&",
}


def test_what_is_written_by_hand_is_listed_with_its_reason() -> None:
    """All else that the threads of a block do together is CUB's, through block_ops.h: the table of decisions/0014 has the rest."""
    page = (ROOT / "docs/decisions/0014-cuda.md").read_text()
    listed = {
        source: set(marks.split(", ")) for source, marks, reason in re.findall(r"^\| (\S+\.h) \| ([^|]+) \| ([^|]{20,}) \|$", page, re.M)
    }
    found = {}
    for path in sorted((ROOT / "csrc/kernels/cuda").iterdir()):
        if path.suffix not in (".h", ".cu"):
            continue
        code = re.sub(r"//.*", "", path.read_text())
        if marks := {mark for mark, pattern in BY_HAND.items() if re.search(pattern, code)}:
            found[path.name] = marks
    assert listed == found
