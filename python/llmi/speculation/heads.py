"""Files of trained drafters: found, opened and checked against the model that they were trained for. Weights are read by the core."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.base.log import log
from llmi.errors import ModelFileError, UnsupportedModelError, from_core
from llmi.families.config import Config
from llmi.families.spec import ModelSpec
from llmi.models.files import ModelDigest
from llmi.models.layout import open_input
from llmi.speculation import eagle3
from llmi.speculation.layer_spec import layer_spec, refuse_unread

_WEIGHTS, _CONFIG, _PACKED = "model.safetensors", "config.json", "eagle.safetensors"
#: Names of matrices in Q4_0 end so: uint8 [rows, columns / 32 * 18], of 4.5 bits a weight (benchmarks/ship.py makes them).
_PACKED_SUFFIX = ".q4_0"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_CONFIG_BYTES = 1 << 20
#: Names of EAGLE-1's files, which llmi train-heads writes too.
_STEMS = {
    "query": "layers.0.self_attn.q_proj", "key": "layers.0.self_attn.k_proj", "value": "layers.0.self_attn.v_proj",
    "output": "layers.0.self_attn.o_proj", "gate": "layers.0.mlp.gate_proj", "up": "layers.0.mlp.up_proj", "down": "layers.0.mlp.down_proj",
    "mlp_norm": "layers.0.post_attention_layernorm", "embedding": "embed_tokens",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Heads:
    """The open file of a drafter.

    Attributes
    ----------
    path : Path
        As it was given: a folder, or one .safetensors file.
    core : _core.ModelFiles
    config : mapping
        config.json, the JSON under "config" in the file's metadata, or the metadata of a GGUF file.
    tensors : mapping
        {name: shape}, of packed matrices those that they have unpacked.
    """

    path: Path
    core: _core.ModelFiles
    config: Mapping[str, Any]
    tensors: Mapping[str, list[int]]

    @property
    def is_eagle3(self) -> bool:
        """Whether the file holds an EAGLE-3 layer (eagle3.py)."""
        return eagle3.is_eagle3(self.tensors)


def refuse_pickled(path: Path) -> None:
    """Raises ModelFileError for a file that only unpickling could read."""
    if path.suffix.lower() in _PICKLED:
        raise ModelFileError(
            f"{path}: pickled weights can run any code when they are read, so llmi never does: convert them with"
            " safetensors.torch.save_file, on a machine where that may happen",
            path,
        )


def open_heads(path: Path, names: Sequence[str] = (_WEIGHTS,)) -> Heads:
    """Opens the drafter at `path`. names: of its file in a folder; the first that is there. Raises ModelFileError that names what is
    wrong."""
    refuse_pickled(path)
    if path.suffix.lower() == ".gguf":
        return _open_gguf(path)
    name = next((name for name in names if (path / name).is_file()), names[0])
    weights, config_path = (path / name, path / _CONFIG) if path.is_dir() else (path, None)
    if path.is_dir() and not weights.is_file() and (path / _PACKED).is_file():
        weights, config_path = path / _PACKED, None
    if path.is_dir() and not weights.is_file():
        for pickled in sorted(file for file in path.iterdir() if file.suffix.lower() in _PICKLED):
            refuse_pickled(pickled)
    file = open_input(weights, "safetensors")
    config_file = None if config_path is None else open_input(config_path, "json")
    try:
        core = _core.ModelFiles(str(path), [file], config_file or file, None)
        tensors = dict(_unpacked(tensor.name, list(tensor.shape)) for tensor in core.tensors())
        header = json.loads(file.read(8, int.from_bytes(file.read(0, 8), "little")))  # which the core has checked
        text = (header.get("__metadata__") or {}).get("config") if config_file is None else config_file.read(0, _MAX_CONFIG_BYTES + 1)
    except _core.CoreError as error:
        raise from_core(error, weights) from None
    if text is None:
        raise ModelFileError(f"{weights}: the file's metadata has no 'config': give the folder with its config.json", weights, "config")
    return Heads(path, core, _config(text, config_path or path), tensors)


def _open_gguf(path: Path) -> Heads:
    file = open_input(path, "gguf")
    try:
        core = _core.ModelFiles(str(path), [file], None, None)
        return Heads(path, core, _core.model_fields(core) or {}, {tensor.name: list(tensor.shape) for tensor in core.tensors()})
    except _core.CoreError as error:
        raise from_core(error, path) from None


def _unpacked(name: str, shape: list[int]) -> tuple[str, list[int]]:
    """A tensor's name and shape without packing; the core refuses what is packed wrongly."""
    if not name.endswith(_PACKED_SUFFIX):
        return name, shape
    return name.removesuffix(_PACKED_SUFFIX), [*shape[:-1], *(columns // 18 * 32 for columns in shape[-1:])]


def _config(text: str | bytes, path: Path) -> dict[str, Any]:
    if len(text) > _MAX_CONFIG_BYTES:
        raise ModelFileError(f"{path}: the config has more than {_MAX_CONFIG_BYTES:,} bytes", path, "config")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: the config is not valid JSON: {error}", path, "config") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: the config is not an object", path, "config")
    return config


def checked_shortlist(heads: Heads, vocab_size: int) -> list[int]:
    """The file's shortlist, ascending. Raises ModelFileError for ids outside the vocabulary, or twice in it."""
    try:
        ids = sorted(heads.core.integers("shortlist") or [])
    except _core.CoreError as error:
        raise from_core(error, heads.path) from None
    if wrong := [token for token in ids if not 0 <= token < vocab_size]:
        raise ModelFileError(f"{heads.path}: shortlist holds {wrong[0]}, outside the vocabulary [0, {vocab_size})", heads.path, "shortlist")
    if len(set(ids)) != len(ids):
        raise ModelFileError(f"{heads.path}: shortlist holds a token twice", heads.path, "shortlist")
    return ids


def core_options(heads: Heads, target: ModelSpec, shortlist: list[int]) -> dict[str, Any]:
    """The core's options for a drafter (csrc/model/eagle.h, EagleFile). Raises ModelFileError where it does not fit the target."""
    if heads.is_eagle3:
        return eagle3.core_options(heads.core, heads.config, heads.tensors, target)
    if heads.core.gguf is not None:
        raise UnsupportedModelError(f"{heads.path}: a GGUF file of a drafter holds an EAGLE-3 layer, and this one has none", heads.path)
    c = Config(heads.config, str(heads.path), heads.tensors)
    spec = layer_spec(c, target, _STEMS)
    refuse_unread(c)
    return {"eagle_files": heads.core, "eagle_spec": spec.to_json(), "eagle_shortlist": shortlist, "eagle_inert": ["shortlist"]}


def target_digest(config: Mapping[str, Any]) -> str | None:
    """The digest of the model that heads with this config were trained on; None: it does not say."""
    own = config.get("llmi")
    trained_on = own.get("target_digest") if isinstance(own, dict) else None
    return trained_on if isinstance(trained_on, str) else None


def warn_of_other_target(heads: Heads, digest: ModelDigest) -> None:
    """One warning if the file says that it was trained on another model file than this."""
    trained_on = target_digest(heads.config)
    if trained_on is None:
        return
    digest.from_cache()
    if digest() != trained_on:
        log.warning(
            "%s was trained on the model file %s, and this one is %s: tokens stay right, but fewer drafts may be accepted",
            heads.path,
            trained_on,
            digest(),
        )
