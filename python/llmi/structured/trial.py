"""A grammar is compiled by a process of its own first, which ends where it takes too much: the library itself knows no such end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from llmi.errors import ChatTemplateError, EngineError, InvalidParamsError


class Limits(NamedTuple):
    """What a trial may take: processor time, and memory beyond what the process holds before."""

    cpu_s: float
    more_bytes: int


#: The limits of a first trial, so that a grammar that takes long holds up no short one, and of the second.
SHORT, LONG = Limits(0.25, 48 << 20), Limits(8.0, 128 << 20)
_free: list[Any] = []  # processes that nobody uses; there are as many as grammars have been tried out at a time


class NeedsLongerError(Exception):
    """The grammar takes more than SHORT."""


def try_out(grammar: str, num_tokens: int, special: Mapping[str, int], limits: Limits) -> None:
    """Compiles a grammar of the library in a process of its own. Raises InvalidParamsError if it takes too much, NeedsLongerError for that
    of a first trial, EngineError where no process can be started. num_tokens, special: of the vocabulary.
    """
    from llmi.chat.process import (  # noqa: PLC0415 (a call without a grammar does without)
        MAX_REQUEST_BYTES,
        Ended,
        Renderer,
        encoded,
        kept,
    )

    try:
        request = encoded({"grammar": grammar, "num_tokens": num_tokens, "special": dict(special), **limits._asdict()})
    except ChatTemplateError:
        raise _refused(f"has {len(grammar):,} characters, which is more than the {MAX_REQUEST_BYTES:,} bytes that a trial reads") from None
    try:
        process = _free.pop()
    except IndexError:
        process = kept(Renderer("llmi.structured.trial_worker"))
    try:
        process.answer(request)
    except ChatTemplateError as error:
        what = "structured_outputs: a grammar is compiled in a process of its own first, and none can be started"
        raise EngineError(f"{what}: {error}") from None
    except TimeoutError:
        raise _refused("takes more than 20 s to compile") from None
    except Ended as ended:
        if limits == SHORT:
            raise NeedsLongerError from None
        what = f"{limits.cpu_s:g} s of processor time" if ended.signal == signal.SIGPROF else f"{limits.more_bytes >> 20} MB of memory"
        raise _refused(f"takes more than {what} to compile") from None
    finally:
        _free.append(process)


def _refused(what: str) -> InvalidParamsError:
    return InvalidParamsError(f"structured_outputs: the grammar {what}: make it smaller", "structured_outputs")
