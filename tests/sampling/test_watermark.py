"""llmi.watermark against transformers (and its recorded numbers), its detectors against exact laws, and best_of."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import llmi
from features import WHOLE_GRIDS
from llmi import LLM, InvalidParamsError, Outputs, PromptLookup, SamplingParams, best_of
from llmi.testing import assert_same_tokens
from llmi.watermark import KGW, Detection, SynthID, tournament
from llmi.watermark.evidence import binomial_tail, sum_tail
from llmi.watermark.shuffle import first_of_permutation, is_among_first, permutation
from watermark_figures import uniformity

VOCAB = 300
SCHEMES = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 4)]
KEYS = (
    654,
    400,
    836,
    123,
    340,
    443,
    597,
    160,
    57,
    29,
    590,
    639,
    13,
    715,
    468,
    990,
    966,
    226,
    324,
    585,
    118,
    504,
    421,
    521,
    129,
    669,
    732,
    225,
    90,
    960,
)
Array = np.ndarray[Any, Any]


def at(token_ids: Any, prompt_len: int = 0) -> Any:
    """What a watermark sees of a sequence."""
    return SimpleNamespace(token_ids=np.array(token_ids, np.int32), prompt_len=prompt_len)


def marked(mark: Any, context: Any, row: Array) -> Array:
    """The row after the processor; the given one stays."""
    row = row.copy()
    result = mark(context, row)
    return row if result is None else np.asarray(result)


def rows(count: int, size: int = VOCAB) -> Any:
    """Random rows, some with cut tokens; one has a single token left."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        row = (rng.standard_normal(size) * (0.3, 1.0, 3.0)[seed % 3]).astype(np.float32)
        if seed % 4 == 1:
            row[rng.random(size) < 0.5] = -np.inf
        yield rng, row
    yield np.random.default_rng(count), np.where(np.arange(size) == 7, np.float32(1), np.float32(-np.inf))


# --- torch's shuffle


