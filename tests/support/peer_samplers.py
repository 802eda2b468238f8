"""What transformers and llama.cpp make of 1,000 rows: tests/data/peer_samplers.npz, which test_peer_samplers.py holds llmi against.

    python tests/support/peer_samplers.py LIBLLAMA

LIBLLAMA: path of llama-cpp-python 0.3.36's libllama.so; transformers 5.24 must be installed. Rows, histories and parameters are functions
of their number, from integers of NumPy's frozen generator, so that the file holds results alone. llama.cpp gets the tokens that are not
cut, as its own filters hand them on, and all of them where its sampler asks for -inf itself (top-n-sigma, adaptive-p). Its mirostat and
adaptive-p draw by
themselves: their tokens and their state after each are in the file.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FILE = Path(__file__).parents[1] / "data" / "peer_samplers.npz"
COUNT, VOCAB, LETTERS, RUN = (
    1000,
    128,
    9,
    20,
)  # rows; tokens of a row; of a history's row, whose last one never comes; rows that one state walks

#: By sampler: core parameters, taken in turn.
CASES: dict[str, list[dict[str, Any]]] = {
    "typical_p": [{"typical_p": value} for value in (0.2, 0.6, 0.9, 0.99)],
    "epsilon_cutoff": [{"epsilon_cutoff": value} for value in (3e-4, 4e-3, 0.1)],
    "eta_cutoff": [{"eta_cutoff": value} for value in (3e-4, 4e-3, 0.1)],
    "top_h": [{"top_h": value} for value in (0.1, 0.4, 0.8, 0.97)],
    "top_n_sigma": [{"top_n_sigma": value} for value in (0.3, 1.0, 2.5)],
    "xtc": [{"xtc_probability": p, "xtc_threshold": threshold} for threshold in (0.003, 0.1, 0.0, 0.5, 0.02) for p in (1.0, 1.0, 0.0)],
    "dynatemp": [
        {"temperature": temperature, "dynatemp_range": reach, "dynatemp_exponent": exponent}
        for temperature, reach, exponent in ((1.0, 0.5, 1.0), (0.7, 0.7, 0.5), (0.5, 2.0, 2.0), (1.5, 0.1, 0.0))
    ],
    "mirostat 1": [{"mirostat": 1, "mirostat_tau": tau, "mirostat_eta": eta} for tau, eta in ((5.0, 0.1), (2.0, 0.5), (1.0, 1.0))],
    "mirostat 2": [{"mirostat": 2, "mirostat_tau": tau, "mirostat_eta": eta} for tau, eta in ((5.0, 0.1), (2.0, 0.5), (1.0, 1.0))],
    "adaptive_p": [
        {"adaptive_p": target, "adaptive_p_decay": decay} for target, decay in ((0.3, 0.9), (0.05, 0.5), (0.9, 0.0), (0.0, 0.99))
    ],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": size} for size in (1, 2, 3, 4)],
    "dry": [
        {
            "dry_multiplier": multiplier,
            "dry_base": base,
            "dry_allowed_length": allowed,
            "dry_penalty_last_n": last_n,
            "dry_breakers": breakers,
        }
        for multiplier, base, allowed, last_n, breakers in (
            (0.8, 1.75, 2, -1, [[7, 7, 7]]),
            (1.5, 1.0, 1, 20, [[3]]),
            (0.5, 3.0, 1, -1, [[1, 2], [4]]),
            (0.25, 1.2, 3, 40, [[0], [0, 1, 1]]),
            (2.0, 1.5, 2, 7, [[2], [5]]),
        )
    ],
}
#: Samplers that keep some tokens; those that change logits; those with a state, which is walked for RUN rows.
KEEP = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "top_n_sigma", "xtc", "mirostat 1", "mirostat 2", "no_repeat_ngram_size")
CHANGE = ("dynatemp", "adaptive_p", "dry")
STATEFUL = ("mirostat 1", "mirostat 2", "adaptive_p")


def case(name: str, number: int) -> dict[str, Any]:
    """The parameters of a row; one state has one set of them."""
    return CASES[name][(number // RUN if name in STATEFUL else number) % len(CASES[name])]


def row(number: int) -> Array:
    """float32 [VOCAB], all finite logits different; every fourth with many tokens cut, every twentieth with one left."""
    random = np.random.RandomState(number)
    while True:
        steps = random.randint(0, 1 << 14, size=(4, VOCAB)).sum(axis=0)
        if len(np.unique(steps)) == VOCAB:
            break
    result = (steps - (1 << 15)).astype(np.float32) * np.float32((0.5, 1.0, 2.0, 4.0, 12.0)[number % 5] / (1 << 13))
    if number % 20 == 19:
        result[np.arange(VOCAB) != random.randint(VOCAB)] = -np.inf
    elif number % 4 == 1:
        cut = random.randint(100, size=VOCAB) < (30, 60, 95)[number % 3]
        cut[random.randint(VOCAB)] = False
        result[cut] = -np.inf
    return result


def history(number: int) -> list[int]:
    """1 to 60 tokens that repeat themselves."""
    random = np.random.RandomState(number)
    part = random.randint(0, LETTERS - 1, size=random.randint(1, 9))
    tokens = np.tile(part, 20)[: random.randint(1, 61)]
    noise = random.randint(100, size=len(tokens)) < 10
    return [int(token) for token in np.where(noise, random.randint(0, LETTERS - 1, size=len(tokens)), tokens)]


def watched(values: Array) -> Array:
    """Ids of eight ranks, whose logits the file holds."""
    order = np.lexsort((np.arange(len(values)), -values.astype(np.float64)))
    return order[[0, 1, 2, 4, 8, 16, 32, int((values > -np.inf).sum()) - 1]]


# --- transformers


def transformers_kept() -> Iterator[tuple[str, int, Array]]:
    """(sampler, number, kept) of its warpers."""
    import torch
    from transformers.generation import logits_process as process

    warpers = {
        "typical_p": process.TypicalLogitsWarper,
        "epsilon_cutoff": process.EpsilonLogitsWarper,
        "eta_cutoff": process.EtaLogitsWarper,
        "top_h": process.TopHLogitsWarper,
    }
    for name, warper in warpers.items():
        for number in range(COUNT):
            made = warper(case(name, number)[name])(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(row(number)[None]))
            yield name, number, made[0].numpy() > -np.inf
    for number in range(COUNT):
        made = process.NoRepeatNGramLogitsProcessor(case("no_repeat_ngram_size", number)["no_repeat_ngram_size"])
        yield "no_repeat_ngram_size", number, made(torch.tensor([history(number)]), torch.zeros((1, LETTERS)))[0].numpy() > -np.inf


# --- llama.cpp


class Token(ctypes.Structure):
    """llama_token_data."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class Tokens(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (("data", ctypes.POINTER(Token)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool))


