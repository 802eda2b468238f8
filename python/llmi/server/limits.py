"""The one table of a server's limits."""

from __future__ import annotations

import dataclasses
import resource

from llmi.errors import InvalidParamsError

_RESERVED_FILES = 64  # of the process's: the model's, pipes, logs


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else max(8, soft - _RESERVED_FILES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of what one client may send to a server. What exceeds a limit is refused by its name, before anything is allocated for it.

    Attributes
    ----------
    header_bytes : int
        Request line and headers of one request; more: 431.
    header_s, body_s : float
        Seconds until a request's headers, and then its body, must be whole; else 408, and the connection is closed.
    body_bytes : int
        Of a request's body; more: 413.
    num_messages : int
        Of one chat.
    num_samples : int
        Sequences that run for one request: `n`, or the beams of a search, times its prompts.
    num_tokens : int
        These times `max_tokens`.
    answer_bytes : int
        Of one answer with log-probabilities, computed before it is begun.
    unread_bytes : int
        Of a stream, about, that wait for a client that reads too slowly; with more its request ends.
    stuck_s : float
        A client that takes none of the bytes that wait for it this long is cut off.
    keep_alive_s : float
        A stream that is silent for this long gets a comment: proxies cut connections that are silent.
    idle_s : float
        A connection that has had its answer waits this long for another request. It is more than the 60 s of nginx and of AWS's load
        balancers and the 90 s of Go's clients: of two ends that keep a connection, the one that sends requests must be the one that closes
        it.
    num_connections : int
        Open connections; for one more the one that has been idle longest is closed, and if none is, it gets 503. None: the limit of open
        files, less 64.
    queue : int or None
        Requests that wait in addition to those that the batch has places for; one more gets 429. None: no bound.
    deadline_s : float or None
        From a request's arrival to its end; a request may name a shorter time. None: no limit.
    """

    header_bytes: int = 64 << 10
    header_s: float = 10.0
    body_bytes: int = 4 << 20
    body_s: float = 60.0
    num_messages: int = 10_000
    num_samples: int = 128
    num_tokens: int = 1 << 20
    answer_bytes: int = 64 << 20
    unread_bytes: int = 16 << 20
    stuck_s: float = 60.0
    keep_alive_s: float = 15.0
    idle_s: float = 120.0
    num_connections: int = dataclasses.field(default_factory=_most_connections)
    queue: int | None = 1024
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "queue" else 1e-3 if field.name.endswith("_s") else 1
            if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and value >= least):
                raise InvalidParamsError(f"{field.name} must be a number of {least:g} or more, not {value!r}", field.name)

    def check_answer(self, num_prompts: int, each: tuple[int, str], max_tokens: int, num_logprobs: int, num_prompt_logprobs: int) -> None:
        """Raises InvalidParamsError, with the sum, for a request whose answer would be too large.

        each: sequences that run for a prompt, and the field that says so; num_logprobs, num_prompt_logprobs: entries of the whole answer.
        """
        number, field = each
        samples = num_prompts * number
        if samples > self.num_samples:
            raise InvalidParamsError(
                f"{num_prompts} prompts with {field} = {number} are {samples:,} answers, more than {self.num_samples:,}", field
            )
        tokens = samples * max_tokens
        if tokens > self.num_tokens:
            raise InvalidParamsError(
                f"{samples:,} answers of max_tokens = {max_tokens:,} are {tokens:,} tokens, more than {self.num_tokens:,}", "max_tokens"
            )
        size = (num_logprobs + num_prompt_logprobs) * ENTRY_BYTES
        if size > self.answer_bytes:
            raise InvalidParamsError(
                f"{num_logprobs:,} log-probabilities of the answers and {num_prompt_logprobs:,} of their prompts, of about {ENTRY_BYTES}"
                f" bytes each, are {size:,} bytes, more than {self.answer_bytes:,}",
                "logprobs" if num_logprobs >= num_prompt_logprobs else "prompt_logprobs",
            )


#: JSON of one entry of `top_logprobs`: token, log-probability, bytes.
ENTRY_BYTES = 96
