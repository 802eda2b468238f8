"""Rotary tables of all families: config.json's of transformers 4 and 5, and GGUF's.

A model with two tables for lengths (longrope, dynamic NTK) gets one for the whole engine, by max_model_len, and the choice is named.
transformers changes the table when a text grows past the original length, so its logits of shorter texts differ from an engine's that was
opened for long ones.

Sources: Su et al., RoFormer, 2021; Peng et al., YaRN, 2023; Ding et al., LongRoPE, 2024; transformers, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from llmi.families.config import Config
from llmi.families.spec import RopeSpec

TYPES: Final = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
_STILL: Final = 9e29  # a divisor of frequencies that do not turn; a GGUF has 1e30
#: Other names of them, as older files have them; for text alone M-RoPE's three axes are equal.
_OTHER_NAMES: Final = {"su": "longrope", "mrope": "default"}
_GGUF_TYPES: Final = ("none", "linear", "yarn", "longrope")


def rope_of(c: Config, head_dim: int, theta: float = 10000.0, partial: float = 1.0, *, truncate: bool = True) -> RopeSpec:
    """The one table of a model. theta, partial: the family's values where the file has none; truncate: YaRN's, which no GGUF has."""
    if c.is_gguf:
        return _from_gguf(c, head_dim, truncate)
    parameters = c.object("rope_parameters")
    scaling = c.object("rope_scaling")
    inner = parameters or c
    rope = RopeSpec(theta=_theta(c, "rope_theta", parameters, scaling, theta))
    part = _agreed(c, "partial_rotary_factor", parameters or scaling, "partial_rotary_factor", partial)
    rope.rotary_dim = _rotary_dim(inner, head_dim, part)
    if parameters is None:
        return _scaled(c, scaling, rope, head_dim) if scaling else rope
    unscaled = RopeSpec(theta=rope.theta, rotary_dim=rope.rotary_dim)
    rope = _scaled(c, parameters, rope, head_dim)
    _check_same(c, scaling, parameters, unscaled, rope)
    return rope


def ropes_by_kind(c: Config, head_dims: Mapping[str, int], thetas: Mapping[str, float]) -> dict[str, RopeSpec]:
    """One table for each kind of layer. head_dims, thetas: of the kinds; thetas are the family's, where the file has none."""
    if c.is_gguf:
        full = _from_gguf(c, head_dims["full_attention"])
        swa = c.number(c.gguf_key("rope.freq_base_swa"), thetas["sliding_attention"])
        rotary_dim = c.integer(c.gguf_key("rope.dimension_count_swa"), min(full.rotary_dim, head_dims["sliding_attention"]))
        return {"full_attention": full, "sliding_attention": RopeSpec(theta=swa, rotary_dim=rotary_dim)}
    parameters = c.object("rope_parameters")
    ropes = {}
    for kind, theta in thetas.items():
        is_full = kind == "full_attention"
        key, head_dim = "rope_theta" if is_full else "rope_local_base_freq", head_dims[kind]
        scaling = c.object("rope_scaling") if is_full else None
        inner = parameters.object(kind) if parameters is not None else scaling
        if parameters is not None and inner is None:
            parameters.refuse(kind, f"'{parameters.name(kind)}' is missing: this family has one entry for each kind of layer")
        rope = RopeSpec(theta=_theta(c, key, inner if parameters is not None else None, scaling, theta))
        rope.rotary_dim = _rotary_dim(inner or c, head_dim, _agreed(c, "partial_rotary_factor", inner, "partial_rotary_factor", 1.0))
        unscaled = RopeSpec(theta=rope.theta, rotary_dim=rope.rotary_dim)
        ropes[kind] = _scaled(c, inner, rope, head_dim) if inner is not None else rope
        if parameters is not None and inner is not None:
            _check_same(c, scaling, inner, unscaled, ropes[kind])
    return ropes


def _theta(c: Config, key: str, parameters: Config | None, scaling: Config | None, default: float) -> float:
    """A null at the top counts as absent."""
    if parameters is None:
        c.number(key, default)
    theta = _agreed(c, key, parameters if parameters is not None else scaling, "rope_theta", default)
    if theta <= 0:
        c.refuse(key, f"{c.name(key)} = {theta} must be positive")
    return theta


def _agreed(c: Config, top_key: str, inner: Config | None, key: str, default: float) -> float:
    """A number that may be at the top, in an object, or in both with the same value."""
    top = c.optional_number(top_key)
    value = inner.optional_number(key) if inner is not None else None
    if top is not None and value is not None and top != value and inner is not None:
        c.contradiction(c.name(top_key), inner.name(key))
    if value is not None:
        return value
    return default if top is None else top


