"""Heads in 4.5 bits a weight, as llmi ships them: read as they are, and refused by name where they are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, Eagle, ModelFileError, SpeculativeConfig
from llmi.models.safetensors_file import read_safetensors, write_safetensors
from llmi.testing import assert_same_tokens
from llmi.testing.tiny import save_safetensors
from packed_heads import pack_all, unpack_all
from test_eagle import GREEDY, OPTIONS, SAMPLED, drafted, prompt
from tiny_eagle import tiny_eagle

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=64)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def folders(plain: LLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same values, packed in one file with its config, and unpacked in a folder."""
    base = tmp_path_factory.mktemp("heads")
    heads = tiny_eagle(plain, base / "heads", shortlist=list(range(40)))
    tensors, _ = read_safetensors(heads / "model.safetensors")
    packed = pack_all(tensors)
    (base / "packed").mkdir()
    write_safetensors(base / "packed" / "eagle.safetensors", packed, {"config": (heads / "config.json").read_text()})
    unpacked = {name: tensor.astype(np.int32 if tensor.dtype.kind == "i" else np.float32) for name, tensor in unpack_all(packed).items()}
    shutil.copytree(heads, base / "unpacked")
    save_safetensors(base / "unpacked" / "model.safetensors", unpacked)
    assert any(np.any(tensors[name] != unpacked[name]) for name in tensors), "4.5 bits round nothing"
    return base / "packed", base / "unpacked"


def test_drafts_are_those_of_the_decoded_values(model: Path, plain: LLM, folders: tuple[Path, Path]) -> None:
    """Beside a target in fp32 both files hold the same numbers, so each drafted token is the same."""
    prompts = [prompt(1, 3), prompt(2, 20), prompt(3, 40)]
    found = []
    for path in (*folders, folders[0] / "eagle.safetensors"):
        with LLM(model, speculative_config=SpeculativeConfig(Eagle(path, 3), 3), **SMALL, dtype="float32") as llm:
            outputs = llm.generate(prompts, [GREEDY, SAMPLED, GREEDY], trace=True)
            assert_same_tokens(outputs, plain.generate(prompts, [GREEDY, SAMPLED, GREEDY]))
            found.append([drafted(type(outputs)([output])) for output in outputs])
    assert found[0] == found[1] == found[2] and sum(map(len, found[0])) > 60


@pytest.mark.parametrize("options", [{"quantization": "q8_0"}, {"quantization": "q4_0"}, {"dtype": "bfloat16"}], ids=str)
def test_rows_are_taken_as_they_are(model: Path, folders: tuple[Path, Path], options: dict[str, Any]) -> None:
    """18 bytes for 32 weights in memory, whatever the target is; the head's rows of the shortlist are the target's."""
    tensors, _ = read_safetensors(folders[0] / "eagle.safetensors")
    matrices = sum(tensor.nbytes for name, tensor in tensors.items() if name.endswith(".q4_0"))
    with LLM(model, **SMALL, **options) as llm:
        plain = llm.generate([1, 2, 3], GREEDY)
    head = {"q8_0": 34 / 32, "q4_0": 18 / 32}.get(str(options.get("quantization")), 2)
    with LLM(model, speculative_config=Eagle(folders[0]), **SMALL, **options) as llm:
        assert llm.memory_report().drafter_bytes == matrices + int(48 * 64 * head)  # rows are in tiles of 16
        assert_same_tokens(llm.generate([1, 2, 3], GREEDY), plain)


def refused(model: Path, folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    tensors, metadata = read_safetensors(folder / "eagle.safetensors")
    changed = {name: tensor.copy() for name, tensor in tensors.items()}
    change(changed)
    write_safetensors(tmp_path / "changed.safetensors", changed, metadata)
    with pytest.raises(ModelFileError) as caught:
        LLM(model, speculative_config=Eagle(tmp_path / "changed.safetensors"), **SMALL).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


UP = "layers.0.mlp.up_proj.weight.q4_0"
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "odd size": (lambda t: t.update({UP: t[UP][:, :-1].copy()}), "up_proj.weight.q4_0' must be U8"),
    "a vector": (lambda t: t.update({UP: t[UP].reshape(-1).copy()}), "up_proj.weight.q4_0' must be U8"),
    "another type": (lambda t: t.update({UP: t[UP].astype(np.int32)}), "up_proj.weight.q4_0' must be U8"),
    "a NaN": (
        lambda t: t[UP].__setitem__((5, slice(18, 20)), np.frombuffer(np.float16("nan").tobytes(), np.uint8)),
        "NaN or infinity: the scale of block 1 of row 5",
    ),
    "an infinity": (
        lambda t: t["fc.weight.q4_0"].__setitem__((0, slice(0, 2)), np.frombuffer(np.float16("-inf").tobytes(), np.uint8)),
        "fc.weight.q4_0' holds NaN or infinity",
    ),
    "too few rows": (lambda t: t.update({UP: t[UP][:-1].copy()}), "up_proj.weight' has shape"),
    "too few columns": (lambda t: t.update({UP: t[UP][:, :-18].copy()}), "up_proj.weight' has shape"),
    "half of fc": (lambda t: t.update({"fc.weight.q4_0": t["fc.weight.q4_0"][:, :36].copy()}), r"fc.weight' must"),
    "both": (
        lambda t: t.update({"layers.0.mlp.up_proj.weight": np.zeros((128, 64), np.float32)}),
        "has another form, 'layers.0.mlp.up_proj.weight'",
    ),
    "missing": (lambda t: t.pop(UP), "up_proj.weight' is missing"),
    "a packed norm": (
        lambda t: t.update({"layers.0.post_attention_layernorm.weight.q4_0": np.zeros((1, 36), np.uint8), **{}})
        or t.pop("layers.0.post_attention_layernorm.weight"),
        "post_attention_layernorm.weight' has shape",
    ),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_damaged_files_are_refused_by_name(model: Path, folders: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    assert message in refused(model, folders[0], tmp_path, change)


def test_truncated_files(model: Path, folders: tuple[Path, Path], tmp_path: Path) -> None:
    whole = (folders[0] / "eagle.safetensors").read_bytes()
    for size in (0, 100, len(whole) - 1):
        (tmp_path / "eagle.safetensors").write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            LLM(model, speculative_config=Eagle(tmp_path), **SMALL).close()
    tensors, metadata = read_safetensors(folders[0] / "eagle.safetensors")
    write_safetensors(tmp_path / "eagle.safetensors", tensors, {"config": json.dumps(json.loads(metadata["config"]) | {"hidden_size": 32})})
    with pytest.raises(ModelFileError, match="hidden_size = 32"):
        LLM(model, speculative_config=Eagle(tmp_path), **SMALL).close()
