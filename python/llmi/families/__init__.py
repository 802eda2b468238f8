"""Families of models, one card each. A card turns what a file says into a ModelSpec, which is all that the core knows of a model."""

from llmi.families import encoders, gemma, gemma4, latent, layer_norm, lfm2, llama_like, moe, parallel, post_norm, recurrent, routers
from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.reader import spec_of
from llmi.families.registry import Card, add_own, family, forget_family, register_family
from llmi.families.spec import ModelSpec

for _module in (llama_like, encoders, gemma, gemma4, post_norm, parallel, layer_norm, moe, routers, lfm2, latent, recurrent):
    add_own(*(item for item in vars(_module).values() if isinstance(item, Card)))

__all__ = ["Card", "Config", "ModelSpec", "Style", "Tensors", "dense", "family", "forget_family", "register_family", "spec_of"]
