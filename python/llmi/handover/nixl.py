"""NIXL: blocks between machines, over UCX. A consumer reads a producer's memory; the producer's own thread drives its progress.

Blocks are copied into one buffer on each side. RDMA and memory of GPUs were not tried.
"""

from __future__ import annotations

import base64
import importlib
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmi.errors import InvalidParamsError
from llmi.handover.shared_folder import SharedFolder

_PACKAGES = ("nixl_cu13", "nixl_cu12", "nixl")
_POLL_S = 0.0002
_KEPT_S = 60.0  # how long a producer keeps what nobody reads


def load() -> Any:  # it has no types
    """NIXL's module. Raises InvalidParamsError."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    problems = []
    for name in _PACKAGES:
        try:
            return importlib.import_module(f"{name}._api")
        except (ImportError, OSError) as error:
            problems.append(str(error))
    raise InvalidParamsError(
        f"kv_connector = 'nixl' needs NIXL: pip install --no-deps nixl-cu13 numpy (now: {problems[0]})", "kv_transfer_config"
    )


class _Registry(Protocol):
    """NIXL's agent, as memory needs it."""

    def get_reg_descs(self, parts: object, kind: str) -> object: ...
    def register_memory(self, parts: object) -> object: ...
    def deregister_memory(self, parts: object) -> None: ...


class _Memory:
    """Bytes that NIXL may read or write."""

    def __init__(self, agent: _Registry, num_bytes: int) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(num_bytes, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self._agent = agent
        self._registered = agent.register_memory(agent.get_reg_descs([(self.address, num_bytes, 0, "")], "DRAM"))

    def free(self) -> None:
        """NIXL lets go of it."""
        self._agent.deregister_memory(self._registered)


class Nixl:
    """An agent of NIXL, and a folder that this engine alone has. Raises InvalidParamsError."""

    def __init__(self) -> None:
        api = load()
        self._lock = threading.Lock()  # of the agent
        self._closed = threading.Event()
        self._offered = threading.Event()
        self._offers: dict[str, tuple[_Memory, float]] = {}  # and until when they are kept
        self._abandoned: list[tuple[Any, _Memory]] = []  # transfers that came too late
        try:
            self._agent = api.nixl_agent(secrets.token_hex(16), api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        except Exception as error:  # NIXL's own errors have no common base
            raise InvalidParamsError(f"kv_connector = 'nixl': NIXL does not start here: {error}", "kv_transfer_config") from None
        self.folder = SharedFolder(is_own=True)
        threading.Thread(target=self._progress, name="llmi-nixl", daemon=True).start()

    def offer(self, keys: Sequence[str]) -> dict[str, Any]:
        """Copies the blocks to where another engine may read them."""
        blocks = [(self.folder.path / f"{key}.kv1").read_bytes() for key in keys]
        number = secrets.token_hex(16)
        with self._lock:
            memory = _Memory(self._agent, sum(map(len, blocks)))
            memory.bytes[:] = np.frombuffer(b"".join(blocks), np.uint8)
            self._offers[number] = memory, time.monotonic() + _KEPT_S
            metadata = self._agent.get_agent_metadata()
        self._offered.set()
        sizes = [len(block) for block in blocks]
        told = {"offer": number, "address": memory.address, "sizes": sizes, "metadata": base64.b64encode(metadata).decode()}
        return {"nixl": told}

    def fetch(self, keys: Sequence[str], told: Mapping[str, Any], end_s: float) -> None:
        """Reads what was offered, and writes its blocks into the folder."""
        number, address, sizes, metadata = self._checked(told.get("nixl"), len(keys))
        with self._lock:
            self._sweep()
            memory = _Memory(self._agent, sum(sizes))
            try:
                local = self._agent.get_xfer_descs([(memory.address, sum(sizes), 0)], "DRAM")
                remote = self._agent.get_xfer_descs([(address, sum(sizes), 0)], "DRAM")
                peer = self._agent.add_remote_agent(metadata)
                handle = self._agent.initialize_xfer("READ", local, remote, peer, number.encode())
            except Exception as error:  # NIXL's own errors have no common base
                memory.free()
                raise OSError(f"NIXL: {error}") from None
            state = self._agent.transfer(handle)
        while state == "PROC" and time.monotonic() < end_s:
            time.sleep(_POLL_S)
            with self._lock:
                state = self._agent.check_xfer_state(handle)
        with self._lock:
            self._abandoned.append((handle, memory))
            self._sweep()
        if state != "DONE":
            raise OSError(f"NIXL: the transfer is {state} at the end of its time")
        at = 0
        for key, size in zip(keys, sizes, strict=False):
            self.folder.write(key, memory.bytes[at : at + size].data)
            at += size

    def close(self) -> None:
        """Ends its thread, and leaves the folder."""
        self._closed.set()
        self._offered.set()
        self.folder.close()

    def _checked(self, told: object, most: int) -> tuple[str, int, list[int], bytes]:
        """The parts of an answer that anybody may have written. Raises ValueError."""
        if not isinstance(told, dict):
            raise ValueError("the answer has no part of NIXL's: both need kv_connector = 'nixl'")
        number, address, sizes, metadata = (told.get(name) for name in ("offer", "address", "sizes", "metadata"))
        if not isinstance(number, str) or not isinstance(metadata, str) or type(address) is not int or not isinstance(sizes, list):
            raise ValueError("NIXL's part of the answer has a field of a wrong kind")
        if not 0 < len(sizes) <= most or not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) > self.folder.most_bytes:
            raise ValueError(f"the answer offers {len(sizes)} blocks where {most} were asked for, or too many bytes")
        if not 0 < address <= (1 << 64) - 1 - sum(sizes):
            raise ValueError("the answer's address is none")
        return number, address, sizes, base64.b64decode(metadata, validate=True)

    def _sweep(self) -> None:
        """Frees the memory of transfers that have ended."""
        left = []
        for handle, memory in self._abandoned:
            if self._agent.check_xfer_state(handle) == "PROC":
                left.append((handle, memory))
                continue
            self._agent.release_xfer_handle(handle)
            memory.free()
        self._abandoned = left

    def _progress(self) -> None:
        """While something is offered: UCX moves only when it is called."""
        while not self._closed.is_set():
            self._offered.wait()
            with self._lock:
                read = {message.decode() for messages in self._agent.get_new_notifs().values() for message in messages}
                now = time.monotonic()
                for number in [number for number, (_, until_s) in self._offers.items() if number in read or now > until_s]:
                    self._offers.pop(number)[0].free()
                if not self._offers and not self._closed.is_set():
                    self._offered.clear()
            time.sleep(_POLL_S)
