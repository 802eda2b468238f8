"""Texts whose vectors or scores replicas make: each gives the same bits, so the work of one that dies is another's."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmi.errors import LlmiError
from llmi.replicas.records import error_of, whole_number
from llmi.replicas.replica import Replica
from llmi.replicas.wire import BrokenMessageError

_WAIT_S = 0.1


@dataclasses.dataclass(slots=True, eq=False)
class _Work:
    id: int
    fields: Mapping[str, Any]
    replica: Replica | None = None  # that has it
    deaths: int = 0
    values: list[bytes] | None = None
    error: LlmiError | None = None


class Pools:
    """The work under way. moved: notified when a replica is ready or has gone; its lock guards all. check_open: raises where nothing can be
    answered."""

    def __init__(self, moved: threading.Condition, replicas: Callable[[], Sequence[Replica]], check_open: Callable[[], None]) -> None:
        self._moved, self._replicas, self._check_open = moved, replicas, check_open
        self._works: dict[int, _Work] = {}
        self._ids = itertools.count()

    def run(self, parts: Sequence[Mapping[str, Any]]) -> list[list[bytes]]:
        """Shares parts out, each an object with `inputs`, and waits: the bytes of each input's values. Raises what a part fails with."""
        works = [_Work(next(self._ids), fields) for fields in parts]
        with self._moved:
            self._works |= {work.id: work for work in works}
            try:
                while left := [work for work in works if work.values is None]:
                    self._check_open()
                    for work in left:
                        if work.error is not None:
                            raise work.error
                        if work.replica is None:
                            self._place(work)
                    self._moved.wait(_WAIT_S)
            finally:
                for work in works:
                    del self._works[work.id]
        return [work.values or [] for work in works]

    def take(self, replica: Replica, message: dict[str, Any]) -> None:
        """A part's answer."""
        with self._moved:
            work = self._works.get(whole_number(message.get("id")))
            if work is None or work.replica is not replica:
                return
            if "error" in message:
                work.error = error_of(message["error"])
            else:
                work.values = _values(message.get("values"), len(work.fields["inputs"]))
                replica.note_answer()
            self._moved.notify_all()

    def has_gone(self, replica: Replica, why: LlmiError) -> None:
        """It has died: another does its work, unless that alone may be why two have died."""
        for work in self._works.values():
            if work.replica is replica:
                work.replica, work.deaths = None, work.deaths + 1
                work.error = why if work.deaths > 1 else None

    def _place(self, work: _Work) -> None:
        ready = [replica for replica in self._replicas() if replica.state == "ready"]
        ready = [replica for replica in ready if replica.answers] or ready
        if ready:
            busy = [each.replica for each in self._works.values()]
            work.replica = min(ready, key=lambda replica: replica.num_sequences + busy.count(replica))
            work.replica.send({"kind": "pool", "id": work.id, **work.fields})


def _values(given: object, count: int) -> list[bytes]:
    if not isinstance(given, list) or len(given) != count or not all(isinstance(entry, str) for entry in given):
        raise BrokenMessageError(f"the values of {count} texts are as many strings")
    try:
        return [base64.b64decode(entry, validate=True) for entry in given]
    except binascii.Error as error:
        raise BrokenMessageError(f"values are no base64: {error}") from None