@pytest.mark.parity
def test_the_shuffle_is_that_of_torch() -> None:
    import torch

    for seed, size in itertools.product((0, 1, 15485863 * 77, 2**40 + 3, 2**64 - 5), (2, 3, 257, 5000)):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy()
        assert (permutation(seed, size) == order).all()
        for count in {1, size // 4 or 1, size - 1}:
            assert set(np.flatnonzero(first_of_permutation(seed, size, count))) == set(order[:count])


#: torch.randperm(1000), torch 2.13: its first eight, and SHA-256 of all as int64.
RECORDED_SHUFFLE = {
    0: ([44, 37, 675, 775, 947, 209, 719, 500], "cee4a88ef6120e8e"),
    2**40 + 3: ([986, 114, 871, 894, 140, 885, 232, 402], "f0818b66bc03445e"),
}


def test_the_shuffle_is_the_recorded_one() -> None:
    for seed, (first, digest) in RECORDED_SHUFFLE.items():
        order = permutation(seed, 1000)
        assert order[:8].tolist() == first
        assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_one_value_goes_the_way_of_all() -> None:
    for seed, size in itertools.product(range(20), (2, 9, 100)):
        for count in {1, size // 3 or 1, size - 1}:
            first = first_of_permutation(seed, size, count)
            assert first.sum() == count
            assert [is_among_first(seed, size, count, value) for value in range(size)] == first.tolist()


# --- green lists


@pytest.mark.parity
@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_green_lists_are_those_of_transformers(scheme: str, width: int) -> None:
    import torch
    from transformers.generation import logits_process as process

    mine = KGW(VOCAB, seeding_scheme=scheme, context_width=width)
    theirs = process.WatermarkLogitsProcessor(VOCAB, "cpu", seeding_scheme=scheme, context_width=width)
    changed = 0
    for rng, row in rows(12):
        ids = rng.integers(0, VOCAB, 6)
        want = theirs(torch.from_numpy(ids)[None], torch.from_numpy(row.copy())[None])[0].numpy()
        got = marked(mine, at(ids), row)
        assert (got == want).all()
        changed += int((got != row).sum())
    assert changed > 50


@pytest.mark.parity
@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_detection_counts_as_transformers_does(scheme: str, width: int) -> None:
    import torch
    import transformers

    config = transformers.WatermarkingConfig(seeding_scheme=scheme, context_width=width)
    model = SimpleNamespace(vocab_size=VOCAB, bos_token_id=-1, is_encoder_decoder=False)
    detector = transformers.WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
    for seed in range(4):
        ids = np.random.default_rng(seed).integers(0, 20, 120)  # few tokens: n-grams repeat
        want = detector(torch.from_numpy(ids)[None], return_dict=True)
        got = KGW(VOCAB, seeding_scheme=scheme, context_width=width).detect(ids)
        assert (got.num_scored, got.num_green) == (int(want.num_tokens_scored[0]), int(want.num_green_tokens[0]))
        assert got.z == pytest.approx(float(want.z_score[0]), abs=1e-12)
        assert width > 1 or got.num_scored < 120


def test_an_n_gram_counts_once() -> None:
    once = [1, 2, 3, 4, 5, 1]
    assert KGW(VOCAB).detect(once * 9).num_scored == KGW(VOCAB).detect(once).num_scored + 1 == 6  # (1, 1) is new


#: SHA-256 of which logits transformers' processor changes, by scheme and width; recorded with transformers 5.24 and torch 2.13.
RECORDED_GREEN = {
    ("lefthash", 1): "bc32d23f34f32116",
    ("lefthash", 3): "bc32d23f34f32116",
    ("selfhash", 1): "b8174f8789bd1596",
    ("selfhash", 4): "5dbd2f1e8afdc431",
}


@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_green_lists_are_the_recorded_ones(scheme: str, width: int) -> None:
    mark = KGW(VOCAB, seeding_scheme=scheme, context_width=width)
    bits = [marked(mark, at(rng.integers(0, VOCAB, 6)), row) != row for rng, row in rows(6)]
    assert hashlib.sha256(np.packbits(bits).tobytes()).hexdigest()[:16] == RECORDED_GREEN[scheme, width]


def test_short_sequences_are_left_as_they_are() -> None:
    row = np.zeros(VOCAB, np.float32)
    assert (marked(KGW(VOCAB, context_width=3), at([1, 2]), row) == row).all()
    assert (marked(KGW(VOCAB, context_width=3), at([1, 2, 3]), row) != row).any()
    nothing = Detection(1.0, 0.0, 0, 0, math.nan)
    for found in (KGW(VOCAB).detect([]), KGW(VOCAB).detect([5]), SynthID(KEYS).detect([1, 2, 3, 4])):
        assert dataclasses.astuple(found)[:4] == dataclasses.astuple(nothing)[:4] and math.isnan(found.score)


# --- SynthID


def synthid_of_transformers(history: int, skip: bool) -> Any:
    import torch
    from transformers.generation import logits_process as process

    return process.SynthIDTextWatermarkLogitsProcessor(5, list(KEYS), 2**16, 0, history, torch.device("cpu"), skip_first_ngram_calls=skip)


@pytest.mark.parity
@pytest.mark.parametrize(("history", "skip"), [(1024, False), (5, True), (3, False), (12, True)])
def test_tournaments_are_those_of_transformers(history: int, skip: bool) -> None:
    """On rows of float64, on which transformers' own rounding is small. Tokens from {0, 1}: contexts repeat, and the zeros before them."""
    import torch

    theirs = synthid_of_transformers(history, skip)
    mine = SynthID(KEYS, context_history_size=history, skip_first_ngram_calls=skip)
    ids, left = [3, 4, 5], 0
    for rng, row in rows(40):
        want = theirs(torch.tensor([ids]), torch.from_numpy(row.astype(np.float64))[None])[0].numpy()
        got = marked(mine, at(ids, 3), row)
        finite = np.isfinite(got)
        left += int((got == row).all())
        assert np.abs(got[finite] - want[finite]).max() < 1e-5
        assert (want[~finite] <= np.finfo(np.float64).min).all()
        ids.append(int(rng.integers(0, 2)))
    assert 3 < left < 35


@pytest.mark.parity
def test_g_values_are_those_of_transformers() -> None:
    import torch

    theirs = synthid_of_transformers(1024, False)
    ids = np.random.default_rng(1).integers(0, 3, 90)
    unseen = theirs.compute_context_repetition_mask(torch.from_numpy(ids)[None])[0].numpy().astype(bool)
    values = theirs.compute_g_values(torch.from_numpy(ids)[None])[0].numpy()[unseen]
    found = SynthID(KEYS).detect(ids)
    assert (found.num_scored, found.num_green) == (len(values), int(values.sum())) and len(values) < 80
    weights = np.linspace(10, 1, len(KEYS))
    assert found.score == pytest.approx(float((values @ weights).mean() / weights.sum()), abs=1e-12)


def test_tournaments_are_the_recorded_ones() -> None:
    """transformers 5.24, torch 2.13."""
    assert SynthID(KEYS).detect(range(200)).num_green == 2988
    recorded = [-79.6880531, -np.inf, -47.8577305, -60.6832427, -np.inf, 0.0, -101.793808, -np.inf]
    assert marked(SynthID(KEYS), at([9, 1, 2], 1), np.zeros(8, np.float32)).tolist() == pytest.approx(recorded, abs=1e-5)


def test_a_law_is_kept_on_average_over_keys() -> None:
    """One tournament doubles half of the tokens: over keys the mean probability is the model's own."""
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    laws = [np.exp(marked(SynthID([key], sampling_table_size=4096), at([key % 7]), row)) for key in range(2000)]
    assert np.mean(laws, axis=0) == pytest.approx(np.exp(row), abs=0.02)
    assert np.sum(laws, axis=1) == pytest.approx(1, abs=1e-6)


# --- the laws under plain text


def test_binomial_tails() -> None:
    exact = sum(math.comb(40, i) * 0.25**i * 0.75 ** (40 - i) for i in range(17, 41))
    assert binomial_tail(17, 40, 0.25) == pytest.approx(exact, rel=1e-12)
    assert binomial_tail(0, 40, 0.25) == 1.0 and binomial_tail(40, 40, 0.25) == pytest.approx(0.25**40, rel=1e-12)


@pytest.mark.parametrize(
    ("depth", "trials"), [(1, 8), (1, 10_000), (2, 8), (2, 800), (3, 300), (5, 8), (5, 100), (10, 20), (10, 60), (20, 8), (30, 8)]
)
def test_tails_of_sums_against_the_exact_law(depth: int, trials: int) -> None:
    """The law of the sum of the g values' weights under plain text, by repeated convolution; small sums and large ones, exact and
    approximate."""
    weights = tournament._weights(depth)
    levels = weights @ tournament._g_values(tuple(range(40, 40 + depth)), 1 << 16, 0, 1 << 16)
    one, law = np.bincount(levels) / len(levels), np.ones(1)
    for _ in range(trials):
        law = np.convolve(law, one)
        law = law[: np.flatnonzero(law > 1e-300)[-1] + 1]
    tails = law[::-1].cumsum()[::-1]
    assert sum_tail(levels, 0, trials) == 1.0
    assert sum_tail(levels, trials * int(levels.max()), trials) == pytest.approx(one[-1] ** trials, rel=1e-9)
    for wanted in (0.9, 0.5, 0.1, 1e-3, 1e-6, 1e-9):
        first = int(np.searchsorted(-tails, -wanted))
        for total in range(first, min(first + 5, len(tails))):
            assert sum_tail(levels, total, trials) == pytest.approx(tails[total], rel=0.02)
    middle = round(trials * levels.mean())
    assert sum_tail(levels, middle, trials) == pytest.approx(tails[middle], rel=0.02)


@pytest.mark.parametrize("depth", [*range(1, 12), 20, 30, 64])
def test_weights_go_from_ten_to_one(depth: int) -> None:
    weights = tournament._weights(depth)
    assert weights / weights[0] == pytest.approx(np.linspace(10, 1, depth) / 10, rel=1e-15) and np.gcd.reduce(weights) == 1


@pytest.mark.parametrize("length", [20, 200])
def test_one_key_has_the_binomial_tail(length: int) -> None:
    rng = np.random.default_rng(3)
    for key in range(20):
        mark = SynthID([key])
        found = mark.detect(rng.integers(0, 5000, length).tolist())
        share = float(tournament._g_values((key,), 1 << 16, 0, 1 << 16).mean())
        assert found.p_value == pytest.approx(binomial_tail(found.num_green, found.num_scored, share), rel=1e-9)


# --- texts


def texts_of(llm: LLM, count: int, length: int, **options: Any) -> list[list[int]]:
    params = [SamplingParams(temperature=1, max_tokens=length, ignore_eos=True, seed=seed, **options) for seed in range(count)]
    prompts = [[1 + seed % 250, 2, 3] for seed in range(count)]
    return [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


MARKS = [KGW(257), KGW(257, seeding_scheme="selfhash", context_width=3), SynthID(KEYS)]


@pytest.mark.parametrize("mark", MARKS, ids=["lefthash", "selfhash", "SynthID"])
def test_marked_texts_are_detected(tiny: LLM, mark: Any) -> None:
    count, length = (2, 80) if "selfhash" in repr(mark) else (20, 200)
    found = [mark.detect(text).p_value for text in texts_of(tiny, count, length, logits_processors=[mark])]
    assert sum(p < 1e-6 for p in found) >= 0.95 * count
    other = dataclasses.replace(mark, **({"hashing_key": 1000003} if isinstance(mark, KGW) else {"keys": tuple(range(7, 37))}))
    assert min(other.detect(text).p_value for text in texts_of(tiny, 2, 100, logits_processors=[mark])) > 1e-4


@pytest.fixture(scope="module")
def plain(tiny: LLM) -> list[list[int]]:
    return texts_of(tiny, 1000 if WHOLE_GRIDS else 400, 24)


@pytest.mark.parametrize("kind", ["KGW", "SynthID"])
def test_plain_texts_have_uniform_p_values(plain: list[list[int]], kind: str) -> None:
    p_values, statistic = uniformity(kind, plain, 257, table_size=4096)
    assert len(p_values) == len(plain) and statistic < 1.63 / math.sqrt(len(plain)), "1 % of true laws have more"


@pytest.mark.parametrize("mark", MARKS, ids=["lefthash", "selfhash", "SynthID"])
def test_marks_are_the_same_under_drafts_and_beside_others(tiny: LLM, mark: Any) -> None:
    params = SamplingParams(temperature=1, max_tokens=24, n=2, seed=3, logits_processors=[mark])
    alone = tiny.generate([[5, 6, 7]], params)
    assert alone[0].outputs[0].token_ids != tiny.generate([[5, 6, 7]], params.replace(logits_processors=[]))[0].outputs[0].token_ids
    assert_same_tokens(alone, tiny.generate([[5, 6, 7]], params, speculative_config=PromptLookup()))
    assert_same_tokens(alone, tiny.generate([[9, 8], [5, 6, 7]], [params, params])[1:])


def test_banned_tokens_stay_banned(tiny: LLM) -> None:
    for mark in MARKS:
        out = tiny.generate([1], temperature=1, seed=1, max_tokens=30, allowed_token_ids=[7, 8, 9, 10], logits_processors=[mark])[0]
        assert set(out.token_ids) <= {7, 8, 9, 10}


# --- arguments


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: KGW(1), "vocab_size"),
        (lambda: KGW(3), "greenlist_ratio"),
        (lambda: KGW(9, 1.0), "greenlist_ratio"),
        (lambda: KGW(9, math.nan), "greenlist_ratio"),
        (lambda: KGW(9, bias=math.inf), "bias"),
        (lambda: KGW(9, hashing_key=0), "hashing_key"),
        (lambda: KGW(9, seeding_scheme="right"), "seeding_scheme"),
        (lambda: KGW(9, context_width=0), "context_width"),
        (lambda: KGW(9).detect([9]), "token_ids"),
        (lambda: KGW(9).detect("text"), "token_ids"),
        (lambda: SynthID([]), "keys"),
        (lambda: SynthID([-1]), "keys"),
        (lambda: SynthID([1], ngram_len=1), "ngram_len"),
        (lambda: SynthID([1]).detect([-1]), "token_ids"),
        (lambda: SynthID([1], sampling_table_size=1000), "sampling_table_size"),
        (lambda: SynthID([1], skip_first_ngram_calls=1), "skip_first_ngram_calls"),
        (lambda: KGW(9)(at([1]), np.zeros(8, np.float32)), "vocab_size"),
    ],
)
def test_wrong_arguments_are_named(wrong: Any, name: str) -> None:
    with pytest.raises(InvalidParamsError, match=name) as error:
        wrong()
    assert error.value.parameter == name


