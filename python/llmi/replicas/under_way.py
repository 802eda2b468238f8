"""A request that runs in another process: what came of it, and how it goes on when that process has died."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from llmi.errors import LlmiError
from llmi.replicas.asked import Asked
from llmi.replicas.channel import Channel
from llmi.replicas.placing import chain_of
from llmi.replicas.records import News, Remote, Sample, error_of, finish, news_of
from llmi.replicas.wire import BrokenMessageError
from llmi.requests.submission import Submission

if TYPE_CHECKING:
    from llmi import _core


class _Again:
    """How much of a continuation the present run has told; what was told before is not told again."""

    def __init__(self) -> None:
        self.num_tokens = self.num_chars = self.num_rows = 0


class UnderWay:
    """One request. The router's lock guards it.

    deaths : replicas that died one after another while they ran it, and no token came of it in between.
    is_aborted : its reader wants no more.
    goes_on : its tokens are the same wherever it runs, so that another replica may go on behind them.
    """

    def __init__(self, submission: Submission, channel: Channel | _core.OutputChannel, goes_on: bool) -> None:
        self.asked = Asked.of(submission)
        self.num_sequences = submission.params.n if submission.beams is None else submission.beams.beam_width
        self.chain = chain_of(self.asked.prompt_token_ids, self.asked.cache_salt)
        self.record = Remote(self.asked.id, time.monotonic())
        self.deaths = 0
        self.is_aborted = False
        self.goes_on = goes_on
        self._whole = not self.asked.tells or submission.beams is not None  # all comes at the end
        self._streams = submission.streams
        self._channel = cast("Channel", channel)
        self._samples = [Sample() for _ in range(submission.params.n)]
        self._num_known = 0  # tokens that it had when its replica got it
        self._again = [_Again() for _ in self._samples]
        self._is_unsent = False  # to the replica that it was given

    @property
    def has_begun(self) -> bool:
        """Whether a token has come."""
        return any(sample.token_ids for sample in self._samples)

    def note_death(self) -> None:
        """Its replica has died. A request that kills replicas does so at the same token: one that came further is not the reason, nor one
        that never came there."""
        if not self._is_unsent:
            self.deaths = 1 if self.came_further else self.deaths + 1

    @property
    def came_further(self) -> bool:
        """Whether a token has come of the replica that has it."""
        return self._num_tokens > self._num_known

    @property
    def _num_tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self._samples)

    def message(self) -> dict[str, Any]:
        """The request for the next replica, with the tokens so far."""
        self._num_known, self._is_unsent = self._num_tokens, False
        self._again = [_Again() for _ in self._samples]
        if self.has_begun:
            self.asked.known = [sample.token_ids for sample in self._samples]
        return self.asked.message()

    def take(self, fields: dict[str, Any]) -> bool:
        """Takes in an event of its replica; returns whether it was the last. Raises BrokenMessageError."""
        if "refused" in fields:
            self.fail(error_of(fields["refused"]))
            return True
        if "unsent" in fields:
            self._is_unsent = True
            return False
        if "aborted" in fields:
            self.fail(None)
            return True
        if "samples" in fields:
            finish(fields, self.record, self._samples, self._whole)
            self._push(News(self.record, finished=True))
            return True
        news = self._new_part(news_of(fields, self.record))
        if self._streams and (news.token_ids or news.text or news.finish_reason):
            self._push(news)
        return False

    def fail(self, error: LlmiError | None) -> None:
        """Ends it with an error; None: it was aborted."""
        for sample in self._samples:
            sample.finish_reason = sample.finish_reason or ("abort" if error is None else "error")
        self.record.samples, self.record.error = self._samples, error
        self.record.finish_time_s = time.monotonic()
        self._push(News(self.record, finished=True))

    def _new_part(self, news: News) -> News:
        """What was not told before of news; keeps it. Raises BrokenMessageError where what was told is told otherwise."""
        if news.sample_index >= len(self._samples):
            raise BrokenMessageError("an event is of a continuation that was not asked for")
        sample, again = self._samples[news.sample_index], self._again[news.sample_index]
        known_ids = len(sample.token_ids) - again.num_tokens
        known_chars = len(sample.text) - again.num_chars
        known_rows = len(sample.logprobs) - again.num_rows
        if (
            news.token_ids[:known_ids] != sample.token_ids[again.num_tokens :][: len(news.token_ids)]
            or news.text[:known_chars] != sample.text[again.num_chars :][: len(news.text)]
        ):
            raise BrokenMessageError("an answer that goes on begins with other tokens")
        again.num_tokens += len(news.token_ids)
        again.num_chars += len(news.text)
        again.num_rows += len(news.logprobs)
        news.token_ids, news.text, news.logprobs = news.token_ids[known_ids:], news.text[known_chars:], news.logprobs[known_rows:]
        sample.token_ids += news.token_ids
        sample.text += news.text
        sample.logprobs += news.logprobs
        if sample.finish_reason is None:
            sample.finish_reason, sample.stop_reason = news.finish_reason, news.stop_reason
        else:
            news.finish_reason = None  # it was told
        return news

    def _push(self, news: News) -> None:
        self._channel.push([cast("_core.OutputEvent", news)])
