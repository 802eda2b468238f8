"""From the bytes of a body to its fields: strict JSON, no key twice."""

from __future__ import annotations

import asyncio
import collections
import json
from typing import Any

import msgspec

from llmi.server.errors import ApiError

_INLINE_BYTES = 64 << 10  # a larger body is decoded off the event loop
_decoder = msgspec.json.Decoder()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        twice = next(name for name in counts if counts[name] > 1)
        raise ApiError(400, f"the key {twice[:80]!r} comes twice in one object", param=twice[:80], code="duplicate_key")
    return result


def decode(data: bytes) -> dict[str, Any]:
    """The fields of a JSON object. Raises ApiError for all that is not strict JSON, for a key that comes twice, and for what is no
    object."""
    if not data:
        raise ApiError(400, "the body is empty: it must be a JSON object", code="invalid_json")
    try:
        value = _decoder.decode(data)
        if isinstance(value, dict):
            json.loads(data, object_pairs_hook=_no_duplicates)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error or type(error).__name__}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(value).__name__}", code="invalid_json")
    return value


async def read_fields(data: bytes) -> dict[str, Any]:
    """As `decode`; a large body is decoded on another thread."""
    return decode(data) if len(data) <= _INLINE_BYTES else await asyncio.to_thread(decode, data)