def test_marks_travel() -> None:
    for mark in (*MARKS, SynthID(np.array([3, 4]))):
        assert pickle.loads(pickle.dumps(mark)) == mark and hash(mark) == hash(pickle.loads(pickle.dumps(mark)))
    assert SynthID([1, 2]) == SynthID((1, 2)) and llmi.watermark.KGW is KGW


# --- best_of


def test_best_of_takes_the_likeliest(tiny: LLM) -> None:
    outs = tiny.generate([[1, 2], [3]], n=5, temperature=1, seed=4, max_tokens=12, logprobs=0)
    best = best_of(outs)
    assert isinstance(best, Outputs) and len(best) == 2
    for before, after in zip(outs, best, strict=True):
        means = [float(np.mean([step[token].logprob for step, token in zip(c.logprobs, c.token_ids, strict=True)])) for c in before.outputs]  # type: ignore[arg-type]
        assert after.outputs == [before.outputs[int(np.argmax(means))]] and len(before.outputs) == 5
        assert after.prompt_token_ids == before.prompt_token_ids and after.seed == before.seed
    shortest = best_of(iter(outs), lambda output: -len(output.text))
    assert [len(output.text) for output in shortest] == [min(len(c.text) for c in output.outputs) for output in outs]
    assert [output.outputs[0].index for output in best_of(outs, lambda output: 0)] == [0, 0], "of equals the first"


