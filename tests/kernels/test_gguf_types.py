"""Quantised tensor types of GGUF: values against gguf-py's, layers against the canonical order of sums, whole files, and bad ones."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from canonical_linear import Array, canonical_linear, codes_of, weights_of
from llmi import LLM, _core
from llmi.models.inspection import inspect_model
from llmi.testing import tiny_model
from quantization import KERNEL_TYPES, LAYOUTS, NUMBERS, UNPACKED, block_bytes, extreme_blocks, random_blocks
from test_ops import rand, same
from test_readers import GgufWriter, string
from tiny_gguf import tensors_of, write

T = _core.testing
#: Their layers have tests of their own in test_ops.py and test_wide_activations.py.
OLD_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
NEW_TYPES = [dtype for dtype in KERNEL_TYPES if dtype not in OLD_TYPES]
MODES: dict[str, dict[str, Any]] = {"8": {}, "8 fine": {"fine": True}, "16": {"bits": 16}}
ROW_COUNTS = (1, 3, 8, 33)


def gguf_values(dtype: str, data: bytes) -> Array:
    """What gguf-py makes of a tensor of one row."""
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    with np.errstate(all="ignore"):
        values: Array = gguf.dequantize(np.frombuffer(data, np.uint8).reshape(1, -1), getattr(gguf.GGMLQuantizationType, dtype))
    return values.reshape(-1)


def wild_blocks(dtype: str, count: int) -> bytes:
    """Every byte of any value: scales that are subnormal, infinite or NaN too."""
    return np.random.default_rng(3).integers(0, 256, (count, block_bytes(dtype)), dtype=np.uint8).tobytes()


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_values_are_those_of_gguf(dtype: str) -> None:
    """Exactly; every point of every grid, every sign and every scale occurs among 3,000 blocks."""
    size = LAYOUTS[dtype][0]
    for data in (random_blocks(dtype, 4, 512), wild_blocks(dtype, 3000)):
        num_values = len(data) // block_bytes(dtype) * size
        assert np.array_equal(T.dequantize_row(dtype, data, num_values), gguf_values(dtype, data), equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [*NEW_TYPES, "NVFP4"])
def test_layers_add_up_in_the_canonical_order(table: str, dtype: str, mode: str) -> None:
    data = random_blocks(dtype, 40, 512, seed=1)
    matrix, weights, x = T.PackedMatrix(table, dtype, data, 40, 512), weights_of(dtype, data, 40, 512), rand(max(ROW_COUNTS), 512)
    expected = canonical_linear(weights, codes_of(x, **MODES[mode]))
    for num_rows in ROW_COUNTS:
        assert same(T.linear(table, [matrix], x[:num_rows].copy(), num_threads=2, **MODES[mode]), expected[:num_rows])
    assert np.array_equal(
        T.embedding(table, matrix, [0, 39, 17], 1.0), T.dequantize_row(dtype, data, 40 * 512).reshape(40, 512)[[0, 39, 17]]
    )


@pytest.mark.parametrize("dtype", [dtype for dtype in UNPACKED if dtype != "NVFP4"])
def test_layers_of_unpacked_types(table: str, dtype: str) -> None:
    """They have the packed form of NVFP4, and their own reader."""
    data, x = random_blocks(dtype, 33, 256, seed=1), rand(3, 256)
    expected = T.linear("reference", [T.PackedMatrix("reference", dtype, data, 33, 256)], x)
    matrix = T.PackedMatrix(table, dtype, data, 33, 256)
    assert same(T.linear(table, [matrix], x), expected)
    values = T.dequantize_row(dtype, data, 33 * 256).reshape(33, 256)
    assert np.array_equal(T.embedding(table, matrix, list(range(33)), 1.0), values)
    assert np.allclose(expected, x.astype(np.float64) @ values.T.astype(np.float64), rtol=0, atol=0.02 * np.abs(values).max() * 16)


def test_gate_and_up_with_tables(table: str) -> None:
    """Layers that are cut into columns keep their tables."""
    x, zeros = rand(17, 256), [0.0] * 96
    gate, up = (T.PackedMatrix(table, dtype, random_blocks(dtype, 96, 256), 96, 256) for dtype in ("IQ4_XS", "MXFP4"))
    apart = T.linear(table, [gate, up], x)
    for made, wanted in zip(
        T.gated_linear_forms(table, gate, up, x, zeros), T.activate_forms(table, apart, True, False, 1, 8)[1], strict=True
    ):
        assert np.array_equal(made, wanted)


@pytest.mark.parametrize("dtype", NEW_TYPES)
def test_largest_codes(table: str, dtype: str) -> None:
    """All codes the largest, all activations +-127 in both bytes: sums in 16 bits stay within their range."""
    data, weight = extreme_blocks(dtype, 16, 256)
    matrix = T.PackedMatrix(table, dtype, data, 16, 256)
    for sign in (1.0, -1.0):
        x = np.full((3, 256), 127.0 * sign, np.float32)
        for mode in MODES.values():
            assert np.allclose(T.linear(table, [matrix], x, **mode), weight * 127 * sign * 256, rtol=1e-6)


@pytest.mark.parametrize("dtype", [*(dtype for dtype in NEW_TYPES if dtype != "MXFP4"), "IQ3_S"])
def test_a_scale_of_nan_spoils_its_row_alone(table: str, dtype: str) -> None:
    fields = LAYOUTS[dtype][1]
    at = sum(field if isinstance(field, int) else 2 for field in fields[: [isinstance(field, int) for field in fields].index(False)])
    raw = np.frombuffer(random_blocks(dtype, 20, 256), np.uint8).reshape(20, -1).copy()
    clean = T.linear(table, [T.PackedMatrix(table, dtype, raw.tobytes(), 20, 256)], rand(2, 256))
    raw[7, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    spoilt = T.linear(table, [T.PackedMatrix(table, dtype, raw.tobytes(), 20, 256)], rand(2, 256))
    assert np.isnan(spoilt[:, 7]).all() and np.array_equal(np.delete(spoilt, 7, 1), np.delete(clean, 7, 1))


@pytest.mark.parametrize("dtype", ["Q5_1", "Q5_K", "IQ3_S", "Q3_K"])
def test_quantization_q4_0_shrinks_what_is_larger(dtype: str) -> None:
    """In memory: Q3_K's 3.6 bits a weight stay, IQ3_S's 10 do not."""
    data = random_blocks(dtype, 16, 256)
    values = T.dequantize_row(dtype, data, 16 * 256)
    matrix = T.PackedMatrix("reference", dtype, data, 16, 256, format="q4_0")
    expected = values if dtype == "Q3_K" else T.dequantize_row("Q4_0", T.quantize_blocks("Q4_0", values), 16 * 256)
    assert np.array_equal(T.embedding("reference", matrix, list(range(16)), 1.0).ravel(), expected)


def file_of(folder: Path, dtype: str, widened: bool) -> Path:
    """A tiny llama whose matrices are of one type, or what these stand for, in fp32."""
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    folder.mkdir()
    directory = tiny_model(path=folder / "directory", vocab_size=258, num_layers=1, hidden_size=256)
    tensors: dict[str, Any] = {}
    for seed, (name, values) in enumerate(tensors_of(directory).items()):
        if values.ndim == 2:
            data = random_blocks(dtype, *values.shape, seed=seed)
            raw = np.frombuffer(data, np.uint8).reshape(len(values), -1)
            wide = gguf_values(dtype, data).reshape(values.shape) if widened else None
            tensors[name] = (raw, getattr(gguf.GGMLQuantizationType, dtype)) if wide is None else wide
    return write(folder / "model.gguf", directory, tensors=tensors)


def logits(path: Path, **options: Any) -> tuple[Array, str]:
    """Of a prompt's last position, and the numerics id."""
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=64, kv_cache_dtype="float32", **options) as llm:
        return llm.sequence([5]).extend([99, 7, 31, 200])[-1], llm.model_info.numerics_id