def _rotary_dim(inner: Config, head_dim: int, factor: float) -> int:
    if not 0 < factor <= 1:
        inner.refuse("partial_rotary_factor", f"{inner.name('partial_rotary_factor')} must lie in (0, 1]")
    return int(head_dim * factor)


def _check_same(c: Config, scaling: Config | None, parameters: Config, unscaled: RopeSpec, rope: RopeSpec) -> None:
    """If the config has both rope_scaling and rope_parameters, they must agree."""
    if scaling is None:
        return
    if _scaled(c, scaling, unscaled, 0) != rope:
        c.contradiction(c.name("rope_scaling"), parameters.name("rope_type"))
    theta = scaling.optional_number("rope_theta")
    if theta is not None and theta != rope.theta:
        c.contradiction(parameters.name("rope_theta"), scaling.name("rope_theta"))


def _type_of(scaling: Config) -> str:
    new, old = scaling.optional_text("rope_type"), scaling.optional_text("type")
    if new and old and _OTHER_NAMES.get(old, old) != _OTHER_NAMES.get(new, new):
        scaling.contradiction(scaling.name("rope_type"), scaling.name("type"))
    named = new or old or "default"
    if named == "mrope" or old == "mrope":
        scaling.find("mrope_section")  # how images turn; a text's three axes are equal
        scaling.find("mrope_interleaved")
    found = _OTHER_NAMES.get(named, named)
    if found not in TYPES:
        scaling.unsupported("rope_type", f"{scaling.name('rope_type')}: RoPE scaling '{found}' is not run ({', '.join(TYPES)} are)")
    return found


