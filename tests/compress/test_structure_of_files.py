"""`rotate`, `prune`, `drop_layers` and `pool_heads`: what the new files compute, receipts, and graphs that a method does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import LLM, InvalidParamsError, UnsupportedModelError
from llmi.cli.commands import main
from llmi.compress import (
    calibrate,
    drop_columns,
    drop_heads,
    drop_layers,
    evaluate,
    pool_heads,
    pool_kv_heads,
    prune,
    prune_mask,
    quantize,
    rotate,
)
from llmi.compress.replaying import replay_file
from llmi.compress.rotation import Rotation
from llmi.testing import tiny_model

RNG = np.random.default_rng(5)
TEXT = [RNG.integers(1, 200, 64).tolist()]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_of(tmp_path_factory.mktemp("source"), num_layers=5)


def gguf_of(folder: Path, **changes: Any) -> Path:
    """A tiny llama whose norms are not all ones."""
    model = tiny_model(path=folder / "model", vocab_size=300, **changes)
    tensors = tensors_of(model)
    for name, values in tensors.items():
        if "norm" in name:
            tensors[name] = values + RNG.uniform(-0.5, 0.5, values.shape).astype(np.float32)
    path = folder / "source.gguf"
    path.write_bytes(encode({**metadata_of(model), "general.file_type": 0}, tensors))
    return path


def weights_of(path: Path) -> dict[str, Array]:
    with LLM(path, kv_cache_memory_bytes=1 << 24) as llm:
        return {name: np.array(llm.weights[name]) for name in llm.weights}


def cost(path: Path, base: Path) -> float:
    return evaluate(path, base=base, texts=TEXT, window=32, kv_cache_memory_bytes=1 << 24).kl or 0.0


@pytest.mark.parametrize("size", [1, 2, 48, 64, 100])
def test_a_rotation_is_orthogonal_and_mixes(size: int) -> None:
    turned = Rotation(3, size)(np.eye(size))
    assert np.abs(turned @ turned.T - np.eye(size)).max() < 1e-14
    if size > 2:
        assert np.abs(turned).max() < 0.85
    assert (Rotation(3, size)(np.eye(size)) == turned).all()
    assert size < 48 or np.abs(Rotation(4, size)(np.eye(size)) - turned).max() > 0.1


def test_a_rotated_model_is_the_same_function(source: Path, tmp_path: Path) -> None:
    report = rotate(source, tmp_path / "a.gguf")
    assert cost(tmp_path / "a.gguf", source) < 1e-6  # what a cache of fp16 rounds; 1e-2 without one of the norms
    old, new = weights_of(source), weights_of(tmp_path / "a.gguf")
    assert set(new) - set(old) == {"output.weight"} and report.tensors["output.weight"] == "F32"
    for name, values in new.items():
        if "norm" in name:
            assert (values == 1).all()
        elif name in old:
            assert np.abs(values - old[name]).max() > 0.01, name
    spread = max(np.abs(new[name]).max() / new[name].std() for name in new if "ffn_up" in name)
    assert spread < 8


def test_quantised_matrices_become_fp16(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "small.gguf", type="Q8_0")
    report = rotate(tmp_path / "small.gguf", tmp_path / "a.gguf", seed=7)
    assert report.tensors["blk.0.ffn_up.weight"] == "F16" and report.requantized == ["Q8_0"]
    assert cost(tmp_path / "a.gguf", tmp_path / "small.gguf") < 1e-4


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_zeros_are_where_the_mask_says(source: Path, tmp_path: Path, method: str) -> None:
    sums = calibrate(source, texts=TEXT) if method == "wanda" else None
    prune(source, tmp_path / "a.gguf", sparsity=0.5, method=method, calibration=sums)
    old, new = weights_of(source), weights_of(tmp_path / "a.gguf")
    for name, values in old.items():
        if name.startswith("blk.") and values.ndim == 2:
            norms = None if sums is None else sums.norms(name)
            assert (new[name] == np.where(prune_mask(values, sparsity=0.5, input_norms=norms), values, 0)).all(), name
        else:
            assert (new[name] == values).all()
    assert cost(tmp_path / "a.gguf", source) > 0.001


def test_layers_that_stay_are_the_same(source: Path, tmp_path: Path) -> None:
    report = drop_layers(source, tmp_path / "a.gguf", layers=[3, 1])
    assert report.remarks == {"layers": "1, 3 of 5 left out"}
    old, new = weights_of(source), weights_of(tmp_path / "a.gguf")
    for kept, layer in enumerate([0, 2, 4]):
        assert (new[f"blk.{kept}.ffn_down.weight"] == old[f"blk.{layer}.ffn_down.weight"]).all()
    assert "blk.3.ffn_down.weight" not in new and report.bytes < report.source_bytes


def test_the_layer_that_does_least_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.layers._TOKENS", 256)
    folder = tiny_model(path=tmp_path / "model", vocab_size=300, num_layers=6)
    tensors = tensors_of(folder)
    for name in ("blk.3.ffn_down.weight", "blk.3.attn_output.weight"):
        tensors[name] = tensors[name] * np.float32(1e-3)
    path = tmp_path / "source.gguf"
    path.write_bytes(encode(metadata_of(folder), tensors))
    report = drop_layers(path, tmp_path / "a.gguf", count=1)
    assert report.remarks == {"layers": "3 of 6 left out"}
    assert cost(tmp_path / "a.gguf", path) < 1e-4 and replay_file(tmp_path / "a.gguf", path)[0]


def test_pooled_heads_are_means(source: Path, tmp_path: Path) -> None:
    pool_heads(source, tmp_path / "a.gguf", num_kv_heads=1)
    old, new = weights_of(source), weights_of(tmp_path / "a.gguf")
    for name in ("attn_k", "attn_v"):
        want = pool_kv_heads(old[f"blk.2.{name}.weight"], num_kv_heads=2, to=1)
        assert (new[f"blk.2.{name}.weight"] == want).all()
    with LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as llm:
        assert llm.model_info.num_kv_heads == 1 and llm.generate("the", max_tokens=3)[0].token_ids
    assert cost(tmp_path / "a.gguf", source) > 0.001


MAKERS: dict[str, Callable[[Path, Path], Any]] = {
    "rotate": lambda model, out: rotate(model, out, seed=3),
    "prune": lambda model, out: prune(model, out, pattern="2:4"),
    "wanda": lambda model, out: prune(model, out, sparsity=0.3, method="wanda", calibration=calibrate(model, tokens=200)),
    "sparsegpt": lambda model, out: prune(
        model, out, pattern="4:8", method="sparsegpt", calibration=calibrate(model, tokens=200, gram=True)
    ),
    "drop_layers": lambda model, out: drop_layers(model, out, layers=[2]),
    "drop_heads": lambda model, out: drop_heads(model, out, heads=[0]),
    "drop_columns": lambda model, out: drop_columns(model, out, count=32, calibration=calibrate(model, tokens=200)),
    "repair": lambda model, out: drop_layers(model, out, layers=[2, 4], repair=True, calibration=calibrate(model, tokens=200)),
    "pool_heads": lambda model, out: pool_heads(model, out, num_kv_heads=1),
}


@pytest.mark.parametrize("made", MAKERS)
def test_equal_bytes_and_a_receipt(source: Path, tmp_path: Path, made: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.gguf", "b.gguf"):
        MAKERS[made](source, tmp_path / name)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert main(["replay", str(tmp_path / "a.gguf"), "-m", str(source)]) == 0
    assert "the same bytes" in capsys.readouterr().out
    data = bytearray((tmp_path / "a.gguf").read_bytes())
    data[-40] ^= 1
    (tmp_path / "b.gguf").write_bytes(data)
    assert replay_file(tmp_path / "b.gguf", source)[0] is False
    with pytest.raises(InvalidParamsError, match="is not the source"):
        replay_file(tmp_path / "a.gguf", tmp_path / "b.gguf")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a, b: prune(a, b), "one of the two"),
        (lambda a, b: prune(a, b, sparsity=0.5, pattern="2:4"), "one of the two"),
        (lambda a, b: prune(a, b, sparsity=1.5), "a share"),
        (lambda a, b: prune(a, b, pattern="3:2"), "N below M"),
        (lambda a, b: prune(a, b, pattern="2:5"), "do not divide the 64"),
        (lambda a, b: prune(a, b, sparsity=0.5, method="wanda"), "needs a calibration"),
        (lambda a, b: prune(a, b, sparsity=0.5, method="best"), "method must be one of"),
        (lambda a, b: drop_layers(a, b), "one of the two"),
        (lambda a, b: drop_layers(a, b, layers=[1, 1]), "layer 1 twice"),
        (lambda a, b: drop_layers(a, b, layers=[0, 1], repair=True), "before layer 0"),
        (lambda a, b: drop_layers(a, b, layers=[1], calibration=calibrate(a, texts=TEXT)), "unless repair"),
        (lambda a, b: drop_layers(a, b, layers=[1], repair=True, calibration=calibrate(a, texts=TEXT)), "sums of a given one"),
        (lambda a, b: prune(a, b, sparsity=0.5, method="sparsegpt", calibration=calibrate(a, texts=TEXT)), "needs products"),
        (lambda a, b: prune(a, b, sparsity=0.5, calibration=calibrate(a, texts=TEXT)), "reads no calibration"),
        (lambda a, b: drop_layers(a, b, layers=[5]), "no layer 5"),
        (lambda a, b: drop_layers(a, b, layers=range(5)), "all 5 layers cannot go"),
        (lambda a, b: drop_layers(a, b, count=3), "at most 2 can go"),
        (lambda a, b: pool_heads(a, b, num_kv_heads=2), "below the model's 2"),
        (lambda a, b: drop_heads(a, b), "one of the two"),
        (lambda a, b: drop_heads(a, b, heads=[1, 1]), "head 1 twice"),
        (lambda a, b: drop_heads(a, b, heads=[2]), "no head 2"),
        (lambda a, b: drop_heads(a, b, heads=[0, 1]), "all 2 heads"),
        (lambda a, b: drop_heads(a, b, count=2), "all 2 heads"),
        (lambda a, b: drop_columns(a, b, count=10_000), "one must stay"),
        (lambda a, b: drop_columns(a, b, count=0), "count"),
        (lambda a, b: rotate(a, b, seed=-1), "seed"),
        (lambda a, b: rotate(a, a), "exists"),
    ],
)
def test_what_cannot_be_asked(source: Path, tmp_path: Path, call: Callable[[Path, Path], Any], says: str) -> None:
    with pytest.raises(InvalidParamsError, match=says):
        call(source, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_a_calibration_of_another_model(source: Path, tmp_path: Path) -> None:
    other = gguf_of(tmp_path, num_layers=2)
    with pytest.raises(InvalidParamsError, match="of another model"):
        prune(source, tmp_path / "a.gguf", sparsity=0.5, method="wanda", calibration=calibrate(other, texts=TEXT))


def test_graphs_that_a_method_does_not_know(tmp_path: Path, converted: Callable[[str], Path]) -> None:
    for family, method, says in (
        ("gemma3_text", rotate, "with a norm behind attention or MLP"),
        ("gpt2", rotate, "more than a sum of embeddings"),
        ("mixtral", rotate, "not plain attention and one MLP"),
        ("olmo2", lambda a, b: pool_heads(a, b, num_kv_heads=1), "norms over all heads"),
        ("olmo2", lambda a, b: drop_heads(a, b, heads=[0]), "norms over all heads"),
        ("mixtral", lambda a, b: drop_columns(a, b, count=1), "is not one MLP"),
        ("gemma2", lambda a, b: drop_layers(a, b, layers=[0]), "depends on their number"),
        ("gemma2", lambda a, b: drop_layers(a, b, layers=[1], repair=True), "does more to what its down projection makes"),
    ):
        with pytest.raises(UnsupportedModelError, match=says):
            method(converted(family), tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("family", ["qwen3", "phi3", "qwen2"])
def test_other_families_turn(tmp_path: Path, converted: Callable[[str], Path], family: str) -> None:
    rotate(converted(family), tmp_path / "a.gguf")
    assert cost(tmp_path / "a.gguf", converted(family)) < 1e-6


@pytest.fixture
def converted(tmp_path: Path) -> Callable[[str], Path]:
    import lzma

    from converted_files import CONVERTED

    def file(family: str) -> Path:
        path = tmp_path / f"{family}.gguf"
        path.write_bytes(lzma.decompress((CONVERTED / f"{family}.gguf.xz").read_bytes()))
        return path

    return file


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, flags in (("a", ["--pattern", "2:4"]), ("b", ["--layers", "1,2"])):
        assert main(["prune", str(source), str(tmp_path / f"{name}.gguf"), *flags]) == 0
    assert "1, 2 of 5 left out" in capsys.readouterr().out
    assert main(["pool-heads", str(source), str(tmp_path / "c.gguf"), "--kv-heads", "1"]) == 0
    assert main(["prune", str(source), str(tmp_path / "d.gguf"), "--layers", "x"]) == 2
    assert main(["prune", str(source), str(tmp_path / "d.gguf"), "--layers", "1", "--method", "wanda"]) == 2
    assert not (tmp_path / "d.gguf").exists()
