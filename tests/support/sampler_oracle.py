"""The steps of docs/samplers.md in NumPy, one function each: what a row of logits becomes, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from llmi import _core
from llmi.params.steps import STEPS, asked_for

T = _core.testing
Array = np.ndarray[Any, Any]


def log(x: float) -> float:
    return float(T.scalar_math("log64", x))


def exp(x: float) -> float:
    return float(T.scalar_math("exp64", x))


def lane_sum(terms: Array) -> float:
    """Over 16 lanes, each in order; folded by halves."""
    padded = np.zeros(-(-len(terms) // 16) * 16)
    padded[: len(terms)] = terms
    lanes = np.zeros(16)
    for part in padded.reshape(-1, 16):
        lanes = lanes + part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])


def ranked(row: Array) -> Array:
    """Ids that are not cut: logit descending, id ascending."""
    order = np.lexsort((np.arange(len(row)), -row.astype(np.float64)))
    return order[row[order] > -np.inf]


class Masses:
    """Integer masses, and the numbers that filters take from them."""

    def __init__(self, row: Array) -> None:
        self.maximum = float(row.max())
        self.masses: Array = T.token_masses("reference", row, self.maximum)
        self.total = int(self.masses.astype(object).sum())
        with np.errstate(invalid="ignore"):
            self.offsets: Array = row.astype(np.float64) - self.maximum
        self.log_total = log(self.total * 2.0**-40)

    def mean_offset(self) -> float:
        terms = np.where(self.masses > 0, self.masses.astype(np.float64) * np.where(self.masses > 0, self.offsets, 0), 0.0)
        return lane_sum(terms) / float(self.total)

    def entropy(self) -> float:
        return max(0.0, self.log_total - self.mean_offset())

    def probabilities(self) -> Array:
        return self.masses.astype(np.float64) / float(self.total)

    def wanted(self, share: float) -> int:
        return min(self.total, math.ceil(share * float(self.total)))


def keep(row: Array, ids: Iterable[int]) -> Array:
    result = np.full_like(row, -np.inf)
    chosen = np.asarray(list(ids), np.int64)
    result[chosen] = row[chosen]
    return result


def prefix(order: Iterable[int], masses: Masses, share: float) -> list[int]:
    """The shortest one whose masses reach the share."""
    wanted, total, kept = masses.wanted(share), 0, []
    for token in order:
        if total >= wanted:
            break
        total += int(masses.masses[token])
        kept.append(int(token))
    return kept


def temper(row: Array, temperature: float) -> Array:
    return row / np.float32(temperature)


def dynamic(row: Array, temperature: float, reach: float, exponent: float) -> Array:
    kept = int((row > -np.inf).sum())
    if kept <= 1:
        return row
    share = min(1.0, Masses(row).entropy() / log(float(kept)))
    low = max(0.0, temperature - reach)
    power = 1.0 if exponent == 0 else 0.0 if share <= 0 or exponent * log(share) < -700 else exp(exponent * log(share))
    chosen = low + (temperature + reach - low) * power
    return keep(row, ranked(row)[:1]) if chosen < 1e-30 else temper(row, chosen)


def min_p(row: Array, value: float) -> Array:
    return np.where(row < np.float32(float(row.max()) + log(value)), np.float32(-np.inf), row)


def top_k(row: Array, value: int) -> Array:
    return row if value >= len(row) else keep(row, ranked(row)[:value])


def top_p(row: Array, value: float) -> Array:
    kept = prefix(ranked(row), Masses(row), value)
    return keep(row, kept)


def typical(row: Array, value: float) -> Array:
    masses = Masses(row)
    distance = np.abs(masses.mean_offset() - masses.offsets)
    order = [token for token in np.lexsort((np.arange(len(row)), distance)) if row[token] > -np.inf]
    return keep(row, prefix(order, masses, value))


def above(row: Array, masses: Masses, least: float) -> Array:
    return np.where((masses.masses.astype(np.float64) < least) & (row < row.max()), np.float32(-np.inf), row)


def epsilon(row: Array, value: float) -> Array:
    masses = Masses(row)
    return above(row, masses, value * float(masses.total))


def eta(row: Array, value: float) -> Array:
    masses = Masses(row)
    return above(row, masses, min(value, math.sqrt(value) * exp(-masses.entropy())) * float(masses.total))


def top_h(row: Array, value: float) -> Array:
    order = ranked(row)[:100]
    masses = Masses(row)
    total = sum(int(masses.masses[token]) for token in order)
    log_total = log(total * 2.0**-40)
    terms = [float(masses.masses[token]) / float(total) * (log_total - float(masses.offsets[token])) for token in order]
    sums = list(itertools.accumulate(terms))
    return keep(row, order[: max(1, sum(1 for _ in itertools.takewhile(lambda so_far: so_far <= value * sums[-1], sums)))])


def top_n_sigma(row: Array, value: float) -> Array:
    finite = row > -np.inf
    x = np.where(finite, row, 0).astype(np.float64)
    count = float(finite.sum())
    mean = lane_sum(x) / count
    sigma = math.sqrt(lane_sum(np.where(finite, (x - mean) * (x - mean), 0.0)) / count)
    return np.where(row.astype(np.float64) < float(row.max()) - value * sigma, np.float32(-np.inf), row)


def p_less(row: Array) -> Array:
    masses = Masses(row)
    integers = [int(mass) for mass in masses.masses]
    least = sum(mass * mass for mass in integers)
    return keep(row, [token for token, mass in enumerate(integers) if mass * masses.total >= least and row[token] > -np.inf])


def cut_top_choices(row: Array, threshold: float) -> Array:
    masses = Masses(row)
    choices = [token for token in ranked(row) if float(masses.masses[token]) >= threshold * float(masses.total)]
    result = row.copy()
    if threshold <= 0.5:
        result[choices[:-1]] = -np.inf
    return result


def xtc_coin(seed: int, sample_index: int, position: int) -> float:
    word = T.philox([0, position, sample_index, 4], seed)[0]
    return (float(word) + 0.5) * 2.0**-32


def mirostat(row: Array, version: int, mu: float) -> Array:
    order = ranked(row)
    if version == 2:
        masses = Masses(row)
        least = masses.log_total - mu * 0.69314718055994530942
        return keep(row, order[:1]) if least > 0 else np.where(masses.offsets < least, np.float32(-np.inf), row)
    if len(order) == 1:
        return row
    x = row[order[:100]].astype(np.float64)
    t = [log((i + 2) / (i + 1)) for i in range(len(x) - 1)]
    products, squares = 0.0, 0.0
    for i, weight in enumerate(t):
        products += weight * float(x[i] - x[i + 1])
        squares += weight * weight
    exponent, log_vocab = products / squares, log(float(len(row)))
    excess = exponent - 1
    factor = -log(log_vocab)
    if excess != 0:
        power = 0.0 if -excess * log_vocab < -700 else exp(-excess * log_vocab)
        if power != 1:
            factor = log(abs(excess)) - log(abs(1 - power))
    scale = factor + mu * 0.69314718055994530942
    if scale <= 0:
        return keep(row, order[:1])
    wanted = math.inf if exponent == 0 else scale / exponent
    return row if wanted >= log_vocab else keep(row, order[: max(1, int(exp(wanted)))])


def adapt(row: Array, target: float) -> Array:
    masses = Masses(row)
    distance = np.abs(masses.masses.astype(np.float64) * (1.0 / (0.3 * float(masses.total))) - target / 0.3)
    return np.where(row == -np.inf, row, (5.0 - 10.0 * distance * distance / (1.0 + distance)).astype(np.float32))


def repeated_ngrams(tokens: Sequence[int], size: int) -> set[int]:
    """Tokens that complete an n-gram that the tokens hold already."""
    if size < 1 or len(tokens) < size:
        return set()
    last = list(tokens[len(tokens) - size + 1 :])
    return {tokens[i + size - 1] for i in range(len(tokens) - size + 1) if list(tokens[i : i + size - 1]) == last}


def dry_lengths(tokens: Sequence[int], allowed: int, last_n: int, breakers: Sequence[Sequence[int]]) -> dict[int, int]:
    """By brute force: each token's longest repetition that it would continue."""
    window = list(tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :])
    if len(window) <= allowed:
        return {}
    limit = len(window)
    for begin in reversed(range(len(window))):
        fitting = [len(breaker) for breaker in breakers if window[begin : begin + len(breaker)] == list(breaker)]
        if fitting:
            limit = len(window) - begin - max(fitting)
            break
    lengths: dict[int, int] = {}
    for end in range(1, len(window)):  # a token at `end`, after what may repeat
        length = 0
        while length < end and window[end - 1 - length] == window[-1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed and [window[end]] not in [list(breaker) for breaker in breakers]:
            lengths[window[end]] = max(lengths.get(window[end], 0), length)
    return lengths


def dry(row: Array, tokens: Sequence[int], values: Mapping[str, Any]) -> Array:
    result = row.copy()
    lengths = dry_lengths(tokens, values["dry_allowed_length"], values["dry_penalty_last_n"], values["dry_breakers"])
    for token, length in lengths.items():
        exponent, power = length - values["dry_allowed_length"], 1.0
        if values["dry_base"] > 1.000001:
            log_base = log(values["dry_base"])
            power = exp(float(min(exponent, int(88.7228391 / log_base))) * log_base)
        result[token] -= np.float32(min(values["dry_multiplier"] * power, float(np.finfo(np.float32).max)))
    return result


def penalise(row: Array, tokens: Sequence[int], prompt_len: int, name: str, values: Mapping[str, Any]) -> Array:
    """One of the three penalties."""
    last_n, f32, x = values["penalty_last_n"], np.float32, row.copy()
    begin = 0 if last_n < 0 else len(tokens) - min(last_n, len(tokens))
    output = list(tokens[max(begin, prompt_len) :])
    for token in set(tokens[begin:]):
        if name == "repetition_penalty":
            x[token] = x[token] / f32(values[name]) if x[token] > 0 else x[token] * f32(values[name])
        elif token in output:
            x[token] -= f32(values[name]) * (f32(output.count(token)) if name == "frequency_penalty" else f32(1))
    return x


@dataclasses.dataclass
class State:
    """Of mirostat and adaptive_p."""

    mu: float
    weighted_sum: float
    total_weight: float

    @classmethod
    def first(cls, values: Mapping[str, Any]) -> State:
        weight = 1 / (1 - values["adaptive_p_decay"])
        return cls(2 * values["mirostat_tau"], values["adaptive_p"] * weight, weight)

    def after(self, values: Mapping[str, Any], law: Array, before: Array, token: int) -> State:
        """The state once `token` was drawn."""
        following = dataclasses.replace(self)
        if law[token] == -np.inf:
            return following
        if values["mirostat"]:
            masses = Masses(law)
            surprise = (masses.log_total - float(masses.offsets[token])) / 0.69314718055994530942
            following.mu = self.mu - values["mirostat_eta"] * (surprise - values["mirostat_tau"])
        if values["adaptive_p"] >= 0:
            following.weighted_sum = float(Masses(before).probabilities()[token]) + values["adaptive_p_decay"] * self.weighted_sum
            following.total_weight = 1 + values["adaptive_p_decay"] * self.total_weight
        return following


def law(
    row: Array, tokens: Sequence[int], prompt_len: int, values: Mapping[str, Any], state: State, sample_index: int = 0
) -> tuple[Array, Array]:
    """(the law, the row before adaptive_p) by core parameters: n-gram bans, then all steps in their order; masks and biases are left
    out."""
    x, before = row.copy(), row
    x[list(repeated_ngrams(tokens, values["no_repeat_ngram_size"]))] = -np.inf
    wanted = asked_for({**values, "top_h": values["top_h"] or None})
    for name in values["sampler_order"] or STEPS:
        if name not in wanted or (values["temperature"] == 0 and name not in STEPS[:4]):
            continue
        if name == "adaptive_p":
            before = x.copy()
        x = _step(name, x, tokens, prompt_len, values, state, sample_index)
    return x, before


def _step(name: str, x: Array, tokens: Sequence[int], prompt_len: int, values: Mapping[str, Any], state: State, sample_index: int) -> Array:
    simple: dict[str, Callable[[Array, Any], Array]] = {
        "top_n_sigma": top_n_sigma, "min_p": min_p, "top_k": top_k, "top_p": top_p, "typical_p": typical, "epsilon_cutoff": epsilon,
        "eta_cutoff": eta, "top_h": top_h,
    }  # fmt: skip
    if name in simple:
        return simple[name](x, values[name])
    if name == "dry_multiplier":
        return dry(x, tokens, values)
    if name in STEPS[:3]:
        return penalise(x, tokens, prompt_len, name, values)
    if name == "temperature":
        reach = values["dynatemp_range"]
        return dynamic(x, values[name], reach, values["dynatemp_exponent"]) if reach else temper(x, values[name])
    if name == "p_less":
        return p_less(x)
    if name == "xtc_probability":
        heads = xtc_coin(values["seed"], sample_index, len(tokens)) <= values[name]
        return cut_top_choices(x, values["xtc_threshold"]) if heads else x
    if name == "mirostat":
        return mirostat(x, values[name], state.mu)
    target = min(1.0, max(0.0, 2 * values["adaptive_p"] - state.weighted_sum / state.total_weight))
    return adapt(x, target)
