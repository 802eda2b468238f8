"""/llmi/events: the engine as it is now, twice a second, for the page at /. Counts and block tables; no text and no token of anybody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.errors import call_core
from llmi.server.admission import admission_of
from llmi.server.event_stream import EventStream
from llmi.server.served import Served
from llmi.server.state import state_of

PERIOD_S = 0.5
#: Most rows and pages that an event lists; the counts cover all.
MOST_ROWS, MOST_PAGES = 64, 4096
_COUNTERS = (
    "num_steps", "num_prompt_tokens", "num_generated_tokens", "num_finished_requests", "num_preemptions", "num_running", "num_waiting",
    "num_pages", "num_free_pages", "num_cached_pages", "num_shared_pages", "num_prefix_blocks", "num_prefix_queried_tokens",
    "num_prefix_hit_tokens", "num_prefix_evictions", "busy_time_s",
)  # fmt: skip
_PAGE = Path(__file__).with_name("page.html")


def snapshot(model: Served) -> dict[str, Any]:
    """One model's engine now. The block tables are read between two steps, so this may wait for one.

    `rows`: of each sequence its number (the engine's own, not the request's id), tokens computed, tokens drafted for it so far and those of
    them that were accepted (null: no request of the server), blocks, and blocks that others hold too. `pages`: how many sequences and
    prefix blocks hold each page. `tree`: of each prefix block, breadth first, the place of its parent in the list (-1: a root), and how
    many sequences end there. `replicas`: of a model that has several, name, state and sequences under way; the tables are of none of them.
    """
    engine, router = model.llm._engine, model.llm._router
    drafts = {request.number: request.drafts for request in model.server.live().requests}
    tables, stats = call_core(engine.tables), call_core(engine.stats)
    references = tables.references
    rows = []
    for entry in sorted(tables.sequences, key=lambda entry: (entry.request_id, entry.sample_index))[:MOST_ROWS]:
        held = [page for group in entry.tables for page in group if page >= 0]
        shared = sum(int(references[page]) > 1 for page in held)
        drafted, accepted = drafts.get(entry.request_id, {}).get(entry.sample_index, (None, None))
        row = {"id": entry.request_id, "sample": entry.sample_index, "tokens": entry.num_tokens, "drafted": drafted, "accepted": accepted}
        rows.append({**row, "blocks": len(held), "shared": shared})
    return {
        "model": model.name,
        "time_s": time.monotonic(),
        "rows": rows,
        "num_rows": len(tables.sequences),
        "pages": references[:MOST_PAGES].tolist(),
        "tree": tables.prefix_shape,
        "stats": {name: stats[name] for name in _COUNTERS},
        "replicas": [{name: entry[name] for name in ("name", "state", "load")} for entry in ([] if router is None else router.states())],
    }


class Watch:
    """Snapshots shared by all who watch a model, so that more watchers do not take more of the engine's time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = asyncio.Lock()

    async def of(self, model: Served) -> dict[str, Any]:
        """A snapshot that is at most half a period old."""
        async with self._lock:
            when, value = self._last.get(model.name, (-1.0, {}))
            if time.monotonic() - when > PERIOD_S / 2:
                value = await asyncio.to_thread(snapshot, model)
                self._last[model.name] = time.monotonic(), value
            return value


async def _stream(request: Request, models: list[Served]) -> AsyncIterator[bytes]:
    watch, door = request.app.state.watch, state_of(request).door
    while not door.is_draining:
        for model in models:
            yield b"data: " + json.dumps(await watch.of(model), separators=(",", ":")).encode() + b"\n\n"
        await asyncio.sleep(PERIOD_S)


async def events(request: Request) -> Response:
    """Events until the reader goes: one a model, each half second. `?model=NAME` names one."""
    models = state_of(request).models
    name = request.query_params.get("model")
    chosen = [models.find(name)] if name is not None else list(models)
    return EventStream(_stream(request, chosen), admission_of(request).limits.keep_alive_s)


async def page(request: Request) -> Response:
    """The page. It needs nothing from elsewhere, and its policy forbids to load anything."""
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    return Response(_PAGE.read_bytes(), 200, headers, "text/html; charset=utf-8")
