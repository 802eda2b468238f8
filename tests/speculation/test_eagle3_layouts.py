"""EAGLE-3 in the layouts of SpecForge, speculators and llama.cpp: the rows of these libraries' own code, and files that are refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eagle3_layouts as layouts
from bits import assert_same_bits
from eagle3_layouts import CASES, ROWS, TAPS, TEXT, TOKENS
from llmi import LLM, Eagle, ModelFileError, SamplingParams, UnsupportedModelError, _core
from llmi.families.reader import spec_of
from llmi.models.files import OpenModel, open_model
from llmi.speculation.heads import core_options, open_heads
from llmi.testing import assert_same_tokens
from llmi.testing.tiny import save_safetensors
from test_eagle import OPTIONS, config, drafted
from tiny_eagle3 import tapped_rows

Rows = tuple[Any, Any, Any]


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=layouts.VOCAB, num_layers=layouts.NUM_LAYERS)


@pytest.fixture(scope="module")
def files(model: Path) -> OpenModel:
    return open_model(model)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 22, **OPTIONS) as llm:
        yield llm


def saved_config(name: str) -> dict[str, Any]:
    """config.json as the library saves it."""
    saved: dict[str, Any] = json.loads(layouts.CONFIGS.read_text())[name]
    return saved


def options_of(path: Path, files: OpenModel) -> dict[str, Any]:
    return core_options(open_heads(path), spec_of(files.core), [])


def rows_of(path: Path, files: OpenModel, text: list[int] = TEXT, tapped: Any = None) -> Rows:
    """(hidden rows, outputs, logits) of a text, of whose first tokens the hidden states are given."""
    testing = pytest.importorskip("llmi._core.testing")
    options = options_of(path, files) | {"spec": spec_of(files.core).to_json(), "dtype": "float32"}
    rows: Rows = testing.eagle3_rows(files.core, options, text, layouts.tapped().astype(np.float32) if tapped is None else tapped)
    return rows


def likeliest(path: Path, files: OpenModel, text: list[int], tapped: Any, count: int) -> tuple[list[int], float]:
    """The tokens that a chain drafts behind a text, and the least lead of one of them."""
    lead = np.inf
    for _ in range(count):
        logits = rows_of(path, files, text, tapped)[2][-1]
        order = np.argsort(logits)
        lead = min(lead, float(logits[order[-1]] - logits[order[-2]]))
        text = [*text, TOKENS[order[-1]]]
    return text[-count:], lead


def changed(name: str, path: Path, **changes: object) -> Path:
    """The folder of a case with other keys in its config; one with a point in it is inside an object, None takes a key away."""
    folder = layouts.write(CASES[name], path / "changed")
    values = saved_config(name)
    for key, value in changes.items():
        *outer, last = key.split(".")
        place = values
        for part in outer:
            place = place[part]
        place[last] = value
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_library(files: OpenModel, tmp_path: Path, name: str) -> None:
    frozen = np.load(layouts.ARRAYS)
    folder = layouts.write(CASES[name], tmp_path / name)
    by_tests = options_of(folder, files)
    (folder / "config.json").write_text(json.dumps(saved_config(name)))
    by_library = options_of(folder, files)
    assert {key: value for key, value in by_library.items() if key != "eagle_files"} == {
        key: value for key, value in by_tests.items() if key != "eagle_files"
    }
    assert by_tests["eagle_taps"] == TAPS and by_tests["eagle_shortlist"] == TOKENS
    for part, rows in zip(("hidden", "outputs", "logits"), rows_of(folder, files), strict=True):
        expected = frozen[f"{name}.{part}"]
        assert rows.shape == expected.shape and np.abs(expected).max() > 1
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-4, err_msg=part)
    assert len(rows) == ROWS + 2  # with two rows that read the layer's own outputs


def converted(path: Path) -> Path:
    """llama.cpp's file of one case."""
    made = path / "converted.gguf"
    made.write_bytes(lzma.decompress(layouts.CONVERTED.read_bytes()))
    return made


def test_the_converted_file_is_the_same_layer(files: OpenModel, tmp_path: Path) -> None:
    folder = layouts.write(CASES[layouts.SOURCE], tmp_path / "folder")
    for own, other in zip(rows_of(folder, files), rows_of(converted(tmp_path), files), strict=True):
        assert_same_bits(own, other)
    own_options, other_options = options_of(folder, files), options_of(converted(tmp_path), files)
    for key in ("eagle_taps", "eagle_shortlist", "eagle_norm_output"):
        assert own_options[key] == other_options[key]
    assert own_options["eagle_stream_norm"] and other_options["eagle_stream_norm"]


