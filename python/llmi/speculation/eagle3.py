"""EAGLE-3 files in the layouts of SpecForge, speculators and llama.cpp: three sets of names and keys for one kind of layer.

Sources: Li et al., EAGLE-3, 2025; SpecForge 0.2.0, speculators 0.9.0 and llama.cpp of 2026, which write and run such files. They differ in
more than names:

- SpecForge counts the layers that are read from 0 (in eagle_config), the others by how many layers have run.
- llama.cpp stores queries and keys in pairs (as of all models of its Llama kind), and in d2t tokens where the others store what is to be
added to a row's number.
- norm_output means in speculators that the next row reads what the head has read; SpecForge's code gives it another meaning than servers
do, so that it is refused there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from llmi import _core
from llmi.errors import ModelFileError, from_core
from llmi.families.config import Config
from llmi.families.spec import ModelSpec, NormSpec, TensorBinding
from llmi.speculation.layer_spec import layer_spec, refuse_unread

_LAYER: Final = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "mlp_norm": "post_attention_layernorm",
    "embedding_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
_OUTSIDE: Final = {
    "embedding": "embed_tokens",
    "final_norm": "norm",
    "head": "lm_head",
    "all_taps_norm": "input_norm",
    "tap_norm": "fc_norm",
}
_GGUF: Final = {
    "query": "blk.0.attn_q",
    "key": "blk.0.attn_k",
    "value": "blk.0.attn_v",
    "output": "blk.0.attn_output",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "mlp_norm": "blk.0.ffn_norm",
    "embedding_norm": "blk.0.attn_norm",
    "hidden_norm": "blk.0.attn_norm_2",
    "embedding": "token_embd",
    "final_norm": "output_norm",
    "head": "output",
    "all_taps_norm": "enc.output_norm",
}
#: Where files have a layer; the last is llama.cpp's.
_PREFIXES: Final = ("midlayer.", "layers.0.")
_ARCHITECTURE, _INNER, _LAYERS = "eagle3", "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
#: Lists of tokens, which Python reads, and copies of the target's that training keeps.
_INERT: Final = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")


def is_eagle3(tensors: Mapping[str, list[int]]) -> bool:
    """Whether these are tensors of an EAGLE-3 layer."""
    names = [*(f"{prefix}hidden_norm.weight" for prefix in _PREFIXES), f"{_GGUF['hidden_norm']}.weight"]
    return any(name in tensors for name in names)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The readers of one file: of its config and of the part that describes the layer, and what its tensors are called."""

    outer: Config
    layer: Config
    stems: Mapping[str, str]

    @property
    def tensors(self) -> Mapping[str, Any]:
        return self.outer.tensors

    def key(self, name: str) -> str:
        """A key as this layout has it."""
        return self.outer.gguf_key(name) if self.outer.is_gguf else name

    def flag(self, name: str) -> bool:
        """A switch that is off where the file does not name it."""
        return self.outer.has(self.key(name)) and self.outer.boolean(self.key(name))


def _layout(values: Mapping[str, Any], source: str, tensors: Mapping[str, list[int]], *, is_gguf: bool) -> _Layout:
    if is_gguf:
        c = Config(values, source, tensors, gguf=_ARCHITECTURE)
        c.choose("general.architecture", (_ARCHITECTURE,), "")
        return _Layout(c, c, _GGUF)
    c = Config(values, source, tensors)
    prefix = next(prefix for prefix in _PREFIXES if f"{prefix}hidden_norm.weight" in tensors)
    stems = {role: prefix + name for role, name in _LAYER.items()} | _OUTSIDE
    layer = c
    if c.has("speculators_model_type"):
        c.choose("speculators_model_type", ("eagle3",), "")
        layer = c.object(_INNER) or c.refuse(_INNER, f"'{_INNER}' is missing")
        layer.choose("model_type", ("llama", "qwen3"), "qwen3")
    elif c.has("norm_output"):
        c.unsupported(
            "norm_output",
            "norm_output: SpecForge's code and the servers that run its files understand it differently: take the key away if the layer is"
            " an EAGLE-3 one, or convert an EAGLE-3.1 one with speculators",
        )
    return _Layout(c, layer, stems)


def core_options(files: _core.ModelFiles, values: Mapping[str, Any], tensors: Mapping[str, list[int]], target: ModelSpec) -> dict[str, Any]:
    """The core's options for an EAGLE-3 file (csrc/model/eagle.h, EagleFile).

    Parameters
    ----------
    values : mapping
        config.json, or GGUF metadata.

    Raises
    ------
    ModelFileError, UnsupportedModelError
        It does not fit the target, or a key or tensor is missing, wrong or not known.
    """
    layout = _layout(values, files.path, tensors, is_gguf=files.gguf is not None)
    spec = layer_spec(layout.layer, target, layout.stems)
    spec.family = _ARCHITECTURE
    spec.final_norm = NormSpec(True, "rms", spec.layers[0].mlp_norm.eps, TensorBinding(f"{layout.stems['final_norm']}.weight"))
    _check_layer(layout, spec, target)
    taps = _taps(layout, len(target.layers), target.hidden_size)
    head = f"{layout.stems['head']}.weight"
    # It norms what the layer's stream begins with, or only what its attention reads of it.
    hidden_norm = f"{layout.stems['hidden_norm']}.weight"
    stream_is_normed = layout.flag("norm_before_residual")
    if not stream_is_normed:
        spec.layers[0].attention_norm = dataclasses.replace(spec.layers[0].mlp_norm, weight=TensorBinding(hidden_norm))
    options = {
        "eagle_files": files,
        "eagle_spec": spec.to_json(),
        "eagle_shortlist": _tokens(layout, files, target.vocab_size),
        "eagle_taps": taps,
        "eagle_embedding_norm": f"{layout.stems['embedding_norm']}.weight",
        "eagle_stream_norm": hidden_norm if stream_is_normed else "",
        "eagle_tap_norms": _tap_norms(layout, len(taps)),
        "eagle_head": head if head in tensors else "",
        "eagle_norm_output": layout.flag("norm_output"),
        "eagle_inert": list(_INERT),
    }
    refuse_unread(layout.outer, _ARCHITECTURE if layout.outer.is_gguf else "", _INNER)
    return options


