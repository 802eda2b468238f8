"""What a model is, needs and costs: arithmetic on its numbers, no weights read."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.errors import InvalidParamsError, UnsupportedCombinationError, from_core
from llmi.families import ModelSpec, spec_of
from llmi.families.inert import matches
from llmi.models import layout
from llmi.models.files import open_model
from llmi.models.info import unpacked_of, unpacked_text
from llmi.params.overrides import overrides_text

STEP_TOKENS = 2048  # max_num_batched_tokens by default
MOST_TOKENS = 10**12
# What a process holds besides weights, cache and activations: Python with NumPy, and the tokenizer by its entries. Measured with SmolLM2
# (49,152 entries) and Gemma 3 (262,144): resident after a prompt of 2,040 tokens, the sum below is 2 and 3 % short of it.
_PROCESS_BYTES, _VOCABULARY_ENTRY_BYTES = 35_000_000, 400
_CONFIG_TYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}


def kv_head_bytes(head_dim: int, kv_cache_dtype: str = "float16") -> int:
    """Bytes of one head's K or V of one token; int8 has a 2-byte scale for each 16 values."""
    return (
        head_dim + head_dim // 8
        if kv_cache_dtype == "int8"
        else head_dim * {"float16": 2, "bfloat16": 2, "float32": 4, "fp8": 1}[kv_cache_dtype]
    )


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, kv_cache_dtype: str = "float16") -> int:
    """KV cache bytes of one token: 2 x layers x KV heads x head bytes."""
    return 2 * num_layers * num_kv_heads * kv_head_bytes(head_dim, kv_cache_dtype)


def seen_keys(num_tokens: int, window: int) -> float:
    """Keys that the queries of num_tokens tokens see in one layer, all together: L^2 / 2, less where a window (0: none) cuts it."""
    if not window or num_tokens <= window:
        return num_tokens * num_tokens / 2
    return window * num_tokens - window * window / 2


def prefill_flops(num_params: int, num_layers: int, width: int, num_tokens: int, windows: list[int] | None = None) -> int:
    """Operations of a prefill of L tokens: 2 P L + 2 n L^2 d (causal attention); with windows [num_layers] a layer attends to at most its
    own."""
    layers = windows if windows is not None else [0] * num_layers
    return 2 * num_params * num_tokens + int(4 * width * sum(seen_keys(num_tokens, window) for window in layers))


def decode_flops(num_params: int, num_layers: int, width: int, context: int, windows: list[int] | None = None) -> int:
    """Operations of one decoded token at context L: 2 P + 4 n L d; with windows [num_layers] a layer attends to at most its own."""
    layers = windows if windows is not None else [0] * num_layers
    return 2 * num_params + 4 * width * sum(min(context, window) if window else context for window in layers)


def devices_needed(requests_per_s: float, one_device_requests_per_s: float) -> int:
    """Devices for a load, from what one carries at its latency target (rounded up)."""
    return math.ceil(Fraction(str(requests_per_s)) / Fraction(str(one_device_requests_per_s)))


def windowed_kv_bytes(windows: list[int], num_kv_heads: int, head_dim: int, num_tokens: int, kv_cache_dtype: str = "float16") -> int:
    """KV cache bytes of a sequence when layers with a window keep what it sees (0: all)."""
    layer = 2 * num_kv_heads * kv_head_bytes(head_dim, kv_cache_dtype)
    return sum(layer * (min(num_tokens, window) if window else num_tokens) for window in windows)


