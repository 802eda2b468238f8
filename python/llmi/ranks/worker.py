"""What the process of a rank runs: it loads its part of the model, and computes until rank 0 has gone."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from llmi import _core
from llmi.models.files import open_model
from llmi.ranks.workers import rank_identity
from llmi.replicas.process import watch_parent


def main() -> None:
    """argv has the rank, the process that leads, and the descriptors of `Ranks._start`; the rest comes from stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides
    rank, parent, descriptor, *link = map(int, sys.argv[1:])
    watch_parent(parent)
    status = 1
    try:
        group = _core.RankGroup.join(descriptor, rank)
        os.close(descriptor)
        if link:
            group.link(*link)
        try:
            opening = json.loads(sys.stdin.buffer.read())
            files = open_model(Path(opening["path"]))
            options = {**opening["options"], "identity": rank_identity(files)}
            _core.serve_rank(files.core, ranks=group, **options)
            status = 0
        except Exception as error:
            group.leave(str(error))  # rank 0 tells it
    finally:
        os._exit(status)
