"""One request on its way, as its event loop sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llmi import _core
from llmi.errors import RequestTimeoutError
from llmi.online.progress import Progress
from llmi.requests.call import Call


class Payer(Protocol):
    """Who pays for requests, whoever reads them."""

    def check_context(self, num_tokens: int) -> None:
        """Raises if prompts and output together may not have `num_tokens` tokens."""
        ...

    def spend(self, num_tokens: int) -> None:
        """Tokens were read and written. Called in the request's event loop when the engine is done with it."""
        ...


def num_prompt_tokens(call: Call) -> int:
    """Tokens of a request's prompt, and of the negative one that guidance reads."""
    submission = call.submissions[0]
    return len(submission.prompt_token_ids) + len(submission.negative_token_ids)


class OnlineRequest:
    """One request under way. All but `call` and `failure` belong to the thread of `loop`.

    arrived_s: by the loop's clock.
    """

    def __init__(self, name: str, call: Call, loop: asyncio.AbstractEventLoop, arrived_s: float, deadline_s: float | None) -> None:
        submission = call.submissions[0]
        self.name = name
        self.call = call
        self.loop = loop
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.progress = Progress(call, submission.params.output_kind)
        self.failure: BaseException | None = None  # of the pump, at this request's end
        self.closed = False  # the pump has ended, and no more events will come
        self._waiter: asyncio.Future[None] | None = None
        self.listener: Callable[[], None] | None = None  # is called when the reader may find something
        self.expired = False
        self.payer: Payer | None = None
        self.tell: Callable[[_core.OutputEvent], None] | None = None
        self.max_unread: int | None = None
        self.overrun = False  # it was ended, because its reader has left too much unread
        self._timer = None if deadline_s is None else loop.call_at(arrived_s + deadline_s, self._expire)

    def take(self, event: _core.OutputEvent) -> None:
        """Takes in an event. Wake the reader after all events of a step."""
        self.progress.add(event)
        if self.tell is not None:
            self.tell(event)
        if event.finished and self.payer is not None:
            submission = self.call.submissions[0]
            written = sum(len(sample.token_ids) for sample in submission.built.samples[: submission.params.n])
            self.payer.spend(num_prompt_tokens(self.call) + written)
        if self.max_unread is not None and not self.overrun and self.progress.num_unread > self.max_unread:
            self.overrun = True
            self.call.abort()

    def wake_for_news(self) -> None:
        """Wakes the reader if there is something for it."""
        if self.progress.has_news:
            self.wake()

    def _expire(self) -> None:
        self.expired = True
        self.wake()

    def wake(self) -> None:
        """Lets the reader look."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self.listener is not None:
            self.listener()

    async def news(self) -> None:
        """Returns when the reader may find something. A cancel loses nothing."""
        if self._waiter is not None:
            raise RuntimeError("another task waits for this request's next output")
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def leave(self) -> None:
        """The reader has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def timeout(self) -> RequestTimeoutError:
        """The error of a deadline that has passed."""
        return timeout_error(
            self.name,
            self.deadline_s or 0.0,
            self.loop.time() - self.arrived_s,
            self.progress.num_tokens,
            self.call.submissions[0].params.max_tokens,
        )


def timeout_error(name: str, deadline_s: float, elapsed_s: float, num_tokens: int, max_tokens: int | None) -> RequestTimeoutError:
    """Says how far the request came."""
    room = "" if max_tokens is None else f" of at most {max_tokens:,}"
    return RequestTimeoutError(
        f"request {name!r} did not end within deadline_s = {deadline_s:g}: {elapsed_s:.3f} s have passed since it arrived, and"
        f" {num_tokens:,} tokens{room} had come; give a longer deadline_s, or fewer max_tokens",
        deadline_s,
        elapsed_s,
        num_tokens,
    )
