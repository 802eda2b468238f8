"""HTML for notebooks. Everything that came from a model or a user is escaped."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.outputs.results import CompletionOutput, MemoryReport, Outputs, RequestOutput
    from llmi.outputs.trace import DecodeTrace


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


_SHARED, _OWN = "#6a6", "#69c"


def trace_html(trace: DecodeTrace) -> str:
    """The text with accepted drafts green, drawn tokens grey, and rejected drafts struck out."""
    columns = trace.to_dict()
    spans = []
    for i, token in enumerate(trace.tokens):
        accepted = columns["accepted"][i]
        colour, style = ("#eee", "") if math.isnan(accepted) else ("#cfc", "") if accepted else ("#fdd", "text-decoration:line-through;")
        title = f"position {columns['position'][i]}, rank {columns['rank'][i]}, log-probability {columns['processed_logprob'][i]:.3f}"
        spans.append(
            f'<span title="{title}" style="background:{colour};{style}color:#000;white-space:pre-wrap">{html.escape(token)}</span>'
        )
    return f"<div>{''.join(spans)}</div><small>{html.escape(repr(trace))}</small>"


def table_html(headings: list[str], rows: list[list[str]]) -> str:
    """A plain table; the first row stands out."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f'<tr style="font-weight:{"bold" if i == 0 else "normal"}">{row}</tr>' for i, row in enumerate(cells))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def request_html(request: RequestOutput) -> str:
    """One result: prompt, continuations, times."""
    rows = "".join(
        f'<tr><td style="vertical-align:top">{output.index}</td>'
        f'<td style="text-align:left;white-space:pre-wrap">{_tokens_html(output)}</td>'
        f"<td>{len(output.token_ids)}</td><td>{html.escape(str(output.finish_reason))}</td></tr>"
        for output in request.outputs
    )
    error = f'<div style="color:#b00">{html.escape(str(request.error))}</div>' if request.error is not None else ""
    return (
        f'<div><div style="white-space:pre-wrap"><b>{html.escape(request.prompt or "")}</b></div>'
        f"<table><thead><tr><th></th><th>text</th><th>tokens</th><th>end</th></tr></thead><tbody>{rows}</tbody></table>{error}"
        f"<small>first token {request.metrics.time_to_first_token_s * 1e3:.0f} ms, seed {request.seed}</small></div>"
    )


def outputs_html(outputs: Outputs) -> str:
    """At most 20 results."""
    more = f"<div>... and {len(outputs) - 20} more</div>" if len(outputs) > 20 else ""
    return "".join(request_html(request) for request in outputs[:20]) + more


def memory_html(report: MemoryReport) -> str:
    """A bar of the pool, then a row of blocks for each sequence."""
    total = max(report.num_blocks, 1)
    used = report.num_blocks - report.num_free_blocks
    parts = [
        (report.num_shared_blocks, _SHARED, "shared"),
        (used - report.num_shared_blocks, _OWN, "used"),
        (report.num_free_blocks, "#ddd", "free"),
    ]
    bar = "".join(
        f'<span title="{name}: {count:,}" style="display:inline-block;height:1em;width:{300 * count / total:.1f}px;background:{colour}"></span>'
        for count, colour, name in parts
    )
    rows = "".join(
        f'<tr><td style="text-align:left">{html.escape(entry.name)}</td><td>{entry.num_tokens:,}</td>'
        f'<td style="text-align:left">{"<br>".join(map(_blocks_html, entry.tables, entry.references))}</td></tr>'
        for entry in report.sequences[:32]
    )
    table = (
        f"<table><thead><tr><th></th><th>tokens</th><th>blocks, a line a KV group</th></tr></thead><tbody>{rows}</tbody></table>"
        if rows
        else ""
    )
    return f"<div>{bar}<br><small>{html.escape(repr(report).splitlines()[0])}</small>{table}</div>"


def _blocks_html(pages: NDArray[np.int32], references: NDArray[np.int32]) -> str:
    cells = []
    for page, count in zip(pages[:96].tolist(), references[:96].tolist(), strict=True):
        colour, what = (
            ("#fff", "given back") if page < 0 else (_SHARED, f"page {page}, held {count} times") if count > 1 else (_OWN, f"page {page}")
        )
        cells.append(
            f'<span title="{what}" style="display:inline-block;width:7px;height:12px;margin-right:1px;border:1px solid #bbb;background:{colour}"></span>'
        )
    return "".join(cells) + ("..." if len(pages) > 96 else "")
