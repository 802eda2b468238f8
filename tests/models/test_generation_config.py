"""generation_config.json: each key is used, known to change nothing, or named in one warning."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import LLM, InvalidParamsError, ModelFileError
from llmi.params.foreign_options import CALL_FOREIGN
from llmi.params.sampling import ALIASES, SAMPLING

CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llmi.testing.tiny_model(vocab_size=301, num_layers=1, path=tmp_path_factory.mktemp("generation"))


_FILE_KEYS: dict[str, tuple[Any, str, Any]] = {
    "temperature": (0.5, "temperature", 0.5),
    "top_k": (7, "top_k", 7),
    "top_p": (0.5, "top_p", 0.5),
    "min_p": (0.25, "min_p", 0.25),
    "repetition_penalty": (1.5, "repetition_penalty", 1.5),
    "max_new_tokens": (9, "max_tokens", 9),
    "min_new_tokens": (2, "min_tokens", 2),
    "do_sample": (False, "temperature", 0.0),
    "suppress_tokens": ([5, 6], "logit_bias", {5: -math.inf, 6: -math.inf}),
    "sequence_bias": ([[[5], 2.0]], "logit_bias", {5: 2.0}),
    "bad_words_ids": ([[5, 6]], "bad_words", [[5, 6]]),
    "stop_strings": (["zz"], "stop", ["zz"]),
    "typical_p": (0.5, "typical_p", 0.5),
    "epsilon_cutoff": (0.25, "epsilon_cutoff", 0.25),
    "eta_cutoff": (0.25, "eta_cutoff", 0.25),
    "top_h": (0.5, "top_h", 0.5),
    "no_repeat_ngram_size": (3, "no_repeat_ngram_size", 3),
}


def _defaults(path: Path, fields: Any) -> tuple[dict[str, Any], list[str]]:
    from llmi.models.generation_config import generation_defaults

    file = path / "generation_config.json"
    file.write_text(json.dumps(fields))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return generation_defaults(file, file, 64), [str(warning.message) for warning in seen]


@pytest.mark.parametrize("name", _FILE_KEYS)
def test_keys_of_generation_config_that_are_used(tmp_path: Path, name: str) -> None:
    value, field, ours = _FILE_KEYS[name]
    assert _defaults(tmp_path, {name: value}) == ({field: ours}, [])
    for wrong in (1.5 if name == "stop_strings" else "x", {"a": 1}, [None]):
        with pytest.raises(ModelFileError, match=name) as error:
            _defaults(tmp_path, {name: wrong})
        assert error.value.field == name


@pytest.mark.parity
def test_every_key_of_generation_config_is_used_inert_or_named(tmp_path: Path) -> None:
    import transformers

    defaults = vars(transformers.GenerationConfig())
    inert = {name for name, foreign in CALL_FOREIGN.items() if foreign.inert is not None} | {
        "eos_token_id",
        "transformers_version",
        "cache_implementation",
        "cache_config",
        "max_length",
    }
    for name, value in defaults.items():
        assert _defaults(tmp_path, {name: value})[1] == [] or name == "max_length", name
        odd: Any = 3 if isinstance(value, bool) or value is None else value + 3 if isinstance(value, int | float) else "odd"
        if (
            name in _FILE_KEYS
            or name in inert
            or name.startswith("_")
            or "assistant" in name
            or "lookbehind" in name
            or name == "max_matching_ngram_size"
        ):
            continue
        found, said = _defaults(tmp_path, {name: odd, "temperature": 0.5, "unheard_of": 1})
        if name not in SAMPLING and name not in ALIASES:
            assert found == {"temperature": 0.5} and len(said) == 1 and name in said[0] and "unheard_of" in said[0], name
    assert _defaults(tmp_path, {"max_length": 64}) == ({}, []) and "max_length" in _defaults(tmp_path, {"max_length": 20})[1][0]
    for broken in ([], "x", 5):
        with pytest.raises(ModelFileError):
            _defaults(tmp_path, broken)


def test_a_files_defaults_beside_the_users(path: Path, tmp_path: Path) -> None:
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"do_sample": False, "temperature": 0.7, "top_p": 0.5, "min_new_tokens": 3, "max_new_tokens": 100})
    )
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 20, max_model_len=64) as llm:
        llm.tokenizer.chat_template = "{{ messages[0].content }}"
        resolved = llm.generate([5, 6], top_p=None)[0].params_resolved
        assert (
            resolved["temperature"] == (0.0, "model")
            and resolved["top_p"] == (1.0, "no effect")
            and resolved["max_tokens"] == (63, "model")
        )
        assert llm.chat(CHAT)[0].params_resolved["max_tokens"][1] == "model"
        with pytest.raises(InvalidParamsError, match=r"min_tokens = 3.*max_tokens = 2.*generation_config"):
            llm.generate([5], max_tokens=2)
