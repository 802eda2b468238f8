"""Files of Medusa heads: checked against the model that they were trained for. Weights are read by the core."""

from __future__ import annotations

from typing import Any

from llmi.errors import ModelFileError, UnsupportedModelError
from llmi.families.config import Config
from llmi.families.spec import ModelSpec
from llmi.speculation.heads import Heads, checked_shortlist

FILES = ("model.safetensors", "medusa_lm_head.safetensors")
_MAX_HEADS, _MAX_BLOCKS = 64, 64
#: Keys of config.json that say nothing of the arithmetic, and llmi's own, which is read elsewhere.
_INERT = ("base_model_name_or_path", "transformers_version", "torch_dtype", "dtype", "model_type", "llmi")
_ARCHITECTURES = ("MedusaModel", "MedusaModelLlama", "MedusaModelMistral", "MedusaForCausalLM")


def core_options(heads: Heads, target: ModelSpec) -> tuple[int, dict[str, Any]]:
    """The number of heads, and the core's options for them (csrc/model/medusa.h, MedusaFile). Raises ModelFileError where they do not
    fit."""
    if heads.core.gguf is not None:
        raise UnsupportedModelError(f"{heads.path}: a GGUF file holds no Medusa heads that llmi reads", heads.path)
    c = Config(heads.config, str(heads.path), heads.tensors)
    num_heads, num_blocks = c.positive("medusa_num_heads"), c.positive("medusa_num_layers", 1)
    for key, number, most in (("medusa_num_heads", num_heads, _MAX_HEADS), ("medusa_num_layers", num_blocks, _MAX_BLOCKS)):
        if number > most:
            c.refuse(key, f"{key} = {number}: at most {most} are read")
    _check_rest(c, heads, target)
    blocks = [_blocks(heads, head, num_blocks) for head in range(num_heads)]
    names = [f"{head}.{num_blocks}.weight" for head in range(num_heads)]
    own = [name for name in names if name in heads.tensors]
    if own and own != names:
        missing = next(name for name in names if name not in heads.tensors)
        c.refuse("medusa_num_heads", f"tensor {missing!r} is missing: {own[0]!r} is there, so each head has a matrix of its own")
    _check_sizes(heads, target, blocks[0][0] + ".weight", own)
    return num_heads, {
        "medusa_files": heads.core,
        "medusa_blocks": blocks,
        "medusa_vocabularies": own or [""] * num_heads,
        "medusa_shortlist": checked_shortlist(heads, target.vocab_size),
        "medusa_inert": ["shortlist"],
    }


def _check_rest(c: Config, heads: Heads, target: ModelSpec) -> None:
    """All other keys: they agree with the target, are without effect, or are refused by name."""
    for key, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if c.has(key) and c.positive(key) != wanted:
            c.refuse(key, f"{key} = {c.positive(key)}, the model's is {wanted}: these heads were trained for another model")
    named = c.find("architectures")
    if named is not None and not (isinstance(named, list) and len(named) == 1 and named[0] in _ARCHITECTURES):
        c.unsupported("architectures", f"architectures = {named!r:.60}: not Medusa heads")
    for key in _INERT:
        c.find(key)
    if unread := c.unread():
        key = next(iter(unread))
        c.unsupported(key, f"{key} = {unread[key]!r:.40} is not known of Medusa heads")


def _blocks(heads: Heads, head: int, num_blocks: int) -> list[str]:
    """The blocks of a head. Published code makes `[block] * num_layers`, one block that stands several times: a file may list it once."""
    names = [f"{head}.{block}.linear" for block in range(num_blocks)]
    present = [name for name in names[1:] if f"{name}.weight" in heads.tensors]
    return names if present else [names[0]] * num_blocks


def _check_sizes(heads: Heads, target: ModelSpec, block: str, vocabularies: list[str]) -> None:
    for name, place, wanted, what in [
        (block, -1, target.hidden_size, "width"),
        *((name, 0, target.vocab_size, "vocabulary") for name in vocabularies[:1]),
    ]:
        shape = heads.tensors.get(name)
        if shape and shape[place] != wanted:
            raise ModelFileError(
                f"{heads.path}: tensor {name!r} has the shape {shape}, the model's {what} is {wanted}: these heads were trained for another"
                " model",
                heads.path,
                name,
            )
