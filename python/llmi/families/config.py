"""A model file's keys, behind one set of names: config.json's. Every key that is looked up is noted, so that the unread ones can be
refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, Self, TypeAlias

from llmi.errors import ModelFileError, UnsupportedModelError

Value: TypeAlias = object
Shape: TypeAlias = Sequence[int]

#: Names of GGUF metadata, after the architecture's; a key that is not here is None in GGUF.
GGUF_KEYS: Final[Mapping[str, str]] = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "head_dim": "attention.key_length",
    "value_head_dim": "attention.value_length",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "key_length_mla": "attention.key_length_mla",
    "value_length_mla": "attention.value_length_mla",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
    "vocab_size": "vocab_size",
    "use_parallel_residual": "use_parallel_residual",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "temperature_scale": "attention.temperature_scale",
    "temperature_length": "attention.temperature_length",
    "clip_qkv": "attention.clamp_kqv",
    "layer_rope_theta": "attention.rope_pattern",
    "max_alibi_bias": "attention.max_alibi_bias",
    "full_attention_interval": "full_attention_interval",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_inner_size": "ssm.inner_size",
    "conv_L_cache": "shortconv.l_cache",
}


class _Missing:
    """Stands for a value that has no default."""


MISSING: Final = _Missing()


class _Record:
    """Keys that were read of the outermost object and of those inside it."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.opened: list[tuple[str, Mapping[str, Value]]] = []