class Sampler(ctypes.Structure):
    """llama_sampler."""

    _fields_ = (("iface", ctypes.c_void_p), ("context", ctypes.c_void_p))


class Vector(ctypes.Structure):
    """std::vector of libstdc++."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p))


#: Where floats of the state are in a sampler's context (llama-sampler.cpp of this version, libstdc++'s mt19937 of 5,000 bytes).
_STATE_AT = {"mirostat 1": (24,), "mirostat 2": (16,), "adaptive_p": (5016, 5020)}
_DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"


class LlamaCpp:
    """Its samplers."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self._keep: list[Any] = []

    def make(self, name: str, fields: dict[str, Any], length: int) -> Any:
        """A sampler for a history of this length."""
        real, whole = ctypes.c_float, ctypes.c_int32
        if name == "top_n_sigma":
            return self._made("llama_sampler_init_top_n_sigma", real(fields["top_n_sigma"]))
        if name == "xtc":
            return self._made(
                "llama_sampler_init_xtc",
                real(fields["xtc_probability"]),
                real(fields["xtc_threshold"]),
                ctypes.c_size_t(0),
                ctypes.c_uint32(1),
            )
        if name == "dynatemp":
            values = (fields[key] for key in ("temperature", "dynatemp_range", "dynatemp_exponent"))
            return self._made("llama_sampler_init_temp_ext", *map(real, values))
        if name == "adaptive_p":
            return self._made(
                "llama_sampler_init_adaptive_p", real(fields["adaptive_p"]), real(fields["adaptive_p_decay"]), ctypes.c_uint32(7)
            )
        if name == "dry":
            last_n = length if fields["dry_penalty_last_n"] < 0 else fields["dry_penalty_last_n"]
            numbers = (real(fields["dry_multiplier"]), real(fields["dry_base"]), whole(fields["dry_allowed_length"]), whole(last_n))
            return self._made(_DRY, *numbers, ctypes.byref(self._vectors(fields["dry_breakers"])))
        tau, eta = real(fields["mirostat_tau"]), real(fields["mirostat_eta"])
        if name == "mirostat 1":
            return self._made("llama_sampler_init_mirostat", whole(VOCAB), ctypes.c_uint32(7), tau, eta, whole(100))
        return self._made("llama_sampler_init_mirostat_v2", ctypes.c_uint32(7), tau, eta)

    def apply(self, sampler: Any, ids: Array, values: Array) -> tuple[Array, int]:
        """(the logits after it, -inf where a token is gone; the token that it drew or -1)."""
        data = (Token * len(ids))(*(Token(int(i), float(values[i]), 0.0) for i in ids))
        tokens = Tokens(data, len(ids), -1, False)
        self.library.llama_sampler_apply(sampler, ctypes.byref(tokens))
        result = np.full_like(values, -np.inf)
        for i in range(tokens.size):
            result[tokens.data[i].id] = tokens.data[i].logit
        return result, tokens.data[tokens.selected].id if tokens.selected >= 0 else -1

    def accept(self, sampler: Any, token: int) -> None:
        self.library.llama_sampler_accept(sampler, ctypes.c_int32(token))

    def state(self, name: str, sampler: Any) -> list[float]:
        return [ctypes.c_float.from_address(sampler.contents.context + offset).value for offset in _STATE_AT[name]]

    def _made(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.library, name)
        function.restype = ctypes.POINTER(Sampler)
        return function(*arguments)

    def _vectors(self, entries: list[list[int]]) -> Vector:
        """std::vector<std::vector<int>>, kept for good."""

        def vector(array: Any) -> Vector:
            self._keep.append(array)
            begin = ctypes.addressof(array)
            return Vector(begin, begin + ctypes.sizeof(array), begin + ctypes.sizeof(array))

        return vector((Vector * len(entries))(*(vector((ctypes.c_int32 * len(entry))(*entry)) for entry in entries)))


