"""A table in a notebook."""

from __future__ import annotations

import html


def table_html(headings: list[str], rows: list[list[str]]) -> str:
    """A plain table; the first row stands out."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f'<tr style="font-weight:{"bold" if i == 0 else "normal"}">{row}</tr>' for i, row in enumerate(cells))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
