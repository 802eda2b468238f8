"""The core's decoder of a model's files, by its family's card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.errors import InvalidParamsError, LlmiError, ModelFileError, UnsupportedModelError
from llmi.families import spec_of


def open_decoder(path: Path | str, overrides: dict[str, Any] | None = None, **options: Any) -> Any:
    """A testing.Decoder. overrides: hf_overrides; options: the decoder's."""
    files = _core.ModelFiles(str(path))
    spec = spec_of(files, json.dumps(overrides) if overrides else "")
    return _core.testing.Decoder(files, spec=spec.to_json(), **options)


def logits_of(path: Path | str, token_ids: Sequence[int], overrides: dict[str, Any] | None = None, **options: Any) -> Any:
    """The logits of each position of a text [tokens, vocabulary], in fp32 and over an fp32 cache unless options say otherwise."""
    decoder = open_decoder(path, overrides, **{"dtype": "float32", "kv_dtype": "float32", "num_pages": 64} | options)
    return decoder.forward([(decoder.new_sequence(), token_ids, None)])[0]


def numbers_of(path: Path | str) -> dict[str, Any]:
    """The sizes of a model."""
    numbers: dict[str, Any] = _core.spec_numbers(spec_of(_core.ModelFiles(str(path))).to_json(), str(path))
    return numbers


#: What open_decoder raises for a file or an override that it refuses.
Refusal = (LlmiError, _core.CoreError)


def kind_of(error: Exception) -> str:
    """The kind of a refusal, in the core's names, whether Python or the core refuses."""
    if isinstance(error, _core.CoreError):
        return str(error.kind)
    kinds = {UnsupportedModelError: "unsupported_model", ModelFileError: "model_file", InvalidParamsError: "invalid_argument"}
    return next(name for kind, name in kinds.items() if isinstance(error, kind))
