"""The processed law against a NumPy reference of each step, and the noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import InvalidParamsError, _core
from llmi.base.kinds import Neutral, Whole
from llmi.params.options import DefaultInt
from llmi.params.sampling import SAMPLING
from llmi.requests.build import _PASSED_ON

T = _core.testing
Array = np.ndarray[Any, Any]
VOCAB = 500


def params(**fields: Any) -> Any:
    core = _core.SamplingParams()
    core.max_tokens = 100
    for name, value in fields.items():
        setattr(core, name, value)
    return core


def logits(seed: int = 0, scale: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * scale).astype(np.float32)


def ranked(law: Array) -> Array:
    """Ids by logit descending, id ascending."""
    return np.lexsort((np.arange(len(law)), -law.astype(np.float64)))


def reference(row: Array, tokens: list[int], prompt_len: int, p: dict[str, Any]) -> Array:
    """The law, step by step, in NumPy with the documented order."""
    f32 = np.float32
    x = row.copy()
    output = tokens[prompt_len:]
    if p.get("allowed_token_ids"):
        keep = np.zeros(VOCAB, bool)
        keep[p["allowed_token_ids"]] = True
        x[~keep] = -np.inf
    for word in p.get("bad_words", []):
        if len(word) == 1 or output[-(len(word) - 1) :] == word[:-1]:
            x[word[-1]] = -np.inf
    if len(output) < p.get("min_tokens", 0):
        x[[*p.get("stop_token_ids", []), *p.get("eos_token_ids", [])]] = -np.inf
    for token, bias in p.get("logit_bias", []):
        x[token] += f32(bias)
    for token in set(tokens):
        factor = f32(p.get("repetition_penalty", 1.0))
        if factor != 1:
            x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
    for token in set(output):
        x[token] = x[token] - f32(p.get("frequency_penalty", 0.0)) * f32(output.count(token))
        x[token] = x[token] - f32(p.get("presence_penalty", 0.0))
    temperature = p.get("temperature", 1.0)
    if temperature == 0:
        return x
    if temperature != 1:
        x = x / f32(temperature)
    peak = x.max()
    if p.get("min_p", 0) > 0:
        x[x < f32(float(peak) + math.log(p["min_p"]))] = -np.inf
    if p.get("top_k", 0):
        x[ranked(x)[p["top_k"] :]] = -np.inf
    if p.get("top_p", 1.0) < 1:
        mass = T.token_masses("reference", x, float(peak)).astype(object)
        order = ranked(x)
        wanted = math.ceil(p["top_p"] * float(sum(mass)))
        total, count = 0, 0
        while total < wanted:
            total += mass[order[count]]
            count += 1
        x[order[max(count, 1) :]] = -np.inf
    return x


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.005},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"presence_penalty": -1.0, "frequency_penalty": -0.5},
    {"logit_bias": [(3, 5.0), (4, -math.inf)]},
    {"allowed_token_ids": [1, 2, 3, 77]},
    {"bad_words": [[7], [11, 12], [13, 11, 14]]},
    {"min_tokens": 10, "stop_token_ids": [5], "eos_token_ids": [6]},
    {"min_tokens": 2, "stop_token_ids": [5], "eos_token_ids": [6]},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "bad_words": [[9]]},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_law_equals_numpy(case: dict[str, Any], seed: int) -> None:
    row = logits(seed)
    row[10:20] = row[30]  # ties
    tokens = [3, 7, 7, 5, 9, 11, 3, 11, 13, 11]
    law = T.process_logits(params(**case), tokens, 4, row)
    assert_same_bits(law, reference(row, tokens, 4, case), masked="filters leave tokens out")


def test_top_p_keeps_the_crossing_token_and_breaks_ties_by_id() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    kept = [int((T.process_logits(params(top_p=p), [0], 1, row) > -np.inf).sum()) for p in (0.39, 0.41, 0.69, 0.71, 0.95)]
    assert kept == [1, 2, 2, 3, 4]
    flat = np.zeros(8, np.float32)
    assert np.flatnonzero(T.process_logits(params(top_k=3), [0], 1, flat) > -np.inf).tolist() == [0, 1, 2]
    assert np.flatnonzero(T.process_logits(params(top_p=0.5), [0], 1, flat) > -np.inf).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_logits_are_refused(bad: float) -> None:
    row = logits()
    row[17] = bad
    with pytest.raises(_core.CoreError) as error:
        T.process_logits(params(), [0], 1, row)
    assert error.value.kind == "non_finite_logits"


def test_nothing_left_to_draw_is_refused() -> None:
    with pytest.raises(_core.CoreError) as error:
        T.process_logits(params(allowed_token_ids=[3], bad_words=[[3]]), [0], 1, logits())
    assert error.value.kind == "non_finite_logits"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("allowed_token_ids", [VOCAB]),
        ("stop_token_ids", [-1]),
        ("logit_bias", [(0, math.nan)]),
        ("bad_words", [[]]),
        ("min_tokens", 101),
    ],
)
def test_core_refuses_values_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(_core.CoreError) as error:
        T.process_logits(params(**{field: value}), [0], 1, logits())
    assert error.value.kind == "invalid_argument" and error.value.field == field


def test_philox_known_answers() -> None:
    """Vectors of the Random123 distribution (kat_vectors, philox4x32 10)."""
    assert list(T.philox([0, 0, 0, 0], 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert list(T.philox([ones] * 4, (1 << 64) - 1)) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert list(T.philox(counter, 0x299F31D0A4093822)) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def brute_force_draw(seed: int, position: int, sample: int, law: Array) -> int:
    words = np.array([T.noise_word(seed, position, sample, token) for token in range(len(law))], np.float64)
    v = np.minimum((words + 0.5) * 2.0**-32, 1 - 2.0**-24)
    score = np.log(-np.log1p(-v)) - law.astype(np.float64)
    return int(np.argmin(score))


def test_draw_is_the_gumbel_maximum() -> None:
    """The early exits never change the winner, nor does the table."""
    for seed in range(300):
        law = logits(seed, scale=float(seed % 7))
        if seed % 3 == 0:
            law[law < 0] = -np.inf
        expected = brute_force_draw(seed, seed * 3, seed % 5, law)
        assert all(T.draw(seed, seed * 3, seed % 5, law, table) == expected for table in _core.system_info()["tables"])


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Wilson and Hilferty's normal approximation of the upper tail."""
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("axis", ["seed", "position", "sample"])
def test_draws_follow_the_law(axis: str) -> None:
    """Chi-square at a false-alarm rate of 1e-9 over 60,000 draws, along each coordinate of the noise."""
    law = np.log(np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.015, 0.005], np.float32))
    count = 60_000
    coordinates = {"seed": lambda i: (i, 5, 0), "position": lambda i: (12345, i, 0), "sample": lambda i: (12345, 5, i)}[axis]
    drawn = np.bincount([T.draw(*coordinates(i), law) for i in range(count)], minlength=8)
    expected = np.exp(law.astype(np.float64)) / np.exp(law.astype(np.float64)).sum() * count
    assert chi_square_tail(float(((drawn - expected) ** 2 / expected).sum()), 7) > 1e-9
    # The same test sees a law that is 1 % off in total variation.
    wrong = expected.copy()
    wrong[0] -= 0.01 * count
    wrong[7] += 0.01 * count
    assert chi_square_tail(float(((drawn - wrong) ** 2 / wrong).sum()), 7) < 1e-9


