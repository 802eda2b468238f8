"""`llmi calibrate`: sums against float64, one order of every sum, files, and texts that the judged one shares."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_specs import interpreter
from llmi import InvalidParamsError, ModelFileError, _core
from llmi.cli.commands import main
from llmi.compress import Calibration, calibrate
from llmi.compress.gguf_file import GgufSource
from llmi.compress.texts import judged_text
from llmi.testing import tiny_model
from spec_float64 import Array, Spec

RNG = np.random.default_rng(4)
TEXTS = [RNG.integers(1, 200, size).tolist() for size in (150, 70, 5)]
UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"


def rows_of(path: Path, texts: list[list[int]]) -> dict[str, Array]:
    """What each matrix reads, by the interpreter in float64."""
    model = interpreter(path)
    rows: dict[str, list[Array]] = {}
    plain = model.linear

    def linear(spec: Spec, x: Array, size: int, expert: int = 0) -> Array:
        rows.setdefault(spec["weight"]["name"].replace("{expert}", str(expert)), []).append(x)
        return plain(spec, x, size, expert)

    model.linear = linear  # type: ignore[method-assign]
    for text in texts:
        model.kept = []
        model.logits(text)
    return {name: np.concatenate(parts) for name, parts in rows.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(path=tmp_path_factory.mktemp("calibration") / "model", vocab_size=300, hidden_size=64)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_sums_are_those_of_the_rows(tmp_path: Path, architecture: str) -> None:
    path = tiny_model(architecture, path=tmp_path / "model", vocab_size=300)
    calibration = calibrate(path, texts=TEXTS, gram=True, kv_cache_dtype="float32")
    rows = rows_of(path, TEXTS)
    names = [name for name in rows if "layers" in name]
    assert len(names) == 14 and all(name in calibration for name in names)
    for name in names:
        gram, want = calibration.gram(name), rows[name].T @ rows[name]
        assert np.abs(gram - want).max() < 2e-5 * np.abs(want).max(), name
        assert (gram == gram.T).all()
        assert np.allclose(calibration.norms(name), np.sqrt((rows[name] ** 2).mean(axis=0)), rtol=1e-4)
        assert calibration.num_rows(name) == sum(map(len, TEXTS))


def test_layers_of_codes_are_read_in_floats(model: Path) -> None:
    calibration, rows = calibrate(model, texts=TEXTS, gram=True, quantization="q8_0"), rows_of(model, TEXTS)
    for name in (UP, DOWN):
        want = rows[name].T @ rows[name]
        assert np.abs(calibration.gram(name) - want).max() < 0.05 * np.abs(want).max(), name


@pytest.mark.parity
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v2"])
def test_experts_have_sums_of_their_own(tmp_path: Path, family: str) -> None:
    from tiny_families import make

    path = make(family, tmp_path).path
    texts = [RNG.integers(1, 20, 60).tolist()]
    calibration = calibrate(path, texts=texts, gram=True)
    [name] = [name for name in calibration._sums if name.endswith("layers.1.mlp.experts.0.down_proj.weight")]
    assert calibration.norms(name).ndim == 1 and 0 < calibration.num_rows(name) < 60
    with pytest.raises(InvalidParamsError, match="no products"):
        calibration.gram(name)
    # Each row is read by as many experts as it uses, so their sums are so many times those of all rows.
    prefix = name.removesuffix("experts.0.down_proj.weight")
    rows = rows_of(path, texts)[prefix + "experts.0.gate_proj.weight"]
    squares = [calibration._sums[f"{prefix}experts.{expert}.gate_proj.weight"] for expert in range(8)]
    used = sum(int(counts.sum()) for _, counts in squares)
    assert used % 60 == 0
    want = used / 60 * (rows**2).sum(axis=0)
    assert np.allclose(sum(values[0].astype(np.float64) for values, _ in squares), want, rtol=0.01)


def test_bits_are_the_same_on_any_threads_tables_and_steps(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = calibrate(model, texts=TEXTS, gram=True, quantization="q8_0").digest()
    for settings in ({"num_threads": 1}, {"max_num_batched_tokens": 48}):
        assert calibrate(model, texts=TEXTS, gram=True, quantization="q8_0", **settings).digest() == want, settings
    for table in _core.system_info()["tables"]:
        monkeypatch.setenv("LLMI_ISA", table)
        assert calibrate(model, texts=TEXTS, gram=True, quantization="q8_0").digest() == want, table
    assert calibrate(model, texts=TEXTS[:2], gram=True, quantization="q8_0").digest() != want


def test_a_file_holds_all(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = calibrate(model, texts=TEXTS, tokens=200, gram=True)
    assert made.made["num_tokens"] == 200
    made.save(tmp_path / "a.imatrix")
    read = Calibration.load(tmp_path / "a.imatrix")
    assert read.digest() == made.digest() and read.made == made.made
    assert (read.gram(DOWN) == made.gram(DOWN)).all() and (read.norms(UP) == made.norms(UP)).all()
    source = GgufSource(tmp_path / "a.imatrix")
    assert source.text_of("general.type") == "imatrix"
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    assert shapes[UP + ".in_sum2"] == (64, 1) and shapes[UP + ".counts"] == (1, 1)
    with pytest.raises(InvalidParamsError, match="exists"):
        made.save(tmp_path / "a.imatrix")
    (tmp_path / "text.txt").write_text("The sea is large. " * 40)
    command = ["calibrate", str(model), str(tmp_path / "b.imatrix"), "--text", str(tmp_path / "text.txt"), "--tokens", "100"]
    assert main(command) == 0
    assert "of 100 tokens" in capsys.readouterr().out
    assert not Calibration.load(tmp_path / "b.imatrix").has_gram
    assert main(command) != 0


def test_the_models_own_text_is_a_function_of_the_seed(model: Path) -> None:
    first, again, other = (calibrate(model, tokens=300, seed=seed) for seed in (3, 3, 4))
    assert first.digest() == again.digest() != other.digest()
    assert first.made["num_tokens"] == 300 and first.made["text"] == "own"


def test_a_passage_of_the_judged_text_is_refused(model: Path) -> None:
    passage = judged_text()[4000:4200]
    with pytest.raises(InvalidParamsError, match="shares 32 tokens in a row") as caught:
        calibrate(model, texts=["Some words of my own. ", "And then. " + passage])
    assert passage[5:25] in str(caught.value).encode().decode("unicode_escape")
    calibrate(model, texts=["Some words of my own. " + passage[:20]])


def broken(data: bytes, what: str) -> bytes:
    values = data.index(b"imatrix")
    return {
        "another kind": data[:values] + b"xmatrix" + data[values + 7 :],
        "cut short": data[:-4000],
        "no number": data[:-64] + struct.pack("<f", float("nan")) * 16,
        "alignment of 0": data.replace(
            struct.pack("<Q", 18) + b"imatrix.chunk_size" + struct.pack("<II", 4, 512),
            struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0),
        ),
        "no count": data.replace(b".counts", b".countz"),
        "a huge shape": data.replace(struct.pack("<QQ", 64, 1), struct.pack("<QQ", 1 << 40, 1 << 20), 1),
    }[what]


@pytest.mark.parametrize("what", ["another kind", "cut short", "no number", "alignment of 0", "no count", "a huge shape"])
def test_hostile_files_are_refused(model: Path, tmp_path: Path, what: str) -> None:
    calibrate(model, texts=TEXTS).save(tmp_path / "a.imatrix")
    (tmp_path / "b.imatrix").write_bytes(broken((tmp_path / "a.imatrix").read_bytes(), what))
    with pytest.raises(ModelFileError, match=r"b\.imatrix"):
        Calibration.load(tmp_path / "b.imatrix")


def test_what_it_does_not_have(model: Path, tmp_path: Path) -> None:
    calibration: Any = calibrate(model, texts=TEXTS)
    with pytest.raises(InvalidParamsError, match="nothing about"):
        calibration.norms("blk.0")
    with pytest.raises(InvalidParamsError, match="gram=True"):
        calibration.gram(UP)
    with pytest.raises(InvalidParamsError, match="cannot be read"):
        Calibration.load(tmp_path / "none.imatrix")
