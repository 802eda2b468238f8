"""Folders of safetensors as sources of `prune` and `drop_layers`: the folder that is made computes what the GGUF file of the same tensors
does, and is written whole or not at all."""

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
from llmi import LLM, InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.cli.commands import main
from llmi.compress import calibrate, drop_layers, prune, prune_mask, quantize, rotate
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


def pruned(model: Path, out: Path) -> None:
    prune(model, out, pattern="2:4")


def shortened(model: Path, out: Path) -> None:
    drop_layers(model, out, layers=[0])


@pytest.mark.parametrize(("family", "make"), [("qwen3", pruned), ("olmoe", pruned), ("bloom", shortened)])
def test_a_folder_becomes_what_its_gguf_file_becomes(tmp_path: Path, family: str, make: Callable[[Path, Path], None]) -> None:
    recipe, data = read(family)
    source, file = write_folder(recipe, tmp_path / "model"), tmp_path / "model.gguf"
    file.write_bytes(data)
    made, other = tmp_path / "made", tmp_path / "made.gguf"
    make(source, made)
    make(file, other)
    assert np.array_equal(logits_of(made), logits_of(other)) and not np.array_equal(logits_of(made), logits_of(source))
    assert replay_file(made)[0]


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
        (lambda model, out: prune(model, out / "a.gguf", sparsity=0.5), "becomes a folder, no .gguf file"),
        (lambda model, out: prune(model, out / "none" / "a", sparsity=0.5), "there is no folder"),
        (lambda model, out: prune(model, out / "a", pattern="2:3"), "2:3"),
        (lambda model, out: drop_layers(model, out / "a", layers=[4]), "there is no layer 4"),
        (lambda model, out: rotate(model, out / "a.gguf"), "which prune and drop_layers alone read"),
        (lambda model, out: quantize(model, out / "a.gguf", type="Q8_0"), "which prune and drop_layers alone read"),
        (lambda model, out: prune(CHECKPOINTS / "ct-W8A8", out / "a", sparsity=0.5), "no quantised ones"),
        (lambda model, out: replay_file(model), "has no receipt"),
    ],
)
def test_what_cannot_be_asked(folder: Path, tmp_path: Path, call: Callable[[Path, Path], Any], says: str) -> None:
    with pytest.raises((InvalidParamsError, ModelFileError), match=says):
        call(folder, tmp_path)
    assert not list(tmp_path.iterdir())


def test_matrices_that_are_stored_transposed(tmp_path: Path) -> None:
    source = write_folder(read("gpt2")[0], tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=r"c_attn\.weight is no matrix of the file with a row for each output"):
        prune(source, tmp_path / "out", sparsity=0.5)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_half_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    reads = iter(range(3))
    plain = FolderSource.bytes_of

    def fails(self: FolderSource, tensor: Any) -> bytes:
        if next(reads, None) is None:
            raise error
        return plain(self, tensor)

    monkeypatch.setattr(FolderSource, "bytes_of", fails)
    with pytest.raises(InvalidParamsError if isinstance(error, OSError) else KeyboardInterrupt):
        prune(folder, tmp_path / "out", sparsity=0.5)
    assert not list(tmp_path.iterdir())


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "short"
    assert main(["prune", str(folder), str(out), "--layers", "1"]) == 0
    assert main(["replay", str(out), "-m", str(folder)]) == 0
    assert "with the same bytes" in capsys.readouterr().out
    weights = bytearray((out / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "model.safetensors").write_bytes(weights)
    assert main(["replay", str(out), "-m", str(folder)]) == 1