class Fields:
    """An object of a model file, and a note of each key that was looked up.

    Attributes
    ----------
    source : str
        A path, for messages.
    is_gguf : bool
    tensors : mapping of str to shape
        The file's tensors.
    max_model_len : int or None
        The engine's max_model_len, if it was given.
    rope_choice : str
        Which of a model's rotary tables was chosen.
    ignored : list of str
        Tensors that this choice leaves unused.
    """

    def __init__(
        self, values: Mapping[str, Value], source: str, tensors: Mapping[str, Shape], *, gguf: str = "", max_model_len: int | None = None
    ) -> None:
        self.source = source
        self.tensors = tensors
        self.max_model_len = max_model_len
        self.rope_choice = ""
        self.ignored: list[str] = []
        self._gguf = gguf
        self._aliases: Mapping[str, tuple[str, ...]] = {}
        self._defaults: Mapping[str, Value] = {}
        self._record = _Record()
        self._values, self._prefix = values, ""
        self._record.opened.append(("", values))

    @property
    def is_gguf(self) -> bool:
        return bool(self._gguf)

    def of_family(self, aliases: Mapping[str, tuple[str, ...]], defaults: Mapping[str, Value]) -> Self:
        """The same, with a family's other names of keys and, in config.json, its values of absent ones."""
        self._aliases, self._defaults = aliases, {} if self.is_gguf else defaults
        return self

    def with_default(self, key: str, value: Value) -> Self:
        """The same, with a value for a key that the file may lack."""
        self._defaults = {**self._defaults, key: value}
        return self

    def object_values(self) -> dict[str, Value]:
        """This object's members, as they are read from now on."""
        self._values = dict(self._values)
        return self._values

    def name(self, key: str) -> str:
        """The key as the file has it, for messages."""
        if not self.is_gguf:
            return self._prefix + key
        return key if "." in key else f"{self._gguf}.{GGUF_KEYS.get(key, key)}"

    def gguf_key(self, key: str) -> str:
        """A key of this architecture's metadata that config.json has no name for."""
        return f"{self._gguf}.{key}"

    def _note(self, key: str) -> Value:
        """The value, None if it is null; MISSING if there is no such key."""
        if self.is_gguf and key not in GGUF_KEYS and "." not in key:
            return MISSING
        names = (key,) if self.is_gguf else self._aliases.get(key, (key,))
        found: list[tuple[str, Value]] = []
        for name in names:
            self._record.read.add(self.name(name))
            stored = self.name(name) if self.is_gguf else name
            if stored in self._values:
                found.append((name, self._values[stored]))
        for name, value in found[1:]:
            if value != found[0][1]:
                self.contradiction(self.name(found[0][0]), self.name(name))
        return found[0][1] if found else self._defaults.get(key, MISSING)

    def find(self, key: str) -> Value:
        """None if it is absent or null."""
        value = self._note(key)
        return None if value is MISSING else value

    def has(self, key: str) -> bool:
        """Whether it is there and not null."""
        return self.find(key) is not None

    def object(self, key: str) -> Self | None:
        """An object inside this one; its members are noted separately from then on. None if it is absent or null."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, f"{self.name(key)} is not an object")
        return self.inside(key, value)

    def inside(self, key: str, values: Mapping[str, Value]) -> Self:
        """A reader of the object `key`."""
        inner = type(self)(values, self.source, self.tensors, max_model_len=self.max_model_len)
        inner._record, inner._prefix = self._record, f"{self.name(key)}."
        if all(prefix != inner._prefix for prefix, _ in self._record.opened):
            self._record.opened.append((inner._prefix, values))
        return inner

    # -- what was read

    def was_read(self, name: str) -> bool:
        """Whether the key of the outermost object has been read."""
        return name in self._record.read

    def unread(self) -> dict[str, Value]:
        """Members of this object and of those inside it that were opened and that nobody read; null ones are left out."""
        found: dict[str, Value] = {}
        for prefix, values in self._record.opened:
            found |= {
                prefix + key: values[key] for key in sorted(values) if values[key] is not None and prefix + key not in self._record.read
            }
        return found

    def choose_rope(self, name: str) -> None:
        """Notes which table was chosen, for the engine's numerics id."""
        self.rope_choice = name

    def ignore(self, tensor: str) -> None:
        """Notes a tensor that the choice leaves unused."""
        self.ignored.append(tensor)

    # -- refusals

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raises ModelFileError that names the key."""
        raise ModelFileError(f"{self.source}: {message}", self.source, self.name(key))

    def unsupported(self, key: str, message: str) -> NoReturn:
        """Raises UnsupportedModelError that names the key."""
        raise UnsupportedModelError(f"{self.source}: {message}", self.source, self.name(key))

    def contradiction(self, one: str, other: str) -> NoReturn:
        """Raises ModelFileError: two keys that must agree do not."""
        raise ModelFileError(f"{self.source}: '{one}' and '{other}' say different things", self.source, one)


class Config(Fields):
    """A reader of config.json or of GGUF metadata. Getters take config.json's names.

    A key that is null counts as absent for the getters that return None; the others refuse it.

    Examples
    --------
    >>> c.integer("hidden_size"), c.number("rope_theta", 10000.0)  # doctest: +SKIP
    (64, 10000.0)
    """

    def _get(self, key: str, default: Value) -> Value:
        value = self._note(key)
        if value is MISSING:
            value = default
        if value is MISSING:
            self.refuse(key, f"'{self.name(key)}' is missing")
        return value

    def integer(self, key: str, default: int | _Missing = MISSING) -> int:
        """A whole number; 2.0 is one too."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        self._wrong_kind(key, "an integer")

    def number(self, key: str, default: float | _Missing = MISSING) -> float:
        """A number; JSON's have no infinity."""
        value = self._get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value)
        self._wrong_kind(key, "a number")

    def boolean(self, key: str, default: bool | _Missing = MISSING) -> bool:
        """True or false."""
        value = self._get(key, default)
        if isinstance(value, bool):
            return value
        self._wrong_kind(key, "true or false")

    def text(self, key: str, default: str | _Missing = MISSING) -> str:
        """A string."""
        value = self._get(key, default)
        if isinstance(value, str):
            return value
        self._wrong_kind(key, "a string")

    def optional_integer(self, key: str) -> int | None:
        """None if it is absent or null."""
        return self.integer(key) if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        """None if it is absent or null."""
        return self.number(key) if self.has(key) else None

    def optional_text(self, key: str) -> str | None:
        """None if it is absent or null."""
        return self.text(key) if self.has(key) else None

    def listed(self, key: str, length: int) -> list[Value] | None:
        """A list with one entry for each layer or dimension; None if it is absent or null."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self._wrong_kind(key, "an array")
        if len(value) != length:
            self.refuse(key, f"{self.name(key)} has {len(value)} entries for {length} layers")
        return value

    def numbers(self, key: str, length: int) -> list[float]:
        """A list of numbers that must be there."""
        value = self._get(key, MISSING)
        wrong = not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int | float) for item in value)
        if wrong or not isinstance(value, list):
            self._wrong_kind(key, "an array of numbers")
        if len(value) != length:
            self.refuse(key, f"{self.name(key)} has {len(value)} entries where {length} are needed")
        return [float(item) for item in value]

    def per_layer(self, key: str, length: int) -> list[float]:
        """A GGUF's numbers, one for each layer, or one for all."""
        return self.numbers(key, length) if isinstance(self.find(key), list) else [self.number(key)] * length

    def positive(self, key: str, default: int | _Missing = MISSING) -> int:
        """An integer of 1 or more."""
        value = self.integer(key, default)
        if value < 1:
            self.refuse(key, f"{self.name(key)} must be positive")
        return value

    def choose(self, key: str, allowed: Iterable[str], default: str) -> str:
        """A text that must be one of those allowed."""
        value, names = self.text(key, default), list(allowed)
        if value not in names:
            self.unsupported(key, f"{self.name(key)} '{value}' ({', '.join(names)} are run)")
        return value

    def _wrong_kind(self, key: str, expected: str) -> NoReturn:
        self.refuse(key, f"field '{self.name(key)}' is not {expected}")
