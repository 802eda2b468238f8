"""`llmi quantize`: blocks against ggml's rule written as loops, whole files, receipts, and what cannot be written."""

from __future__ import annotations

import functools
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode as encode_file
from gguf_model import metadata_of, tensors_of
from llmi import LLM, InvalidParamsError, ModelFileError, _core
from llmi.base.gguf_entries import text_entry
from llmi.cli import quantize as quantize_command
from llmi.cli.commands import main
from llmi.compress import absmax_quantize, evaluate, kl_threshold, quantize, threshold_plot
from llmi.compress.blocks import BLOCK_TYPES, encode_absmax
from llmi.compress.chosen_types import TYPES
from llmi.compress.gguf_file import GgufSource, NewTensor, write_gguf
from llmi.compress.grids import GRIDS, encode_searched
from llmi.compress.made_files import RECEIPT
from llmi.compress.replaying import replay_file
from llmi.compress.rounding import METHODS
from llmi.compress.study import threshold_of
from llmi.testing import tiny_model

RNG = np.random.default_rng(8)
F = np.float32


def decode(name: str, data: bytes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """By the core, in float64, flat."""
    grid = GRIDS[name]
    return _core.testing.dequantize_row(name, data, len(data) // grid.block_bytes * grid.columns).astype(np.float64)


def awkward() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Blocks with ties, zeros, one sign, equal extremes, subnormals."""
    blocks = RNG.standard_normal((40, 64)).astype(F) * F(0.07)
    blocks[3] = 0
    blocks[4] = 0.25
    blocks[5] = -0.25
    blocks[6, :32] = np.arange(32) / 2
    blocks[7] = np.round(blocks[7] * 64) / 64
    blocks[8, 0], blocks[8, 5] = 0.3, -0.3
    blocks[9] *= F(1e-39)
    blocks[10] = np.abs(blocks[10])
    return blocks


def of_ggml(name: str, block: list[Any]) -> bytes:
    """quantize_row_NAME_ref of 32 float32 numbers, step by step as C has it."""
    if name == "Q8_0":
        largest = max(abs(value) for value in block)
        scale = F(largest / F(127))
        inverse = F(F(1) / scale) if scale else F(0)
        products = [float(value * inverse) for value in block]
        codes = [int(math.copysign(math.floor(abs(value) + 0.5), value)) for value in products]
        return scale.astype(np.float16).tobytes() + struct.pack("32b", *codes)
    bits, low = {"Q4_0": (4, None), "Q4_1": (4, min(block)), "Q5_0": (5, None), "Q5_1": (5, min(block))}[name]
    if low is None:
        extreme = F(0)
        for value in block:
            if abs(value) > abs(extreme):
                extreme = value
        scale, middle = F(extreme / F(-(2 ** (bits - 1)))), F(2 ** (bits - 1) + 0.5)
    else:
        scale, middle = F(F(max(block) - low) / F(2**bits - 1)), F(0.5)
    inverse = F(F(1) / scale) if scale else F(0)
    codes = [min(2**bits - 1, int(F(F(value - (low or F(0))) * inverse) + middle)) for value in block]
    data = scale.astype(np.float16).tobytes() + (b"" if low is None else low.astype(np.float16).tobytes())
    if bits == 5:
        data += struct.pack("<I", sum((code >> 4) << place for place, code in enumerate(codes)))
    return data + bytes((codes[place] & 15) | ((codes[place + 16] & 15) << 4) for place in range(16))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_absmax_is_ggmls_rule(name: str) -> None:
    values = np.delete(awkward(), 9, axis=0)  # ggml divides by a subnormal scale there
    want = b"".join(of_ggml(name, list(block)) for block in values.reshape(-1, 32))
    assert encode_absmax(BLOCK_TYPES[name], values) == want
    assert len(want) == values.size // 32 * BLOCK_TYPES[name].block_bytes


@pytest.mark.parametrize("name", GRIDS)
def test_a_search_finds_smaller_errors(name: str) -> None:
    grid, values = GRIDS[name], np.concatenate([awkward()] * 4, axis=1)
    weights = np.abs(RNG.standard_normal(256)).astype(F) + F(0.01)

    def errors(data: bytes, by: Any) -> Any:
        gap = values - decode(name, data).reshape(values.shape)
        return (by * gap**2).reshape(-1, grid.columns).sum(axis=1)

    searched, by_weight = encode_searched(grid, values), encode_searched(grid, values, weights)
    assert len(searched) == values.size // grid.columns * grid.block_bytes
    assert errors(by_weight, weights).sum() < errors(searched, weights).sum()
    if name in BLOCK_TYPES:
        plain = encode_absmax(BLOCK_TYPES[name], values)
        assert (errors(searched, 1.0) <= errors(plain, 1.0) * 1.0001 + 1e-12).all()
        inexact = errors(plain, 1.0) > 1e-12
        assert (errors(searched, 1.0)[inexact] / errors(plain, 1.0)[inexact]).mean() < 0.97


# Root mean square errors of normal numbers, over their size: a little above what a search of this kind has found.
NORMAL = {"Q3_K": 0.147, "Q4_K": 0.0725, "Q5_K": 0.0365, "Q6_K": 0.0172, "IQ4_NL": 0.0745, "MXFP4": 0.114}


@pytest.mark.parametrize("name", NORMAL)
def test_errors_of_normal_numbers(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(F)
    error = values - decode(name, encode_searched(GRIDS[name], values)).reshape(values.shape)
    assert math.sqrt(float((error**2).mean() / (values.astype(np.float64) ** 2).mean())) < NORMAL[name]


@pytest.mark.parametrize("name", GRIDS)
def test_numbers_on_the_grid_stay(name: str) -> None:
    grid = GRIDS[name]
    least, most = grid.codes
    levels = np.array(grid.levels or range(least, most + 1), F)
    values = np.resize(levels, (grid.part, 256)) * F(0.5)  # each part has its extremes
    values = values.reshape(-1, 256)[: len(levels)]
    found = decode(name, encode_searched(grid, values)).reshape(values.shape)
    assert np.abs(found - values).max() <= (0 if name in ("MXFP4", "IQ4_NL") else 0.02 * float(np.abs(values).max()))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(path=tmp_path_factory.mktemp("source") / "model", vocab_size=300, hidden_size=64)
    path = folder.parent / "source.gguf"
    path.write_bytes(encode_file({**metadata_of(folder), "general.file_type": 0}, tensors_of(folder)))
    return path


def made(source: Path, out: Path, **settings: Any) -> Path:
    quantize(source, out, **settings)
    return out


@pytest.mark.parametrize("kind", [*BLOCK_TYPES, "F16", "BF16"])
def test_files_hold_what_they_say(source: Path, tmp_path: Path, kind: str) -> None:
    report = quantize(source, tmp_path / "a.gguf", type=kind, method="absmax")
    old, new = GgufSource(source), GgufSource(tmp_path / "a.gguf")
    assert {**old.entries, "general.file_type": b""} == {
        **{name: entry for name, entry in new.entries.items() if name not in (RECEIPT, "general.quantization_version")},
        "general.file_type": b"",
    }
    assert new.entries["general.file_type"] != old.entries["general.file_type"]
    with LLM(source, kv_cache_memory_bytes=1 << 24) as before, LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as after:
        assert list(before.weights) == list(after.weights)
        for name in before.weights:
            matrix = name.startswith("blk.") and before.weights[name].ndim == 2
            assert report.tensors.get(name) == (kind if matrix else None)
            values = before.weights[name]
            if matrix and kind in BLOCK_TYPES:
                values = decode(kind, encode_absmax(BLOCK_TYPES[kind], values)).astype(F).reshape(values.shape)
            elif matrix and kind == "F16":
                values = values.astype(np.float16).astype(F)
            elif matrix:
                halves = values.astype(np.float64)
                exponents = np.floor(np.log2(np.maximum(np.abs(halves), 1e-300)))
                steps = 2.0 ** (exponents - 7)
                values = (np.rint(halves / steps) * steps).astype(F)
            assert (after.weights[name] == values).all(), name
        assert after.generate("the", max_tokens=4, temperature=0)[0].token_ids
    assert report.bytes == (tmp_path / "a.gguf").stat().st_size < source.stat().st_size == report.source_bytes
    assert not report.fallbacks and not report.requantized


def test_equal_inputs_give_equal_bytes_and_a_receipt(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = {"*ffn_down*": "Q8_0", "token_embd*": "F16"}
    first, second = (made(source, tmp_path / name, type="Q4_1", tensors=rules) for name in ("a.gguf", "b.gguf"))
    assert first.read_bytes() == second.read_bytes()
    assert {tensor.type for tensor in GgufSource(first).tensors if "ffn_down" in tensor.name} == {8}
    assert main(["replay", str(first), "-m", str(source)]) == 0
    assert "the same bytes" in capsys.readouterr().out
    data = bytearray(first.read_bytes())
    data[-40] ^= 1
    (tmp_path / "changed.gguf").write_bytes(data)
    assert replay_file(tmp_path / "changed.gguf", source)[0] is False
    with pytest.raises(InvalidParamsError, match="is not the source"):
        replay_file(first, second)
    with pytest.raises(InvalidParamsError, match="has no receipt"):
        replay_file(source, source)
    beside = tmp_path / "source.gguf"
    beside.write_bytes(source.read_bytes())
    assert replay_file(first)[0]  # found by its name, next to the file


def test_the_last_pattern_holds_in_the_receipt_too(source: Path, tmp_path: Path) -> None:
    path = made(source, tmp_path / "a.gguf", tensors={"*ffn_up*": "Q8_0", "*": "Q5_0", "*attn*": "Q4_1"})
    types = {tensor.name: tensor.type for tensor in GgufSource(path).tensors}
    assert (types["blk.0.ffn_up.weight"], types["blk.0.attn_q.weight"], types["token_embd.weight"]) == (6, 3, 6)
    assert replay_file(path, source)[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "is of version 2"),
        ({"settings": {"type": "Q9", "method": "search", "tensors": []}}, "type must be one of"),
        ({"settings": {"type": "Q4_0", "method": "search", "tensors": [["*", "Q9"]]}}, "must be one of"),
        ({"settings": {"type": "Q4_0", "method": "search", "tensors": [["*"]]}}, "cannot be read"),
        ({"settings": 5}, "cannot be read"),
    ],
)
def test_receipts_that_say_nothing_sound(source: Path, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    written = GgufSource(made(source, tmp_path / "a.gguf"))
    receipt = json.loads(written.text_of(RECEIPT) or "") | change
    entries = {**written.entries, RECEIPT: text_entry(json.dumps(receipt))}
    tensors = [NewTensor(each.name, each.shape, each.type, functools.partial(written.bytes_of, each)) for each in written.tensors]
    write_gguf(tmp_path / "b.gguf", entries, tensors, lambda: None)
    with pytest.raises(InvalidParamsError, match=says):
        replay_file(tmp_path / "b.gguf", source)


def test_smaller_types_cost_more(source: Path, tmp_path: Path) -> None:
    text = [[int(token) for token in RNG.integers(0, 256, 64)]]
    costs = [
        evaluate(made(source, tmp_path / f"{kind}.gguf", type=kind), base=source, texts=text, window=32, kv_cache_memory_bytes=1 << 24).kl
        for kind in ("Q8_0", "Q5_1", "Q4_0")
    ]
    assert 0 < costs[0] < costs[1] < costs[2]  # type: ignore[operator]


def test_a_source_that_is_quantised_is_said_so(source: Path, tmp_path: Path) -> None:
    small = made(source, tmp_path / "a.gguf", type="Q8_0")
    report = quantize(small, tmp_path / "b.gguf", type="Q4_0")
    assert report.requantized == ["Q8_0"] and "quantised itself" in str(report)
    assert "made" in str(GgufSource(tmp_path / "b.gguf").text_of(RECEIPT))


@pytest.mark.parametrize(("kind", "granularity"), [("int8-tensor", "tensor"), ("int4-channel", "channel"), ("int6-32", 32)])
def test_types_for_study(source: Path, tmp_path: Path, kind: str, granularity: Any) -> None:
    report = quantize(source, tmp_path / "a.gguf", type=kind, method="absmax")
    assert len(report.tensors) == 14 and set(report.tensors.values()) == {kind}
    with LLM(source, kv_cache_memory_bytes=1 << 24) as before, LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as after:
        name = "blk.1.ffn_up.weight"
        want = absmax_quantize(before.weights[name], bits=int(kind[3]), granularity=granularity).dequantize()
        assert (after.weights[name] == want).all()
    assert replay_file(tmp_path / "a.gguf", source)[0]


def test_kl_cuts_where_the_histogram_diverges_least(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "a.gguf", type="int8-tensor", method="kl")
    with LLM(source, kv_cache_memory_bytes=1 << 24) as before, LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as after:
        values, found = before.weights["blk.0.ffn_up.weight"], after.weights["blk.0.ffn_up.weight"]
        magnitudes = np.abs(values.astype(np.float64))
        counts, edges = np.histogram(magnitudes, bins=2048, range=(0, magnitudes.max()))
        limit = edges[kl_threshold(counts)]
        assert np.isclose(np.abs(found).max(), limit, rtol=1e-6)
        inside = magnitudes <= limit
        assert np.abs(found - values)[inside].max() <= limit / 127 / 2 * 1.001
    assert threshold_of(np.zeros((2, 2), F), 128) > 0
    with pytest.raises(InvalidParamsError, match="whole tensor"):
        quantize(source, tmp_path / "b.gguf", type="int8-channel", method="kl")
    with pytest.raises(InvalidParamsError, match='by method "absmax" or "kl"'):
        quantize(source, tmp_path / "b.gguf", type="int8-32")


@pytest.mark.slow
def test_a_plot_shows_the_cut() -> None:
    pytest.importorskip("matplotlib")
    figure = threshold_plot(RNG.standard_normal(5000))
    assert "are beyond" in figure.axes[0].get_legend().get_texts()[0].get_text()


@pytest.mark.parametrize(("kind", "instead"), [("Q3_K", 20), ("Q4_K", 6), ("Q5_K", 7), ("Q6_K", 8)])
def test_columns_that_super_blocks_do_not_divide(tmp_path: Path, kind: str, instead: int) -> None:
    folder = tiny_model(path=tmp_path / "model", vocab_size=300, intermediate_size=256)
    path = tmp_path / "source.gguf"
    path.write_bytes(encode_file(metadata_of(folder), tensors_of(folder)))
    report = quantize(path, tmp_path / "a.gguf", type=kind)
    types = {tensor.name: tensor.type for tensor in GgufSource(tmp_path / "a.gguf").tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.attn_q.weight"]) == (GRIDS[kind].number, instead)
    assert "and 11 others: becomes" in str(report) and "blocks of 256 columns" in str(report)
    with LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as llm:
        assert llm.generate("the", max_tokens=4, temperature=0)[0].token_ids
    assert replay_file(tmp_path / "a.gguf", path)[0]


def test_columns_that_blocks_do_not_divide(tmp_path: Path) -> None:
    folder = tiny_model(path=tmp_path / "model", vocab_size=300, intermediate_size=80)
    path = tmp_path / "source.gguf"
    path.write_bytes(encode_file(metadata_of(folder), tensors_of(folder)))
    report = quantize(path, tmp_path / "a.gguf")
    assert sorted(report.fallbacks) == ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"]
    assert "blocks of 32 columns, which do not divide its 80" in str(report)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"type": "Q9"}, "type must be one of"),
        ({"method": "best"}, "method must be one of"),
        ({"method": "absmax", "type": "IQ4_NL"}, "has no rule for IQ4_NL"),
        ({"tensors": {"*": "Q9"}}, "must be one of"),
        ({"tensors": {"no.such*": "Q8_0"}}, "has a name like 'no.such"),
    ],
)
def test_what_cannot_be_asked(source: Path, tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParamsError, match=says):
        quantize(source, tmp_path / "a.gguf", **settings)
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there.gguf").write_bytes(b"x")
    for out, says in (
        (tmp_path / "there.gguf", "exists"),
        (source, "exists"),
        (tmp_path / "a.bin", "gguf"),
        (tmp_path / "no" / "a.gguf", "no folder"),
    ):
        with pytest.raises(InvalidParamsError, match=says):
            quantize(source, out)
    assert main(["quantize", str(source), str(tmp_path / "b.gguf"), "--tensor", "x"]) == 2
    assert "PATTERN=TYPE" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there.gguf"]


def test_values_that_no_type_can_hold(source: Path, tmp_path: Path) -> None:
    folder = source.parent / "model"
    for value, kind, says in ((1e6, "F16", "beyond fp16"), (1e30, "Q8_0", "beyond fp16"), (math.nan, "Q8_0", "NaN")):
        tensors = tensors_of(folder)
        tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"].copy()
        tensors["blk.0.ffn_up.weight"][3, 3] = value
        path = tmp_path / f"{value}{kind}.gguf"
        path.write_bytes(encode_file(metadata_of(folder), tensors))
        with pytest.raises((InvalidParamsError, ModelFileError), match=says):
            quantize(path, tmp_path / "out.gguf", type=kind)
    assert not (tmp_path / "out.gguf").exists() and not list(tmp_path.glob(".*"))


def test_an_interrupt_leaves_no_file(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmi.compress.rounding.encode_searched", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_the_command_names_what_there_is() -> None:
    assert (", ".join(TYPES), ", ".join(METHODS[:-1]) + f" or {METHODS[-1]}") == (quantize_command.TYPES, quantize_command.METHODS)


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.gguf"
    assert main(["quantize", str(source), str(out), "--type", "Q5_0", "--method", "absmax", "--tensor", "*attn_v*=Q8_0"]) == 0
    assert "as Q5_0" in capsys.readouterr().out
    assert out.read_bytes() == made(source, tmp_path / "b.gguf", type="Q5_0", method="absmax", tensors={"*attn_v*": "Q8_0"}).read_bytes()
