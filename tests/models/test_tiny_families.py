"""The tiny families test what they claim to: every tensor moves the logits, and so does every mistake of their list. No llmi is run
here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_families import FAMILIES, MISTAKES, TOKENS, Family, config_of, make

pytestmark = pytest.mark.parity
SEEN = 1e-3  # ten times what the parity tests allow

#: A key's bias adds the same to all scores of a query where nothing is rotated: the softmax takes it away.
NO_EFFECT = {"opt": "k_proj.bias"}


def load(family: Family, name: str, **changes: Any) -> Any:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = config_of(name, **changes)
    return transformers.AutoModelForCausalLM.from_pretrained(
        family.path, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_moves_the_logits(name: str, families: Path) -> None:
    """To first order: what a tensor's values, times their gradient, add up to in the logits of one position in ten."""
    import torch

    model = load(make(name, families), name)
    logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0, ::10]
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        if name in NO_EFFECT and parameter_name.endswith(NO_EFFECT[name]):
            continue
        assert parameter.grad is not None, parameter_name
        effect = float((parameter.grad * parameter.detach()).abs().sum())
        assert effect > SEEN, parameter_name


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_moves_the_logits(name: str, families: Path) -> None:
    import torch

    family = make(name, families)
    for change in MISTAKES[name]:
        with torch.no_grad():
            logits = load(family, name, **change)(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
        moved = float(np.abs(logits - family.fp32).max())
        print(name, change, f"{moved:.1e}")
        assert moved > SEEN, change
