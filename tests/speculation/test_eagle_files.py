"""Files of an EAGLE layer that cannot be right are refused by one line when the model is loaded."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from llmi import LLM, Eagle, InvalidParamsError, ModelFileError, SamplingParams, SpeculativeConfig, UnsupportedCombinationError
from test_eagle import OPTIONS, config
from tiny_eagle import tiny_eagle

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=64)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 22, **OPTIONS) as llm:
        yield llm


@pytest.fixture
def heads(plain: LLM, tmp_path: Path) -> Path:
    return tiny_eagle(plain, tmp_path / "heads", shortlist=[1, 2, 3])


def load(model: Path, heads: Path) -> None:
    LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(heads), **OPTIONS).close()


def change_config(heads: Path, **changes: object) -> None:
    known = json.loads((heads / "config.json").read_text())
    (heads / "config.json").write_text(json.dumps(known | changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 128}, "hidden_size"),
        ({"vocab_size": 65}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 8}, "self_attn.q_proj"),
        ({"intermediate_size": 100}, "mlp.gate_proj"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"rope_theta": -1}, "theta"),
    ],
)
def test_a_config_that_does_not_fit(model: Path, heads: Path, changes: dict[str, object], field: str) -> None:
    change_config(heads, **changes)
    with pytest.raises(ModelFileError, match=field) as caught:
        load(model, heads)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("listed", "what"), [([1, 64], "64"), ([-1], "-1"), ([2, 2], "twice")])
def test_a_shortlist_out_of_range(model: Path, plain: LLM, tmp_path: Path, listed: list[int], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        load(model, tiny_eagle(plain, tmp_path / "heads", shortlist=listed))


def check_broken_files(load: Callable[[Path], None], heads: Path, renamed: Mapping[str, tuple[str, str]]) -> None:
    """Refused: cut files, tensors that are renamed ({name: (its new name, what the message says)}), a config that is not JSON, no
    folder."""
    weights = heads / "model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            load(heads)
    for name, (other, message) in renamed.items():
        weights.write_bytes(whole.replace(name.encode(), other.encode()))
        with pytest.raises(ModelFileError, match=message):
            load(heads)
    weights.write_bytes(whole)
    (heads / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match="JSON"):
        load(heads)
    with pytest.raises(ModelFileError):
        load(heads.with_name("nowhere"))


def test_broken_files(model: Path, heads: Path) -> None:
    renamed = {"fc.weight": ("fd.weight", r"fc\.weight"), "shortlist": ("shortliss", "shortliss")}
    check_broken_files(lambda path: load(model, path), heads, renamed)


def test_pickled_files_are_never_read(model: Path, heads: Path) -> None:
    (heads / "model.safetensors").rename(heads / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="convert them"):
        load(model, heads)
    with pytest.raises(ModelFileError, match="convert them"):
        Eagle(heads / "pytorch_model.bin")


def test_one_file(model: Path, heads: Path, plain: LLM) -> None:
    """The config may stand in the file's metadata."""
    data = (heads / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = {"config": (heads / "config.json").read_text()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    single = heads / "single.safetensors"
    single.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=config(single), **OPTIONS) as llm:
        assert llm.generate([1, 2], PARAMS) == plain.generate([1, 2], PARAMS)
    with pytest.raises(ModelFileError, match="metadata"):
        load(model, heads / "model.safetensors")


def check_another_target(load: Callable[[], None], heads: Path, kind: str, digest: str, caplog: pytest.LogCaptureFixture) -> None:
    """Heads that were trained for another model than that of this digest are loaded with a warning; its own without."""
    change_config(heads, llmi={"kind": kind, "target_digest": "0" * 64})
    load()
    assert any("0" * 64 in line and digest in line for line in caplog.messages)
    caplog.clear()
    change_config(heads, llmi={"kind": kind, "target_digest": digest})
    load()
    assert not [line for line in caplog.messages if "trained" in line]


def test_another_target(model: Path, heads: Path, plain: LLM, caplog: pytest.LogCaptureFixture) -> None:
    check_another_target(lambda: load(model, heads), heads, "eagle", plain.model_info.sha256, caplog)


def test_where_it_may_be_given(model: Path, heads: Path, plain: LLM, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCombinationError, match="loaded with the model"):
        plain.generate([1, 2], PARAMS, speculative_config=Eagle(heads))
    other = tmp_path / "other"
    shutil.copytree(heads, other)
    with LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(heads), **OPTIONS) as llm:
        with pytest.raises(UnsupportedCombinationError, match="other"):
            llm.generate([1, 2], PARAMS, speculative_config=Eagle(other))
        assert llm.generate([1, 2], PARAMS, speculative_config=SpeculativeConfig([Eagle(heads, 1), lambda context: [1]])) == plain.generate(
            [1, 2], PARAMS
        )
    with pytest.raises(InvalidParamsError, match="num_draft_tokens"):
        Eagle(heads, 0)
    assert Eagle(heads) == Eagle(heads) != Eagle(heads, 3)
    assert np.isfinite(Eagle(heads).expected_acceptance)