def _scaled(c: Config, scaling: Config, rope: RopeSpec, head_dim: int) -> RopeSpec:
    """Reads "rope_scaling", or an object of "rope_parameters". Other members stay unread, and so are refused. c: the model's."""
    kind = _type_of(scaling)
    if kind == "linear":
        rope.linear_factor = scaling.number("factor")
    elif kind == "llama3":
        rope.llama3_factor = scaling.number("factor")
        rope.llama3_low_freq_factor = scaling.number("low_freq_factor")
        rope.llama3_high_freq_factor = scaling.number("high_freq_factor")
        rope.llama3_original_context = _original(c, scaling)
    elif kind == "yarn":
        _set_yarn(c, scaling, rope)
    elif kind == "longrope":
        _set_longrope(c, scaling, rope)
    elif kind == "dynamic":
        _set_dynamic(c, scaling, rope)
    elif kind == "proportional":
        turning = rope.rotary_dim // 2
        rope.frequency_divisors = [1.0] * turning + [_STILL] * (head_dim // 2 - turning)
        rope.rotary_dim, rope.linear_factor = head_dim, scaling.number("factor", 1.0)
    return rope


def _original(c: Config, scaling: Config) -> int:
    """The length that the model was trained at before it was stretched. At the top it comes first, as in transformers."""
    key = "original_max_position_embeddings"
    inner, top = scaling.optional_integer(key), c.optional_integer(key)
    found = top or inner or c.positive("max_position_embeddings", 2048)
    if found < 2:
        scaling.refuse(key, f"{scaling.name(key)} must be 2 or more")
    return found


def mscale(factor: float, scale: float = 1.0) -> float:
    """YaRN's growth of attention: 0.1 * scale * ln(factor) + 1."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _set_yarn(c: Config, scaling: Config, rope: RopeSpec) -> None:
    original = _original(c, scaling)
    factor = scaling.optional_number("factor")
    factor = c.positive("max_position_embeddings", 2048) / original if factor is None else factor
    magnitude = scaling.optional_number("attention_factor")
    one, all_dims = scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim")
    if magnitude is None:
        magnitude = mscale(factor, one) / mscale(factor, all_dims) if one and all_dims else mscale(factor)
    rope.magnitude = magnitude
    truncate = scaling.boolean("truncate", True)
    fast, slow = scaling.optional_number("beta_fast") or 32.0, scaling.optional_number("beta_slow") or 1.0
    if not (factor > 0 and fast > 0 and slow > 0 and rope.theta > 1):
        scaling.refuse("factor", f"{scaling.name('factor')}, beta_fast and beta_slow must be positive")
    set_yarn_range(rope, factor, original, fast, slow, truncate)


def set_yarn_range(rope: RopeSpec, factor: float, original: int, fast: float, slow: float, truncate: bool = True) -> None:
    """Sets the dimensions between which YaRN blends the stretched frequencies with the others."""

    def dimension(rotations: float) -> float:
        return rope.rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    rope.yarn_factor, rope.yarn_low, rope.yarn_high = factor, float(low), float(high + 0.001 if low == high else high)


def _set_longrope(c: Config, scaling: Config, rope: RopeSpec) -> None:
    original, most = _original(c, scaling), c.positive("max_position_embeddings", 2048)
    tables = {name: scaling.numbers(f"{name}_factor", rope.rotary_dim // 2) for name in ("short", "long")}
    name = _chosen_length(c, original, most)
    rope.frequency_divisors = [_f32(scaling, f"{name}_factor", value) for value in tables[name]]
    factor = scaling.optional_number("factor")
    factor = most / original if factor is None else factor
    magnitude = scaling.optional_number("attention_factor")
    rope.magnitude = magnitude if magnitude is not None else 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _chosen_length(c: Config, original: int, most: int) -> str:
    """Which of longrope's two tables the engine takes."""
    name = "long" if (c.max_model_len or most) > original else "short"
    c.choose_rope(f"longrope_{name}")
    return name


def _f32(scaling: Config, key: str, value: float) -> float:
    if not 0 < value < 3e38:
        scaling.refuse(key, f"{scaling.name(key)} must hold positive numbers")
    return value


def _set_dynamic(c: Config, scaling: Config, rope: RopeSpec) -> None:
    """NTK-aware scaling: a larger theta for longer texts, or with a fixed alpha (HunYuan)."""
    alpha, power = scaling.optional_number("alpha"), rope.rotary_dim / (rope.rotary_dim - 2) if rope.rotary_dim > 2 else 1.0
    if alpha:
        scaling.find("factor")
        rope.theta *= alpha**power
        return
    most = c.positive("max_position_embeddings", 2048)
    factor, length = scaling.number("factor"), max(c.max_model_len or most, most)
    if factor < 1:
        scaling.refuse("factor", f"{scaling.name('factor')} must be 1 or more")
    rope.theta *= (factor * length / most - (factor - 1)) ** power
    c.choose_rope(f"dynamic_{length}")


# -- GGUF


def _from_gguf(c: Config, head_dim: int, truncate: bool = True) -> RopeSpec:
    """As in llama.cpp: the default type is linear, the factor may have its old name, and a factor of 0 means no scaling."""
    key = c.gguf_key
    rope = RopeSpec(theta=c.number(key("rope.freq_base"), 10000.0), rotary_dim=c.integer(key("rope.dimension_count"), head_dim))
    kind = c.text(key("rope.scaling.type"), "linear")
    if kind not in _GGUF_TYPES:
        c.unsupported(
            key("rope.scaling.type"), f"{key('rope.scaling.type')}: RoPE scaling '{kind}' is not run ({', '.join(_GGUF_TYPES)} are)"
        )
    named, old = c.has(key("rope.scaling.factor")), c.number(key("rope.scale_linear"), 0.0)
    factor = c.number(key("rope.scaling.factor")) if named else old
    if named and old not in (0, factor):
        c.contradiction(key("rope.scale_linear"), key("rope.scaling.factor"))
    if all(f"rope_factors_{name}.weight" in c.tensors for name in ("long", "short")):
        _set_gguf_longrope(c, rope)
    elif "rope_freqs.weight" in c.tensors:
        rope.divisors_tensor = "rope_freqs.weight"
    if kind == "linear" and factor != 0:
        rope.linear_factor = factor
    if kind == "yarn" and factor != 0:
        _set_gguf_yarn(c, rope, factor, truncate)
    return rope


def _set_gguf_longrope(c: Config, rope: RopeSpec) -> None:
    key, most = c.gguf_key, c.positive("max_position_embeddings")
    original = c.integer(key("rope.scaling.original_context_length"), most)
    name = _chosen_length(c, original, most)
    other = "short" if name == "long" else "long"
    rope.divisors_tensor = f"rope_factors_{name}.weight"
    c.ignore(f"rope_factors_{other}.weight")
    rope.magnitude = c.number(key("rope.scaling.attn_factor"), 1.0)


def _set_gguf_yarn(c: Config, rope: RopeSpec, factor: float, truncate: bool) -> None:
    key = c.gguf_key
    original = c.integer(key("rope.scaling.original_context_length"), c.positive("max_position_embeddings"))
    log_multiplier = c.number(key("rope.scaling.yarn_log_multiplier"), 0.0)
    attention = c.number(key("rope.scaling.attn_factor"), 1.0)
    explicit = c.optional_number(key("rope.scaling.yarn_attn_factor"))
    rope.magnitude = (
        explicit
        if explicit is not None
        else attention * (mscale(factor) / mscale(factor, log_multiplier) if log_multiplier else mscale(factor))
    )
    fast, slow = c.number(key("rope.scaling.yarn_beta_fast"), 32.0), c.number(key("rope.scaling.yarn_beta_slow"), 1.0)
    if not (original > 1 and factor > 0 and fast > 0 and slow > 0 and rope.theta > 1):
        c.refuse(
            key("rope.scaling.factor"),
            f"{key('rope.scaling.factor')}, the original length and the betas must be positive, the base above 1",
        )
    set_yarn_range(rope, factor, original, fast, slow, truncate)