def test_defaults_are_in_their_plain_form() -> None:
    """What `SamplingParams._settle` and the request's builder leave out because nothing would change."""
    for name, option in SAMPLING.items():
        plain = option.parse(option.default) if not isinstance(option.default, DefaultInt) else option.default
        assert type(plain) is type(option.default) and plain == option.default, name
    core = _core.SamplingParams()
    for name, default in _PASSED_ON.items():
        assert default is SAMPLING[name].default or type(default) is object, name
        assert type(default) is object or getattr(core, name) == default, name
    assert sum(type(default) is object for default in _PASSED_ON.values()) < len(_PASSED_ON) / 3


NUMBERS = {name: option.kind.kind for name, option in SAMPLING.items() if option.passed_on and isinstance(option.kind, Neutral)}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_core_takes_the_numbers_that_python_takes(name: str) -> None:
    """Its own list of parameters has the same ranges, but for numbers that are finite and over 1e30."""
    for value in (-2, -1, -0.5, 0, 0.5, 0.99, 1, 1.5, 2, 3, 100, 1e30, math.inf, -math.inf, math.nan):
        if isinstance(NUMBERS[name], Whole) and not isinstance(value, int):
            continue
        try:
            SAMPLING[name].parse(value)
        except InvalidParamsError:
            with pytest.raises(_core.CoreError, match=f"^{name} must lie in") as error:
                T.process_logits(params(**{name: value}), [1, 2], 1, logits())
            assert error.value.field == name, value
        else:
            T.process_logits(params(**{name: value}), [1, 2], 1, logits())
