"""`quantize` of a folder to a folder of packed integers: llm-compressor's own bytes by absmax, the logits of the weights that the codes stand
for, smaller errors by search and gptq, receipts, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import DATA, Stored, Tensors, modules, plain_values, read_file, write_file
from converted_files import read, write_folder
from llmi import LLM, InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.cli.commands import main
from llmi.compress import calibrate, evaluate, quantize, rotate
from llmi.compress.grids import rounded
from llmi.compress.packed_folders import PACKED_METHODS
from llmi.compress.packed_types import PACKED, PackedType
from llmi.compress.replaying import replay_file
from llmi.testing import tiny_model

RNG = np.random.default_rng(5)
KEY = "model.layers.0.self_attn.k_proj"
TEXTS, JUDGED = ([RNG.integers(1, 256, 300).tolist() for _ in range(count)] for count in (4, 2))
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(path=tmp_path_factory.mktemp("source") / "model", vocab_size=300, hidden_size=128)


@pytest.fixture(scope="module")
def calibration(folder: Path) -> Any:
    return calibrate(folder, texts=TEXTS, gram=True, kv_cache_memory_bytes=1 << 24)


def logits_of(path: Path) -> Array:
    with LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 24, max_model_len=16, num_threads=1) as llm:
        return llm.sequence([5]).extend([9, 2, 7, 100])


def described(path: Path) -> Any:
    return json.loads((path / "config.json").read_bytes())["quantization_config"]


def copied(source: Path, path: Path, tensors: Tensors) -> Path:
    """The same folder with these tensors."""
    path.mkdir()
    for file in source.iterdir():
        if file.name != "model.safetensors":
            (path / file.name).write_bytes(file.read_bytes())
    write_file(path / "model.safetensors", tensors)
    return path


def in_type(source: Path, path: Path, float_type: str) -> Path:
    of: dict[str, Callable[[Array], Array]] = {
        "F32": lambda values: values,
        "F16": lambda values: values.astype(np.float16),
        "BF16": lambda values: (values.view(np.uint32) >> 16).astype(np.uint16),
    }
    stored = read_file(source / "model.safetensors")
    return copied(source, path, {name: Stored(float_type, of[float_type](each.values)) for name, each in stored.items()})


def values_of(folder: Path) -> dict[str, Array]:
    """What the codes of each module stand for, by the group that names it or else by the first one."""
    tensors, groups = read_file(folder / "model.safetensors"), list(described(folder)["config_groups"].values())
    return {
        module: plain_values(tensors, {"quant_method": "compressed-tensors", "config_groups": {"own": own}}, module)
        for module in modules(tensors)
        for own in [next((group for group in groups if module in group["targets"]), groups[0])]
    }


def plain(folder: Path, path: Path) -> Path:
    """The same folder with float weights."""
    values = values_of(folder)
    coded = tuple(f"{module}.weight" for module in values)
    kept = {name: each for name, each in read_file(folder / "model.safetensors").items() if not name.startswith(coded)}
    copied(folder, path, kept | {f"{module}.weight": Stored("F32", found) for module, found in values.items()})
    config = json.loads((path / "config.json").read_bytes())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("kind", PACKED)
def test_absmax_is_llm_compressors_rule(tmp_path: Path, kind: str) -> None:
    """Codes, scales, zero points, shapes and config.json are those that it wrote of the same matrix."""
    source = tiny_model(path=tmp_path / "model", hidden_size=128)
    tensors = read_file(source / "model.safetensors")
    original = np.fromfile(DATA.parent / "tiny5_k_proj.bin", np.uint16).reshape(64, 128)
    tensors[f"{KEY}.weight"] = Stored("BF16", original)
    write_file(source / "model.safetensors", tensors)
    quantize(source, tmp_path / "out", type=kind, method="absmax")
    want, found = (read_file(path / "model.safetensors") for path in (DATA / f"ct-{kind}", tmp_path / "out"))
    parts = [name for name in want if name.startswith(KEY)]
    assert len(parts) == 3 + (kind == "W4A16_ASYM")
    for name in parts:
        assert found[name].dtype == want[name].dtype and np.array_equal(found[name].values, want[name].values), name
    assert described(tmp_path / "out") == described(DATA / f"ct-{kind}")


# Root mean square errors of normal numbers in groups of 128, over their size: a little above what a search of this kind has found.
NORMAL = {"W4A16": 0.102, "W4A16_ASYM": 0.0965, "W8A16": 0.00642}


@pytest.mark.parametrize("kind", PACKED)
def test_errors_of_normal_numbers(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    weights = np.exp(np.random.default_rng(1).standard_normal(512)).astype(np.float32)
    grid = PackedType(kind, *PACKED[kind], 128, "BF16")
    plain_error, weighed = (values - rounded(grid, values, by) for by in (np.ones_like(weights), weights))
    assert np.sqrt((plain_error**2).mean()) < NORMAL[kind]
    assert (weights * weighed**2).sum() < 0.97 * (weights * plain_error**2).sum()


@pytest.mark.parametrize("float_type", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("kind", PACKED)
def test_logits_are_those_of_what_the_codes_stand_for(folder: Path, tmp_path: Path, kind: str, float_type: str) -> None:
    source = in_type(folder, tmp_path / "model", float_type)
    report = quantize(source, tmp_path / "out", type=kind)
    stored = read_file(tmp_path / "out" / "model.safetensors")
    assert sorted(report.tensors) == [f"{module}.weight" for module in sorted(modules(stored))] and len(report.tensors) == 14
    assert {tensor.dtype for name, tensor in stored.items() if name.endswith("weight_scale")} == {float_type}
    original = read_file(source / "model.safetensors")
    for module, values in values_of(tmp_path / "out").items():
        wanted = original[f"{module}.weight"].floats
        assert np.linalg.norm(values - wanted) < 1.1 * NORMAL[kind] * np.linalg.norm(wanted), module
    assert np.array_equal(logits_of(tmp_path / "out"), logits_of(plain(tmp_path / "out", tmp_path / "plain")))
    assert replay_file(tmp_path / "out")[0]


def errors(source: Path, out: Path, weights: Callable[[str], Any] = lambda name: 1.0) -> float:
    """Squared errors of all matrices by the weights of columns."""
    old = read_file(source / "model.safetensors")
    gaps = {f"{module}.weight": found - old[f"{module}.weight"].values for module, found in values_of(out).items()}
    return sum(float((weights(name) * gap.astype(np.float64) ** 2).sum()) for name, gap in gaps.items())


@pytest.mark.parametrize("kind", PACKED)
def test_what_methods_win(folder: Path, tmp_path: Path, kind: str, calibration: Any) -> None:
    for method in PACKED_METHODS:
        quantize(folder, tmp_path / method, type=kind, method=method, calibration=calibration if method == "gptq" else None)
    quantize(folder, tmp_path / "weighed", type=kind, calibration=calibration)

    def of(name: str) -> Any:
        return calibration.norms(name) ** 2

    assert errors(folder, tmp_path / "search") < errors(folder, tmp_path / "absmax") * (0.95 if kind != "W8A16" else 1.0)
    assert errors(folder, tmp_path / "weighed", of) < errors(folder, tmp_path / "search", of)
    kl = {name: evaluate(tmp_path / name, base=folder, texts=JUDGED, window=100).kl or 0.0 for name in PACKED_METHODS}
    assert 0 < kl["gptq"] < 0.9 * kl["search"] < 0.9 * kl["absmax"], kl


def test_replay_with_a_calibration(folder: Path, tmp_path: Path, calibration: Any) -> None:
    calibration.save(tmp_path / "c.imatrix")
    quantize(folder, tmp_path / "out", method="gptq", calibration=tmp_path / "c.imatrix")
    assert replay_file(tmp_path / "out", folder)[0]
    (tmp_path / "c.imatrix").unlink()
    with pytest.raises(InvalidParamsError, match="--calibration"):
        replay_file(tmp_path / "out", folder)


def test_a_rotation_comes_first(folder: Path, tmp_path: Path) -> None:
    rotate(folder, tmp_path / "rotated", seed=3)
    quantize(tmp_path / "rotated", tmp_path / "second", method="absmax")
    quantize(folder, tmp_path / "at once", method="absmax", rotate=3)
    one, other = (read_file(tmp_path / name / "model.safetensors") for name in ("at once", "second"))
    assert one.keys() == other.keys() and all(np.array_equal(one[name].values, other[name].values) for name in one)
    assert replay_file(tmp_path / "at once", folder)[0]


def test_several_types_and_groups(tmp_path: Path) -> None:
    source = tiny_model(path=tmp_path / "model", hidden_size=96)
    rules = {"*down_proj*": "W8A16", "*layers.1.mlp.up_proj*": "W4A16_ASYM"}
    report = quantize(source, tmp_path / "out", tensors=rules)
    groups = described(tmp_path / "out")["config_groups"]
    assert [(group["targets"], group["weights"]["group_size"]) for group in groups.values()] == [
        (["Linear"], 32),
        (["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"], 64),
        (["model.layers.1.mlp.up_proj"], 32),
    ]
    assert report.tensors["model.layers.1.mlp.down_proj.weight"] == "W8A16"
    assert report.remarks[f"{KEY}.weight"] == "groups of 32 columns: 128 do not divide those of all matrices"
    assert np.array_equal(logits_of(tmp_path / "out"), logits_of(plain(tmp_path / "out", tmp_path / "plain")))


def test_matrices_that_no_group_divides(tmp_path: Path) -> None:
    source = tiny_model(path=tmp_path / "model", intermediate_size=72)
    report = quantize(source, tmp_path / "out", method="absmax")
    assert set(report.fallbacks.values()) == {"stays as it is: groups of 32 do not divide its 72 columns"}
    ignored = described(tmp_path / "out")["ignore"]
    assert ignored == ["lm_head", *(name.removesuffix(".weight") for name in report.fallbacks)] and len(ignored) == 3
    assert len(report.tensors) == 12 and replay_file(tmp_path / "out")[0]
    assert "stays as it is" in str(report)


@pytest.mark.parametrize(
    ("family", "kept"), [("olmoe", "mlp.gate"), ("qwen2_moe", "shared_expert_gate"), ("phi3", "lm_head"), ("qwen3", "lm_head")]
)
def test_families(tmp_path: Path, family: str, kept: str) -> None:
    """Experts apart, fused queries and keys, norms of heads."""
    source = write_folder(read(family)[0], tmp_path / "model")
    report = quantize(source, tmp_path / "out")
    assert any(name.endswith(kept) for name in described(tmp_path / "out")["ignore"]) and report.tensors
    assert np.array_equal(logits_of(tmp_path / "out"), logits_of(plain(tmp_path / "out", tmp_path / "plain")))


def quantised(model: Path, out: Path) -> None:
    quantize(model, out / "first")
    try:
        quantize(out / "first", out / "a")
    finally:
        for file in (out / "first").iterdir():
            file.unlink()
        (out / "first").rmdir()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model, out: quantize(model, out / "a", type="Q4_0"), "type must be one of W4A16"),
        (lambda model, out: quantize(model, out / "a", tensors={"*": "Q8_0"}), r"tensors\['\*'\] must be one of W4A16"),
        (lambda model, out: quantize(model, out / "a.gguf", type="W4A16"), "type must be one of Q4_0"),
        (lambda model, out: quantize(model, out / "a", method="kl"), "method must be one of absmax"),
        (lambda model, out: quantize(model, out / "a", like="Q4_K_M"), "like: it is of GGUF files"),
        (lambda model, out: quantize(model, out / "a", budget_bytes=100), "budget_bytes: it is of GGUF files"),
        (lambda model, out: quantize(model, out / "a", awq=True), "awq: it is of GGUF files"),
        (lambda model, out: quantize(model, out / "a", tensors={"lm_head*": "W4A16"}), "no matrix that can be quantised has a name like"),
        (lambda model, out: quantize(model, out / "a", method="gptq"), "needs a calibration with products"),
        (lambda model, out: quantize(model, out / "a", method="absmax", calibration="own"), 'method="absmax" reads none'),
        (lambda model, out: quantize(model, model), "model exists"),
        (lambda model, out: quantize(model, out / "none" / "a"), "there is no folder"),
        (lambda model, out: quantize(DATA / "ct-W8A8", out / "a"), "no quantised ones"),
        (quantised, "no quantised ones"),
    ],
)
def test_what_cannot_be_asked(folder: Path, tmp_path: Path, call: Callable[[Path, Path], Any], says: str) -> None:
    with pytest.raises((InvalidParamsError, ModelFileError), match=says):
        call(folder, tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_sources(tmp_path: Path) -> None:
    recipe, data = read("qwen3")
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(InvalidParamsError, match=r"must end in \.gguf: only folders of safetensors become folders"):
        quantize(tmp_path / "model.gguf", tmp_path / "out")
    with pytest.raises(UnsupportedModelError, match="without a matrix that can be packed"):
        quantize(write_folder(read("gpt2")[0], tmp_path / "gpt2"), tmp_path / "out")
    source = write_folder(recipe, tmp_path / "model")
    config = json.loads((source / "config.json").read_bytes())
    config["quantization_config"] = described(DATA / "ct-W4A16")
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="no tensor is quantised"):
        quantize(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_half_folder(folder: Path, tmp_path: Path) -> None:
    """An error in one matrix ends the others, and those that wait for their scales."""
    tensors = read_file(folder / "model.safetensors")
    values = tensors["model.layers.1.mlp.up_proj.weight"].values.copy()
    values[3, 7] = np.nan
    source = copied(folder, tmp_path / "model", tensors | {"model.layers.1.mlp.up_proj.weight": Stored("F32", values)})
    with pytest.raises(ModelFileError, match=r"up_proj\.weight holds NaN"):
        quantize(source, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small"
    assert main(["quantize", str(folder), str(out), "--type", "W4A16_ASYM", "--tensor", "*down_proj*=W8A16"]) == 0
    assert "12 as W4A16_ASYM, 2 as W8A16" in capsys.readouterr().out
    assert main(["replay", str(out), "-m", str(folder)]) == 0
