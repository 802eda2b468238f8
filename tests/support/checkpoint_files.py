"""Quantised checkpoints: tensors of any type in safetensors files, and what their values are, in NumPy, apart from llmi's own readers.

python tests/support/checkpoint_files.py cut SOURCE     # writes tests/data/checkpoints from folders that the quantisers have written
python tests/support/checkpoint_files.py check SOURCE   # compares each quantised matrix of each folder with what llmi reads
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[1] / "data" / "checkpoints"
KEPT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")  # of layer 0, in tests/data
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "u1", "F8_E8M0": "u1"}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble j of a word holds this column


class Stored(NamedTuple):
    """A tensor as the file has it: bits of BF16 and fp8 as integers."""

    dtype: str
    values: Array

    @property
    def floats(self) -> Array:
        if self.dtype == "BF16":
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        return float8(self.values) if self.dtype == "F8_E4M3" else self.values.astype(np.float32)


Tensors = dict[str, Stored]


def float8(codes: Array) -> Array:
    """The values of e4m3 codes."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    size = np.where(exponent == 0, mantissa * 2.0**-9, np.ldexp(1 + mantissa / 8, exponent - 7))
    size = np.where((codes & 127) == 127, np.nan, size)
    return np.where(codes >= 128, -size, size).astype(np.float32)


def read_file(path: Path) -> Tensors:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    tensors: Tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = Stored(entry["dtype"], np.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"]))
    return tensors


def write_file(path: Path, tensors: Tensors) -> None:
    header, offset = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(stored.values.tobytes() for stored in tensors.values()))


# --- what the values are


def words(values: Array, bits: int, axis: int) -> Array:
    """The codes of 32-bit words along an axis, the lowest bits first."""
    codes = values[..., None].astype(np.int64) >> np.arange(0, 32, bits) & (1 << bits) - 1
    codes = np.moveaxis(codes, -1, axis + 1)
    return codes.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :])


def pack(codes: Array, bits: int, axis: int) -> Array:
    """The other way round."""
    count = 32 // bits
    grouped = codes.astype(np.uint32).reshape(*codes.shape[:axis], -1, count, *codes.shape[axis + 1 :])
    shifts = np.arange(0, 32, bits, dtype=np.uint32).reshape(-1, *[1] * (codes.ndim - axis - 1))
    return np.bitwise_or.reduce(grouped << shifts, axis=axis + 1).view(np.int32)


def nibbles(values: Array) -> Array:
    """The low one first."""
    return np.stack([values & 15, values >> 4], -1).reshape(*values.shape[:-1], -1)


def float4(codes: Array) -> Array:
    """The values of e2m1 codes."""
    found: Array = _E2M1[codes]
    return found


