"""Compiles grammars in a process of its own, for what they take: processor time and memory end the process, and nothing else.

It is started by trial.py, without the rest of llmi.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO

_vocabularies: dict[str, object] = {}


class _Bytes:
    """A vocabulary of single bytes whose further ids are those of the model: the work of a compilation does not depend on the tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, num_tokens: int, special: dict[str, int]) -> None:
        by_id = {index: text for text, index in special.items()}
        rest = iter(range(256))
        self.tokens = [
            b"\xff" + by_id[i].encode() if i in by_id else bytes([byte]) if (byte := next(rest, None)) is not None else b""
            for i in range(num_tokens)
        ]
        self.special_token_ids = sorted(by_id)
        self.eos_token_id = num_tokens - 1

    def __call__(self, text: bytes | str) -> list[int]:
        places = {token: index for index, token in enumerate(self.tokens)}
        data = text.encode() if isinstance(text, str) else bytes(text)
        return [places[bytes([byte])] for byte in data if bytes([byte]) in places]


def _tokenizer(num_tokens: int, special: dict[str, int]) -> object:
    """The library's tokenizer for a model's number of tokens; the last one is kept. Its making is not limited."""
    import llguidance

    key = json.dumps([num_tokens, special])
    if key not in _vocabularies:
        _vocabularies.clear()
        _limit_memory(None)
        _vocabularies[key] = llguidance.LLTokenizer(_Bytes(num_tokens + 1, special), n_vocab=num_tokens + 1, eos_token=[num_tokens])
    return _vocabularies[key]


def _limit_memory(more: int | None) -> None:
    """Lets the process take so much more than it has; None: as much as there is."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    if more is not None:
        with Path("/proc/self/statm").open() as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _compile(tokenizer: object, num_tokens: int, grammar: str) -> None:
    import llguidance

    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    num_words = (num_tokens + 1 + 31) // 32
    words = (ctypes.c_int32 * num_words)()
    if not matcher.is_error():
        matcher.unsafe_compute_mask_ptr(ctypes.addressof(words), 4 * num_words)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        os._exit(0)  # the parent has gone
    return data


def main() -> None:
    """Answers requests until standard input ends."""

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        request = json.loads(_read(source, int.from_bytes(_read(source, 8), "little")))
        tokenizer = _tokenizer(request["num_tokens"], request["special"])
        _limit_memory(request["more_bytes"])
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])  # SIGPROF ends the process
        try:
            _compile(tokenizer, request["num_tokens"], request["grammar"])
        except MemoryError:
            os.abort()
        except BaseException:  # what is wrong with it is said by the compilation that counts
            pass
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write((2).to_bytes(8, "little") + b"{}")
        sink.flush()
