"""What a model is, needs and costs: arithmetic on its numbers, no weights read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi import _core
from llmi._errors import from_core
from llmi._model_files import open_model
from llmi._overrides import overrides_text

KV_CACHE_DTYPES = ("float16", "bfloat16", "float32", "int8", "fp8")


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


def kv_cache_bytes(num_layers: int, num_kv_heads: int, head_dim: int, num_tokens: int, kv_cache_dtype: str = "float16") -> int:
    """KV cache bytes of num_tokens tokens, every layer seeing all of them."""
    return kv_bytes_per_token(num_layers, num_kv_heads, head_dim, kv_cache_dtype) * num_tokens


def tokens_that_fit(memory_bytes: int, num_layers: int, num_kv_heads: int, head_dim: int, kv_cache_dtype: str = "float16") -> int:
    """Tokens whose KV cache fits into memory_bytes."""
    return memory_bytes // kv_bytes_per_token(num_layers, num_kv_heads, head_dim, kv_cache_dtype)


def prefill_flops(num_params: int, num_layers: int, width: int, num_tokens: int) -> int:
    """Operations of a prefill of L tokens: 2 P L + 2 n L^2 d (causal attention)."""
    return 2 * num_params * num_tokens + 2 * num_layers * num_tokens**2 * width


def decode_flops(num_params: int, num_layers: int, width: int, context: int) -> int:
    """Operations of one decoded token at context L: 2 P + 4 n L d."""
    return 2 * num_params + 4 * num_layers * context * width


def devices_needed(requests_per_s: float, one_device_requests_per_s: float) -> int:
    """Devices for a load, from what one carries at its latency target (rounded up)."""
    return -(-int(requests_per_s * 1_000_000) // int(one_device_requests_per_s * 1_000_000))


def windowed_kv_bytes(windows: list[int], num_kv_heads: int, head_dim: int, num_tokens: int, kv_cache_dtype: str = "float16") -> int:
    """KV cache bytes of a sequence when layers with a window keep what it sees (0: all)."""
    layer = 2 * num_kv_heads * kv_head_bytes(head_dim, kv_cache_dtype)
    return sum(layer * (min(num_tokens, window) if window else num_tokens) for window in windows)


@dataclasses.dataclass
class ModelReport:
    """The numbers of `llmi inspect`, and their text."""

    path: Path
    config: dict[str, Any]
    tensors: list[tuple[str, str, list[int], int]]
    kv_cache_dtype: str
    num_tokens: int
    list_tensors: bool = False

    @property
    def num_params(self) -> int:
        total = 0
        for _, _, shape, _ in self.tensors:
            count = 1
            for extent in shape:
                count *= extent
            total += count
        return total

    @property
    def weight_bytes(self) -> int:
        return sum(num_bytes for _, _, _, num_bytes in self.tensors)

    def __str__(self) -> str:
        c, tokens = self.config, self.num_tokens
        width = c["num_heads"] * c["head_dim"]
        per_token = kv_bytes_per_token(c["num_layers"], c["num_kv_heads"], c["head_dim"], self.kv_cache_dtype)
        kv = windowed_kv_bytes(c["windows"], c["num_kv_heads"], c["head_dim"], tokens, self.kv_cache_dtype)
        available = _core.system_info()["available_memory_bytes"]
        kinds: dict[str, int] = {}
        for _, dtype, _, num_bytes in self.tensors:
            kinds[dtype] = kinds.get(dtype, 0) + num_bytes
        values, scales = divmod(kv_head_bytes(c["head_dim"], self.kv_cache_dtype), c["head_dim"])
        head_bytes = f"({c['head_dim']} + {scales}) bytes" if scales else f"{c['head_dim']} x {values} bytes"
        attention = "MHA" if c["num_kv_heads"] == c["num_heads"] else "MQA" if c["num_kv_heads"] == 1 else "GQA"
        local = [window for window in c["windows"] if window]
        prefill = prefill_flops(self.num_params, c["num_layers"], width, tokens)
        decode = decode_flops(self.num_params, c["num_layers"], width, tokens)
        room = max(0, available - self.weight_bytes)
        lines = [
            f"{self.path.name}: {c['architecture']}, {self.num_params / 1e6:,.1f} M parameters, {self.weight_bytes / 1e6:,.1f} MB of weights",
            f"  types        {', '.join(f'{dtype} {num_bytes / 1e6:,.1f} MB' for dtype, num_bytes in sorted(kinds.items()))}",
            f"  layers       {c['num_layers']} x {c['hidden_size']}, MLP {c['intermediate_size']}, vocabulary {c['vocab_size']:,}"
            f"{', head tied to embedding' if c['tied_embeddings'] else ''}",
            f"  attention    {attention}: {c['num_heads']} heads, {c['num_kv_heads']} KV heads of {c['head_dim']}"
            + (f"; {len(local)} layers with window {local[0]:,}, {len(c['windows']) - len(local)} global" if local else ""),
            f"  context      {c['max_position']:,} tokens",
            f"  KV cache     2 x {c['num_layers']} layers x {c['num_kv_heads']} KV heads x {head_bytes}"
            f" = {per_token:,} bytes a token ({self.kv_cache_dtype})",
            f"               {tokens:,} tokens: {kv / 1e6:,.1f} MB" + (" (windows counted)" if local else ""),
            f"  this machine {available / 1e6:,.0f} MB free: weights {'fit' if room else 'DO NOT FIT'}, and then"
            f" {room // per_token:,} tokens of cache",
            f"  operations   prefill of {tokens:,}: {prefill / 1e9:,.1f} GFLOP; a token at context {tokens:,}: {decode / 1e9:,.2f} GFLOP"
            f" over {(self.weight_bytes + kv) / 1e6:,.1f} MB read, {decode / (self.weight_bytes + kv):,.1f} operations a byte",
        ]
        if self.list_tensors:
            lines += [f"    {name:48} {dtype:6} {shape}" for name, dtype, shape, _ in self.tensors]
        return "\n".join(lines)


def inspect_model(
    path: Path,
    kv_cache_dtype: str = "float16",
    num_tokens: int = 2048,
    list_tensors: bool = False,
    hf_overrides: Mapping[str, Any] | None = None,
) -> ModelReport:
    """Reads headers only. Raises ModelFileError, UnsupportedModelError."""
    files = open_model(path)
    try:
        config = _core.load_config(files.core, overrides_text(hf_overrides))
    except _core.CoreError as error:
        raise from_core(error.args, files.path) from None
    return ModelReport(files.path, config, files.core.tensors(), kv_cache_dtype, num_tokens, list_tensors)
