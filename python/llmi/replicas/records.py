"""A request that runs in another process, as the core would have it: records with the names of the core's, and their form in messages.

A message holds only what its reader checks: token ids, texts, numbers, and lists of them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from llmi import errors
from llmi.base.travel import strict_json
from llmi.errors import LlmiError
from llmi.replicas.wire import BrokenMessageError, number_of

if TYPE_CHECKING:
    from llmi import _core

_ENDS = (None, "stop", "length", "abort", "error")
_MOMENTS = ("first_scheduled_time_s", "first_token_time_s", "finish_time_s")
_TIMES = (*_MOMENTS, "detokenize_time_s", "constraint_time_s", "arrival_time_s")
_COUNTS = ("num_preemptions", "num_cached_tokens")
_LARGEST = 2**63 - 1


@dataclasses.dataclass(slots=True)
class Row:
    """The log-probabilities of one position."""

    token_ids: list[int]
    logprobs: list[float]
    processed_logprobs: list[float]
    ranks: list[int]


@dataclasses.dataclass(slots=True)
class Counts:
    """Of speculation."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: list[int] = dataclasses.field(default_factory=list)
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0


@dataclasses.dataclass(slots=True)
class Sample:
    """One continuation."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    logprobs: list[Row] = dataclasses.field(default_factory=list)
    cumulative_logprob: float = 0.0
    score: float = math.nan
    beam_indices: list[int] = dataclasses.field(default_factory=list)
    token_times_s: list[float] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    speculation: Counts = dataclasses.field(default_factory=Counts)
    trace: dict[str, Any] = dataclasses.field(default_factory=dict)
    candidates: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Remote:
    """A request's record. error: why it failed, as it is raised."""

    id: int
    arrival_time_s: float
    stepped: bool = False
    samples: list[Sample] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[Row] = dataclasses.field(default_factory=list)
    error: LlmiError | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    first_scheduled_time_s: float = 0.0
    first_token_time_s: float = 0.0
    finish_time_s: float = 0.0
    detokenize_time_s: float = 0.0
    constraint_time_s: float = 0.0


@dataclasses.dataclass(slots=True)
class News:
    """An event: what is new of one continuation, or the request's end."""

    request: Remote
    finished: bool = False
    sample_index: int = 0
    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    logprobs: list[Row] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def request_id(self) -> int:
        """Its number."""
        return self.request.id

    @property
    def prompt_logprobs(self) -> list[Row]:
        """Of the request, as far as they are known."""
        return self.request.prompt_logprobs

    @property
    def num_cached_tokens(self) -> int:
        """Of the request."""
        return self.request.num_cached_tokens

    @property
    def first_scheduled_time_s(self) -> float:
        """Of the request."""
        return self.request.first_scheduled_time_s

    @property
    def first_token_time_s(self) -> float:
        """Of the request."""
        return self.request.first_token_time_s


def rows_as_json(rows: list[_core.TokenLogprobs]) -> list[Any]:
    """Log-probabilities of positions."""
    return [[row.token_ids, strict_json(row.logprobs), strict_json(row.processed_logprobs), row.ranks] for row in rows]


def event_as_json(request_id: int, event: _core.OutputEvent) -> dict[str, Any]:
    """What an event of a continuation tells."""
    found = {
        "id": request_id,
        "sample": event.sample_index,
        "token_ids": event.token_ids,
        "text": event.text,
        "logprobs": rows_as_json(event.logprobs),
        "finish_reason": event.finish_reason,
        "stop_reason": event.stop_reason,
        "drafts": [event.num_draft_tokens, event.num_accepted_tokens],
        "times": strict_json([event.first_scheduled_time_s, event.first_token_time_s]),
        "num_cached_tokens": event.num_cached_tokens,
    }
    if rows := event.prompt_logprobs:
        found["prompt_logprobs"] = rows_as_json(rows)
    return found


def end_as_json(request_id: int, request: _core.Request, error: LlmiError | None, whole: bool) -> dict[str, Any]:
    """The end of a request. whole: nothing of its continuations was told before."""
    samples = []
    for index, sample in enumerate(request.samples):
        counts = sample.speculation
        entry: dict[str, Any] = {
            "cumulative_logprob": strict_json(sample.cumulative_logprob),
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
            "counts": [counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens],
            "accepted": counts.num_accepted_per_position,
            "speculation_times": strict_json([counts.draft_time_s, counts.verify_time_s]),
            "token_times": strict_json(list(map(float, sample.token_times_s))) if index == 0 else [],
        }
        if whole:
            entry |= {"token_ids": sample.token_ids, "text": sample.text, "logprobs": rows_as_json(sample.logprobs)}
            entry |= {"score": strict_json(sample.score), "beam_indices": sample.beam_indices}
        samples.append(entry)
    found = {"id": request_id, "samples": samples, "error": None if error is None else error_as_json(error)}
    found |= {name: strict_json(getattr(request, name)) for name in _TIMES} | {name: getattr(request, name) for name in _COUNTS}
    if whole:
        found["prompt_logprobs"] = rows_as_json(request.prompt_logprobs)
    return found


def moved(fields: dict[str, Any], by_s: float) -> dict[str, Any]:
    """What an event or an end tells, with its moments so much later: clocks of machines differ. A moment of 0 has not come."""

    def later(value: object) -> object:
        return value + by_s if isinstance(value, float) and value else value

    found = {**fields, **{name: later(fields[name]) for name in _MOMENTS if name in fields}}
    if "arrival_time_s" in fields:
        found["arrival_time_s"] = fields["arrival_time_s"] + by_s
    if isinstance(fields.get("times"), list):
        found["times"] = [later(value) for value in fields["times"]]
    if isinstance(fields.get("samples"), list):
        samples = [entry for entry in fields["samples"] if isinstance(entry, dict)]
        found["samples"] = [{**entry, "token_times": [later(value) for value in entry.get("token_times", ())]} for entry in samples]
    return found


