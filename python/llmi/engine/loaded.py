"""The record of a loaded model, and the message of the log about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from llmi import _core
from llmi.base.log import log
from llmi.engine.args import EngineArgs
from llmi.errors import ModelFileError, from_core
from llmi.families import ModelSpec, spec_of
from llmi.models.files import ModelDigest, OpenModel
from llmi.models.info import ModelInfo, unpacked_text
from llmi.models.inspection import kv_bytes_per_token

_MOST_TEXTS = 256  # of one step, each of which may leave a block half empty


def spec_of_files(files: OpenModel, args: EngineArgs) -> ModelSpec:
    """What the model's card makes of its files."""
    try:
        return spec_of(files.core, args.hf_overrides, args.max_model_len)
    except ModelFileError:
        files.check_unchanged()  # which would be why
        raise


def args_for_files(files: OpenModel, args: EngineArgs, spec: ModelSpec) -> EngineArgs:
    """The arguments with what "auto" means for these files."""
    if spec.two_sided:
        args = _for_one_step(args, spec)
    if args.device_kind == "cpu":
        return args
    try:
        return args.for_tensors(_core.model_tensors(files.core, spec.quantization))
    except _core.CoreError as error:
        raise from_core(error, files.path) from None


def _for_one_step(args: EngineArgs, spec: ModelSpec) -> EngineArgs:
    """An encoder's: K and V live for one step, so they are float32, and memory is for one step, unless the arguments say it."""
    if args.kv_cache_dtype == "auto":
        args = dataclasses.replace(args, kv_cache_dtype="float32")
    if args.kv_cache_memory_bytes is not None:
        return args
    block_size = args.passed_on["block_size"]
    assert isinstance(block_size, int)
    num_tokens = max(args.max_num_batched_tokens, args.max_model_len or 0) + _MOST_TEXTS * block_size
    head_dim = (spec.head_dim + 15) // 16 * 16
    return dataclasses.replace(
        args, kv_cache_memory_bytes=num_tokens * kv_bytes_per_token(len(spec.layers), spec.num_kv_heads, head_dim, args.kv_type)
    )


def model_info(
    config: _core._ModelConfig, core: _core._EngineInfo, path: Path, digest: ModelDigest, numerics_id: str, num_layers: int
) -> ModelInfo:
    """The record of a loaded model: `config` as the file has it, `core` as the engine has it, num_layers those that run."""
    return ModelInfo(
        architecture=config["architecture"],
        num_layers=num_layers,
        hidden_size=config["hidden_size"],
        num_heads=config["num_heads"],
        num_kv_heads=config["num_kv_heads"],
        head_dim=config["head_dim"],
        vocab_size=config["vocab_size"],
        max_model_len=core["max_model_len"],
        weight_bytes=core["weight_bytes"],
        kv_bytes_per_token=core["kv_bytes_per_token"],
        numerics_id=numerics_id,
        path=str(path),
        _digest=digest,
    )


def log_loaded(
    info: ModelInfo, args: EngineArgs, core: _core._EngineInfo, model_len: int, num_pages: int, unpacked: Mapping[str, tuple[int, int]]
) -> None:
    """Logs what LLM() has loaded, and the reasons for its sizes.

    Parameters
    ----------
    core : dict
        What the core's engine says of itself.
    model_len : int
        The longest sequence that the model itself allows.
    num_pages : int
        Of the KV cache.
    unpacked : dict
        Matrices of a quantised checkpoint that became larger, as `models.info.unpacked_of` gives them.
    """
    if args.max_model_len is not None:
        why = "as given"
    elif info.max_model_len == model_len:
        why = "the model's"
    else:
        why = f"what the KV cache holds; the model's is {model_len:,}"
    sized = "as given" if args.kv_cache_memory_bytes is not None else "chosen by the memory that is free and what the limits can use"
    sizes = {**core["unpacked"], **unpacked}
    pages = f", {core['kv_wasted_share']:.1%} of a page of all layers unused" if core["kv_wasted_share"] else ""
    words = f"; unpacked at load: {unpacked_text(sizes)}" if sizes else ""
    states = (
        f", states {core['state_pool_bytes'] / 1e6:,.1f} MB ({core['state_bytes'] / 1e6:,.2f} a snapshot)" if core["state_bytes"] else ""
    )
    log.info(
        "loaded %s: %s, %s MB of weights (%s%s), %d threads, kernels %s, KV cache %s MB of %s (%s%s)%s, max_model_len = %s (%s), %s",
        info.path,
        info.architecture,
        f"{info.weight_bytes / 1e6:,.1f}",
        core["weight_types"],
        words,
        core["num_threads"],
        core["table"],
        f"{num_pages * core['page_bytes'] / 1e6:,.1f}",
        args.kv_type,
        sized,
        pages,
        states,
        f"{info.max_model_len:,}",
        why,
        info.numerics_id,
    )
