"""What a loaded model is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from llmi import _core


@dataclasses.dataclass(slots=True)
class ModelInfo:
    """The loaded model. `sha256` of its file is computed when it is first read.

    Attributes
    ----------
    architecture : str
    num_layers, hidden_size, num_heads, num_kv_heads, head_dim, vocab_size, max_model_len : int
    weight_bytes : int
    kv_bytes_per_token : int
        Of all layers.
    numerics_id : str
        Names the arithmetic: equal ids, equal bits.
    path : str

    Examples
    --------
    >>> info = llm.model_info
    >>> info.architecture, info.num_layers, info.hidden_size
    ('llama', 3, 64)
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int
    numerics_id: str
    path: str
    _digest: Callable[[], str] = dataclasses.field(repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file; of several files: of the lines "digest  name", sorted by the names.

        It is that of what was loaded. Raises ModelFileError if a file was written to since then.
        """
        return self._digest()


def unpacked_text(sizes: Mapping[str, tuple[int, int]]) -> str:
    """Which types are unpacked at load, and what that costs.

    Parameters
    ----------
    sizes : dict
        By name of the type: bytes in the file and in memory.

    Examples
    --------
    >>> unpacked_text({"IQ3_S": (3_400_000, 10_000_000)})
    'IQ3_S 3.4 MB in the file, 10.0 MB in memory'
    """
    return ", ".join(f"{kind} {file / 1e6:,.1f} MB in the file, {memory / 1e6:,.1f} MB in memory" for kind, (file, memory) in sizes.items())


def unpacked_of(tensors: Iterable[_core.TensorInfo]) -> dict[str, tuple[int, int]]:
    """The tensors that are unpacked at load: by name of the type, or of the quantisation scheme, bytes in the file and in memory."""
    sizes: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        if tensor.unpacked_bytes:
            file, memory = sizes.get(tensor.stored_as, (0, 0))
            sizes[tensor.stored_as] = (file + tensor.stored_bytes, memory + tensor.unpacked_bytes)
    return sizes