@dataclasses.dataclass
class ModelReport:
    """The numbers of `llmi inspect`, and their text."""

    path: Path
    config: _core._ModelConfig
    tensors: list[_core.TensorInfo]
    kv_cache_dtype: str
    num_tokens: int
    workspace_bytes: int  # activations of the longest step that the engine makes by default, on the host
    list_tensors: bool = False
    assumed: str = ""
    activation_bits: int = 16  # bits of the input of quantised layers
    spec: ModelSpec | None = None

    @property
    def num_params(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def used(self, tensor: _core.TensorInfo) -> float:
        """The share of a tensor that a token uses: of experts' some."""
        return self._shares.get(tensor.name, 1.0)

    @functools.cached_property
    def _shares(self) -> dict[str, float]:
        return {} if self.spec is None else self.spec.used_shares()

    @property
    def num_active_params(self) -> int:
        """Parameters that a token uses."""
        return round(sum(math.prod(tensor.shape) * self.used(tensor) for tensor in self.tensors))

    @property
    def active_bytes(self) -> int:
        """Bytes of the weights that a token reads."""
        return round(sum((tensor.unpacked_bytes or tensor.num_bytes) * self.used(tensor) for tensor in self.tensors))

    @property
    def experts_text(self) -> str:
        """Experts of the layers that have some; empty if none has."""
        moes = [(layer.moe, layer.mlp.size) for layer in (self.spec.layers if self.spec else []) if layer.moe.num_experts]
        if not moes:
            return ""
        moe, shared = moes[0]
        beside = f" and a shared one of {shared:,}" if shared else ""
        return f"{moe.num_used} of {moe.num_experts} of {moe.expert.size:,}{beside}, in {len(moes)} layers"

    @property
    def weight_bytes(self) -> int:
        """As stored, but those that are unpacked at load as they then are."""
        return sum(tensor.unpacked_bytes or tensor.num_bytes for tensor in self.tensors)

    @property
    def unpacked(self) -> dict[str, tuple[int, int]]:
        """By name of a type that is unpacked at load: bytes in the file and in memory."""
        return unpacked_of(self.tensors)

    @property
    def has_quantized_layers(self) -> bool:
        """An embedding of a model with its own head is only looked up, not multiplied."""
        looked_up = "" if self.config["tied_embeddings"] else self.config["embedding"]
        matrices = [tensor for tensor in self.tensors if len(tensor.shape) >= 2 and tensor.name != looked_up]
        return any(tensor.dtype not in ("F32", "F16", "BF16") for tensor in matrices)

    @property
    def kinds(self) -> dict[tuple[int, int, int], list[int]]:
        """Windows of the layers that have the same query heads, KV heads (0: another layer's keys and values) and head size."""
        c = self.config
        kinds: dict[tuple[int, int, int], list[int]] = {}
        for *heads, window in zip(c["layer_heads"], c["layer_kv_heads"], c["layer_head_dims"], c["windows"], strict=True):
            kinds.setdefault((heads[0], heads[1], heads[2]), []).append(window)
        return kinds

    @property
    def kv_kinds(self) -> dict[tuple[int, int], int]:
        """How many layers keep keys and values of so many heads of this size."""
        kinds: dict[tuple[int, int], int] = {}
        for (_, kv_heads, size), windows in self.kinds.items():
            if kv_heads:
                kinds[kv_heads, size] = kinds.get((kv_heads, size), 0) + len(windows)
        return kinds

    def kv_bytes(self, num_tokens: int) -> int:
        """KV cache and states of one sequence, windows counted."""
        layers = self.kinds.items()
        kv = sum(windowed_kv_bytes(windows, heads, size, num_tokens, self.kv_cache_dtype) for (_, heads, size), windows in layers)
        return kv + int(self.config["state_bytes"])

    @property
    def overhead_bytes(self) -> int:
        """What the process holds besides weights, cache and activations, about."""
        return _PROCESS_BYTES + _VOCABULARY_ENTRY_BYTES * int(self.config["vocab_size"])

    def total_bytes(self, num_tokens: int) -> int:
        """Memory for one sequence of num_tokens tokens: weights, its cache, activations and overhead."""
        return self.weight_bytes + self.kv_bytes(num_tokens) + self.workspace_bytes + self.overhead_bytes

    def prefill(self, num_tokens: int) -> int:
        """Operations."""
        layers = self.kinds.items()
        attention = sum(prefill_flops(0, len(windows), heads * size, num_tokens, windows) for (heads, _, size), windows in layers)
        return 2 * self.num_active_params * num_tokens + attention

    def decode(self, context: int) -> int:
        """Operations of one token."""
        layers = self.kinds.items()
        attention = sum(decode_flops(0, len(windows), heads * size, context, windows) for (heads, _, size), windows in layers)
        return 2 * self.num_active_params + attention

    def sequences_in(self, memory_bytes: int, num_tokens: int) -> int:
        """Sequences of num_tokens tokens whose cache fits into memory_bytes."""
        return max(0, memory_bytes) // max(1, self.kv_bytes(num_tokens))

    def tokens_in(self, memory_bytes: int) -> int:
        """Tokens of one sequence, windows counted."""
        low, high = 0, min(MOST_TOKENS, max(0, memory_bytes))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.kv_bytes(middle) <= memory_bytes else (low, middle - 1)
        return low

    def _head_bytes(self, size: int) -> str:
        values, scales = divmod(kv_head_bytes(size, self.kv_cache_dtype), size)
        return f"({size} + {scales}) bytes" if scales else f"{size} x {values} bytes"

    def __str__(self) -> str:
        c, tokens = self.config, self.num_tokens
        kv_parts = self.kv_kinds.items()
        per_token = sum(kv_bytes_per_token(number, heads, size, self.kv_cache_dtype) for (heads, size), number in kv_parts)
        kept = " + ".join(f"{number} layers x {heads} KV heads x {self._head_bytes(size)}" for (heads, size), number in kv_parts)
        kept = f"({kept})" if len(kv_parts) > 1 else kept or "0"
        readers = c["layer_kv_heads"].count(0)
        kv = self.kv_bytes(tokens)
        available = _core.system_info()["available_memory_bytes"]
        kinds: dict[str, int] = {}
        for tensor in self.tensors:
            kinds[tensor.dtype] = kinds.get(tensor.dtype, 0) + tensor.num_bytes
        attention = "MHA" if c["num_kv_heads"] == c["num_heads"] else "MQA" if c["num_kv_heads"] == 1 else "GQA"
        attention = f"latent of {c['latent_rank']}, kept as keys and as values" if c["latent_rank"] else attention
        common = (c["num_heads"], c["num_kv_heads"], c["padded_head_dim"])
        others = ", ".join(f"{heads}, {kv} of {size}" for heads, kv, size in self.kinds if kv and (heads, kv, size) != common)
        head = ", head tied to embedding" if c["tied_embeddings"] else ""
        if self.spec is not None and not self.spec.generates:
            head = ", no head for tokens"
        local = [window for window in c["windows"] if window > 0]
        counted = " (windows counted)" if local else ""
        prefill, decode, read = self.prefill(tokens), self.decode(tokens), self.active_bytes + kv
        room = available - self.weight_bytes - self.workspace_bytes
        rest = f"and then {self.tokens_in(room):,} tokens of cache" if room > 0 else f"{-room / 1e6:,.0f} MB are missing"
        lines = [
            f"{self.path.name}: {c['architecture']}, {self.num_params / 1e6:,.1f} M parameters, {self.weight_bytes / 1e6:,.1f} MB of"
            " weights" + (f" ({self.assumed})" if self.assumed else ""),
            f"  types        {', '.join(f'{dtype} {num_bytes / 1e6:,.1f} MB' for dtype, num_bytes in sorted(kinds.items()))}",
            *([f"  unpacked     at load: {unpacked_text(self.unpacked)}"] if self.unpacked else []),
            (f"  layers       {c['num_layers']} x {c['hidden_size']}, MLP {max(c['mlp_sizes'])}, vocabulary {c['vocab_size']:,}{head}"),
            *(
                [
                    f"  experts      {self.experts_text}; a token uses {self.num_active_params / 1e6:,.1f} M parameters,"
                    f" {self.active_bytes / 1e6:,.1f} MB"
                ]
                if self.experts_text
                else []
            ),
            f"  attention    {attention}: {c['num_heads']} heads, {c['num_kv_heads']} KV heads of {c['head_dim']}"
            + (f"; some layers {others}" if others else "")
            + (f"; {len(local)} layers with window {local[0]:,}, {c['windows'].count(0)} global" if local else ""),
            f"  context      {c['max_position']:,} tokens"
            + (f" (the sums below are for {tokens:,}, which is beyond it)" if tokens > c["max_position"] else ""),
            (
                f"  KV cache     2 x {kept} = {per_token:,} bytes a token, {per_token / 1e6:,.2f} MB ({self.kv_cache_dtype})"
                + (f"; {readers} layers read another layer's" if readers else "")
            ),
            *(
                [f"  states       {c['state_bytes'] / 1e6:,.2f} MB a sequence, and a snapshot in the prefix cache"]
                if c["state_bytes"]
                else []
            ),
            *([f"  pages        hold whole layers: {c['kv_wasted_share']:.1%} stay empty"] if c["kv_wasted_share"] else []),
            f"               {tokens:,} tokens: {kv / 1e6:,.1f} MB{counted}",
            f"  activations  {self.workspace_bytes / 1e6:,.1f} MB for steps of {STEP_TOKENS:,} tokens"
            + (f"; quantised layers read {self.activation_bits}-bit ones" if self.has_quantized_layers else ""),
            (
                f"  in all       weights {self.weight_bytes / 1e6:,.1f} + cache of {tokens:,} tokens {kv / 1e6:,.1f} + activations"
                f" {self.workspace_bytes / 1e6:,.1f} + overhead {self.overhead_bytes / 1e6:,.1f} (Python, tokenizer) ="
                f" {self.total_bytes(tokens) / 1e6:,.1f} MB"
            ),
            f"  this machine {available / 1e6:,.0f} MB free: weights and activations {'fit' if room > 0 else 'DO NOT FIT'}, {rest}",
            (
                f"  operations   prefill of {tokens:,}: {prefill / 1e9:,.1f} GFLOP{counted}, {prefill / read:,.0f} operations a byte of"
                " weights and cache"
            ),
            (
                f"               a token at context {tokens:,}: {decode / 1e9:,.2f} GFLOP{counted}"
                f" over {read / 1e6:,.1f} MB read, {decode / read:,.1f} operations a byte"
            ),
        ]
        if self.list_tensors:
            lines += [f"    {tensor.name:48} {tensor.dtype:6} {tensor.shape}" for tensor in self.tensors]
        return "\n".join(lines)


def inspect_model(
    path: Path,
    kv_cache_dtype: str | None = None,
    num_tokens: int = 2048,
    list_tensors: bool = False,
    hf_overrides: Mapping[str, Any] | None = None,
    activation_bits: int | None = None,
) -> ModelReport:
    """Reads headers, and of a quantised checkpoint its scales; of a config.json, or a directory without weights, the config alone.
    kv_cache_dtype None: float16, of an encoder float32, as LLM has them.

    Raises
    ------
    ModelFileError, UnsupportedModelError
    InvalidParamsError
        For a count of tokens outside [1, 10^12].
    UnsupportedCombinationError
        For activation_bits = 16 where no layer is quantised; None is 16 where some are.
    """
    if not 1 <= num_tokens <= MOST_TOKENS:
        raise InvalidParamsError(f"tokens must lie in [1, {MOST_TOKENS:,}], not {num_tokens:,}", "tokens")
    overrides, bits = overrides_text(hf_overrides), activation_bits or 16
    config_file = _config_alone(path)
    try:
        if config_file is None:
            files = open_model(path)
            path, core = files.path, files.core
            assumed = ""
        else:
            core = _core.ModelFiles(str(config_file), [], layout.open_input(config_file, "json"), None)
        spec = spec_of(core, overrides)
        text = spec.to_json()
        if config_file is None:
            tensors = _loaded(_core.model_tensors(core, spec.quantization), spec)
        else:
            tensors, assumed = _tensors_of(config_file, text)
        config = _core.spec_numbers(text, str(path))
        workspace_bytes = _core.workspace_bytes(text, str(path), STEP_TOKENS, bits)
    except _core.CoreError as error:
        raise from_core(error, path) from None
    config["tied_embeddings"] = config["tied_embeddings"] and spec.generates
    kv_cache_dtype = kv_cache_dtype or ("float32" if spec.two_sided else "float16")
    report = ModelReport(path, config, tensors, kv_cache_dtype, num_tokens, workspace_bytes, list_tensors, assumed, bits, spec)
    if activation_bits == 16 and not report.has_quantized_layers:
        types = ", ".join(sorted({tensor.dtype for tensor in tensors}))
        raise UnsupportedCombinationError(
            f"activation_bits = 16 is for quantised layers, and this model's dtype is {types}: its layers round nothing that they read",
            "activation_bits",
            "dtype",
        )
    return report


def _loaded(stored: list[_core.TensorInfo], spec: ModelSpec) -> list[_core.TensorInfo]:
    """The file's tensors without those that the model leaves out: stored masks, parts of other models."""
    own = spec.tensor_names()
    return [tensor for tensor in stored if tensor.name in own or not any(matches(pattern, tensor.name) for pattern in spec.ignored_tensors)]


def _config_alone(path: Path) -> Path | None:
    """The config.json that `path` is, or that it holds without weights."""
    try:
        if path.is_dir() and (path / "config.json").is_file() and not [*path.glob("*.safetensors*"), *path.glob("*.gguf")]:
            return path / "config.json"
        is_config = path.suffix == ".json" and not path.name.endswith(".index.json") and path.is_file()
    except OSError:  # a name that is too long, a folder that cannot be read: opening it says so
        return None
    return path if is_config else None


def _tensors_of(path: Path, spec: str) -> tuple[list[_core.TensorInfo], str]:
    """What the config's shapes say, in the type that it names; and how that was found."""
    expected = _core.expected_tensors(spec, str(path))
    fields = json.loads(path.read_text(encoding="utf-8"))
    inner = fields.get("text_config")
    fields = {**(inner if isinstance(inner, dict) else {}), **fields}
    named = str(fields.get("dtype") or fields.get("torch_dtype"))
    name, num_bytes = _CONFIG_TYPES.get(named, ("BF16", 2))
    tensors = [
        _core.TensorInfo(name=tensor, dtype=name, shape=shape, num_bytes=num_bytes * math.prod(shape)) for tensor, shape in expected.items()
    ]
    how = f"in {named}" if named in _CONFIG_TYPES else "which names no type that is known: bfloat16 is assumed"
    if isinstance(quantization := fields.get("quantization_config"), dict):
        how += f", as if they were not quantised by {quantization.get('quant_method')!s:.64}"
    return tensors, f"by the config alone, {how}"
