"""The KV cache at one moment, with the blocks of each sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.travel import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from llmi.base.lazy_numpy import np


_MAX_SHOWN = 16  # sequences in a picture of the memory
_MAX_SHOWN_BLOCKS = 48
_SHARED, _OWN = "#6a6", "#69c"


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class SequenceBlocks(Record):
    """One sequence's blocks: page ids by KV group (-1: given back behind the window), and how many hold each page."""

    name: str
    num_tokens: int
    tables: list[NDArray[np.int32]]
    references: list[NDArray[np.int32]]

    def __repr__(self) -> str:
        """A letter a block: # its own, = shared, . given back."""
        pictures = []
        for references in self.references:
            text = "".join("." if count == 0 else "#" if count == 1 else "=" for count in references[:_MAX_SHOWN_BLOCKS])
            pictures.append(text + ("..." if len(references) > _MAX_SHOWN_BLOCKS else ""))
        return f"{self.name}: {self.num_tokens:,} tokens  {' | '.join(pictures)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """One process of a model. Bytes of weights and KV cache are those that it holds, and `peak_bytes` the most memory that it has had,
    0 on another machine; then how many query heads, KV heads, rows of what is added to the stream, and tokens are its own."""

    rank: int
    stage: int
    host: str
    pid: int
    weight_bytes: int
    kv_bytes: int
    peak_bytes: int
    query_heads: int
    kv_heads: int
    hidden_rows: int
    vocabulary: int


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class MemoryReport(Record):
    """The KV cache now.

    Attributes
    ----------
    num_blocks, num_free_blocks, num_shared_blocks : int
        Pages of the pool.
    wasted_share : float
        Of the slots in use.
    weight_bytes, kv_bytes : int
    sequences : list of SequenceBlocks
    drafter_bytes : int
        Tables and weights of drafters.
    draft_kv_bytes : int
        The part of the cache that a trained drafter's K and V take, in `kv_bytes`.
    workers : list of Worker
        The processes that compute the model.
    state_bytes : int
        Of the pool of states, if layers have them: `num_state_slots` versions of `snapshot_bytes`, and logs of inputs.
    snapshot_bytes : int
    num_state_slots, num_free_state_slots : int
    num_snapshots : int
        Those of the prefix cache, which gives them up when slots are needed.

    Examples
    --------
    >>> report = llm.memory_report()
    >>> report.num_free_blocks <= report.num_blocks and report.kv_bytes > 0
    True
    """

    num_blocks: int
    num_free_blocks: int
    num_shared_blocks: int
    wasted_share: float
    weight_bytes: int
    kv_bytes: int
    sequences: list[SequenceBlocks] = dataclasses.field(default_factory=list)
    drafter_bytes: int = 0
    draft_kv_bytes: int = 0
    workers: list[Worker] = dataclasses.field(default_factory=list)
    state_bytes: int = 0
    snapshot_bytes: int = 0
    num_state_slots: int = 0
    num_free_state_slots: int = 0
    num_snapshots: int = 0

    def __repr__(self) -> str:
        used = self.num_blocks - self.num_free_blocks
        of_cache = f" and {self.draft_kv_bytes / 1e6:,.1f} MB of the KV" if self.draft_kv_bytes else ""
        drafters = f", drafters {self.drafter_bytes / 1e6:,.1f} MB{of_cache}" if self.drafter_bytes else ""
        lines = [
            f"MemoryReport({used:,} of {self.num_blocks:,} blocks in use, {self.num_shared_blocks:,} shared, {self.wasted_share:.1%} of"
            f" their slots empty; KV {self.kv_bytes / 1e6:,.0f} MB, weights {self.weight_bytes / 1e6:,.0f} MB{drafters})"
        ]
        if self.state_bytes:
            in_use = self.num_state_slots - self.num_free_state_slots
            lines.append(
                f"  states {self.state_bytes / 1e6:,.1f} MB: {in_use:,} of {self.num_state_slots:,} versions of"
                f" {self.snapshot_bytes / 1e6:,.2f} MB in use, {self.num_snapshots:,} of them snapshots"
            )
        if len(self.workers) > 1:
            lines += [
                f"  rank {worker.rank}: process {worker.pid} on {worker.host}, weights {worker.weight_bytes / 1e6:,.1f} MB,"
                f" KV {worker.kv_bytes / 1e6:,.1f} MB, peak {worker.peak_bytes / 1e6:,.0f} MB"
                for worker in self.workers
            ]
        lines += [f"  {entry!r}" for entry in self.sequences[:_MAX_SHOWN]]
        if len(self.sequences) > _MAX_SHOWN:
            lines.append(f"  ... and {len(self.sequences) - _MAX_SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _memory_html(self)


def make_memory_report(
    stats: Mapping[str, Any],
    tables: _core.MemoryTables,
    weight_bytes: int,
    info: Mapping[str, Any],
    drafters: tuple[int, int],
    workers: list[Worker],
) -> MemoryReport:
    """From the core's counters, block tables and sizes. drafters: their own bytes, and those of the cache that they take."""
    references = tables.references
    sequences = []
    for entry in sorted(tables.sequences, key=lambda entry: (entry.request_id < 0, entry.request_id, entry.sample_index)):
        is_request = entry.request_id >= 0
        name = f"request {entry.request_id}" + (f" [{entry.sample_index}]" if entry.sample_index else "") if is_request else "sequence"
        arrays = [np.asarray(group, np.int32) for group in entry.tables]
        sequences.append(
            SequenceBlocks(name, entry.num_tokens, arrays, [np.where(a < 0, 0, references[a]).astype(np.int32) for a in arrays])
        )
    return MemoryReport(
        num_blocks=stats["num_pages"],
        num_free_blocks=stats["num_free_pages"],
        num_shared_blocks=stats["num_shared_pages"],
        wasted_share=stats["wasted_share"],
        weight_bytes=weight_bytes,
        kv_bytes=stats["num_pages"] * info["page_bytes"],
        sequences=sequences,
        drafter_bytes=drafters[0],
        draft_kv_bytes=drafters[1],
        workers=workers,
        state_bytes=info["state_pool_bytes"],
        snapshot_bytes=info["state_bytes"],
        num_state_slots=info["num_state_slots"],
        num_free_state_slots=stats["num_free_state_slots"],
        num_snapshots=stats["num_state_snapshots"],
    )


def _memory_html(report: MemoryReport) -> str:
    """A bar of the pool, then a row of blocks for each sequence."""
    import html  # noqa: PLC0415 (a millisecond that a first token does without)

    total = max(report.num_blocks, 1)
    used = report.num_blocks - report.num_free_blocks
    parts = [
        (report.num_shared_blocks, _SHARED, "shared"),
        (used - report.num_shared_blocks, _OWN, "used"),
        (report.num_free_blocks, "#ddd", "free"),
    ]
    bar = "".join(
        f'<span title="{name}: {count:,}"'
        f' style="display:inline-block;height:1em;width:{300 * count / total:.1f}px;background:{colour}"></span>'
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
            f'<span title="{what}" style="display:inline-block;width:7px;height:12px;margin-right:1px;border:1px solid'
            f' #bbb;background:{colour}"></span>'
        )
    return "".join(cells) + ("..." if len(pages) > 96 else "")
