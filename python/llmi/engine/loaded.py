"""The message of the log when LLM() has loaded a model."""

from __future__ import annotations

from llmi import _core
from llmi.base.log import log
from llmi.engine.args import EngineArgs
from llmi.models.info import ModelInfo


def log_loaded(info: ModelInfo, args: EngineArgs, core: _core._EngineInfo, model_len: int, num_pages: int) -> None:
    """Logs what LLM() has loaded, and the reasons for its sizes.

    Parameters
    ----------
    core : dict
        What the core's engine says of itself.
    model_len : int
        The longest sequence that the model itself allows.
    num_pages : int
        Of the KV cache.
    """
    if args.max_model_len is not None:
        why = "as given"
    elif info.max_model_len == model_len:
        why = "the model's"
    else:
        why = f"what the KV cache holds; the model's is {model_len:,}"
    sized = "as given" if args.kv_cache_memory_bytes is not None else "chosen by the memory that is free and what the limits can use"
    log.info(
        "loaded %s: %s, %s MB of weights (%s), %d threads, kernels %s, KV cache %s MB of %s (%s), max_model_len = %s (%s), %s",
        info.path, info.architecture, f"{info.weight_bytes / 1e6:,.1f}", core["weight_types"], core["num_threads"], core["table"],
        f"{num_pages * core['page_bytes'] / 1e6:,.1f}", args.kv_type, sized, f"{info.max_model_len:,}", why, info.numerics_id,
    )  # fmt: skip
