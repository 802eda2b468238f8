"""The voice of llmi: `logging.getLogger("llmi")`. INFO says what was loaded and chosen, WARNING what may surprise.

Nothing is printed unless the program configures logging. A program that has not imported `logging` cannot have configured it:
llmi then does not import it either, which would take 10 ms of the time to a first token.

>>> from llmi.base.log import log
>>> log.info("%s has %d tokens", "vocabulary", 257)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

    from llmi import _core
    from llmi.engine.args import EngineArgs
    from llmi.outputs.results import ModelInfo


class Log:
    """Passes messages on to the logger "llmi", once somebody has imported `logging`."""

    def __init__(self) -> None:
        self._logger: logging.Logger | None = None

    def _find(self) -> logging.Logger | None:
        if self._logger is None:
            logging = sys.modules.get("logging")
            if logging is None or not hasattr(logging, "NullHandler"):  # absent, or another thread is importing it
                return None
            logger = logging.getLogger("llmi")
            logger.addHandler(logging.NullHandler())
            self._logger = logger
        return self._logger

    def info(self, message: str, *args: object) -> None:
        """Logs what was loaded, shortened or chosen."""
        if (logger := self._find()) is not None:
            logger.info(message, *args, stacklevel=2)

    def warning(self, message: str, *args: object) -> None:
        """Logs a warning: something that the caller may not expect."""
        if (logger := self._find()) is not None:
            logger.warning(message, *args, stacklevel=2)


log = Log()


def loaded(info: ModelInfo, args: EngineArgs, core: _core._EngineInfo, model_len: int, num_pages: int) -> None:
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
