"""Specs of models without a head for tokens: they make vectors or scores of texts."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.spec import HeadSpec, ModelSpec

#: Tensors that make scores or tokens of hidden states: those of scores are read by llmi.pooling.
HEADS = ("classifier.*", "score.*", "cls.*", "lm_head.*", "head.*", "decoder.*", "pooler.*", "*.pooler.*", "*position_ids")

#: GGUF's pooling_type of rerankers.
RANK = 4


def encoder(spec: ModelSpec) -> ModelSpec:
    """The spec as that of an encoder."""
    spec.two_sided, spec.generates, spec.head = True, False, HeadSpec()
    spec.ignored_tensors += HEADS
    return spec


def without_head(c: Config, spec: ModelSpec) -> ModelSpec:
    """The spec of a decoder whose class has no head for tokens: it makes vectors or scores. A GGUF of a reranker has two rows of it."""
    names = c.find("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    is_reranker = c.is_gguf and c.find(c.gguf_key("pooling_type")) == RANK
    if not name.endswith(("Model", "ForSequenceClassification")) and not is_reranker:
        return spec
    spec.generates, spec.head = False, HeadSpec()
    spec.ignored_tensors += ["cls.*" if is_reranker else "score.*", "lm_head.*"]
    return spec
