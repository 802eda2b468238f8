"""How a checkpoint's weights are quantised, by config.json; other files and keys that say it are named as what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmi import _core
from llmi.errors import ModelFileError, UnsupportedModelError, from_core
from llmi.families.config import Value

KEYS: Final = ("quantization_config", "compression_config")
_TAKE: Final = "take the model's unquantised safetensors, or a GGUF file of it"
#: Other files of a folder that describe quantised weights, with the ends of their tensors' names.
_OTHERS: Final = {
    "quantize_config.json": (
        ".qweight",
        "AutoGPTQ's description of GPTQ or AWQ weights, which config.json does not repeat: give its content, with its"
        ' quant_method: hf_overrides={"quantization_config": {"quant_method": "gptq", ...}}',
    ),
    "hf_quant_config.json": (".weight_scale", f"NVIDIA ModelOpt's description of fp8 or NVFP4 weights, which llmi does not read: {_TAKE}"),
}


def description_of(values: Mapping[str, Value], source: str, files: _core.ModelFiles) -> str:
    """The description of how the weights are quantised, as JSON for the core, which reads every key of it; empty if there is none.

    Raises ModelFileError for two that differ, UnsupportedModelError for those that are not config.json's.
    """
    inner = values.get("text_config")
    holders = (values, inner if isinstance(inner, Mapping) else {})
    if any(isinstance(holder.get("quantization"), Mapping) for holder in holders):
        raise UnsupportedModelError(
            f"{source}: 'quantization' says that the weights are in MLX's packed format, which llmi does not read: {_TAKE}",
            source,
            "quantization",
        )
    found = [(key, holder[key]) for holder in holders for key in KEYS if holder.get(key) is not None]
    if not found:
        _refuse_others(Path(files.path), files)
        return ""
    if any(value != found[0][1] for _, value in found):
        raise ModelFileError(f"{source}: the weights' quantisation is described twice, and differently", source, "quantization_config")
    key, value = found[0]
    if key == "compression_config" and isinstance(value, dict):  # older files of compressed-tensors
        value = {"quant_method": "compressed-tensors"} | value
    return json.dumps(value, sort_keys=True)


def _refuse_others(directory: Path, files: _core.ModelFiles) -> None:
    """Raises UnsupportedModelError where another file says how the tensors are quantised."""
    for name, (ending, what) in _OTHERS.items():
        if not (directory / name).is_file():
            continue
        try:
            is_quantised = any(tensor.name.endswith(ending) for tensor in _core.model_tensors(files, ""))
        except _core.CoreError as error:
            raise from_core(error, files.path) from None
        if is_quantised:
            raise UnsupportedModelError(f"{directory / name}: {what}", directory, name)