def spread(grid: Array, shape: tuple[int, int], blocks: tuple[int, int] | None = None) -> Array:
    """A grid of scales or zeros for each value. blocks: values of a grid entry, else equal parts of the shape."""
    grid = grid.reshape(1, 1) if grid.size == 1 else grid
    rows, cols = blocks or (shape[0] // grid.shape[0], shape[1] // grid.shape[1])
    return np.repeat(np.repeat(grid, rows, 0)[: shape[0]], cols, 1)[:, : shape[1]]


def _awq(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    inverse = np.argsort(_AWQ_ORDER)

    def columns(values: Array) -> Array:
        codes = values[..., None] >> np.arange(0, 32, 4) & 15
        return codes[..., inverse].reshape(values.shape[0], -1)

    codes, zeros, group = columns(part("qweight").values), columns(part("qzeros").values), quantization["group_size"]
    return ((codes - np.repeat(zeros, group, 0)) * np.repeat(part("scales").floats, group, 0)).astype(np.float32).T


def _gptq(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    bits, added = quantization["bits"], int(quantization.get("checkpoint_format", "gptq") == "gptq")
    codes, zeros = words(part("qweight").values, bits, 0), words(part("qzeros").values, bits, 1) + added
    groups = part("g_idx").values
    return ((codes - zeros[groups]).astype(np.float32) * part("scales").floats[groups]).T


def _compressed_tensors(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    group = next(iter(quantization["config_groups"].values()))
    how, scales = group["weights"], part("weight_scale").floats
    if group["format"] == "nvfp4-pack-quantized":
        codes = nibbles(part("weight_packed").values)
        return _E2M1[codes] * spread(scales / part("weight_global_scale").floats, codes.shape)
    if group["format"] == "mxfp4-pack-quantized":
        codes = nibbles(part("weight_packed").values)
        return _E2M1[codes] * spread(np.ldexp(np.float32(1), part("weight_scale").values.astype(np.int32) - 127), codes.shape)
    if group["format"] == "pack-quantized":
        bits, zero = how["num_bits"], np.full((1, 1), 1 << how["num_bits"] - 1)
        codes = words(part("weight_packed").values, bits, 1)
        if not how["symmetric"]:
            zero = words(part("weight_zero_point").values, bits, 0)[: codes.shape[0]]
        if how["actorder"] == "group":
            order = part("weight_g_idx").values
            return (codes - spread(zero, scales.shape)[:, order]).astype(np.float32) * scales[:, order]
        return (codes - spread(zero, codes.shape)).astype(np.float32) * spread(scales, codes.shape)
    codes = part("weight").floats
    if not how["symmetric"]:
        codes = codes - spread(part("weight_zero_point").floats, codes.shape)
    block = how["block_structure"]
    return codes * spread(scales, codes.shape, tuple(map(int, block.split("x") if isinstance(block, str) else block)) if block else None)


def _fp8(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    codes, blocks = part("weight").floats, quantization.get("weight_block_size")
    name = "weight_scale_inv" if "weight_block_size" in quantization else "weight_scale"
    return codes * spread(part(name).floats, codes.shape, tuple(blocks) if blocks else None)


def _bitsandbytes(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    codes = part("weight")
    if quantization["load_in_8bit"]:
        return codes.floats * part("SCB").floats[:, None] / np.float32(127)
    state = json.loads(part("weight.quant_state.bitsandbytes__nf4").values.tobytes())
    absmax = part("weight.absmax")
    scales = absmax.floats
    if "nested_blocksize" in state:
        outer = np.repeat(part("weight.nested_absmax").floats, state["nested_blocksize"])[: scales.size]
        scales = part("weight.nested_quant_map").floats[absmax.values] * outer + np.float32(state["nested_offset"])
    flat = codes.values.ravel()
    values = part("weight.quant_map").floats[np.stack([flat >> 4, flat & 15], -1).ravel()]
    return (values.reshape(-1, state["blocksize"]) * scales[:, None]).reshape(state["shape"])


def _torchao(part: Callable[[str], Stored], quantization: dict[str, Any]) -> Array:
    codes, scales = part("_weight_qdata"), part("_weight_scale").floats
    values = codes.floats
    if codes.dtype == "I8":
        values = values - spread(part("_weight_zero_point").floats, values.shape)
    return values * spread(scales, values.shape)


_READERS = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
}
_FIRST_PARTS = ("qweight", "weight_packed", "_weight_qdata", "weight")


def modules(tensors: Tensors) -> list[str]:
    """The names of the quantised matrices, without ".weight"."""
    found = []
    for name, stored in tensors.items():
        module, _, part = name.rpartition(".")
        if part in _FIRST_PARTS and stored.dtype not in ("F32", "F16", "BF16"):
            found.append(module)
    return found


def plain_values(tensors: Tensors, quantization: dict[str, Any], module: str) -> Array:
    """[out, in] in fp32."""
    values: Array = _READERS[quantization["quant_method"]](lambda part: tensors[f"{module}.{part}"], quantization)
    return np.ascontiguousarray(values.astype(np.float32, copy=False))


def plain_tensors(tensors: Tensors, quantization: dict[str, Any]) -> Tensors:
    """The tensors of the unquantised model, in fp32."""
    quantised = modules(tensors)
    rest = {name: stored for name, stored in tensors.items() if not any(name.startswith(f"{module}.") for module in quantised)}
    return {name: Stored("F32", stored.floats) for name, stored in rest.items()} | {
        f"{module}.weight": Stored("F32", plain_values(tensors, quantization, module)) for module in quantised
    }


# --- folders


def folders(source: Path) -> dict[str, Path]:
    """{layout: folder} of the folders with quantised weights below `source`."""
    found = {}
    for config in sorted(source.rglob("config.json")):
        if "quantization_config" in json.loads(config.read_text()):
            found[config.parent.relative_to(source).parts[0]] = config.parent
    return found


def cut(source: Path) -> None:
    """Keeps what quantisers have written of five matrices of the first layer."""
    for layout, folder in folders(source).items():
        target = DATA / layout
        target.mkdir(parents=True, exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        tensors = read_file(folder / "model.safetensors")
        kept = {name: stored for name, stored in tensors.items() if name.startswith(tuple(f"model.layers.0.{module}." for module in KEPT))}
        write_file(target / "model.safetensors", kept)


def build(layout: str, path: Path) -> Path:
    """A model of one layer, of which five matrices are those of tests/data; the others are random."""
    from llmi.testing.tiny import byte_tokenizer

    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((DATA / layout / "config.json").read_text()) | {"num_hidden_layers": 1, "vocab_size": 260}
    rng = np.random.default_rng(1)
    shapes = {
        "model.embed_tokens.weight": (260, 128),
        "lm_head.weight": (260, 128),
        "model.layers.0.mlp.gate_proj.weight": (256, 128),
        "model.layers.0.mlp.up_proj.weight": (256, 128),
    }
    tensors = {name: Stored("F32", rng.standard_normal(shape, np.float32) * np.float32(0.1)) for name, shape in shapes.items()}
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[f"{name}.weight"] = Stored("F32", 1 + rng.standard_normal(128, np.float32) * np.float32(0.1))
    write_file(path / "model.safetensors", tensors | read_file(DATA / layout / "model.safetensors"))
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer(260)))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


def unquantised(folder: Path, path: Path) -> Path:
    """The same model with the plain values of its matrices, in fp32."""
    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    write_file(path / "model.safetensors", plain_tensors(read_file(folder / "model.safetensors"), quantization))
    (path / "config.json").write_text(json.dumps(config))
    return path


def read_matrix(folder: Path, name: str) -> tuple[str, Array]:
    """A quantised matrix as llmi loads it: the name of its type, and its values in fp32."""
    from llmi import _core

    quantization = json.loads((folder / "config.json").read_text())["quantization_config"]
    return _core.testing.read_matrix(str(folder), name, json.dumps(quantization))


def check(source: Path) -> None:
    for layout, folder in folders(source).items():
        tensors = read_file(folder / "model.safetensors")
        quantization = json.loads((folder / "config.json").read_text())["quantization_config"]
        types: dict[str, int] = {}
        for module in modules(tensors):
            dtype, values = read_matrix(folder, f"{module}.weight")
            assert np.array_equal(values, plain_values(tensors, quantization, module)), (layout, module)
            types[dtype] = types.get(dtype, 0) + 1
        print(f"{layout:16} exact: {types}")


if __name__ == "__main__":
    {"cut": cut, "check": check}[sys.argv[1]](Path(sys.argv[2]))