def test_a_quantised_file(files: OpenModel, tmp_path: Path) -> None:
    """Eight bits a weight: the projections are cut between blocks."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(converted(tmp_path))
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "eagle3")
    for key, field in reader.fields.items():
        if key.startswith("eagle3."):
            (
                writer.add_array
                if field.types[0] == gguf.GGUFValueType.ARRAY
                else lambda k, v, f=field: writer.add_key_value(k, v, f.types[0])
            )(key, field.contents())
    for tensor in reader.tensors:
        if tensor.data.ndim == 2:
            packed = gguf.quants.quantize(tensor.data, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    exact, coarse = rows_of(converted(tmp_path), files), rows_of(tmp_path / "q8.gguf", files)
    for own, other in zip(exact, coarse, strict=True):
        error = np.sqrt(np.mean((own - other) ** 2) / np.mean(own**2))
        assert 0 < error < 0.02


@pytest.mark.parametrize("name", [*CASES, "llama.cpp"])
def test_drafts_are_those_of_the_rows(model: Path, files: OpenModel, plain: LLM, tmp_path: Path, name: str) -> None:
    """The engine's drafts, depth by depth; and the tokens are the target's own."""
    path = converted(tmp_path) if name == "llama.cpp" else layouts.write(CASES[name], tmp_path / name)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    with LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=config(path), **OPTIONS) as llm:
        outputs = llm.generate([TEXT[:9]], params, trace=True)
    assert_same_tokens(outputs, plain.generate([TEXT[:9]], params))
    whole = [*TEXT[:9], *outputs[0].outputs[0].token_ids]
    tapped = tapped_rows(plain, whole, TAPS)
    found = drafted(outputs)
    for (position, depth), token in found.items():
        length = position - depth + 1
        expected, lead = likeliest(path, files, whole[:length], tapped[: length - 1], depth)
        assert token == expected[-1] or lead < 1e-3
    assert len(found) >= 6


@pytest.mark.parametrize("name", ["speculators_output", "speculators_qwen3"])
def test_drafts_on_a_device(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    folder = layouts.write(CASES[name], tmp_path / name)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    found = []
    for device in ("cpu", "cuda"):
        with LLM(model, device=device, kv_cache_memory_bytes=1 << 22, speculative_config=config(folder), **OPTIONS) as llm:
            found.append(drafted(llm.generate([TEXT[:9], TEXT[3:8]], params, trace=True)))
    assert found[0] == found[1] and len(found[0]) > 6


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("specforge", {"norm_output": True}, "norm_output"),
        ("specforge", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("specforge", {"num_hidden_layers": 2}, "num_hidden_layers"),
        ("specforge", {"draft_vocab_size": 52}, "draft_vocab_size"),
        ("specforge", {"hidden_act": "gelu"}, "hidden_act"),
        ("specforge", {"target_hidden_size": 128}, "target_hidden_size"),
        ("specforge", {"a_new_key": 1}, "a_new_key"),
        ("specforge", {"eagle_config.a_new_key": 1}, "eagle_config.a_new_key"),
        ("specforge", {"eagle_config.use_aux_hidden_state": False}, "eagle_config.use_aux_hidden_state"),
        ("specforge", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "eagle_aux_hidden_state_layer_ids"),
        ("specforge", {"fc_norm": True}, "fc_norm.0.weight"),
        ("specforge", {"norm_before_fc": 1}, "norm_before_fc"),
        ("speculators", {"speculators_model_type": "peagle"}, "speculators_model_type"),
        ("speculators", {"transformer_layer_config": None}, "transformer_layer_config"),
        ("speculators", {"transformer_layer_config.model_type": "gemma"}, "model_type"),
        ("speculators", {"transformer_layer_config.hidden_size": 32}, "hidden_size"),
        ("speculators", {"transformer_layer_config.num_hidden_layers": 3}, "num_hidden_layers"),
        ("speculators", {"transformer_layer_config.attention_bias": True}, "self_attn.q_proj.bias"),
        ("speculators", {"transformer_layer_config.mlp_bias": True}, "mlp.up_proj.bias"),
        ("speculators", {"transformer_layer_config.layer_types": ["sliding_attention"]}, "layer_types"),
        ("speculators", {"transformer_layer_config.a_new_key": 1}, "a_new_key"),
        ("speculators", {"num_aux_hidden_states": 4}, "num_aux_hidden_states"),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, "eagle_aux_hidden_state_layer_ids"),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "eagle_aux_hidden_state_layer_ids"),
        ("speculators_residual", {"norm_before_fc": False}, "input_norm.weight"),
        ("speculators_qwen3", {"norm_before_fc": True}, "fc_norm"),
    ],
)
def test_a_config_that_is_not_understood(model: Path, tmp_path: Path, name: str, changes: dict[str, object], field: str) -> None:
    with pytest.raises(ModelFileError, match=field) as caught:
        LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(changed(name, tmp_path, **changes)), **OPTIONS).close()
    assert "\n" not in str(caught.value)


def test_layers_are_counted_as_each_library_does(files: OpenModel, tmp_path: Path) -> None:
    """SpecForge's list says after which layer, from 0; the others' how many have run. Without a list they agree."""
    both = changed("specforge", tmp_path, eagle_aux_hidden_state_layer_ids=TAPS)
    assert options_of(both, files)["eagle_taps"] == TAPS
    turned = changed("speculators", tmp_path, eagle_aux_hidden_state_layer_ids=[0, 3, 1])
    assert options_of(turned, files)["eagle_taps"] == [0, 3, 1]
    for name, key in (("specforge", "eagle_config"), ("speculators", "eagle_aux_hidden_state_layer_ids")):
        assert options_of(changed(name, tmp_path, **{key: None}), files)["eagle_taps"] == [2, 1, 0]


@pytest.mark.parametrize(
    ("replaced", "field"),
    [
        ({"d2t": None}, "d2t"),
        ({"t2d": np.ones(64, np.bool_)}, "t2d"),
        ({"d2t": np.zeros(52, np.int64)}, "d2t"),
        ({"d2t": np.full(53, 40, np.int64)}, "d2t"),
        ({"d2t": np.zeros((53, 1), np.int32)}, "d2t"),
        ({"d2t": np.zeros(53, np.float32)}, "d2t"),
        ({"norm.weight": np.zeros(53, np.int64)}, "norm.weight"),
        ({"lm_head.weight": None}, "lm_head.weight"),
        ({"more": np.zeros(3, np.float32)}, "more"),
    ],
)
def test_tensors_that_do_not_fit(model: Path, tmp_path: Path, replaced: dict[str, Any], field: str) -> None:
    folder = layouts.write(CASES["specforge"], tmp_path / "folder")
    tensors = layouts.tensors_of(CASES["specforge"]) | replaced
    save_safetensors(folder / "model.safetensors", {name: values for name, values in tensors.items() if values is not None})
    with pytest.raises(ModelFileError, match=field):
        LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(folder), **OPTIONS).close()


def test_gguf_files_that_are_refused(model: Path, tmp_path: Path) -> None:
    data = lzma.decompress(layouts.CONVERTED.read_bytes())
    for old, new, field in (
        (b"eagle3.target_layers", b"eagle3.target_layerz", "target_layerz"),
        (b"eagle3.norm_before_residual", b"eagle3.norm_before_residuaX", "residuaX"),
        (b"blk.0.attn_norm_2.weight", b"blk.0.attn_norm_3.weight", "EAGLE-3"),
        (b"fc.weight", b"fd.weight", "fc.weight"),
    ):
        assert data.count(old) == 1
        (tmp_path / "wrong.gguf").write_bytes(data.replace(old, new))
        with pytest.raises(ModelFileError, match=field):
            LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(tmp_path / "wrong.gguf"), **OPTIONS).close()
    with pytest.raises(UnsupportedModelError):
        LLM(converted(tmp_path), kv_cache_memory_bytes=1 << 22).close()


def test_integers(tmp_path: Path) -> None:
    save_safetensors(
        tmp_path / "model.safetensors", {"a": np.array([-1, 2**40]), "b": np.array([True, False]), "c": np.array([-7], np.int32)}
    )
    (tmp_path / "config.json").write_text("{}")
    files = _core.ModelFiles(str(tmp_path))
    assert [files.integers(name) for name in "abcd"] == [[-1, 2**40], [1, 0], [-7], None]
