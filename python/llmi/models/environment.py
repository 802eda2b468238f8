"""The environment variables that llmi reads, checked: a misspelt one would be a setting that silently is not there."""

from __future__ import annotations

import os

from llmi.base.log import log
from llmi.errors import InvalidParamsError

#: By name: the values allowed in addition to an empty one; None: checked where it is read.
VARIABLES: dict[str, tuple[str, ...] | None] = {
    "LLMI_AUDIT": ("0", "1"),
    "LLMI_CACHE": None,
    "LLMI_CUBLASLT": None,
    "LLMI_EMULATE_CUDA": ("0", "1"),
    "LLMI_FORCED_DRAFTS": ("0", "1"),
    "LLMI_ISA": None,
    "LLMI_NUM_THREADS": None,
    "LLMI_SMALL_HEADS": ("0", "1"),
}
_told: set[str] = set()


def check_environment() -> None:
    """Raises InvalidParamsError for a value that means nothing; a name that llmi does not know is a warning, once."""
    for name, value in os.environ.items():
        if not name.startswith("LLMI_"):
            continue
        allowed = VARIABLES.get(name)
        if value and allowed is not None and value not in allowed:
            raise InvalidParamsError(f"{name} = {value!r} in the environment means nothing: it is one of {', '.join(allowed)}", name)
        if name not in VARIABLES and name not in _told:
            import difflib

            _told.add(name)
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            log.warning("%s in the environment is no variable of llmi%s", name, f"; did you mean {near[0]}?" if near else "")
