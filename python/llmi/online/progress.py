"""The state of one request as it has arrived, and the outputs that are made of it. Making one costs what is new in it, however long the
text has become."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from llmi import _core
from llmi.outputs.completion import CompletionOutput, Logprob, RequestMetrics
from llmi.outputs.results import RequestOutput
from llmi.requests.call import Call
from llmi.requests.results import Known, PartialOutput, read_tools, request_metrics

_NAN = math.nan
_FEW_ENTRIES = 4_096  # tokens and log-probabilities of an output that is made in a few milliseconds


class Growing(PartialOutput):
    """One continuation: as a PartialOutput what has come and was not given yet, and what was given, if all of it is wanted again."""

    def __init__(self) -> None:
        super().__init__()
        self.all_ids: list[int] = []
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.given_text: list[str] = []
        self.given_logprobs: list[dict[int, Logprob]] = []

    def take(self, event: _core.OutputEvent) -> int:
        """Takes in an event of this continuation; returns the number of its tokens."""
        begin = len(self.token_ids)
        super().add(event)
        self.all_ids += self.token_ids[begin:]
        if self.finish_reason is not None:
            self.stop_reason = event.stop_reason
        self.num_draft_tokens, self.num_accepted_tokens = event.num_draft_tokens, event.num_accepted_tokens
        return len(self.token_ids) - begin

    def give(self) -> None:
        """An output has what was new."""
        self.token_ids, self.text, self.logprobs = [], "", []

    def keep(self, completion: CompletionOutput) -> None:
        """Makes of what is new all that has come so far."""
        self.given_text.append(completion.text)
        completion.token_ids = self.all_ids.copy()
        completion.text = "".join(self.given_text)
        if len(self.given_text) > 1:
            self.given_text = [completion.text]
        if completion.logprobs is not None:
            self.given_logprobs += completion.logprobs
            completion.logprobs = self.given_logprobs.copy()


class Progress:
    """One request as it has arrived. One thread uses it: that of its reader's event loop.

    kind: of its outputs, as SamplingParams.output_kind names it.
    """

    def __init__(self, call: Call, kind: str) -> None:
        self._call = call
        self._kind = kind
        self._samples: dict[int, Growing] = {}
        self._is_fresh = False  # something came since the last output
        self._metrics: RequestMetrics | None = None
        self._prompt_rows: list[_core.TokenLogprobs] | None = None  # that were not given yet
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._source: dict[str, Any] | None = None  # what the receipt of a delta would be made of
        self._whole: RequestOutput | None = None  # made ahead of its reader
        self.num_cached_tokens = 0
        self.num_unread = 0  # tokens that have come and were not given yet
        self.finished = False

    @property
    def has_news(self) -> bool:
        """Whether a step of the reader would give something."""
        return self.finished or (self._is_fresh and self._kind != "final")

    @property
    def comes_at_once(self) -> bool:
        """Whether there is one output, at the end."""
        return self._kind == "final" or self._call.submissions[0].beams is not None

    @property
    def num_tokens(self) -> int:
        """Tokens of all continuations that have come."""
        return sum(len(sample.all_ids) for sample in list(self._samples.values()))

    @property
    def drafts(self) -> dict[int, tuple[int, int]]:
        """(tokens that were drafted, those of them that were accepted) of each continuation. Any thread may ask."""
        return {index: (sample.num_draft_tokens, sample.num_accepted_tokens) for index, sample in list(self._samples.items())}

    def add(self, event: _core.OutputEvent) -> None:
        """Takes in an event."""
        if event.finished:
            self.finished = True
            return
        if self._metrics is None:
            self._begin(event)
        index = event.sample_index
        sample = self._samples.get(index)
        if sample is None:
            sample = self._samples[index] = Growing()
        self.num_unread += sample.take(event)
        self._is_fresh = True

    def output(self) -> RequestOutput:
        """The next output: of the request's kind, finished if the request has ended. Its error, if it has one, is not in it."""
        submission, results = self._call.submissions[0], self._call.results
        if self.comes_at_once:
            return self.whole() if self._whole is None else self._whole
        record = submission.built if self.finished else None
        finals: list[_core.SampleOutput] = [] if record is None else record.samples
        outputs = []
        for index in range(submission.params.n):
            sample = self._samples.setdefault(index, Growing())
            if finals:
                _complete(sample, finals[index])
            completion = results.completion(index, sample, submission, sample.all_ids)
            sample.give()
            if self._kind == "cumulative":
                sample.keep(completion)
            outputs.append(completion)
        self._is_fresh, self.num_unread = False, 0
        if self.finished and self._kind == "cumulative":
            read_tools(submission, outputs)
        known = Known(self.finished, self._prompt(), request_metrics(submission, record) if record else self._times(), self._cached(record))
        output = results.request_output(submission, outputs, known)
        if self._kind == "delta":
            if self._source is None:
                self._source = {**output._receipt_source, "delta": True}
            output._receipt_source = self._source
        return output

    @property
    def is_large(self) -> bool:
        """Whether the one output of a request may take so long to make that it would hold up an event loop."""
        if not self.comes_at_once:
            return False
        submission = self._call.submissions[0]
        params = submission.params
        kept, scored = params.logprobs, params.prompt_logprobs
        entries = params.n * (params.max_tokens or 0) * (_num_entries(kept) + len(params.logprob_token_ids or ()))
        return entries + (0 if scored is None else len(submission.prompt_token_ids) * _num_entries(scored)) > _FEW_ENTRIES

    def make_whole(self) -> None:
        """Makes what `output` gives at the end of a request whose outputs come at once. Any thread may."""
        self._whole = self.whole()

    def whole(self) -> RequestOutput:
        """All of a request that has ended, whatever kind of outputs it gave."""
        return self._call.output(0)

    def _begin(self, event: _core.OutputEvent) -> None:
        """Takes what the first event of a request tells of it."""
        arrival = self._call.submissions[0].built.arrival_time_s
        first, queue = event.first_token_time_s - arrival, event.first_scheduled_time_s - arrival
        self._metrics = dataclasses.replace(
            self._times(),
            time_to_first_token_s=first if event.first_token_time_s else _NAN,
            queue_time_s=queue,
            prefill_time_s=first - queue if event.first_token_time_s else _NAN,
        )
        self.num_cached_tokens = event.num_cached_tokens
        self._prompt_rows = event.prompt_logprobs

    def _times(self) -> RequestMetrics:
        return self._metrics if self._metrics is not None else request_metrics(self._call.submissions[0], None)

    def _cached(self, record: _core.Request | None) -> int:
        return self.num_cached_tokens if record is None else record.num_cached_tokens

    def _prompt(self) -> list[dict[int, Logprob] | None] | None:
        """The prompt's log-probabilities: of deltas, in the first one alone."""
        submission, results = self._call.submissions[0], self._call.results
        if submission.params.prompt_logprobs is None:
            return None
        if self._prompt_rows is None and self._prompt_logprobs is None and self.finished:
            self._prompt_rows = submission.built.prompt_logprobs
        if self._prompt_rows is not None:
            self._prompt_logprobs, self._prompt_rows = results.prompt_logprobs(self._prompt_rows), None
            return self._prompt_logprobs
        return self._prompt_logprobs if self._kind == "cumulative" else None


def _num_entries(num_logprobs: int | None) -> int:
    """Entries of one position: its token, and its log-probabilities; all of a vocabulary, for -1, are more than a few."""
    return 1 + (0 if num_logprobs is None else num_logprobs if num_logprobs >= 0 else _FEW_ENTRIES)


def _complete(new: PartialOutput, final: _core.SampleOutput) -> None:
    """Gives what is new of a continuation the fields that its end tells."""
    new.cumulative_logprob = final.cumulative_logprob
    new.finish_reason, new.stop_reason = final.finish_reason, final.stop_reason
    new.speculation = final.speculation
    new.trace, new.candidates = final.trace, final.candidates
