"""Folders of safetensors as sources of GGUF files: what llmi makes of them is what llama.cpp's converter makes (converted_files.py), and all
methods go on from there."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converted_files import names, read, write_folder
from failing_reads import fail_to_read
from llmi import LLM, InvalidParamsError, LlmiError
from llmi.cli.commands import main
from llmi.compress import calibrate, drop_columns, drop_heads, drop_layers, pool_heads, prune, quantize, rotate
from llmi.compress.folders import FolderSource
from llmi.compress.made_files import FLOATS, Source
from llmi.compress.replaying import replay_file
from llmi.compress.rewriting import float_tensor
from llmi.families.inert import matches
from llmi.testing.tiny import save_safetensors
from tiny_families import make

CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
RNG = np.random.default_rng(11)
TOKENS = [5, 9, 2, 7, 100, 31, 64, 8, 40, 77, 250, 3]
Array = np.ndarray[Any, Any]

#: Entries of the converter that llmi leaves out or writes otherwise.
OTHERWISE = {
    "general.size_label": "no program reads it",
    "general.name": "the folder's, as it is written",
    "*.rope.scaling.type": 'only "none", which is what is meant without it',
    "*2.attention.sliding_window_pattern": "llama.cpp knows OLMo 3's layers with windows by their number",
    "exaone4.attention.sliding_window_pattern": "and EXAONE's",
    "nemotron.attention.layer_norm_rms_epsilon": "its norms are LayerNorms",
    "glm4moe.block_count": "without the layers that draft further tokens, which the folder does not have",
    "glm4moe.nextn_predict_layers": "without the layers that draft further tokens",
    "phi3.attention.sliding_window": "0, which is what is meant without it",
}
NEEDED = {"general.architecture", "general.type", "general.name", "general.file_type", "tokenizer.ggml.model", "tokenizer.ggml.tokens"}


def folder_of(name: str, path: Path) -> tuple[Path, Path]:
    """(the family's folder, llama.cpp's file of it)."""
    recipe, data = read(name)
    folder, file = write_folder(recipe, path / "model"), path / "model.gguf"
    file.write_bytes(data)
    return folder, file


def logits_of(path: Path) -> Array:
    with LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 24, max_model_len=16, num_threads=1) as llm:
        return llm.sequence(TOKENS[:1]).extend(TOKENS[1:])


def entries_of(source: Source) -> dict[str, bytes]:
    return {name: entry for name, entry in source.gguf.entries.items() if not name.startswith(("tokenizer.", "llmi."))}


def assert_same_tensors(path: Path, other: Path) -> None:
    ours, theirs = Source(path), Source(other)
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in ours.tensors.items():
        same = theirs.tensors[name]
        assert (tensor.shape, tensor.type) == (same.shape, same.type), name
        if name == "rope_freqs.weight":  # the converter computes in fp32
            assert np.abs(ours.values(name) / theirs.values(name) - 1).max() < 2**-22
        else:
            assert ours.bytes_of(tensor) == theirs.bytes_of(same), name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", names())
def test_the_file_is_what_llama_cpp_makes(name: str, tmp_path: Path) -> None:
    folder, file = folder_of(name, tmp_path)
    quantize(folder, tmp_path / "ours.gguf", type="F32")
    assert_same_tensors(tmp_path / "ours.gguf", file)
    ours, theirs = entries_of(Source(tmp_path / "ours.gguf")), entries_of(Source(file))
    assert ours.keys() | Source(tmp_path / "ours.gguf").gguf.entries.keys() >= NEEDED
    for entry, value in theirs.items():
        assert ours.get(entry) == value or any(matches(pattern, entry) for pattern in OTHERWISE), entry
    assert np.array_equal(logits_of(tmp_path / "ours.gguf"), logits_of(folder))


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["gemma", "glm", "gpt_neox", "olmo", "stablelm", "helium", "internlm3", "bitnet", "granitemoehybrid"])
def test_families_without_a_file_of_llama_cpp_here(name: str, families: Path, tmp_path: Path) -> None:
    changes = {"num_local_experts": 0, "position_embedding_type": "rope"} if name == "granitemoehybrid" else {}
    folder = make(name, families, **changes).path
    quantize(folder, tmp_path / "ours.gguf", type="F32")
    assert np.array_equal(logits_of(tmp_path / "ours.gguf"), logits_of(folder))


METHODS: dict[str, Callable[[Path, Path], Any]] = {
    "Q8_0": partial(quantize, type="Q8_0", method="absmax"),
    "Q4_0": partial(quantize, type="Q4_0", method="absmax"),
    "like": partial(quantize, like="Q4_K_M"),
    "rotated": partial(quantize, type="Q4_1", rotate=3),
    "rotate": partial(rotate, seed=1),
    "prune": partial(prune, sparsity=0.5),
    "drop_layers": partial(drop_layers, layers=[0]),
    "drop_heads": partial(drop_heads, heads=[1]),
    "pool_heads": partial(pool_heads, num_kv_heads=1),
}


@pytest.mark.parametrize(("family", "method"), [("llama", method) for method in METHODS] + [("phi3", "Q8_0"), ("qwen3_moe", "Q4_0")])
def test_methods_make_of_a_folder_what_they_make_of_its_file(tmp_path: Path, family: str, method: str) -> None:
    folder, file = folder_of(family, tmp_path)
    report = METHODS[method](folder, tmp_path / "ours.gguf")
    METHODS[method](file, tmp_path / "theirs.gguf")
    assert_same_tensors(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
    assert report.source_bytes == sum(part.stat().st_size for part in folder.iterdir())
    folder.rename(tmp_path / "moved")
    assert replay_file(tmp_path / "ours.gguf", tmp_path / "moved")[0]


@pytest.mark.parametrize(("family", "method"), [("llama", "gptq"), ("phi3", "gptq"), ("qwen3_moe", "search"), ("gpt2", "search")])
def test_a_calibration_of_the_folder(tmp_path: Path, family: str, method: str) -> None:
    folder, file = folder_of(family, tmp_path)
    texts = [RNG.integers(1, 250, 96).tolist()]
    ours, theirs = (calibrate(path, texts=texts, gram=method == "gptq", kv_cache_memory_bytes=1 << 24) for path in (folder, file))
    ours.save(tmp_path / "c.imatrix")
    small = partial(quantize, type="IQ4_NL")  # no weight lies on its grid
    small(folder, tmp_path / "ours.gguf", method=method, calibration=tmp_path / "c.imatrix")
    small(file, tmp_path / "theirs.gguf", method=method, calibration=theirs)
    small(file, tmp_path / "plain.gguf")
    name = "blk.1.ffn_up_exps.weight" if family == "qwen3_moe" else "blk.1.ffn_up.weight"
    made = [Source(tmp_path / f"{kind}.gguf").values(name) for kind in ("ours", "theirs", "plain")]
    assert np.array_equal(made[0], made[1]) and not np.array_equal(made[0], made[2])
    assert replay_file(tmp_path / "ours.gguf", folder)[0]
    with pytest.raises(InvalidParamsError, match="of another model"):
        small(file, tmp_path / "other.gguf", method=method, calibration=tmp_path / "c.imatrix")


@pytest.mark.parametrize(
    "method",
    [
        partial(quantize, calibration="own"),
        partial(quantize, calibration="own", rotate=1),
        partial(quantize, calibration="own", budget_bytes=160_000),
        partial(drop_columns, count=32),
        partial(drop_layers, layers=[1], repair=True),
    ],
)
def test_the_models_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Callable[[Path, Path], Any]) -> None:
    monkeypatch.setattr("llmi.compress.preparing.OWN_TOKENS", 200)
    monkeypatch.setattr("llmi.compress.repair._TOKENS", 200)
    folder = folder_of("arcee", tmp_path)[0]
    changed(max_position_embeddings=1024)(folder)
    method(folder, tmp_path / "ours.gguf")
    assert replay_file(tmp_path / "ours.gguf", folder)[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.gguf", "ours.gguf"]


def test_a_saved_calibration_on_own_text_is_made_again_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)[0]
    calibrate(folder, tokens=200).save(tmp_path / "c.imatrix")
    prune(folder, tmp_path / "ours.gguf", sparsity=0.5, method="wanda", calibration=tmp_path / "c.imatrix")
    (tmp_path / "c.imatrix").unlink()
    assert replay_file(tmp_path / "ours.gguf", folder)[0]


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_types_stay_but_for_vectors(tmp_path: Path, kind: str) -> None:
    plain, folder = FolderSource(folder_of("qwen2_moe", tmp_path)[0]), tmp_path / kind
    tensors = [float_tensor(each.name, each.shape, FLOATS[kind], partial(plain.values, each.name)) for each in plain.tensors.values()]
    plain.write(folder, plain.metadata({}, "", set()), tensors, lambda: None)
    prune(folder, tmp_path / "ours.gguf", sparsity=0.0)
    source = Source(tmp_path / "ours.gguf")
    exact = [name for name, tensor in source.tensors.items() if tensor.type == FLOATS["F32"]]
    assert set(exact) == {
        name for name, tensor in source.tensors.items() if len(tensor.shape) == 1 or "_norm" in name or "ffn_gate_inp" in name
    }
    assert source.gguf.entries["general.file_type"] == (b"\x04\0\0\0" + bytes([{"BF16": 32, "F16": 1}[kind], 0, 0, 0]))
    assert np.array_equal(logits_of(tmp_path / "ours.gguf"), logits_of(folder))


def changed(**config: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))

    return change


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def with_a_tensor(folder: Path) -> None:
    source = FolderSource(folder)
    values = {name: source.values(name) for name in source.tensors}
    save_safetensors(folder / "model.safetensors", values | {"model.layers.0.mystery": np.ones(4, np.float32)})


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("mistral", changed(sliding_window=24), r"no GGUF file of llama can hold: layers\[0\]\.attention\.window would be 0, not 24"),
        ("gemma3_text", changed(layer_types=["sliding_attention", "full_attention"]), r"layers\[1\]\.attention\.rope would be 1, not 0"),
        ("exaone4", changed(layer_types=["full_attention", "sliding_attention"]), "of exaone4 can hold"),
        ("gemma2", changed(query_pre_attn_scalar=64), r"attention\.scale would be 0\.25, not 0\.125"),
        ("qwen2_moe", changed(norm_topk_prob=True), r"router\.renormalise would be False, not True"),
        ("llama", changed(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "rope_choice"),
        ("gpt_oss", changed(swiglu_limit=5.0), r"activation_values\[0\] would be 7\.0, not 5\.0"),
        ("qwen3", changed(intermediate_size=32), r"gate_proj\.weight of shape \[64, 64\], not \[32, 64\]"),
        ("qwen3", with_a_tensor, r"a tensor that has no place in it: model\.layers\.0\.mystery"),
        ("qwen3", without_tokenizer, "tokenizer"),
    ],
)
def test_what_gguf_cannot_say(tmp_path: Path, family: str, change: Callable[[Path], None], says: str) -> None:
    folder, file = folder_of(family, tmp_path)
    file.unlink()
    change(folder)
    with pytest.raises(LlmiError, match=says):
        quantize(folder, tmp_path / "a.gguf", type="Q8_0")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model, out: quantize(CHECKPOINTS / "ct-W8A8", out / "a.gguf", type="Q8_0"), "no quantised ones"),
        (lambda model, out: quantize(model, out / "model.gguf", type="Q8_0"), "model.gguf exists"),
        (lambda model, out: rotate(model, out / "model.gguf"), "model.gguf exists"),
        (lambda model, out: prune(model, out / "none" / "a.gguf", sparsity=0.5), "there is no folder"),
        (lambda model, out: quantize(model, out / "a.gguf", tensors={"model.layers.*": "Q8_0"}), "model.layers"),
        (lambda model, out: replay_file(out / "model.gguf", model), "has no receipt"),
    ],
)
def test_what_cannot_be_asked_of_a_folder(tmp_path: Path, call: Callable[[Path, Path], Any], says: str) -> None:
    folder, _ = folder_of("qwen3", tmp_path)
    with pytest.raises(LlmiError, match=says):
        call(folder, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.gguf"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("allowed", [0, 5])
def test_no_half_file_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, allowed: int) -> None:
    folder, _ = folder_of("qwen3", tmp_path)
    fail_to_read(monkeypatch, error, allowed)
    with pytest.raises(InvalidParamsError if isinstance(error, OSError) else KeyboardInterrupt):
        quantize(folder, tmp_path / "a.gguf", type="Q8_0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.gguf"]


def test_the_commands_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = folder_of("olmo2", tmp_path)
    assert main(["quantize", str(folder), str(tmp_path / "a.gguf"), "--like", "Q4_K_M"]) == 0
    assert main(["replay", str(tmp_path / "a.gguf"), "-m", str(folder)]) == 0
    assert "with the same bytes" in capsys.readouterr().out
    shutil.rmtree(folder)
    shutil.copytree(folder_of("olmo2", tmp_path)[0], tmp_path / "other")
    changed(max_position_embeddings=256)(tmp_path / "other")
    assert main(["replay", str(tmp_path / "a.gguf"), "-m", str(tmp_path / "other")]) == 2
    assert math.isfinite(float(logits_of(tmp_path / "a.gguf").max()))
