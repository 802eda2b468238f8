"""Model files are hostile input: every field wrong in turn, every truncation, one clear error each."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmi import LLM, ModelFileError, UnsupportedModelError, _core
from llmi.models.files import open_model

CoreError = _core.CoreError


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class GgufWriter:
    """A small GGUF file, any field of which can be made wrong."""

    def __init__(self) -> None:
        self.magic = b"GGUF"
        self.version = 3
        self.metadata: list[bytes] = [string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")]
        self.tensors: list[tuple[bytes, tuple[int, ...], int, int]] = [(b"a", (32, 2), 0, 0), (b"b", (32,), 8, 256)]
        self.tensor_count: int | None = None
        self.metadata_count: int | None = None
        self.data = bytes(256 + 34)

    def write(self) -> bytes:
        out = self.magic + struct.pack("<I", self.version)
        out += struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count)
        out += struct.pack("<Q", len(self.metadata) if self.metadata_count is None else self.metadata_count)
        out += b"".join(self.metadata)
        for name, dims, kind, offset in self.tensors:
            out += (
                string(name)
                + struct.pack("<I", len(dims))
                + b"".join(struct.pack("<Q", d) for d in dims)
                + struct.pack("<IQ", kind, offset)
            )
        out += b"\0" * (-len(out) % 32)
        return out + self.data


def change(**fields: Any) -> Callable[[GgufWriter], None]:
    def apply(writer: GgufWriter) -> None:
        for name, value in fields.items():
            setattr(writer, name, value)

    return apply


def add_metadata(raw: bytes) -> Callable[[GgufWriter], None]:
    return lambda writer: writer.metadata.append(raw)


BIG = (1 << 64) - 1
GGUF_FAULTS: dict[str, tuple[Callable[[GgufWriter], None], str]] = {
    "magic": (change(magic=b"GGML"), "magic"),
    "version 1": (change(version=1), "version"),
    "version big-endian": (change(version=3 << 24), "version"),
    "tensor count huge": (change(tensor_count=BIG), "tensor_count"),
    "tensor count one more": (change(tensor_count=3), ""),
    "metadata count huge": (change(metadata_count=BIG), "metadata_kv_count"),
    "metadata count one more": (change(metadata_count=2), ""),
    "key length huge": (add_metadata(struct.pack("<Q", BIG) + b"x"), "metadata key"),
    "key empty": (add_metadata(string(b"") + struct.pack("<II", 4, 1)), "metadata key"),
    "first key empty": (lambda writer: writer.metadata.insert(0, string(b"") + struct.pack("<II", 4, 1)), "metadata key"),
    "key twice": (add_metadata(string(b"general.architecture") + struct.pack("<II", 4, 1)), "general.architecture"),
    "value type unknown": (add_metadata(string(b"k") + struct.pack("<I", 99)), "k"),
    "string value too long": (add_metadata(string(b"k") + struct.pack("<IQ", 8, 1 << 62)), "k"),
    "bool of 2": (add_metadata(string(b"k") + struct.pack("<IB", 7, 2)), "k"),
    "array of arrays": (add_metadata(string(b"k") + struct.pack("<IIQ", 9, 9, 1)), "k"),
    "array type unknown": (add_metadata(string(b"k") + struct.pack("<IIQ", 9, 77, 1)), "k"),
    "array length overflows": (add_metadata(string(b"k") + struct.pack("<IIQ", 9, 10, 1 << 61)), ""),
    "array length too long": (add_metadata(string(b"k") + struct.pack("<IIQ", 9, 0, 1 << 40)), "k"),
    "string array too long": (add_metadata(string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 30)), "k"),
    "uint64 beyond int64": (add_metadata(string(b"k") + struct.pack("<IQ", 10, BIG)), "k"),
    "alignment zero": (add_metadata(string(b"general.alignment") + struct.pack("<II", 4, 0)), "general.alignment"),
    "alignment not a power of two": (add_metadata(string(b"general.alignment") + struct.pack("<II", 4, 48)), "general.alignment"),
    "alignment of wrong type": (add_metadata(string(b"general.alignment") + struct.pack("<I", 8) + string(b"x")), "general.alignment"),
    "alignment huge": (add_metadata(string(b"general.alignment") + struct.pack("<II", 4, 1 << 31)), "general.alignment"),
    "no dimension": (change(tensors=[(b"a", (), 0, 0)]), "a"),
    "five dimensions": (change(tensors=[(b"a", (1, 1, 1, 1, 1), 0, 0)]), "a"),
    "dimension zero": (change(tensors=[(b"a", (32, 0), 0, 0)]), "a"),
    "dimensions overflow": (change(tensors=[(b"a", (1 << 33, 1 << 33), 0, 0)]), ""),
    "bytes overflow": (change(tensors=[(b"a", (1 << 62, 2), 0, 0)]), ""),
    "blocks cut": (change(tensors=[(b"a", (33,), 8, 0)]), "a"),
    "offset beyond file": (change(tensors=[(b"a", (32,), 0, 1 << 40)]), "a"),
    "offset overflows": (change(tensors=[(b"a", (32,), 0, BIG - 31)]), ""),
    "extent beyond file": (change(tensors=[(b"a", (4096, 4096), 0, 0)]), "a"),
    "unaligned": (change(tensors=[(b"a", (4,), 0, 4)]), "a"),
    "overlap": (change(tensors=[(b"a", (32,), 0, 0), (b"b", (32,), 0, 96)]), "b"),
    "name twice": (change(tensors=[(b"a", (8,), 0, 0), (b"a", (8,), 0, 32)]), "a"),
    "name empty": (change(tensors=[(b"", (8,), 0, 0)]), "tensor name"),
}


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_gguf_field_wrong(tmp_path: Path, fault: str) -> None:
    writer = GgufWriter()
    (tmp_path / "good.gguf").write_bytes(writer.write())
    assert len(_core.GgufFile(str(tmp_path / "good.gguf")).tensors()) == 2
    apply, field = GGUF_FAULTS[fault]
    apply(writer)
    (tmp_path / "bad.gguf").write_bytes(writer.write())
    with pytest.raises(CoreError) as error:
        _core.GgufFile(str(tmp_path / "bad.gguf"))
    assert error.value.kind == "model_file"
    assert not field or error.value.field == field


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (26, "I32"),
        (41, "Q1_0"),
        (42, "Q2_0"),
        (43, "number 43"),
        (4, "Q4_2"),
        (31, "Q4_0_4_4"),
        (38, "IQ4_NL_8_8"),
    ],
)
def test_gguf_types_are_refused_by_name(tmp_path: Path, kind: int, name: str) -> None:
    writer = GgufWriter()
    writer.tensors = [(b"a", (256,), kind, 0)]
    (tmp_path / "x.gguf").write_bytes(writer.write())
    with pytest.raises(CoreError, match=name) as error:
        _core.GgufFile(str(tmp_path / "x.gguf"))
    assert error.value.kind == "unsupported_model"


def test_gguf_every_truncation(tmp_path: Path) -> None:
    whole = GgufWriter().write()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CoreError):
            _core.GgufFile(str(path))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_gguf_random_damage(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(GgufWriter().write())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    try:
        _core.GgufFile(str(path)).metadata()
    except CoreError as error:
        assert error.kind in ("model_file", "unsupported_model")


# --- safetensors


def safetensors(header: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (4, 4), offsets: Any = (0, 64)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


SAFETENSORS_FAULTS: dict[str, bytes] = {
    "empty": b"",
    "short": b"\0\0",
    "header beyond file": safetensors(entry(), length=1 << 20),
    "header huge": safetensors(entry(), length=BIG),
    "not json": safetensors(b"{"),
    "not an object": safetensors([1]),
    "depth bomb": safetensors(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "duplicate key": safetensors(
        b'{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'
    ),
    "entry no object": safetensors({"a": 3}),
    "dtype missing": safetensors({"a": {"shape": [16], "data_offsets": [0, 64]}}),
    "dtype a number": safetensors(entry(dtype=3)),
    "shape negative": safetensors(entry(shape=(-4, -4))),
    "shape overflows": safetensors(entry(shape=(1 << 62, 1 << 62))),
    "shape fractional": safetensors(entry(shape=(1.5, 4))),
    "nine dimensions": safetensors(entry(shape=(1,) * 8 + (16,))),
    "three offsets": safetensors(entry(offsets=(0, 64, 64))),
    "offsets reversed": safetensors(entry(offsets=(64, 0))),
    "offsets beyond": safetensors(entry(offsets=(0, 128), shape=(4, 8))),
    "size mismatch": safetensors(entry(shape=(4, 3))),
    "overlap": safetensors({**entry(shape=(8,), offsets=(0, 32)), "b": {"dtype": "F32", "shape": [8], "data_offsets": [16, 48]}}),
    "gap": safetensors({**entry(shape=(4,), offsets=(0, 16)), "b": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}}),
    "data left over": safetensors(entry(shape=(4,), offsets=(0, 16))),
    "lone surrogate": safetensors(b'{"\\ud800":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'),
}


def fields(tensors: list[_core.TensorInfo]) -> list[tuple[str, str, list[int], int]]:
    return [(tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes) for tensor in tensors]


@pytest.mark.parametrize("fault", SAFETENSORS_FAULTS)
def test_safetensors_field_wrong(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors(entry()))
    assert fields(_core.read_safetensors(str(path))) == [("a", "F32", [4, 4], 64)]
    path.write_bytes(SAFETENSORS_FAULTS[fault])
    with pytest.raises(CoreError) as error:
        _core.read_safetensors(str(path))
    assert error.value.kind == "model_file"


def test_safetensors_dtype_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors(entry(dtype="F64")))
    with pytest.raises(CoreError, match="F64") as error:
        _core.read_safetensors(str(path))
    assert error.value.kind == "unsupported_model"


def test_safetensors_reads_what_the_library_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="the extra `test` brings safetensors")
    tensors = {"x": np.ones((3, 5), np.float32), "y": np.zeros((7,), np.float16)}
    library.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert sorted(fields(_core.read_safetensors(str(tmp_path / "x.safetensors")))) == [("x", "F32", [3, 5], 60), ("y", "F16", [7], 14)]


def test_shards(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(safetensors(entry()))
    (tmp_path / "two.safetensors").write_bytes(safetensors({"b": entry()["a"]}))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    assert [tensor.name for tensor in open_model(tmp_path).core.tensors()] == ["a", "b"]
    for wrong in ({"a": "../one.safetensors"}, {"a": "three.safetensors"}, {"c": "one.safetensors"}, {"a": 3}, {"a": ""}):
        path.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(ModelFileError):
            open_model(tmp_path)


# --- models


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        LLM(tmp_path / "nothing.gguf")
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match="empty"):
        LLM(tmp_path / "empty.gguf")
    (tmp_path / "text.gguf").write_text("hello world")
    with pytest.raises(ModelFileError, match="not a GGUF"):
        LLM(tmp_path / "text.gguf")
    (tmp_path / "dir").mkdir()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        LLM(tmp_path / "dir")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*llama"),
        ({"architectures": None, "model_type": None}, "architectures"),
        ({"num_hidden_layers": 4}, r"layers\.3"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"hidden_size": 80}, "shape"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": 300}, "shape"),
        ({"intermediate_size": 64}, "shape"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"head_dim": 17}, "head_dim|multiples"),
        ({"max_position_embeddings": 0}, "max_position"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4}}, "spiral"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"num_local_experts": 8}, "expert"),
        ({"hidden_act": "mish"}, "mish"),
        ({"tie_word_embeddings": False}, "lm_head"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_config_that_does_not_match(tiny_path: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = tiny_path()
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config = {key: value for key, value in (config | changes).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=message) as error:
        LLM(tmp_path)
    assert isinstance(error.value, UnsupportedModelError) == (
        (set(changes) & {"rope_scaling", "num_local_experts", "hidden_act", "head_dim"} != set() and changes.get("rope_scaling") != 3)
        or "Mamba" in str(changes)
    )


def test_no_python_of_a_model_directory_is_run(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    for file in tiny_path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('imported')")
    config = json.loads((tmp_path / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(tmp_path, trust_remote_code=True, kv_cache_memory_bytes=1 << 20, max_model_len=64) as llm:
        assert llm.generate("a", max_tokens=1)[0].params_resolved["trust_remote_code"] == (True, "no effect")