@pytest.mark.parametrize("dtype", [*NEW_TYPES, *UNPACKED])
def test_files(dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loaded as fp32, a file is the file of its values; as stored it is near; what is unpacked is named with its memory."""
    path = file_of(tmp_path / "stored", dtype, widened=False)
    expected, _ = logits(file_of(tmp_path / "wide", dtype, widened=True))
    assert same(logits(path, dtype="float32")[0], expected)
    with caplog.at_level(logging.INFO, "llmi"):
        near, numerics = logits(path, activation_bits=16)
    assert np.abs(near - expected).max() <= 1e-4 * np.abs(expected).max()
    report = inspect_model(path, activation_bits=16)
    if dtype in UNPACKED:
        assert "-w:q8f-" in numerics
        matrices = [tensor for tensor in report.tensors if len(tensor.shape) == 2]
        file, memory = sum(tensor.num_bytes for tensor in matrices), sum(tensor.unpacked_bytes for tensor in matrices)
        assert memory == sum((tensor.shape[0] + 15) // 16 * 16 * tensor.shape[1] * 10 // 8 for tensor in matrices)
        text = f"unpacked at load: {dtype} {file / 1e6:,.1f} MB in the file, {memory / 1e6:,.1f} MB in memory"
        assert text in caplog.text
        assert f"  unpacked     at load: {dtype} " in str(report)
    else:
        assert "unpacked" not in caplog.text and "unpacked" not in str(report)
    assert "quantised layers read 16-bit ones" in str(report)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_rows_that_are_no_whole_blocks(dtype: str, tmp_path: Path) -> None:
    writer, size, row, kind = GgufWriter(), LAYOUTS[dtype][0], block_bytes(dtype), NUMBERS[dtype]
    for columns, num_bytes, message in (
        (size, 2 * row, None),
        (size + 32 if size > 32 else 48, 4 * row, f"do not divide into blocks of {size}"),
        (size, 2 * row - 1, "truncated"),
    ):
        writer.tensors, writer.data = [(b"a", (columns, 2), kind, 0)], bytes(num_bytes)
        (tmp_path / "x.gguf").write_bytes(writer.write())
        if message is None:
            (tensor,) = _core.GgufFile(str(tmp_path / "x.gguf")).tensors()
            assert (tensor.dtype, tensor.num_bytes) == (dtype, 2 * row)
            continue
        with pytest.raises(_core.CoreError, match=message) as error:
            _core.GgufFile(str(tmp_path / "x.gguf"))
        assert error.value.kind == "model_file" and error.value.field == "a"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments(version: int, alignment: int, tmp_path: Path) -> None:
    """A file of version 2 has the same form; tensors begin at multiples of general.alignment."""
    directory = tiny_model(path=tmp_path / "directory", vocab_size=258, num_layers=1)
    whole = write(tmp_path / "whole.gguf", directory)
    expected, _ = logits(whole)
    assert same(logits(aligned(whole, tmp_path / "aligned.gguf", version, alignment))[0], expected)


def aligned(path: Path, to: Path, version: int, alignment: int) -> Path:
    """The same file with another version and another alignment."""
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    reader = gguf.GGUFReader(path)
    raw = path.read_bytes()
    names = [tensor.name.encode() for tensor in reader.tensors]
    header = raw[: raw.index(struct.pack("<Q", len(names[0])) + names[0])]
    (count,) = struct.unpack_from("<Q", raw, 16)
    body = header[24:] + string(b"general.alignment") + struct.pack("<II", 4, alignment)
    data = b""
    infos = b""
    for name, tensor in zip(names, reader.tensors, strict=True):
        data += b"\x55" * (-len(data) % alignment)
        shape = [int(extent) for extent in tensor.shape]
        infos += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, int(tensor.tensor_type), len(data))
        data += tensor.data.tobytes()
    head = b"GGUF" + struct.pack("<IQQ", version, len(names), count + 1) + body + infos
    to.write_bytes(head + b"\x55" * (-len(head) % alignment) + data)
    return to


@pytest.mark.parametrize(("endian", "version"), [("<", 1), (">", 1), (">", 2), (">", 3)])
def test_other_versions_are_named(endian: str, version: int, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack(f"{endian}IQQ", version, 0, 0))
    with pytest.raises(_core.CoreError, match="big-endian" if endian == ">" else r"GGUF version 1 \(2 and 3 are read\)") as error:
        _core.GgufFile(str(tmp_path / "x.gguf"))
    assert error.value.field == "version"
