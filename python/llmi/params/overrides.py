"""hf_overrides: the user's changes to the contents of a model file, which stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmi.errors import InvalidParamsError


def overrides_text(overrides: object) -> str:
    """As the core takes them: JSON, "" for none.

    Raises
    ------
    InvalidParamsError
        They are not a mapping of names to values that JSON has.
    """
    if overrides is None:
        return ""
    if not isinstance(overrides, Mapping):
        raise InvalidParamsError(f"hf_overrides must map keys of the model's config to values, not be {overrides!r:.80}", "hf_overrides")
    if wrong := [key for key in overrides if not isinstance(key, str)]:
        raise InvalidParamsError(f"hf_overrides holds the key {wrong[0]!r:.80}: keys are strings", "hf_overrides")
    for key, value in overrides.items():
        try:
            json.dumps(value, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParamsError(
                f"hf_overrides[{key!r}] = {value!r:.80}: config.json has no such value ({error})", "hf_overrides"
            ) from None
    return json.dumps(dict(overrides), default=_plain, sort_keys=True) if overrides else ""


def _plain(value: object) -> Any:
    """Converts NumPy's scalars and arrays, and mappings that are no dict, to plain Python values."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON type")
