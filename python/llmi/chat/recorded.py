"""Messages that note what a template reads of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values


class Recorded(dict[str, Any]):
    """A message, or a part of its content, that notes which of its keys are read."""

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value)
        self._read: set[str] = set()  # the underscores hide both from templates
        self._shown = False  # as a whole, as Python writes it

    def _all(self) -> None:
        self._read.update(dict.keys(self))

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> Any:
        self._read.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self._all()
        return super().__iter__()

    def keys(self) -> dict_keys[str, Any]:
        self._all()
        return super().keys()

    def values(self) -> dict_values[str, Any]:
        self._all()
        return super().values()

    def items(self) -> dict_items[str, Any]:
        self._all()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._all()
        return dict(self)

    def __repr__(self) -> str:
        self._all()
        self._shown = True
        return super().__repr__()


class Parts(list[Any]):
    """Content in parts, as a list that notes whether a template prints it in Python's notation of lists."""

    _shown = False

    def __repr__(self) -> str:
        self._shown = True
        return super().__repr__()


def recorded(message: dict[str, Any]) -> Recorded:
    record = Recorded(message)
    content = message.get("content")
    if isinstance(content, list):
        dict.__setitem__(record, "content", Parts([Recorded(part) if isinstance(part, dict) else part for part in content]))
    return record


def is_taken(record: Recorded) -> bool:
    """Whether content in parts was taken part by part, and not printed as a list."""
    content = dict.get(record, "content")
    if not isinstance(content, Parts):
        return True
    if content._shown or not content:  # no parts are no text
        return False
    return all(
        not part._shown and ("text" not in part or "text" in part._read) if isinstance(part, Recorded) else False for part in content
    )


def unread(records: list[Recorded]) -> list[str]:
    """Keys with a value that were read in none of the messages."""
    present = {key for record in records for key in dict.keys(record) if dict.__getitem__(record, key) not in (None, "", [], {})}
    return sorted(present - {key for record in records for key in record._read})
