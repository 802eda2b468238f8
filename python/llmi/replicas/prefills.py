"""Questions of replicas for the blocks of prompts: the front hands them to the replicas that compute prompts for the others."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from llmi.replicas.records import token_ids, whole_number
from llmi.replicas.replica import Replica
from llmi.replicas.wire import BrokenMessageError


@dataclasses.dataclass(slots=True, eq=False)
class _Question:
    asker: Replica
    number: int  # the asker's
    producer: Replica


class Prefills:
    """The questions under way. lock: the router's."""

    def __init__(self, lock: threading.RLock, replicas: Callable[[], Sequence[Replica]]) -> None:
        self._lock, self._replicas = lock, replicas
        self._questions: dict[int, _Question] = {}
        self._ids = itertools.count()

    def ask(self, asker: Replica, message: dict[str, Any]) -> None:
        """Takes a question to the producer that has the fewest."""
        number, body = whole_number(message.get("id")), message.get("body")
        if not isinstance(body, dict):
            raise BrokenMessageError("a question has no body")
        token_ids(body.get("prompt_token_ids"))
        with self._lock:
            ready = [each for each in self._replicas() if each.is_producer and each.state == "ready" and each.answers]
            if not ready:
                asker.send({"kind": "answer", "id": number, "problem": "no replica that computes prompts is ready"})
                return
            busy = [each.producer for each in self._questions.values()]
            question = _Question(asker, number, min(ready, key=lambda each: busy.count(each) + each.num_sequences))
            own = next(self._ids)
            self._questions[own] = question
            question.producer.send({"kind": "prefill", "id": own, "body": body})

    def take(self, producer: Replica, message: dict[str, Any]) -> None:
        """A producer's answer."""
        with self._lock:
            own = whole_number(message.get("id"))
            question = self._questions.get(own)
            if question is None or question.producer is not producer:
                return
            del self._questions[own]
            told = {name: message[name] for name in ("told", "problem") if name in message}
            question.asker.send({"kind": "answer", "id": question.number, **told})

    def has_gone(self, replica: Replica) -> None:
        """It has died: who asked it computes itself; what it asked is of no use."""
        for own, question in list(self._questions.items()):
            if replica in (question.producer, question.asker):
                del self._questions[own]
                if question.asker is not replica:
                    question.asker.send({"kind": "answer", "id": question.number, "problem": f"replica {replica.name} has died"})
