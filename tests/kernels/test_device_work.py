"""What a step of decoding gives a device: launches, graph nodes, uploads, copies, waits, and bytes of weights that are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM
from llmi.testing import tiny_model

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not beside the tests")
if (ROOT / "benchmarks").is_dir():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import device_steps

NUM_STEPS = 4
#: Today's, of a step of 1 and of 32 rows: nodes of a layer's recording; how often each byte of the matrices is read.
LAYER_NODES = {"4 bits": (5, 7), "bf16": (6, 8), "bf16 on tensor cores": (6, 8)}
#: Blocks that add in the CPU's order norm a row of whole slots of the stream.
HIDDEN_SIZE = {"bf16": 256}
STREAMED = {"4 bits": (1, 1), "bf16": (1, 1), "bf16 on tensor cores": (1, 1)}


def counts(path: Path, kind: str, num_rows: int) -> dict[str, Any]:
    options = {"kv_cache_memory_bytes": 1 << 22, "enable_prefix_caching": False, "max_model_len": 64}
    with LLM(path, device="cuda", **options, **device_steps.ENGINES[kind]) as llm:
        return device_steps.counts_a_step(llm, num_rows, NUM_STEPS)


@pytest.mark.parametrize("num_rows", [1, 32])
@pytest.mark.parametrize("kind", LAYER_NODES)
def test_counts_of_a_step(kind: str, num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2's layers, tiny. What the null device was given is the same."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    tiny = device_steps.TINY | {"hidden_size": HIDDEN_SIZE.get(kind, device_steps.TINY["hidden_size"])}
    shapes = [tiny | {"num_layers": num_layers} for num_layers in (1, 2)]
    paths = [tiny_model(path=tmp_path / str(shape["num_layers"]), **shape) for shape in shapes]
    one, two = (counts(path, kind, num_rows) for path in paths)
    assert two["graph_nodes"] - one["graph_nodes"] == LAYER_NODES[kind][num_rows == 32]
    outside = {"launches": 0, "uploads": 1, "copies": 0, "waits": 1, "replays": 1}
    assert {name: two.get(name, 0) for name in outside} == outside
    assert two["graph_nodes"] == sum(value for name, value in two.items() if name.endswith(" launches"))
    assert device_steps.streamed_over_stored(shapes[1], two, device_steps.ENGINES[kind]) == STREAMED[kind][num_rows == 32]
    with device_steps.null_devices():
        null = counts(paths[1], kind, num_rows)
    assert null == {name: value for name, value in two.items() if name in null}
    assert set(two) - set(null) == {name for name in two if name.endswith(" launches")} | {"streamed_bytes"}


#: Of a step of three rows outside the recording: launches, uploads, waits.
GOES: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"temperature": 0}, (0, 1, 1)),
    ({"top_k": 5, "top_p": 0.9, "min_p": 0.01}, (0, 1, 1)),
    ({"typical_p": 0.9}, (0, 1, 1)),
    ({"logit_bias": {7: 1.5, 9: -2.0}}, (0, 1, 1)),
    ({"repetition_penalty": 1.2}, (0, 1, 1)),
    ({"allowed_token_ids": list(range(1, 200))}, (0, 1, 1)),
    ({"logprobs": 1}, (2, 1, 3)),  # the head, with codes of its input, and a row of logits for each sequence
]


@pytest.mark.parametrize(("params", "expected"), GOES, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_how_rows_go(params: dict[str, Any], expected: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the device draws are drawn in the recording; rows for the host leave it before the head."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    path = tiny_model(path=tmp_path, **device_steps.TINY)
    with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22, enable_prefix_caching=False, quantization="q4_0") as llm:
        step = device_steps.counts_a_step(llm, 3, NUM_STEPS, **params)
    assert tuple(step.get(name, 0) for name in ("launches", "uploads", "waits")) == expected
    assert step["replays"] == 1


def test_the_null_device_runs_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens are 0. Devices that are opened afterwards run kernels again."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    path = tiny_model(path=tmp_path)
    answers = []
    for _ in range(2):
        with device_steps.null_devices(), LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
            assert llm.generate([5, 6, 7], temperature=0, max_tokens=4, ignore_eos=True)[0].token_ids == [0] * 4
            seconds = device_steps.step_seconds(llm, 2, 20)
            assert 0 < seconds["least us"] <= seconds["median us"]
        with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22) as llm, LLM(path, kv_cache_memory_bytes=1 << 22) as cpu:
            answers.append(llm.generate([5, 6, 7], temperature=0, max_tokens=4, ignore_eos=True)[0].token_ids)
            assert answers[-1] == cpu.generate([5, 6, 7], temperature=0, max_tokens=4, ignore_eos=True)[0].token_ids != [0] * 4
