"""Folders that are made of folders of safetensors: they compute what the GGUF file of the same tensors does, and are written whole or not at
all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converted_files import read, write_folder
from failing_reads import fail_to_read
from llmi import LLM, InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.cli.commands import main
from llmi.compress import (
    Calibration,
    calibrate,
    drop_columns,
    drop_heads,
    drop_layers,
    pool_heads,
    pool_kv_heads,
    prune,
    prune_mask,
    quantize,
    rotate,
)
from llmi.compress.folders import FolderSource
from llmi.compress.made_files import FLOATS
from llmi.compress.replaying import replay_file
from llmi.compress.rewriting import float_tensor
from llmi.testing import tiny_model
from llmi.testing.tiny import save_safetensors

RNG = np.random.default_rng(7)
CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_model(path=tmp_path_factory.mktemp("source") / "model", vocab_size=300, num_layers=4)
    (path / "LICENSE").write_bytes(b"as it was\r\n")
    return path


def logits_of(path: Path) -> Array:
    with LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 24, max_model_len=16, num_threads=1) as llm:
        return llm.sequence([5]).extend([9, 2, 7, 100])


def weights_of(path: Path) -> dict[str, Array]:
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=16) as llm:
        return {name: np.array(llm.weights[name]) for name in llm.weights}


METHODS: dict[str, Callable[[Path, Path], Any]] = {
    "prune": lambda model, out: prune(model, out, pattern="2:4"),
    "drop_layers": lambda model, out: drop_layers(model, out, layers=[0]),
    "drop_heads": lambda model, out: drop_heads(model, out, heads=[0]),
    "drop_columns": lambda model, out: drop_columns(model, out, count=17, calibration=sums_of(model)),
    "pool_heads": lambda model, out: pool_heads(model, out, num_kv_heads=1),
    "pool_by_least_squares": lambda model, out: pool_heads(model, out, num_kv_heads=1, calibration=sums_of(model)),
    "rotate": lambda model, out: rotate(model, out, seed=3),
}
ATTENTION = ("drop_heads", "pool_heads")
EVERYTHING = ("prune", "drop_layers", *ATTENTION, "drop_columns", "rotate")
MADE = {
    "llama": EVERYTHING,
    "qwen2": EVERYTHING,
    "qwen3": (*EVERYTHING, "pool_by_least_squares"),
    "granite": EVERYTHING,
    "phi3": (*EVERYTHING, "pool_by_least_squares"),  # fused tensors
    "glm4": ("drop_heads", "drop_columns"),  # pairs of rows, gate and up in one tensor
    "gemma2": (*ATTENTION, "drop_columns"),
    "gemma3_text": ("prune", *ATTENTION, "drop_columns"),
    "olmo2": ("prune", "drop_layers", "drop_columns"),
    "mixtral": ("prune", *ATTENTION),
    "qwen3_moe": ("prune", "drop_layers", *ATTENTION),
    "gpt_oss": ("prune", "pool_heads"),  # experts in one tensor, transposed
    "gpt2": ("prune", "drop_layers", "drop_columns"),  # transposed
    "gpt_bigcode": ("prune", "drop_columns"),
    "bloom": ("drop_layers",),
    "starcoder2": (*ATTENTION, "drop_columns"),
    "cohere": (*ATTENTION, "drop_columns"),
    "apertus": ("drop_layers", "rotate"),  # numbers of layers under a name of their own
}


def sums_of(model: Path) -> Calibration:
    return calibrate(model, texts=[list(range(1, 129))], gram=True, kv_cache_memory_bytes=1 << 24)


@pytest.mark.parametrize("family", MADE)
def test_a_folder_becomes_what_its_gguf_file_becomes(tmp_path: Path, family: str) -> None:
    recipe, data = read(family)
    source, file = write_folder(recipe, tmp_path / "model"), tmp_path / "model.gguf"
    file.write_bytes(data)
    before = logits_of(source)
    apart = np.abs(before - logits_of(file)).max()  # 0 but for rotary tables that GGUF has in fp32
    assert apart == 0 or (family in ("llama", "apertus") and apart < 1e-5)
    for method in MADE[family]:
        made, other = tmp_path / method, tmp_path / f"{method}.gguf"
        METHODS[method](source, made)
        METHODS[method](file, other)
        found = logits_of(made)
        assert np.abs(found - logits_of(other)).max() <= 8 * apart, method
        assert np.allclose(found, before, atol=1e-3) == (method == "rotate"), method
        if method != "pool_by_least_squares" and method != "drop_columns":  # whose calibration has no file
            assert replay_file(made)[0], method


def alike(values: Array, first: int) -> None:
    values[first + 16 : first + 32] = values[first : first + 16]


@pytest.mark.parametrize(
    ("family", "method", "tensor", "change"),
    [
        ("llama", "drop_heads", "self_attn.o_proj", lambda values: values[:, :32].fill(0)),
        ("phi3", "drop_heads", "self_attn.o_proj", lambda values: values[:, :32].fill(0)),
        ("glm4", "drop_heads", "self_attn.o_proj", lambda values: values[:, :32].fill(0)),
        ("phi3", "drop_columns", "mlp.down_proj", lambda values: values[:, 5:22].fill(0)),
        ("gpt2", "drop_columns", "mlp.c_proj", lambda values: values[5:22].fill(0)),
        ("phi3", "pool_heads", "self_attn.qkv_proj", lambda values: (alike(values, 64), alike(values, 96))),
    ],
)
def test_what_adds_nothing_goes_and_changes_nothing(
    tmp_path: Path, family: str, method: str, tensor: str, change: Callable[[Array], Any]
) -> None:
    source = write_folder(read(family)[0], tmp_path / "model")
    weights = weights_of(source)
    for name in weights:
        if name.endswith(f"{tensor}.weight"):
            change(weights[name])
    save_safetensors(source / "model.safetensors", weights)
    METHODS[method](source, tmp_path / "out")
    assert np.allclose(logits_of(tmp_path / "out"), logits_of(source), atol=1e-4)


def test_heads_of_a_fused_tensor_become_means(tmp_path: Path) -> None:
    source = write_folder(read("phi3")[0], tmp_path / "model")
    pool_heads(source, tmp_path / "out", num_kv_heads=1)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    old, new = weights_of(source)[name], weights_of(tmp_path / "out")[name]
    means = [pool_kv_heads(old[first : first + 32], num_kv_heads=2, to=1) for first in (64, 96)]
    assert np.array_equal(new, np.concatenate([old[:64], *means]))


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_rotated_head_is_no_longer_the_embedding(folder: Path, tmp_path: Path, is_inside: bool) -> None:
    """Also where the keys of the text model are inside those of another one, which may repeat them."""
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    config = json.loads((source / "config.json").read_bytes()) | {"torch_dtype": "bfloat16"}
    if is_inside:
        outer = {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "vision_config": {"hidden_size": 48},
            "num_attention_heads": 4,
        }
        config = outer | {"text_config": config, "tie_word_embeddings": True}
    (source / "config.json").write_text(json.dumps(config))
    weights = weights_of(folder)
    save_safetensors(source / "model.safetensors", weights)
    plain = FolderSource(source)
    tensors = [float_tensor(each.name, each.shape, FLOATS["BF16"], partial(plain.values, each.name)) for each in plain.tensors.values()]
    plain.write(tmp_path / "bf16", plain.metadata({}, "", set()), tensors, lambda: None)
    report = rotate(tmp_path / "bf16", tmp_path / "out")
    assert np.allclose(logits_of(tmp_path / "out"), logits_of(tmp_path / "bf16"), atol=0.05)
    assert set(report.tensors.values()) == {"F16"} and "lm_head.weight" in report.tensors
    made = json.loads((tmp_path / "out" / "config.json").read_bytes())
    if is_inside:
        assert made["tie_word_embeddings"] is False and made["vision_config"] == {"hidden_size": 48}
        made = made["text_config"]
    assert made["tie_word_embeddings"] is False
    assert made == config.get("text_config", config) | {"tie_word_embeddings": False, "torch_dtype": "float16"}
    drop_heads(source, tmp_path / "heads", heads=[1])
    made = json.loads((tmp_path / "heads" / "config.json").read_bytes())
    made = made.get("text_config", made)
    assert (made["num_attention_heads"], made["num_key_value_heads"], made["head_dim"]) == (2, 1, 16)
    assert np.isfinite(logits_of(tmp_path / "heads")).all()


@pytest.mark.parametrize(
    ("family", "method", "says"),
    [
        ("gemma2", "rotate", "with a norm behind attention or MLP"),
        ("gpt2", "rotate", "more than a sum of embeddings"),
        ("mixtral", "rotate", "not plain attention and one MLP"),
        ("gpt2", "drop_heads", r"whose config\.json has no num_key_value_heads"),
        ("gpt2", "pool_heads", r"whose config\.json has no num_key_value_heads"),
        ("bloom", "drop_heads", "with sinks, gates or biases of the heads"),
        ("bloom", "pool_heads", "rows of several roles in an order"),
        ("bloom", "drop_columns", r"whose config\.json has no intermediate_size"),
        ("olmo2", "pool_heads", "norms over all heads"),
        ("olmo2", "drop_heads", "norms over all heads"),
        ("mixtral", "drop_columns", "is not one MLP"),
    ],
)
def test_graphs_that_a_method_does_not_know(tmp_path: Path, family: str, method: str, says: str) -> None:
    source = write_folder(read(family)[0], tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=says):
        METHODS[method](source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tensors_that_would_not_turn(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "source")
    more = {"multi_modal_projector.weight": np.ones((64, 48), np.float32)}
    save_safetensors(tmp_path / "source" / "model.safetensors", weights_of(folder) | more)
    with pytest.raises(UnsupportedModelError, match=r"does not use \(multi_modal_projector\.weight\) and would not turn"):
        rotate(tmp_path / "source", tmp_path / "out")


def test_nothing_pruned_is_the_same_folder(folder: Path, tmp_path: Path) -> None:
    report = prune(folder, tmp_path / "same", sparsity=0.0)
    assert report.tensors == {}
    for size, path in ((report.source_bytes, folder), (report.bytes, tmp_path / "same")):
        assert size == sum(file.stat().st_size for file in path.iterdir() if file.name != "LICENSE")
    assert {path.name for path in (tmp_path / "same").iterdir()} == {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        assert path.name == "model.safetensors" or (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
    assert np.array_equal(logits_of(tmp_path / "same"), logits_of(folder))


def test_bf16_stays(folder: Path, tmp_path: Path) -> None:
    plain = FolderSource(folder)
    tensors = [float_tensor(each.name, each.shape, FLOATS["BF16"], partial(plain.values, each.name)) for each in plain.tensors.values()]
    plain.write(tmp_path / "bf16", plain.metadata({}, "", set()), tensors, lambda: None)
    report = prune(tmp_path / "bf16", tmp_path / "out", pattern="2:4")
    old, new = FolderSource(tmp_path / "bf16"), FolderSource(tmp_path / "out")
    assert report.tensors == {} and {each.type for each in new.tensors.values()} == {FLOATS["BF16"]}
    for name in old.tensors:
        values, pruned = old.values(name), new.values(name)
        stays = prune_mask(values, pattern="2:4") if "proj" in name else np.ones(values.shape, bool)
        assert np.array_equal(pruned, np.where(stays, values, 0))


def test_tensors_that_the_graph_does_not_read_stay(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "source")
    more = {"bert.position_ids": np.arange(5).reshape(1, 5), "model.rotary_emb.mask": np.array([True, False, True])}
    save_safetensors(tmp_path / "source" / "model.safetensors", weights_of(folder) | more)
    prune(tmp_path / "source", tmp_path / "out", pattern="2:4")
    old, new = FolderSource(tmp_path / "source"), FolderSource(tmp_path / "out")
    for name, values in more.items():
        assert new.bytes_of(new.tensors[name]) == values.tobytes() and new.type_name(new.tensors[name]) == old.type_name(old.tensors[name])
    save_safetensors(tmp_path / "source" / "model.safetensors", weights_of(folder) | {"model.norm.weight": np.arange(64)})
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is of type I64"):
        prune(tmp_path / "source", tmp_path / "other", pattern="2:4")


def test_norms_of_a_calibration(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    sums = calibrate(folder, texts=[RNG.integers(1, 256, 64).tolist()], kv_cache_memory_bytes=1 << 24)
    sums.save(tmp_path / "c.imatrix")
    prune(folder, tmp_path / "wanda", sparsity=0.5, method="wanda", calibration=tmp_path / "c.imatrix")
    old, new = weights_of(folder), weights_of(tmp_path / "wanda")
    stays = prune_mask(old[name], sparsity=0.5, input_norms=sums.norms(name))
    assert np.array_equal(new[name], np.where(stays, old[name], 0)) and not stays.all()
    assert np.array_equal(new["model.embed_tokens.weight"], old["model.embed_tokens.weight"])
    assert replay_file(tmp_path / "wanda", folder)[0]


def test_layers_that_stay_and_a_repaired_one(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.repair._TOKENS", 200)
    drop_layers(folder, tmp_path / "plain", layers=[2])
    drop_layers(folder, tmp_path / "repaired", layers=[2], repair=True)
    old, plain, repaired = weights_of(folder), weights_of(tmp_path / "plain"), weights_of(tmp_path / "repaired")
    assert json.loads((tmp_path / "plain" / "config.json").read_bytes())["num_hidden_layers"] == 3
    for name, values in plain.items():
        assert np.array_equal(values, old[name.replace("layers.2.", "layers.3.")])
    assert [name for name in plain if not np.array_equal(plain[name], repaired[name])] == ["model.layers.1.mlp.down_proj.weight"]


def test_a_transposed_matrix_stands_in_for_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.repair._TOKENS", 200)
    source = write_folder(read("gpt2")[0], tmp_path / "model")
    drop_layers(source, tmp_path / "plain", layers=[1])
    drop_layers(source, tmp_path / "repaired", layers=[1], repair=True)
    want, plain, repaired = (logits_of(path) for path in (source, tmp_path / "plain", tmp_path / "repaired"))
    assert np.square(repaired - want).mean() < 0.6 * np.square(plain - want).mean()  # 0.47; 1.4 with the matrix the other way round


def test_shards_become_one_file(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "shards"
    shutil.copytree(folder, source)
    weights = list(weights_of(folder).items())
    names: dict[str, str] = {}
    for number, part in enumerate((weights[::2], weights[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_safetensors(source / file, dict(part))
        names |= dict.fromkeys(dict(part), file)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (source / "pytorch_model.bin").write_bytes(b"the source's weights")
    drop_layers(source, tmp_path / "out", layers=[0, 3])
    drop_layers(folder, tmp_path / "other", layers=[0, 3])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in folder.iterdir()}
    assert np.array_equal(logits_of(tmp_path / "out"), logits_of(tmp_path / "other")) and replay_file(tmp_path / "out")[0]


def test_lists_by_layer(tmp_path: Path) -> None:
    """Gemma 3's kinds of layers, by config.json's own list: what stays keeps its kind."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    source = tiny_model("gemma3", path=tmp_path / "model", num_layers=3, layer_types=kinds)
    drop_layers(source, tmp_path / "out", layers=[0])
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["layer_types"] == kinds[1:]
    assert np.isfinite(logits_of(tmp_path / "out")).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model, out: prune(model, model, sparsity=0.5), "model exists"),
        (lambda model, out: prune(model, out / "none" / "a", sparsity=0.5), "there is no folder"),
        (lambda model, out: prune(model, out / "a", pattern="2:3"), "2:3"),
        (lambda model, out: drop_layers(model, out / "a", layers=[4]), "there is no layer 4"),
        (lambda model, out: quantize(model, out / "a", type="Q8_0"), "type must be one of W4A16"),
        (lambda model, out: prune(CHECKPOINTS / "ct-W8A8", out / "a", sparsity=0.5), "no quantised ones"),
        (lambda model, out: replay_file(model), "has no receipt"),
    ],
)
def test_what_cannot_be_asked(folder: Path, tmp_path: Path, call: Callable[[Path, Path], Any], says: str) -> None:
    with pytest.raises((InvalidParamsError, ModelFileError), match=says):
        call(folder, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_half_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    fail_to_read(monkeypatch, error, 3)
    with pytest.raises(InvalidParamsError if isinstance(error, OSError) else KeyboardInterrupt):
        prune(folder, tmp_path / "out", sparsity=0.5)
    assert not list(tmp_path.iterdir())


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.fewer_columns._TOKENS", 200)
    out = tmp_path / "short"
    assert main(["prune", str(folder), str(out), "--layers", "1"]) == 0
    assert main(["replay", str(out), "-m", str(folder)]) == 0
    assert "with the same bytes" in capsys.readouterr().out
    assert main(["pool-heads", str(folder), str(tmp_path / "mqa"), "--kv-heads", "1"]) == 0
    assert main(["prune", str(folder), str(tmp_path / "narrow"), "--mlp-columns", "8"]) == 0
    assert replay_file(tmp_path / "narrow", folder)[0]
    weights = bytearray((out / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "model.safetensors").write_bytes(weights)
    assert main(["replay", str(out), "-m", str(folder)]) == 1