def llama_cpp_results(peer: LlamaCpp, name: str) -> Iterator[tuple[Array, Array, int, list[float]]]:
    """Of each number: (row, logits after the sampler, token drawn, state)."""
    sampler = None
    for number in range(COUNT):
        values, tokens = (np.zeros(LETTERS, np.float32), history(number)) if name == "dry" else (row(number), [])
        if sampler is None or name not in STATEFUL or number % RUN == 0:
            sampler = peer.make(name, case(name, number), len(tokens))
        for token in tokens:
            peer.accept(sampler, token)
        takes_all = name in ("top_n_sigma", "adaptive_p")
        after, drawn = peer.apply(sampler, np.arange(len(values)) if takes_all else np.flatnonzero(values > -np.inf), values)
        if name in STATEFUL:
            peer.accept(sampler, drawn)
        yield values, after, drawn, peer.state(name, sampler) if name in STATEFUL else []


def frozen(path: str) -> dict[str, Array]:
    """All arrays of the file, by name."""
    arrays: dict[str, Any] = {f"{name} kept": [None] * COUNT for name in KEEP}
    for name, number, kept in transformers_kept():
        arrays[f"{name} kept"][number] = kept
    peer = LlamaCpp(path)
    for name in ("top_n_sigma", "xtc", "dynatemp", "mirostat 1", "mirostat 2", "adaptive_p", "dry"):
        results = list(llama_cpp_results(peer, name))
        if name in KEEP:
            arrays[f"{name} kept"] = [after > -np.inf for _, after, _, _ in results]
        else:
            arrays[f"{name} logits"] = np.array(
                [after if name == "dry" else after[watched(before)] for before, after, _, _ in results], np.float32
            )
        if name in STATEFUL:
            arrays[f"{name} drawn"] = np.array([drawn for _, _, drawn, _ in results], np.uint8)
            arrays[f"{name} state"] = np.array([state for *_, state in results], np.float32)
    return {name: np.packbits(np.array(array), axis=1) if name.endswith("kept") else array for name, array in arrays.items()}


