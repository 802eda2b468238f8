"""Whether a scheduler without a model chooses what a recording (engine/recording.py) says."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.engine.recording import FORMAT, OPTIONS
from llmi.errors import InvalidParamsError, LlmiError, call_core, from_core

_MOST_LINE = 1 << 26


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a replay found.

    num_steps, num_arrivals : int
        Of the recording, as far as it was replayed.
    difference : str
        The first event that is not equal, with its line; empty: all are.
    """

    num_steps: int
    num_arrivals: int
    difference: str

    def __str__(self) -> str:
        return f"equal: {self.num_steps:,} steps, {self.num_arrivals:,} arrivals" if not self.difference else self.difference


class _DifferentError(Exception):
    """An event came out in another way."""


def replay(path: str | os.PathLike[str]) -> Replay:
    """Runs the scheduler and the cache, without a model, on a recording, and compares each of their answers with what was recorded.

    Raises InvalidParamsError, with the line, for a file that is none.
    """
    lines = _lines(Path(path))
    place, header = next(lines, (f"{path}", {}))
    scheduler = _opened(place, header)
    steps = arrivals = 0
    for place, line in lines:
        events = line.get("events")
        if not isinstance(events, list) or not all(isinstance(event, list) and event and isinstance(event[0], str) for event in events):
            raise _bad(f"{place}: events is a list of lists that begin with a name")
        asked = 0
        for number, event in enumerate(events):
            try:
                asked = _do(scheduler, event, asked)
            except _DifferentError as error:
                return Replay(steps, arrivals, f"{place}, event {number}, {event[0]}: {error}")
            except (_core.CoreError, TypeError, ValueError) as error:
                why: object = from_core(error) if isinstance(error, _core.CoreError) else error
                raise _bad(f"{place}, event {number}, {event[0][:20]}: {str(why).splitlines()[0][:200]}") from None
        steps += "step" in line
        arrivals += "arrival" in line
    return Replay(steps, arrivals, "")


def _do(scheduler: _core.StepReplay, event: list[Any], asked: int) -> int:
    """One event; returns the prompt tokens that the next step may take."""
    name, *values = event
    if name == "prompts":
        return int(*values)
    if name == "schedule":
        pieces, available = values
        _compare("pieces [sequence, tokens, drafted, companion's]", [list(piece) for piece in scheduler.schedule(asked)], pieces)
        _compare("free pages", scheduler.num_available, available)
    elif name == "reserve":
        *wanted, reserved = values
        sequence, num_new, cache_only, num_drafted = wanted
        _compare("reserved", int(scheduler.reserve(sequence, num_new, bool(cache_only), num_drafted)), reserved)
    elif name == "set":
        sequence, fields = values
        for field, value in fields.items():
            scheduler.set(sequence, field, value)
    elif name == "new":
        sequence, salt = values
        scheduler.new(sequence, bytes.fromhex(salt))
    elif name == "commit":
        scheduler.commit([tuple(piece) for piece in values[0]])
    elif name == "other":
        raise ValueError("a sequence of the lab was computed here, and only requests are replayed")
    elif name in ("init", "fork", "free", "keep", "rollback", "trim", "clear", "tokens", "key", "pair", "add", "run", "remove", "end"):
        getattr(scheduler, name)(*values)
    else:
        raise ValueError("no such event")
    return asked


def _compare(what: str, found: object, recorded: object) -> None:
    if found != recorded:
        raise _DifferentError(f"{what}: recorded {recorded!r:.200}, the scheduler here {found!r:.200}")


def _opened(place: str, header: Mapping[str, Any]) -> _core.StepReplay:
    if header.get("format") != FORMAT:
        raise _bad(f"{place}: the first line of a recording has format {FORMAT!r}, not {header.get('format')!r:.40}")
    names = ("scheduling_policy", "kv_cache_dtype", "block_size", "num_pages", *OPTIONS)
    if missing := [name for name in (*names, "spec") if name not in header]:
        raise _bad(f"{place}: the header lacks {', '.join(missing)}")
    try:
        return call_core(_core.StepReplay, json.dumps(header["spec"]), place, **{name: header[name] for name in names})
    except (LlmiError, TypeError) as error:
        raise _bad(f"{place}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number in range(1, 1 << 62):
                text = file.readline(_MOST_LINE + 1)
                if not text:
                    return
                found = json.loads(text) if len(text) <= _MOST_LINE and text.endswith(b"\n") else None
                if not isinstance(found, dict):
                    raise ValueError("no whole JSON object")
                yield f"{path}:{number}", found
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _bad(f"{path}:{number}: {error}") from None


def _bad(why: str) -> InvalidParamsError:
    return InvalidParamsError(f"recording: {why}", "trace")