def test_best_of_names_what_is_wrong(tiny: LLM) -> None:
    outs = tiny.generate([[1, 2]], n=2, temperature=1, seed=4, max_tokens=3)
    for wrong, name in (
        ((outs,), "score"),
        ((outs, lambda output: math.nan), "score"),
        ((outs, lambda output: "x"), "score"),
        ((outs[0],), "outputs"),
        ((outs, 3), "score"),
    ):
        with pytest.raises(InvalidParamsError) as error:
            best_of(*wrong)  # type: ignore[arg-type]
        assert error.value.parameter == name
    assert best_of([]) == []


@pytest.mark.parametrize("bad", [[300], []])
def test_best_of_keeps_a_refused_prompt(tiny: LLM, bad: list[int]) -> None:
    outs = tiny.generate([[1, 2], bad], n=2, temperature=1, seed=4, max_tokens=3, logprobs=0, on_error="return")
    for score in (None, lambda output: output.token_ids[0]):
        best = best_of(outs, score)
        assert best[0] == best_of(outs[:1], score)[0]
        assert best[1].error is outs[1].error is not None and [entry.index for entry in best[1].outputs] == [0]


def test_a_choice_has_no_receipt(tiny: LLM) -> None:
    outs = tiny.generate([[1, 2]], n=2, temperature=1, seed=4, max_tokens=3, logprobs=0)
    with pytest.raises(llmi.UnsupportedCombinationError, match="best_of"):
        best_of(outs)[0].receipt()
    assert outs[0].receipt() and best_of(tiny.generate([1], max_tokens=2, logprobs=0))[0].receipt()
