"""The folder of saved prefixes: what an engine tells the core of it, and what `llmi cache prefixes` lists and removes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.base.log import log
from llmi.errors import InvalidParamsError, UnsupportedCombinationError

_LAYOUT = 1  # of a block's bytes: K and V of each layer as csrc/kernels/layout/kv_layout.h has them
_ENDING = ".kv1"


def check_prefix_options(given: Mapping[str, Any]) -> None:
    """Refuses what a folder of prefixes does not go with."""
    if given["prefix_cache_dir"] is None:
        return
    if "\0" in os.fspath(given["prefix_cache_dir"]):
        raise InvalidParamsError("prefix_cache_dir holds a NUL, which no path has", "prefix_cache_dir")
    if not given["enable_prefix_caching"]:
        raise UnsupportedCombinationError(
            "prefix_cache_dir keeps what the prefix cache holds, and enable_prefix_caching = False turns it off",
            "prefix_cache_dir",
            "enable_prefix_caching",
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if given[name] > 1:
            raise UnsupportedCombinationError(
                f"prefix_cache_dir with {name} > 1: blocks of several processes are not saved so far; leave one of them out",
                "prefix_cache_dir",
                name,
            )


def identity_of_blocks(digest: str, spec: str, numerics_id: str, layers: Sequence[int], block_size: int) -> str:
    """What an engine's blocks are of. spec: the model's, as the core gets it. layers: those that run; empty: all."""
    identity = {
        "block_size": block_size,
        "layers": list(layers),
        "layout": _LAYOUT,
        "model": digest,
        "numerics": numerics_id,
        "spec": hashlib.sha256(spec.encode()).hexdigest(),
    }
    return json.dumps(identity, sort_keys=True)


class UnsavedWarning:
    """One warning of an engine whose blocks cannot be written. where: the option and its folder."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said = False

    def look(self, stats: Mapping[str, Any]) -> None:
        """Warns if the counters tell of the first such block."""
        problem = stats["saved_blocks_problem"]
        if problem and not self._said:
            self._said = True
            log.warning(
                "%s: a block could not be written (%s); answers do not need it; num_unsaved_blocks counts further ones",
                self._where,
                problem,
            )


@dataclasses.dataclass(frozen=True)
class SavedPrefix:
    """A saved beginning: the blocks up to one that no other block follows."""

    name: str
    model: str
    num_tokens: int
    num_bytes: int  # of all its blocks, with those that other beginnings have, too
    last_use_s: float
    _own: tuple[str, ...]  # files of blocks that no other beginning has


@dataclasses.dataclass(frozen=True)
class _Block:
    file: str
    parent: str
    label: str
    end: int  # tokens up to its end
    num_bytes: int
    used: float


def saved_prefixes(folder: str | os.PathLike[str]) -> list[SavedPrefix]:
    """The beginnings that are saved in a folder, the most recently used first. Blocks whose first ones are gone are not among them."""
    blocks = _blocks(folder)
    followed: dict[str, int] = {}
    for block in blocks.values():
        followed[block.parent] = followed.get(block.parent, 0) + 1
    found = []
    for key, last in blocks.items():
        if key in followed:
            continue
        path: list[_Block] = []
        own: list[str] = []
        at = key
        while at in blocks:
            path.append(blocks[at])
            if len(own) == len(path) - 1 and followed.get(at, 0) <= 1:
                own.append(blocks[at].file)
            at = blocks[at].parent
        if path[-1].end * len(path) != last.end:  # its first blocks are gone
            continue
        used = max(block.used for block in path)
        found.append(SavedPrefix(key[:12], last.label, last.end, sum(block.num_bytes for block in path), used, tuple(own)))
    return sorted(found, key=lambda prefix: (-prefix.last_use_s, prefix.name))


def remove_prefixes(folder: str | os.PathLike[str], name: str) -> int:
    """Deletes the beginning of this name, or "all" blocks, also those that are listed no more; returns how many files. Blocks that other
    beginnings have stay."""
    if name == "all":
        files = [block.file for block in _blocks(folder).values()]
    else:
        chosen = [prefix for prefix in saved_prefixes(folder) if prefix.name == name]
        if not chosen:
            raise InvalidParamsError(f"{os.fspath(folder)} has no saved prefix {name!r}; `llmi cache prefixes` lists their names", "name")
        files = [*chosen[0]._own]
    count = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            (Path(folder) / file).unlink()
            count += 1
    return count


def _blocks(folder: str | os.PathLike[str]) -> dict[str, _Block]:
    """The blocks in a folder by key. Files that are no blocks, or of another name than their key, are left out."""
    if not Path(folder).is_dir():
        raise InvalidParamsError(f"{os.fspath(folder)} is no folder", "folder")
    found = {}
    for entry in os.scandir(folder):
        if not entry.name.endswith(_ENDING) or not entry.is_file(follow_symlinks=False):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            with Path(entry.path).open("rb") as file:
                header = _core.saved_header(file.read(_core.MOST_SAVED_HEADER_BYTES))
        except OSError:  # evicted meanwhile, or not ours to read
            continue
        if header is None or entry.name != header["key"] + _ENDING:
            continue
        label = header["label"].decode(errors="replace")
        end = (header["index"] + 1) * header["num_tokens"]
        found[header["key"]] = _Block(entry.name, header["parent"], label, end, status.st_size, status.st_mtime)
    return found