# --- how near a row is to a border


def entropy_share(values: Array) -> float:
    """The entropy over that of as many equal tokens."""
    z = values[values > -np.inf].astype(np.float64)
    p = np.exp(z - z.max())
    p /= p.sum()
    return float(-(p * np.log(p)).sum() / math.log(len(z))) if len(z) > 1 else 1.0


def border(name: str, values: Array, fields: dict[str, Any], mu: float) -> float:
    """The least distance of a token, in the quantity that is compared, from where the sampler cuts: in float64."""
    order = np.lexsort((np.arange(len(values)), -values.astype(np.float64)))
    z = values[order].astype(np.float64)
    z = z[z > -np.inf]
    if len(z) == 1:
        return math.inf
    p = np.exp(z - z[0])
    p /= p.sum()
    surprise = -np.log(p)
    entropy = float((p * surprise).sum())
    if name in ("epsilon_cutoff", "eta_cutoff"):
        value = fields[name]
        return float(
            np.abs(surprise + math.log(value if name == "epsilon_cutoff" else min(value, math.sqrt(value) * math.exp(-entropy)))).min()
        )
    if name == "xtc":
        return float(np.abs(surprise + math.log(fields["xtc_threshold"])).min()) if fields["xtc_threshold"] else math.inf
    if name == "top_n_sigma":
        return float(np.abs(z - (z[0] - fields[name] * z.std())).min())
    if name == "mirostat 2":
        return float(np.abs(surprise / math.log(2) - mu).min())
    if name == "mirostat 1":
        return _mirostat_border(z, mu)
    if name == "top_h":
        q = p[:100] / p[:100].sum()
        sums = np.cumsum(-q * np.log(q))
        return float(np.abs(sums[1:] - fields[name] * sums[-1]).min())
    distance = np.abs(surprise - entropy)
    nearest = np.argsort(distance, kind="stable")
    sums = np.cumsum(p[nearest])
    last = int((sums < fields[name]).sum())
    gap = distance[nearest][last + 1] - distance[nearest][last] if last + 1 < len(z) else math.inf
    return float(min(np.abs(sums - fields[name]).min(), gap))


def _mirostat_border(z: Array, mu: float) -> float:
    """How far version 1's k is from a whole number, over k; 0 where it leaves llama.cpp's int, which C++ does not define."""
    z = z[:100]
    weights = np.log((np.arange(len(z) - 1) + 2) / (np.arange(len(z) - 1) + 1))
    exponent = float((weights * -np.diff(z)).sum() / (weights * weights).sum())
    excess = exponent - 1
    k = ((excess * 2**mu) / (1 - VOCAB**-excess)) ** (1 / exponent)
    if k >= 2**31:
        return 0.0
    return abs(k - round(k)) / k if 0.5 < k < VOCAB + 1 else math.inf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libllama")
    np.savez_compressed(FILE, **frozen(parser.parse_args().libllama))  # type: ignore[arg-type]
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
