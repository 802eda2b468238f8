"""Files of trained drafters: found, opened and checked against the model that they were trained for. Weights are read by the core."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.base.log import log
from llmi.errors import ModelFileError, UnsupportedModelError, from_core
from llmi.families.config import Config
from llmi.families.rope import rope_of
from llmi.families.spec import AttentionSpec, EmbeddingSpec, LayerSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec, TensorBinding
from llmi.models.files import ModelDigest
from llmi.models.layout import open_input

_WEIGHTS, _CONFIG, _PACKED = "model.safetensors", "config.json", "eagle.safetensors"
#: Names of matrices in Q4_0 end so: uint8 [rows, columns / 32 * 18] (llmi.training.packed).
_PACKED_SUFFIX = ".q4_0"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_CONFIG_BYTES = 1 << 20
_ACTIVATIONS = {"silu": "silu", "swish": "silu"}


@dataclasses.dataclass(frozen=True)
class Heads:
    """The open file of a drafter.

    Attributes
    ----------
    path : Path
        As it was given: a folder, or one .safetensors file.
    core : _core.ModelFiles
    config : mapping
        config.json, or the JSON under "config" in the file's metadata.
    tensors : mapping
        {name: shape}, of packed matrices those that they have unpacked.
    shortlist : list of int
        The tokens that drafts are chosen from; empty: the file names none.
    offsets : list of int
        EAGLE-3's d2t: what is added to each id of its head to have the model's; empty: the file has none.
    """

    path: Path
    core: _core.ModelFiles
    config: Mapping[str, Any]
    tensors: Mapping[str, list[int]]
    shortlist: list[int]
    offsets: list[int]

    @property
    def is_eagle3(self) -> bool:
        """Whether the file is laid out as SpecForge writes EAGLE-3."""
        return any(name.startswith("midlayer.") for name in self.tensors)


def refuse_pickled(path: Path) -> None:
    """Raises ModelFileError for a file that only unpickling could read."""
    if path.suffix.lower() in _PICKLED:
        raise ModelFileError(
            f"{path}: pickled weights can run any code when they are read, so llmi never does: convert them with safetensors.torch.save_file,"
            " on a machine where that may happen",
            path,
        )


def open_heads(path: Path) -> Heads:
    """Opens the drafter at `path`. Raises ModelFileError that names what is wrong."""
    refuse_pickled(path)
    weights, config_path = (path / _WEIGHTS, path / _CONFIG) if path.is_dir() else (path, None)
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
    return Heads(
        path,
        core,
        _config(text, config_path or path),
        tensors,
        _integers(file, header, "shortlist", weights),
        _integers(file, header, "d2t", weights),
    )


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


def _integers(file: _core.InputFile, header: Mapping[str, Any], name: str, path: Path) -> list[int]:
    """The values of an integer tensor; empty if there is none."""
    entry = header.get(name)
    if entry is None:
        return []
    code = {"I32": "i", "I64": "q"}.get(entry["dtype"])
    if code is None or len(entry["shape"]) != 1:
        raise ModelFileError(f"{path}: tensor {name!r} must be a list of I32 or I64, not {entry['dtype']} {entry['shape']}", path, name)
    base = 8 + int.from_bytes(file.read(0, 8), "little")
    begin, end = entry["data_offsets"]
    return list(struct.unpack(f"<{entry['shape'][0]}{code}", file.read(base + begin, end - begin)))


def checked_shortlist(heads: Heads, vocab_size: int) -> list[int]:
    """The file's shortlist, ascending. Raises ModelFileError for ids outside the vocabulary, or twice in it."""
    if heads.is_eagle3:
        return _eagle3_tokens(heads, vocab_size)
    ids = sorted(heads.shortlist)
    if wrong := [token for token in ids if not 0 <= token < vocab_size]:
        raise ModelFileError(f"{heads.path}: shortlist holds {wrong[0]}, outside the vocabulary [0, {vocab_size})", heads.path, "shortlist")
    if len(set(ids)) != len(ids):
        raise ModelFileError(f"{heads.path}: shortlist holds a token twice", heads.path, "shortlist")
    return ids


def _eagle3_tokens(heads: Heads, vocab_size: int) -> list[int]:
    """The model's token of each row of EAGLE-3's head."""
    num_rows = heads.tensors.get("lm_head.weight", [0])[0]
    if not heads.offsets and num_rows != vocab_size:
        raise ModelFileError(
            f"{heads.path}: tensor 'd2t' is missing: the head has {num_rows} rows, the model {vocab_size} tokens", heads.path, "d2t"
        )
    if heads.offsets and len(heads.offsets) != num_rows:
        raise ModelFileError(f"{heads.path}: d2t has {len(heads.offsets)} entries, the head {num_rows} rows", heads.path, "d2t")
    ids = [row + offset for row, offset in enumerate(heads.offsets or [0] * num_rows)]
    if wrong := [(row, token) for row, token in enumerate(ids) if not 0 <= token < vocab_size]:
        row, token = wrong[0]
        raise ModelFileError(f"{heads.path}: d2t[{row}] names token {token}, outside the vocabulary [0, {vocab_size})", heads.path, "d2t")
    if len(set(ids)) != len(ids):
        raise ModelFileError(f"{heads.path}: d2t names a token twice", heads.path, "d2t")
    return ids


