"""Totals of all requests of an AsyncLLM, in histograms of fixed buckets."""

from __future__ import annotations

import bisect
import math
import threading
from typing import TYPE_CHECKING

from llmi.outputs.completion import FinishReason
from llmi.requests.results import request_metrics
from llmi.requests.submission import Submission

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

_TIMES_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
_SHORT_TIMES_S = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
#: (name, buckets' upper bounds, what it is) of each histogram.
HISTOGRAMS = {
    "time_to_first_token_seconds": (_TIMES_S, "from a request's arrival at the engine to its first token"),
    "inter_token_latency_seconds": (_TIMES_S, "gaps between the tokens of a request's first continuation"),
    "request_time_per_output_token_seconds": (_TIMES_S, "mean time of a request's tokens after the first"),
    "e2e_request_latency_seconds": (_TIMES_S, "from a request's arrival at the engine to its end"),
    "request_queue_time_seconds": (_TIMES_S, "from its arrival until its first step"),
    "request_template_time_seconds": (_SHORT_TIMES_S, "of a chat's template, before a request's arrival at the engine"),
    "request_tokenizer_time_seconds": (_SHORT_TIMES_S, "of the tokenizer, before its arrival"),
    "request_detokenize_time_seconds": (_SHORT_TIMES_S, "in which the engine made text of its tokens"),
    "request_constraint_time_seconds": (
        _SHORT_TIMES_S,
        "in masks of its structured output, and in the grammar's compilation before its arrival",
    ),
    "request_prefill_time_seconds": (_TIMES_S, "from its first step to its first token"),
    "request_decode_time_seconds": (_TIMES_S, "from its first token to its end"),
    "request_inference_time_seconds": (_TIMES_S, "from its first step to its end"),
    "request_prompt_tokens": (_COUNTS, "tokens of prompts"),
    "request_generation_tokens": (_COUNTS, "tokens of outputs, all continuations of a request together"),
    "request_params_n": ((1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 128.0), "continuations of a request"),
    "request_params_max_tokens": (_COUNTS, "max_tokens of requests"),
}
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")


class Histogram:
    """Counts of values by fixed upper bounds; the last count is of those above all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Takes in a value; NaN is none."""
        if not math.isnan(value):
            self.counts[bisect.bisect_left(self.bounds, value)] += 1
            self.sum += value

    def add_gaps(self, times_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        """Takes in the differences of ascending times."""
        gaps = np.diff(times_s)
        found = np.bincount(np.searchsorted(self.bounds, gaps), minlength=len(self.counts))
        self.counts = [count + int(more) for count, more in zip(self.counts, found, strict=True)]
        self.sum += float(gaps.sum())


class Totals:
    """The totals of all requests that have ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.histograms = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self.num_ended = dict.fromkeys(FINISH_REASONS, 0)  # continuations, by why they ended
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def add(self, submission: Submission) -> None:
        """A request has ended."""
        request, params = submission.built, submission.params
        samples, times_of = request.samples, request_metrics(submission, request)
        num_tokens = sum(len(sample.token_ids) for sample in samples)
        times = samples[0].token_times_s if samples else np.zeros(0)
        values = {
            "time_to_first_token_seconds": times_of.time_to_first_token_s,
            "e2e_request_latency_seconds": times_of.e2e_latency_s,
            "request_queue_time_seconds": times_of.queue_time_s,
            "request_time_per_output_token_seconds": times_of.time_per_output_token_s,
            "request_prefill_time_seconds": times_of.prefill_time_s,
            "request_decode_time_seconds": times_of.decode_time_s,
            "request_inference_time_seconds": times_of.prefill_time_s + times_of.decode_time_s,
            "request_template_time_seconds": times_of.template_time_s,
            "request_tokenizer_time_seconds": times_of.tokenizer_time_s,
            "request_detokenize_time_seconds": times_of.detokenize_time_s,
            "request_constraint_time_seconds": times_of.constraint_time_s,
            "request_prompt_tokens": len(submission.prompt_token_ids),
            "request_generation_tokens": num_tokens,
            "request_params_n": params.n,
            "request_params_max_tokens": math.nan if params.max_tokens is None else params.max_tokens,
        }
        with self._lock:
            for name, value in values.items():
                self.histograms[name].add(value)
            if len(times) > 1:
                self.histograms["inter_token_latency_seconds"].add_gaps(times)
            for sample in samples:
                if sample.finish_reason is not None:
                    self.num_ended[sample.finish_reason] += 1
                self.num_draft_tokens += sample.speculation.num_draft_tokens
                self.num_accepted_tokens += sample.speculation.num_accepted_tokens
