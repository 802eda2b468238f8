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