def error_as_json(raised: BaseException) -> dict[str, Any]:
    """An error's class, message and plain fields; one that is not llmi's is an LlmiError that names it."""
    error = raised if isinstance(raised, LlmiError) else LlmiError(f"{type(raised).__name__}: {raised}")
    plain = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {"type": type(error).__name__, "message": str(error), "fields": strict_json({"fault": error.fault, **plain})}


def error_of(value: object) -> LlmiError:
    """The error of `error_as_json`. Raises BrokenMessageError."""
    fields = _object(value)
    kind = getattr(errors, _text(fields.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, LlmiError)):
        raise BrokenMessageError("an error is of no known kind")
    error = errors._restore(kind, (_text(fields.get("message")),))
    plain = _object(fields.get("fields"))
    if plain.get("fault") not in ("request", "model", "machine") or not isinstance(plain.get("parameter"), str | None):
        raise BrokenMessageError("an error is nobody's fault")
    error.__dict__.update({name: entry for name, entry in plain.items() if not name.startswith("_")})
    assert isinstance(error, LlmiError)
    return error


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenMessageError("an object is missing in a message")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BrokenMessageError("a list is missing in a message")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BrokenMessageError("a text is missing in a message")
    return value


def whole_number(value: object, low: int = 0, high: int = _LARGEST) -> int:
    """A count of a message. Raises BrokenMessageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BrokenMessageError(f"a message has {str(value)[:40]!r} where it needs a number in [{low}, {high}]")
    return value


def token_ids(value: object) -> list[int]:
    """The token ids of a message. Raises BrokenMessageError."""
    return [whole_number(entry, high=2**31 - 1) for entry in _list(value)]


def _floats(value: object) -> list[float]:
    return [number_of(entry) for entry in _list(value)]


def rows_of(value: object) -> list[Row]:
    """The rows of `rows_as_json`. Raises BrokenMessageError."""
    rows = []
    for entry in _list(value):
        if not isinstance(entry, list) or len(entry) != 4:
            raise BrokenMessageError("log-probabilities of a position are four lists")
        row = Row(token_ids(entry[0]), _floats(entry[1]), _floats(entry[2]), token_ids(entry[3]))
        if not len(row.token_ids) == len(row.logprobs) == len(row.processed_logprobs) == len(row.ranks):
            raise BrokenMessageError("log-probabilities of a position are four lists of one length")
        rows.append(row)
    return rows


def _ends(fields: dict[str, Any], into: Sample | News) -> None:
    reason, stop = fields.get("finish_reason"), fields.get("stop_reason")
    if reason not in _ENDS or isinstance(stop, bool) or not isinstance(stop, str | int | None):
        raise BrokenMessageError("a continuation ends for no known reason")
    into.finish_reason, into.stop_reason = reason, stop


def news_of(fields: dict[str, Any], record: Remote) -> News:
    """The event of `event_as_json`; the record gets what is known of the request. Raises BrokenMessageError."""
    drafts, times = token_ids(fields.get("drafts")), _floats(fields.get("times"))
    if len(drafts) != 2 or len(times) != 2:
        raise BrokenMessageError("an event has two counts of drafts and two times")
    record.first_scheduled_time_s, record.first_token_time_s = times
    record.num_cached_tokens = whole_number(fields.get("num_cached_tokens"))
    if "prompt_logprobs" in fields:
        record.prompt_logprobs = rows_of(fields["prompt_logprobs"])
    news = News(
        record,
        sample_index=whole_number(fields.get("sample")),
        token_ids=token_ids(fields.get("token_ids")),
        text=_text(fields.get("text")),
        logprobs=rows_of(fields.get("logprobs")),
        num_draft_tokens=drafts[0],
        num_accepted_tokens=drafts[1],
    )
    _ends(fields, news)
    return news


def finish(fields: dict[str, Any], record: Remote, samples: list[Sample], whole: bool) -> None:
    """Gives a record what the end of its request tells. samples: what came of its continuations. Raises BrokenMessageError."""
    given = fields.get("samples")
    if not isinstance(given, list) or len(given) > len(samples) or (not whole and 0 < len(given) < len(samples)):
        raise BrokenMessageError("an end has another number of continuations than were asked for")
    for sample, entry in zip(samples, map(_object, given), strict=False):
        _ends(entry, sample)
        sample.cumulative_logprob = number_of(entry.get("cumulative_logprob"))
        counts, times = token_ids(entry.get("counts")), _floats(entry.get("speculation_times"))
        if len(counts) != 3 or len(times) != 2:
            raise BrokenMessageError("speculation has three counts and two times")
        sample.speculation = Counts(counts[0], counts[1], counts[2], token_ids(entry.get("accepted")), times[0], times[1])
        sample.token_times_s = _floats(entry.get("token_times"))
        if whole:
            sample.token_ids, sample.text = token_ids(entry.get("token_ids")), _text(entry.get("text"))
            sample.logprobs, sample.score = rows_of(entry.get("logprobs")), number_of(entry.get("score"))
            sample.beam_indices = token_ids(entry.get("beam_indices"))
    if whole:
        record.prompt_logprobs = rows_of(fields.get("prompt_logprobs"))
    for name in _TIMES:
        setattr(record, name, number_of(fields.get(name)))
    for name in _COUNTS:
        setattr(record, name, whole_number(fields.get(name)))
    record.error = None if fields.get("error") is None else error_of(fields["error"])
    record.samples = samples[: len(given)]