def _check_layer(layout: _Layout, spec: ModelSpec, target: ModelSpec) -> None:
    key = layout.key("target_hidden_size")
    width = layout.outer.optional_integer(key)
    if width not in (None, target.hidden_size):
        layout.outer.refuse(key, f"{key} = {width}, the model's is {target.hidden_size}: this drafter was trained for another model")
    if not layout.outer.is_gguf and spec.ropes[0].rotary_dim not in (0, spec.head_dim):
        layout.layer.unsupported(
            "partial_rotary_factor", "partial_rotary_factor: such layers are trained with the whole of each head rotated"
        )
    for key, role in (("attention_bias", "query"), ("mlp_bias", "up")):
        is_missing = f"{layout.stems[role]}.bias" not in layout.tensors
        if layout.layer is not layout.outer and layout.layer.find(key) is True and is_missing:
            layout.layer.refuse(key, f"{layout.layer.name(key)}: tensor '{layout.stems[role]}.bias' is missing")


def _tap_norms(layout: _Layout, num_taps: int) -> list[str]:
    """Norms of what fc reads: one of all, one of each layer's, or none."""
    of_all, of_each = layout.flag("norm_before_fc"), layout.flag("fc_norm")
    if of_all and of_each:
        layout.outer.contradiction(layout.key("norm_before_fc"), layout.key("fc_norm"))
    if of_all:
        return [f"{layout.stems['all_taps_norm']}.weight"]
    return [f"{layout.stems['tap_norm']}.{tap}.weight" for tap in range(num_taps)] if of_each else []


def _taps(layout: _Layout, num_layers: int, hidden_size: int) -> list[int]:
    """How many of the target's layers have run where the streams are read. By default after the second, in the middle, and before the last
    three."""
    key = layout.key("target_layers" if layout.outer.is_gguf else _LAYERS)
    own = None if layout.outer.is_gguf else layout.outer.object("eagle_config")
    found = [(key, layout.outer.find(key) or None, 0), (f"eagle_config.{_LAYERS}", own.find(_LAYERS) if own else None, 1)]
    lists = [(name, _whole(layout, name, listed, before, num_layers)) for name, listed, before in found if listed]
    if len(lists) == 2 and lists[0][1] != lists[1][1]:
        layout.outer.contradiction(lists[0][0], lists[1][0])
    name, taps = lists[0] if lists else (key, [2, num_layers // 2, num_layers - 3])
    columns = layout.tensors.get("fc.weight", [0, 0])[-1]
    if len(taps) * hidden_size != columns or not all(0 <= tap <= num_layers for tap in taps):
        needed = f"{columns} columns of fc.weight need {columns // hidden_size} layers of the model's {num_layers}"
        layout.outer.refuse(name, f"{name}: {taps}: {needed}")
    if layout.outer.optional_integer("num_aux_hidden_states") not in (None, len(taps)):
        layout.outer.contradiction("num_aux_hidden_states", name)
    return taps


def _whole(layout: _Layout, name: str, listed: object, before: int, num_layers: int) -> list[int]:
    """The layers of a list; before: how many layers have run before the one that it calls 0."""
    if not isinstance(listed, list) or not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in listed):
        layout.outer.refuse(name, f"{name} = {listed!r:.60} is not a list of layers")
    taps = [layer + before for layer in listed]
    if not all(before <= tap <= num_layers for tap in taps):
        layout.outer.refuse(name, f"{name} = {listed!r:.60}: the model has {num_layers} layers")
    return taps


def _tokens(layout: _Layout, files: _core.ModelFiles, vocab_size: int) -> list[int]:
    """The model's token of each row of the head; empty: the head is the model's."""

    def refuse(field: str, message: str) -> NoReturn:
        raise ModelFileError(f"{files.path}: {message}", files.path, field)

    try:
        stored, mask = files.integers("d2t"), files.integers("t2d")
    except _core.CoreError as error:
        raise from_core(error, files.path) from None
    head = f"{layout.stems['head']}.weight"
    if head not in layout.tensors:
        if stored is not None:
            refuse("d2t", f"d2t: tensor '{head}' is missing, whose rows it is for")
        return []
    num_rows = layout.tensors[head][0]
    if layout.outer.optional_integer("draft_vocab_size") not in (None, num_rows):
        refuse("draft_vocab_size", f"draft_vocab_size = {layout.outer.find('draft_vocab_size')}, '{head}' has {num_rows} rows")
    if stored is None:
        if num_rows != vocab_size:
            refuse("d2t", f"tensor 'd2t' is missing: the head has {num_rows} rows, the model {vocab_size} tokens")
        stored = list(range(num_rows)) if layout.outer.is_gguf else [0] * num_rows
    if len(stored) != num_rows:
        refuse("d2t", f"d2t has {len(stored)} entries, the head {num_rows} rows")
    ids = stored if layout.outer.is_gguf else [row + offset for row, offset in enumerate(stored)]
    for row, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            refuse("d2t", f"d2t[{row}] names token {token}, outside the vocabulary [0, {vocab_size})")
    if len(set(ids)) != len(ids):
        refuse("d2t", "d2t names a token twice")
    if mask is not None and [token for token, is_listed in enumerate(mask) if is_listed] != sorted(ids):
        layout.outer.contradiction("t2d", "d2t")
    return ids
