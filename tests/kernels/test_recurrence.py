"""The recurrences' kernels: every CPU table has the reference's bits; the reference is beside NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmi import _core
from test_ops import Array, rand, same

T = _core.testing
ROWS = 11
# heads, groups, key size, value size
SHAPES: dict[str, tuple[int, int, int, int]] = {
    "delta": (4, 2, 32, 48),
    "delta odd": (3, 1, 18, 20),
    "mamba": (4, 2, 16, 64),
    "mamba odd": (17, 1, 10, 5),
}


def case(name: str) -> tuple[Array, Array, Array, dict[str, Any]]:
    """Channels, times, a state and the other fields."""
    heads, groups, key_size, value_size = SHAPES[name]
    fields: dict[str, Any] = {"num_groups": groups, "value_size": value_size, "time_bias": rand(heads, seed=1)}
    fields["decay"] = -np.exp(rand(heads, seed=2))
    if name.startswith("delta"):
        fields |= {"write": rand(ROWS, heads, seed=3), "tiled_groups": name == "delta"}
    else:
        fields |= {"skip": rand(heads, seed=4), "least_step": 0.4, "most_step": 1.5}
    blocks = -(-value_size // 16)
    state = np.zeros((heads, blocks * 16, key_size), np.float32)
    state[:, :value_size] = rand(heads, value_size, key_size, seed=5)
    state = np.ascontiguousarray(state.reshape(heads, blocks, 16, key_size).swapaxes(2, 3))
    return rand(ROWS, 2 * groups * key_size + heads * value_size, seed=6), rand(ROWS, heads, seed=7), state, fields


def columns(name: str, state: Array) -> Array:
    """The state as [heads, value size, key size]."""
    heads, _, key_size, value_size = SHAPES[name]
    return state.swapaxes(2, 3).reshape(heads, -1, key_size)[:, :value_size].copy()


def recurred(name: str, channels: Array, time: Array, state: Array, fields: dict[str, Any]) -> Array:
    """What recurrence.h says, in float64. state [heads, value size, key size]."""
    heads, groups, key_size, value_size = SHAPES[name]
    sizes = {"query": groups * key_size, "key": groups * key_size, "value": heads * value_size}
    order = ["query", "key", "value"] if "write" in fields else ["value", "key", "query"]
    parts = dict(zip(order, np.split(channels.astype(np.float64), np.cumsum([sizes[part] for part in order])[:-1], 1), strict=True))
    of_head = np.arange(heads) % groups if fields.get("tiled_groups") else np.arange(heads) // (heads // groups)
    query, key = (parts[part].reshape(-1, groups, key_size)[:, of_head] for part in ("query", "key"))
    value = parts["value"].reshape(-1, heads, value_size)
    step = np.logaddexp(0, time.astype(np.float64) + fields["time_bias"])
    step = np.clip(step, fields.get("least_step", 0), fields.get("most_step", np.inf))
    out, state = np.zeros(value.shape), state.astype(np.float64)
    for t in range(len(channels)):
        state = state * np.exp(step[t] * fields["decay"])[:, None, None]
        k, q, v = key[t], query[t], value[t]
        if "write" in fields:
            k, q = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (k, q))
            q = q / np.sqrt(key_size)
            v = (v - (state * k[:, None]).sum(-1)) / (1 + np.exp(-fields["write"][t].astype(np.float64)))[:, None]
        else:
            v = v * step[t][:, None]
        state = state + v[:, :, None] * k[:, None]
        out[t] = (state * q[:, None]).sum(-1) + (fields["skip"][:, None] * value[t] if "skip" in fields else 0.0)
    return out.reshape(len(channels), -1)


@pytest.mark.parametrize("name", SHAPES)
def test_recurrence(cpu_table: str, name: str) -> None:
    channels, time, state, fields = case(name)
    expected = recurred(name, channels, time, columns(name, state), fields)
    reference, after = T.recurrence("reference", channels, time, state, **fields)
    assert np.abs(reference - expected).max() <= 2e-5 * max(1.0, np.abs(expected).max())
    out, own = T.recurrence(cpu_table, channels, time, state, **fields)
    assert same(out, reference) and same(columns(name, own), columns(name, after))


def test_a_time_that_is_no_number_stays_in_its_head(cpu_table: str) -> None:
    channels, time, state, fields = case("mamba")
    time[3, 1] = np.nan
    of_head = np.isnan(T.recurrence(cpu_table, channels, time, state, **fields)[0].reshape(ROWS, 4, 64))
    assert of_head[3:, 1].all() and not of_head[:3].any() and not np.delete(of_head, 1, 1).any()


def test_softplus(cpu_table: str) -> None:
    """Where exp is 0 beside 1, where it is 1 and between, against float64."""
    x = np.array([-80.0, -30.0, -7.0, -1e-3, 0.0, 1e-3, 5.0, 40.0], np.float32)
    fields = {"num_groups": 1, "value_size": 1, "time_bias": np.zeros(len(x), np.float32), "decay": np.full(len(x), -1, np.float32)}
    out, _ = T.recurrence(cpu_table, np.ones((1, len(x) + 2), np.float32), x[None], np.zeros((len(x), 1, 1, 16), np.float32), **fields)
    exact = np.logaddexp(0, x.astype(np.float64))
    assert (np.abs(out[0] - exact) <= 4 * 2.0**-24 * exact).all()
