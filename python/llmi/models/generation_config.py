"""A model's generation_config.json: each key is used, known to change nothing, or named in one warning."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.base.kinds import Flag, Kind, Whole, parse, show
from llmi.errors import InvalidParamsError, LlmiError, ModelFileError
from llmi.models.input_file import is_there, read_json
from llmi.params.foreign_options import CALL_FOREIGN
from llmi.params.sampling import ALIASES, SAMPLING, canonical

_MAX_BYTES = 1 << 20
#: Keys of the file that set a parameter.
_USED = frozenset(
    {
        *(name for name, option in SAMPLING.items() if option.from_model),
        "num_return_sequences",
        "max_new_tokens",
        "min_new_tokens",
        "do_sample",
        "suppress_tokens",
        "sequence_bias",
        "bad_words_ids",
        "stop_strings",
    }
)
#: Keys that change nothing, whatever they hold, with the reason.
_INERT = {
    "eos_token_id": "the tokenizer reads it",
    "transformers_version": "it says who wrote the file",
    "_from_model_config": "it says where the file came from",
    "_commit_hash": "it says where the file came from",
    "_name_or_path": "it says where the file came from",
    "cache_implementation": "the cache is llmi's own",
    "cache_config": "the cache is llmi's own",
    "chat_format": "the chat template says it",
    "trust_remote_code": "no code of a model is ever run",
}
#: Keys of transformers' speculation: no effect without its own drafter, which the call names.
_SPECULATION = frozenset(
    {
        "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size",
        "assistant_lookbehind", "target_lookbehind",
    }
)  # fmt: skip


def generation_defaults(model_path: Path, generation_config: str | os.PathLike[str], max_model_len: int = 2**31 - 1) -> dict[str, Any]:
    """Sampling defaults of the model's file, in their plain form. "auto": the model's; "vllm" or "none": none; else a path.

    Raises ModelFileError, with the field, for a value of a wrong kind. Keys that llmi cannot honour are named in one
    warning.
    """
    if str(generation_config) in ("none", "vllm"):
        return {}
    path = model_path / "generation_config.json" if str(generation_config) == "auto" else Path(generation_config)
    if path.is_dir():
        path = path / "generation_config.json"
    if not is_there(path):
        if str(generation_config) != "auto":
            raise ModelFileError(f"generation_config: {path}: no such file", path)
        return {}
    return _defaults(_read(path), path, max_model_len)


def _read(path: Path) -> dict[str, Any]:
    config = read_json(path, _MAX_BYTES)
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: holds {show(config)}, not a JSON object", path)
    return config


def _defaults(config: Mapping[str, Any], path: Path, max_model_len: int) -> dict[str, Any]:
    used: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for name, value in config.items():
        if name in _USED:
            if value is not None:
                used[name] = value
        elif name == "max_length":
            length = value if value is None else _field(Whole(0, 2**63 - 1), name, value, path)
            if length is not None and length < max_model_len:  # else the context ends before it
                left[name] = value
        elif name not in _INERT and name not in _SPECULATION and not _changes_nothing(name, value):
            left[name] = value
    if used.get("do_sample") is not None and _field(Flag(), "do_sample", used["do_sample"], path):
        del used["do_sample"]  # llmi samples unless told otherwise
    defaults: dict[str, Any] = {}
    for name, value in used.items():  # one by one, so that an error names its field
        try:
            defaults[name] = canonical({name: value}, "generation_config")[0]
            for field, given in defaults[name].items():
                SAMPLING[field].parse(given, name)
        except LlmiError as error:
            raise ModelFileError(f"{path}: {error}", path, name) from None
    try:
        result = canonical(used, "generation_config")[0]
    except LlmiError as error:
        raise ModelFileError(f"{path}: {error}", path) from None
    if left:
        listed = ", ".join(f"{name} = {show(value)}" for name, value in left.items())
        warnings.warn(
            f"{path}: not honoured: {listed}. Give what you need to generate(), or generation_config='none' to leave the file out",
            UserWarning,
            stacklevel=4,
        )
    return {name: SAMPLING[name].parse(value) for name, value in result.items()}


def _changes_nothing(name: str, value: object) -> bool:
    foreign = CALL_FOREIGN.get(name)
    if foreign is None:
        return value is None and name in SAMPLING
    if foreign.inert is not None:
        return True
    try:
        foreign.check(value, "generation_config")
    except InvalidParamsError:
        return False
    return True


def _field(kind: Kind, name: str, value: object, path: Path) -> Any:
    try:
        return parse(kind, name, value)
    except InvalidParamsError as error:
        raise ModelFileError(f"{path}: {error}", path, name) from None


assert {*SAMPLING, *ALIASES, "do_sample", "suppress_tokens", "sequence_bias"} >= _USED
