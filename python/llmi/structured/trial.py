"""A grammar is compiled by a process of its own first, which ends where it takes too much: the library itself knows no such end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from llmi.errors import ChatTemplateError, InvalidParamsError

#: Seconds of processor time: of a first trial, so that a grammar that takes long holds up no short one, and of the second.
SHORT_S, LONG_S = 0.25, 4.0
_free: list[Any] = []  # processes that nobody uses; there are as many as grammars have been tried out at a time


class NeedsLongerError(Exception):
    """The grammar takes longer than SHORT_S."""


def try_out(grammar: str, num_tokens: int, special: Mapping[str, int], cpu_s: float) -> None:
    """Compiles a grammar of the library in a process of its own. Raises InvalidParamsError if it takes too much, NeedsLongerError for the time of a
    first trial. num_tokens, special: of the vocabulary.
    """
    from llmi.chat.process import Ended, Renderer, kept  # a call without a grammar does without

    try:
        process = _free.pop()
    except IndexError:
        process = kept(Renderer("llmi.structured.trial_worker"))
    try:
        process.ask({"grammar": grammar, "num_tokens": num_tokens, "special": dict(special), "cpu_s": cpu_s})
    except ChatTemplateError:
        return  # no process can be started here, or the grammar is larger than what one reads
    except TimeoutError:
        raise _refused("takes more than 20 s") from None
    except Ended as ended:
        if ended.signal == signal.SIGPROF and cpu_s < LONG_S:
            raise NeedsLongerError from None
        what = f"more than {cpu_s:g} s of processor time" if ended.signal == signal.SIGPROF else "more than 160 MB of memory"
        raise _refused(f"takes {what}") from None
    finally:
        _free.append(process)


def _refused(what: str) -> InvalidParamsError:
    return InvalidParamsError(f"structured_outputs: the grammar {what} to compile: make it smaller", "structured_outputs")
