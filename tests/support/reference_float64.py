"""transformers' forward pass in float64, throughout.

`model.double()` alone is not enough: modules name float32 for norms, softmax and rotary tables, and those steps stay in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def float64_arithmetic() -> Iterator[None]:
    """Inside, torch's name float32 means float64, which is the default type too. Nothing is loaded inside: files name their types too."""
    import torch

    before = torch.float32, torch.float, torch.Tensor.float
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = before
        torch.set_default_dtype(default)


def in_float64(model: Any) -> Any:
    """The model itself, changed in place: weights in float64, and rotary tables computed anew in it.

    `model.float()` leads back to the weights it came from; the tables are then the rounded exact ones.
    """
    model.double()
    with float64_arithmetic():
        for name, module in list(model.named_modules()):
            if type(module).__name__.endswith("RotaryEmbedding"):
                model.set_submodule(name, type(module)(model.config))
            elif "embed_positions" in module._buffers:  # GPT-J's: a table of sines and cosines in each layer
                module.embed_positions = _sinusoids(model.config)
    return model


def _sinusoids(config: Any) -> Any:
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    return create_sinusoidal_positions(config.max_position_embeddings, config.rotary_dim or config.hidden_size)


def logits(model: Any, tokens: list[int]) -> Array:
    """[len(tokens), vocab_size] of a model that `in_float64` returned, in float64."""
    import torch

    with float64_arithmetic(), torch.no_grad():
        result: Array = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert result.dtype == np.float64
    return result


def hidden_states(model: Any, tokens: list[int]) -> Array:
    """What enters the last layer, [len(tokens), hidden_size], in float64."""
    import torch

    with float64_arithmetic(), torch.no_grad():
        result: Array = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states[-2][0].numpy()
    assert result.dtype == np.float64
    return result
