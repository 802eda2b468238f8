"""Each sampler against what transformers 5.24 and llama.cpp (llama-cpp-python 0.3.36) made of 1,000 rows (peer_samplers.py).

Kept sets are equal wherever the peer is at least 1e-5 from its border (in the quantity that it compares), changed logits and states within
1e-5: the peers compute in float32. Rows with ties are the definition's alone (test_samplers.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import peer_samplers as peer
from llmi import _core

T = _core.testing
MARGIN = 1e-5


def core(number: int, fields: dict[str, Any]) -> Any:
    params = _core.SamplingParams()
    params.max_tokens, params.seed = 100, number
    for name, value in fields.items():
        setattr(params, name, value)
    return params


@pytest.fixture(scope="module")
def frozen() -> dict[str, peer.Array]:
    with np.load(peer.FILE) as file:
        return {name: np.unpackbits(file[name], axis=1).astype(bool) if name.endswith("kept") else file[name] for name in file.files}


def test_the_rows_are_what_they_say() -> None:
    rows = [peer.row(number) for number in range(peer.COUNT)]
    cut = [int((row == -np.inf).sum()) for row in rows]
    assert sum(0 < n < peer.VOCAB - 1 for n in cut) >= 200 and cut.count(peer.VOCAB - 1) >= 50
    assert all(len(set(row[row > -np.inf].tolist())) == (row > -np.inf).sum() for row in rows)


@pytest.mark.parametrize("name", [name for name in peer.KEEP if name not in peer.STATEFUL])
def test_kept_sets(frozen: dict[str, peer.Array], name: str) -> None:
    near, some = 0, 0
    for number, theirs in enumerate(frozen[f"{name} kept"]):
        fields = peer.case(name, number)
        ngram = name == "no_repeat_ngram_size"
        row, history = (np.zeros(peer.LETTERS, np.float32), peer.history(number)) if ngram else (peer.row(number), [0])
        if not ngram and peer.border(name, row, fields, 0.0) < MARGIN:
            near += 1
            continue
        ours = T.process_logits(core(number, fields), history, len(history), row)
        assert np.array_equal(ours > -np.inf, theirs[: len(row)]), (number, fields)
        some += 0 < theirs.sum() < (row > -np.inf).sum()
    assert near <= 20 and some >= 300, (near, some)


@pytest.mark.parametrize("name", ["mirostat 1", "mirostat 2", "adaptive_p"])
def test_states_on_the_peers_own_draws(frozen: dict[str, peer.Array], name: str) -> None:
    """Each run begins with a fresh state; a row near its border hands the peer's state on."""
    near, state = 0, _core.SamplerState()
    for number in range(peer.COUNT):
        fields, row = peer.case(name, number), peer.row(number)
        if number % peer.RUN == 0:
            state = _core.SamplerState()
        before = frozen[f"{name} state"][number - 1] if number % peer.RUN else np.array([2 * fields.get("mirostat_tau", 0)])
        token, after = int(frozen[f"{name} drawn"][number]), frozen[f"{name} state"][number]
        law, state = T.law_and_next_state(core(number, fields), [0], state, row, token, 0)
        if name == "adaptive_p":
            ids = peer.watched(row)
            assert np.allclose(law[ids], frozen["adaptive_p logits"][number], rtol=MARGIN, atol=MARGIN), (number, fields)
            assert np.allclose([state.weighted_sum, state.total_weight], after, rtol=MARGIN, atol=MARGIN), (number, fields)
            continue
        if peer.border(name, row, fields, float(before[0])) < MARGIN:
            near += 1
            state.mu = float(after[0])
            continue
        assert np.array_equal(law > -np.inf, frozen[f"{name} kept"][number]), (number, fields)
        assert abs(state.mu - after[0]) < MARGIN, (number, fields, state.mu, after[0])
    assert near <= 20, near


def test_temperatures_that_follow_the_entropy(frozen: dict[str, peer.Array]) -> None:
    """An entropy of almost nothing has few digits in the peer's float32: the temperature is compared there, to 1e-4."""
    changed, few_digits = 0, 0
    for number, theirs in enumerate(frozen["dynatemp logits"]):
        row = peer.row(number)
        ids = peer.watched(row)
        ours = T.process_logits(core(number, peer.case("dynatemp", number)), [0], 1, row)[ids]
        kept = theirs > -np.inf
        assert np.array_equal(ours > -np.inf, kept), number
        if peer.entropy_share(row) < 0.01:
            few_digits += 1
            inverse = [float((values[0] - values[-1]) / (row[ids[0]] - row[ids[-1]])) for values in (ours, theirs)]
            assert abs(1 / inverse[0] - 1 / inverse[1]) < 1e-4, number
            continue
        assert np.allclose(ours[kept], theirs[kept], rtol=MARGIN, atol=MARGIN), number
        changed += bool((row[ids] != theirs).any())
    assert changed > 700 and few_digits <= 120, (changed, few_digits)


def test_repetitions_that_dry_finds(frozen: dict[str, peer.Array]) -> None:
    penalised = 0
    for number, theirs in enumerate(frozen["dry logits"]):
        history = peer.history(number)
        ours = T.process_logits(core(number, peer.case("dry", number)), history, len(history), np.zeros(peer.LETTERS, np.float32))
        assert np.allclose(ours, theirs, rtol=MARGIN, atol=MARGIN), (number, peer.case("dry", number), history)
        penalised += int((theirs < 0).sum())
    assert penalised > 900
