"""A file of what an engine's scheduler was asked, and what it chose (simulation/recording.py reads it)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from llmi import _core
from llmi.engine.args import EngineArgs
from llmi.errors import call_core

FORMAT = "llmi-steps-1"
#: Options of an engine that shape its schedule.
OPTIONS = ("max_num_seqs", "max_num_batched_tokens", "waiting_served_ratio", "enable_chunked_prefill", "enable_prefix_caching")


@contextlib.contextmanager
def recording(engine: _core.Engine, args: EngineArgs, spec: str, model: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """See LLM.record_steps. spec: of the model, as JSON."""
    info, options = engine.info(), args.for_core()
    header = {
        "format": FORMAT,
        "model": Path(model).name,
        "spec": json.loads(spec),
        "scheduling_policy": options["scheduling_policy"],
        "kv_cache_dtype": options["kv_cache_dtype"],
        "block_size": info["block_size"],
        "num_pages": info["num_pages"],
        **{name: options[name] for name in OPTIONS},
        "waiting_served_ratio": options["waiting_served_ratio"] or 0.0,
    }
    call_core(_core.record_steps, engine, os.fspath(path), json.dumps(header))
    try:
        yield
    finally:
        call_core(_core.end_recording, engine)
