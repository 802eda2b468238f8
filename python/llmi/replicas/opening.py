"""What the processes of replicas are opened with: LLM's arguments, each its share of threads and memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from llmi import _core
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.handover.settings import FRONT
from llmi.models.files import OpenModel
from llmi.replicas.policy import PolicyFile
from llmi.replicas.process import Folder
from llmi.replicas.replica import Machines

#: How processes are opened where some compute prompts for the others.
PRODUCER = {"kv_connector": "local", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "local", "kv_role": "kv_consumer", "kv_peers": [FRONT]}

#: Arguments that stay here: those that are Python, and those that a process gets its own of.
_OWN = (
    "batch_processors",
    "data_parallel_size",
    "distributed_executor_backend",
    "num_threads",
    "model",
    "revision",
    "hf_overrides",
    "speculative_config",
    "seed",
)


class Openings:
    """The shares of `count` engines with these arguments, in their plain form. The last num_producers compute prompts for the others.

    Raises InvalidParamsError where the machine has not the memory for them, or an argument cannot go to another process.
    """

    def __init__(self, given: Mapping[str, Any], files: OpenModel, count: int, num_producers: int = 0) -> None:
        for name, value in (("scheduling_policy", given["scheduling_policy"]), ("tokenizer", given["tokenizer"])):
            if value is not None and not isinstance(value, str | os.PathLike | PolicyFile):
                raise UnsupportedCombinationError(
                    f"data_parallel_size = {count} starts processes, and {name} is an object of this one: give its "
                    + ("name" if name == "scheduling_policy" else "path"),
                    name,
                    "data_parallel_size",
                )
        self._num_producers = num_producers
        self.places = _places_of(given["distributed_executor_backend"])
        try:
            self.threads, here = self.places.threads(given["num_threads"], count)
            self.most_kv_bytes = _share_of_memory(files, count, here)
        except BaseException:
            self.places.remove()
            raise
        self.speculates = _is_plain(given["speculative_config"])
        policy = given["scheduling_policy"]
        self._policy_file = policy.path if isinstance(policy, PolicyFile) else None
        self._arguments = {
            **{name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items() if name not in _OWN},
            "scheduling_policy": "fcfs" if isinstance(given["scheduling_policy"], PolicyFile) else given["scheduling_policy"],
            "model": str(files.path),
            "hf_overrides": json.loads(given["hf_overrides"] or "{}") or None,
            "speculative_config": given["speculative_config"] if self.speculates else None,
        }

    def of(self, index: int, fingerprint: bool) -> dict[str, Any]:
        """What the process of this replica is opened with. fingerprint: it tells its own."""
        transfer = {}
        if self._num_producers > 0:
            is_producer = index >= len(self.threads) - self._num_producers
            transfer["kv_transfer_config"] = PRODUCER if is_producer else CONSUMER
        return {
            "arguments": {**self._arguments, **transfer, "num_threads": self.threads[index]},
            "most_kv_bytes": self.most_kv_bytes,
            "fingerprint": fingerprint,
            "policy_file": self._policy_file,
        }


def _places_of(backend: str) -> Machines:
    if backend == "ray":
        from llmi.replicas.cluster import Cluster  # noqa: PLC0415 (one machine needs none of it)

        return Cluster()
    if backend == "mpi":
        raise UnsupportedCombinationError(
            "distributed_executor_backend = 'mpi' has the ranks of tensor_parallel_size: data_parallel_size has 'local' and 'ray'",
            "distributed_executor_backend",
            "data_parallel_size",
        )
    return Folder()


def _share_of_memory(files: OpenModel, count: int, here: int) -> int:
    """Bytes of cache that each engine may have, `here` of them on this machine."""
    available = _core.system_info()["available_memory_bytes"]
    each = sum(file.size for file in files.files)
    if here > 1 and here * each > available:
        raise InvalidParamsError(
            f"data_parallel_size = {count}: each process holds the model, {each / 1e6:,.0f} MB, together {here * each / 1e6:,.0f} MB;"
            f" {available / 1e6:,.0f} MB are free: give at most {max(1, available // each)}",
            "data_parallel_size",
        )
    return int(available // 2 // here)


def takes_too_much(arguments: Mapping[str, Any], engine: _core.Engine, most_kv_bytes: int) -> bool:
    """Whether an engine that chose the size of its cache itself took more than its share."""
    info = engine.info()
    return arguments.get("kv_cache_memory_bytes") is None and info["num_pages"] * info["page_bytes"] > most_kv_bytes


def _is_plain(value: object) -> bool:
    """Whether it is the same as JSON."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
