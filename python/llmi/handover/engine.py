"""An engine that hands blocks over to others, or asks others for them."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import TOKEN_IDS, Text
from llmi.base.log import log
from llmi.errors import InvalidParamsError, LlmiError, call_core
from llmi.handover.connectors import connector_of
from llmi.handover.peers import Peer, Peers
from llmi.handover.settings import answers, asks
from llmi.params.sampling import SamplingParams
from llmi.text.prompts import ChatPrompt

if TYPE_CHECKING:
    from llmi.session import Session

_WAIT_S = 0.1
_MOST_ASKED = 16  # questions at a time; further ones wait their turn
Question = tuple[int, list[int], str, float]


class Handover:
    """Of one LLM. transfer: its kv_transfer_config. identity: what its blocks are of.

    Raises
    ------
    InvalidParamsError
    """

    def __init__(self, transfer: Mapping[str, Any]) -> None:
        self.identity: dict[str, Any] = {}
        self.transfer = transfer
        self._peers = Peers(transfer["kv_peers"])
        self._engine_id = secrets.token_hex(16)
        self._computing: list[tuple[list[int], str]] = []  # for others
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._seats = threading.Semaphore(_MOST_ASKED)
        self.connector = connector_of(transfer)

    def options(self) -> dict[str, Any]:
        """The core's."""
        return {"hands_over": True, "ask_from": self.transfer["kv_min_tokens"] if asks(self.transfer) else 0}

    def begin(self, engine: _core.Engine, identity: str) -> None:
        """identity: what blocks are of. The engine's questions are carried from now on."""
        self.identity, self._identity = json.loads(identity), identity
        if asks(self.transfer):
            threading.Thread(target=_carry, args=(weakref.ref(self), engine, self._closed), name="llmi-questions", daemon=True).start()

    def close(self) -> None:
        """Ends its threads, and leaves the folder."""
        self._closed.set()
        self.connector.close()

    # --- for others

    def answer(self, llm: Session, body: Mapping[str, Any]) -> dict[str, Any]:
        """Computes the blocks of a prompt and writes them; nothing for an engine of another identity.

        Raises
        ------
        InvalidParamsError, LlmiError
        """
        if not answers(self.transfer):
            raise InvalidParamsError("this engine is no producer (kv_transfer_config)", "kv_transfer_config")
        token_ids = TOKEN_IDS.parse("prompt_token_ids", body.get("prompt_token_ids"))
        salt = Text(1 << 16, empty=True).parse("cache_salt", body.get("cache_salt"))
        told: dict[str, Any] = {"engine": self._engine_id, "identity": self.identity, "num_tokens": 0}
        if body.get("identity") != self.identity or body.get("engine") == self._engine_id:
            return told
        with self._computes(token_ids, salt):
            prompt = ChatPrompt(prompt_token_ids=token_ids)
            if salt:
                prompt["cache_salt"] = salt
            llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0, detokenize=False), speculative_config=None, use_tqdm=False)
            told["num_tokens"] = call_core(llm._engine.save_prefix, token_ids, salt)
        if told["num_tokens"] > 0:
            told |= self.connector.offer(self._keys(token_ids[: told["num_tokens"]], salt))
        return told

    def _keys(self, token_ids: list[int], salt: str) -> list[str]:
        return _core.prefix_keys(self._identity, salt, token_ids, self.identity["block_size"])

    @contextlib.contextmanager
    def _computes(self, token_ids: list[int], salt: str) -> Iterator[None]:
        entry = (token_ids, salt)
        with self._lock:
            self._computing.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._computing.remove(entry)

    # --- from others

    def take(self, engine: _core.Engine, question: Question) -> None:
        """Carries a question, on a thread of its own that no program waits for."""
        end_s = time.monotonic() + question[3]
        while not self._seats.acquire(timeout=_WAIT_S):
            if self._closed.is_set():
                return
        threading.Thread(target=self._ask, args=(engine, question, end_s), name="llmi-asks", daemon=True).start()

    def _ask(self, engine: _core.Engine, question: Question, end_s: float) -> None:
        number, token_ids, salt, _ = question
        answer = "failed"
        try:
            answer = self._answer_of(token_ids, salt, end_s)
        finally:
            self._seats.release()
            engine.answer_question(number, answer)

    def _answer_of(self, token_ids: list[int], salt: str, end_s: float) -> str:
        with self._lock:  # what is computed for others, they need not compute for us
            if any(computed[: len(token_ids)] == token_ids and own == salt for computed, own in self._computing):
                return "unasked"
        peer = self._peers.take()
        if peer is None:
            return "unasked"
        seconds = end_s - time.monotonic()
        is_well = seconds <= 0  # then it was not asked
        try:
            if is_well:
                return "late"
            body = {"identity": self.identity, "engine": self._engine_id, "prompt_token_ids": token_ids, "cache_salt": salt}
            told = peer.line.ask(body, seconds)
            answer = self._judged(peer, told)
            if answer == "there":
                self.connector.fetch(self._keys(token_ids, salt), told, end_s)
            is_well = True
            return answer
        except (OSError, ValueError, RecursionError, LlmiError) as error:  # the third: an answer of many nested lists
            log.info("%s computed no prompt: %s", peer.url, error)
            return "late" if time.monotonic() >= end_s else "failed"
        finally:
            self._peers.give_back(peer, is_well)

    def _judged(self, peer: Peer, told: Mapping[str, Any]) -> str:
        """Whether the answer is of an engine that computes what this one does."""
        other = told.get("identity")
        if other == self.identity and told.get("engine") != self._engine_id:
            return "there"
        if not peer.is_foreign:
            peer.is_foreign = True
            log.warning("kv_transfer_config: %s is not asked: %s", peer.url, self._difference(other))
        return "foreign"

    def _difference(self, other: object) -> str:
        if other == self.identity:
            return "it is this engine itself"
        if not isinstance(other, dict):
            return "it does not say what it computes"
        unequal = [name for name in self.identity if name not in other or other[name] != self.identity[name]]
        if not unequal:
            return "it says more than this engine knows of"
        return f"its {unequal[0]} is {str(other.get(unequal[0]))[:80]}, here it is {str(self.identity[unequal[0]])[:80]}"


def _carry(handover: weakref.ref[Handover], engine: _core.Engine, closed: threading.Event) -> None:
    """Takes the engine's questions until it is closed."""
    while not closed.is_set():
        question = engine.next_question(_WAIT_S)
        own = handover()
        if own is None:
            return
        if question is not None and not closed.is_set():
            own.take(engine, question)
