"""HTML for notebooks. Everything that came from a model or a user is escaped."""

from __future__ import annotations

import html
import math
from typing import Protocol

from llmi.errors import LlmiError
from llmi.outputs.completion import CompletionOutput, RequestMetrics


def _tokens_html(output: CompletionOutput) -> str:
    """Tokens coloured by probability where the request has log-probabilities."""
    if not output.logprobs:
        return html.escape(output.text)
    spans = []
    for token_id, entries in zip(output.token_ids, output.logprobs, strict=False):
        chosen = entries[token_id]
        probability = math.exp(min(chosen.logprob, 0.0))
        title = html.escape(f"p = {probability:.3f}, rank {chosen.rank}")
        colour = f"hsl({120 * probability:.0f}, 70%, 85%)"
        spans.append(f'<span title="{title}" style="background:{colour};color:#000">{html.escape(chosen.decoded_token)}</span>')
    return "".join(spans)


def _score(output: CompletionOutput) -> str:
    return "" if output.score is None else f"<td>{output.score:.4f}</td>"


class ShownRequest(Protocol):
    """What a picture of a RequestOutput shows."""

    prompt: str | None
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    seed: int
    error: LlmiError | None


def request_html(request: ShownRequest) -> str:
    """One result: prompt, continuations, times."""
    rows = "".join(
        f'<tr><td style="vertical-align:top">{output.index}</td>'
        f'<td style="text-align:left;white-space:pre-wrap">{_tokens_html(output)}</td>'
        f"<td>{len(output.token_ids)}</td><td>{html.escape(str(output.finish_reason))}</td>{_score(output)}</tr>"
        for output in request.outputs
    )
    scores = "<th>score</th>" if any(output.score is not None for output in request.outputs) else ""
    error = f'<div style="color:#b00">{html.escape(str(request.error))}</div>' if request.error is not None else ""
    return (
        f'<div><div style="white-space:pre-wrap"><b>{html.escape(request.prompt or "")}</b></div>'
        f"<table><thead><tr><th></th><th>text</th><th>tokens</th><th>end</th>{scores}</tr></thead><tbody>{rows}</tbody></table>{error}"
        f"<small>first token {request.metrics.time_to_first_token_s * 1e3:.0f} ms, seed {request.seed}</small></div>"
    )