def core_options(heads: Heads, target: ModelSpec, shortlist: list[int]) -> dict[str, Any]:
    """The core's options for a drafter (csrc/model/eagle.h, EagleFile)."""
    options = {"eagle_files": heads.core, "eagle_spec": eagle_spec(heads, target).to_json(), "eagle_shortlist": shortlist}
    if not heads.is_eagle3:
        return options | {"eagle_inert": ["shortlist"]}
    # The embedding is the target's: training keeps it as it is. t2d says what d2t says.
    return options | {
        "eagle_taps": _taps(heads, len(target.layers)), "eagle_embedding_norm": "midlayer.input_layernorm.weight",
        "eagle_hidden_norm": "midlayer.hidden_norm.weight", "eagle_inert": ["d2t", "t2d", "embed_tokens.weight"],
    }  # fmt: skip


def _taps(heads: Heads, num_layers: int) -> list[int]:
    """The layers whose output EAGLE-3 reads, counted from 1: a file's list, or the second, the middle and the third from the end."""
    own = heads.config.get("eagle_config")
    listed = own.get("eagle_aux_hidden_state_layer_ids") if isinstance(own, dict) else None
    listed = listed or heads.config.get("eagle_aux_hidden_state_layer_ids") or [2, num_layers // 2, num_layers - 3]
    columns = heads.tensors.get("fc.weight", [0, 0])[-1]
    is_list = isinstance(listed, list) and all(isinstance(layer, int) and not isinstance(layer, bool) for layer in listed)
    if not is_list or not all(0 <= layer <= num_layers for layer in listed) or len(listed) * heads.config["hidden_size"] != columns:
        raise ModelFileError(
            f"{heads.path}: eagle_aux_hidden_state_layer_ids = {listed!r:.60}: {columns} columns of fc.weight need"
            f" {columns // heads.config['hidden_size']} layers in [0, {num_layers}]",
            heads.path, "eagle_aux_hidden_state_layer_ids",
        )  # fmt: skip
    return list(listed)


def eagle_spec(heads: Heads, target: ModelSpec) -> ModelSpec:
    """The one layer of a file. Raises ModelFileError where it does not fit the target."""
    c = Config(heads.config, str(heads.path), heads.tensors)
    for key, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if c.positive(key) != wanted:
            raise ModelFileError(
                f"{heads.path}: {key} = {c.positive(key)}, the model's is {wanted}: this drafter was trained for another model",
                heads.path,
                key,
            )
    num_heads = c.positive("num_attention_heads")
    num_kv_heads = c.optional_integer("num_key_value_heads") or num_heads
    head_dim = c.optional_integer("head_dim") or target.hidden_size // num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        c.refuse("num_key_value_heads", f"num_key_value_heads = {num_kv_heads} does not divide num_attention_heads = {num_heads}")
    activation = c.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(f"{heads.path}: hidden_act = {activation!r:.40}: an EAGLE layer has silu", heads.path, "hidden_act")

    layer = "midlayer" if heads.is_eagle3 else "layers.0"

    def linear(name: str) -> LinearSpec:
        bias = f"{layer}.{name}.bias"
        return LinearSpec(TensorBinding(f"{layer}.{name}.weight"), TensorBinding(bias if bias in heads.tensors else ""))

    attention = AttentionSpec(
        query=linear("self_attn.q_proj"), key=linear("self_attn.k_proj"), value=linear("self_attn.v_proj"), output=linear("self_attn.o_proj"),
        rope=0, scale=head_dim**-0.5,
    )  # fmt: skip
    mlp = MlpSpec(
        size=c.positive("intermediate_size"), gate=linear("mlp.gate_proj"), up=linear("mlp.up_proj"), down=linear("mlp.down_proj")
    )
    norm = NormSpec(True, "rms", c.number("rms_norm_eps", 1e-6), TensorBinding(f"{layer}.post_attention_layernorm.weight"))
    spec = ModelSpec(
        family="eagle", hidden_size=target.hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
        vocab_size=target.vocab_size, max_position=target.max_position, embedding=EmbeddingSpec(TensorBinding("embed_tokens.weight")),
        layers=[LayerSpec(mlp_norm=norm, attention=attention, mlp=mlp)], ropes=[rope_of(c, head_dim)],
    )  # fmt: skip
    if heads.is_eagle3:
        spec.family, spec.vocab_size = "eagle3", heads.tensors.get("lm_head.weight", [0])[0]
        spec.head.weight = TensorBinding("lm_head.weight")
        spec.final_norm = NormSpec(True, "rms", norm.eps, TensorBinding("norm.weight"))
    return spec


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
            heads.path, trained_on, digest(),
        )  # fmt: skip
