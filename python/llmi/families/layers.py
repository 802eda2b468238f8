"""Changes that cards make to the layers of a spec: windows by kind of layer, rotation, multipliers."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from llmi.families.config import Config
from llmi.families.spec import ModelSpec, RopeSpec

FULL, SLIDING = "full_attention", "sliding_attention"


def f32(value: float) -> float:
    """The value in fp32, as a GGUF holds it: so what is worked out of it has the same bits for both kinds of files."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def bias(c: Config, key: str, default: bool = False) -> bool:
    """Whether config.json says that there are biases. In a GGUF the tensors say it."""
    return c.boolean(key, default)


def every(pattern: int, num_layers: int) -> list[str]:
    """Each pattern-th layer sees all tokens; 0: none does."""
    return [FULL if pattern > 0 and (index + 1) % pattern == 0 else SLIDING for index in range(num_layers)]


def kinds_of(c: Config, spec: ModelSpec, rule: Sequence[str]) -> list[str]:
    """The kind of each layer: by layer_types, or a GGUF's sliding_window_pattern; by the family's rule if there is none."""
    number, key = len(spec.layers), "sliding_window_pattern"
    if c.is_gguf:
        pattern = c.find(key)
        if pattern is None:
            return list(rule)
        if not isinstance(pattern, list):
            return every(pattern_of(c, 0, lowest=0), number)
        flags = c.listed(key, number) or []
        if any(not isinstance(flag, bool) for flag in flags):
            c.refuse(key, f"field '{c.name(key)}' is not true or false")
        return [SLIDING if flag else FULL for flag in flags]
    kinds = c.listed("layer_types", number)
    for kind in kinds or []:
        if kind not in (FULL, SLIDING):
            c.unsupported("layer_types", f"layer_types holds '{kind}' ({FULL} and {SLIDING} are run)")
    return list(rule) if kinds is None else [str(kind) for kind in kinds]


def kinds_by_kv_heads(c: Config, number: int, other: str) -> list[str]:
    """The kind of each layer of a GGUF with states: those without KV heads are `other`; the number of KV heads is then that of the rest."""
    key = "num_key_value_heads"
    if not isinstance(c.find(key), list):
        return [FULL] * number
    heads = [value for value in c.listed(key, number) or [] if isinstance(value, int)]
    c.object_values()[c.name(key)] = max(heads, default=0)
    return [FULL if value else other for value in heads]


def pattern_of(c: Config, default: int, lowest: int = 1) -> int:
    """sliding_window_pattern as a number: each such layer sees all tokens."""
    key = "sliding_window_pattern"
    pattern = c.integer(key, default)
    if pattern < lowest:
        c.refuse(key, f"{c.name(key)} = {pattern} must be {lowest} or more")
    return pattern


def use_windows(c: Config, spec: ModelSpec, kinds: Sequence[str], window: int | None) -> None:
    """Sets the window of the sliding layers. Raises ModelFileError if there are such layers and no window."""
    for layer, kind in zip(spec.layers, kinds, strict=True):
        if kind == SLIDING:
            if window is None or window < 1:
                c.refuse("sliding_window", f"{c.name('sliding_window')} must be positive")
            layer.attention.window = window


def use_ropes(spec: ModelSpec, kinds: Sequence[str], ropes: Mapping[str, RopeSpec]) -> None:
    """One table for each kind of layer; layers of a kind without one are not rotated."""
    names = list(ropes)
    spec.ropes = list(ropes.values())
    for layer, kind in zip(spec.layers, kinds, strict=True):
        layer.attention.rope = names.index(kind) if kind in ropes else -1


def use_one_window(c: Config, spec: ModelSpec, window: int | None) -> None:
    """Sets the same window in every layer; None: no layer has one. Raises ModelFileError."""
    use_windows(c, spec, [FULL if window is None else SLIDING] * len(spec.layers), window)


def switched_windows(c: Config, spec: ModelSpec, first_layer: int = 28) -> None:
    """Qwen's windows: off unless use_sliding_window, and then only from layer max_window_layers on."""
    if c.is_gguf:
        return
    is_on, window, first = (
        c.boolean("use_sliding_window", False),
        c.optional_integer("sliding_window"),
        c.integer("max_window_layers", first_layer),
    )
    rule = [SLIDING if is_on and window is not None and index >= first else FULL for index in range(len(spec.layers))]
    use_windows(c, spec, kinds_of(c, spec, rule), window if is_on else None)


def multiply(c: Config, spec: ModelSpec) -> None:
    """Granite's four multipliers; logits are divided by the last one. A GGUF's attention scale of 0 is the usual one."""
    spec.embedding.scale = c.number("embedding_multiplier", 1.0)
    spec.head.scale = 1.0 / f32(positive(c, "logits_scaling", 1.0))
    attention = c.optional_number("attention_multiplier") if c.is_gguf else c.number("attention_multiplier", 1.0)
    for layer in spec.layers:
        layer.residual_scale = c.number("residual_multiplier", 1.0)
        layer.attention.scale = attention if attention else layer.attention.scale


def positive(c: Config, key: str, default: float) -> float:
    """A number above 0."""
    value = c.number(key, default)
    if not value > 0:
        c.refuse(key, f"{c.name(key)} must be positive")
    return value


def soft_cap(c: Config, key: str) -> float:
    """0 if there is none."""
    cap = c.optional_number(key)
    if cap is not None and not (cap > 0 or (c.is_gguf and cap == 0)):
        c.refuse(key, f"{c.name(key)} must be positive, or null for none")
    return cap or 0.0
