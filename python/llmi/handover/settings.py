"""kv_transfer_config: who computes prompts for whom, and what carries their blocks."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import refuse, show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError

#: What carries blocks, by the names that are taken.
CONNECTORS = {"local": "local", "nixl": "nixl", "NixlConnector": "nixl"}
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_KEYS = ("kv_connector", "kv_role", "kv_peers", "kv_min_tokens")
#: The peer of a process of `llmi serve --prefill-replicas`: the front asks its producers.
FRONT = "llmi:front"


class TransferKind:
    """A mapping of these keys; its plain form has all of them."""

    def parse(self, name: str, value: object) -> dict[str, Any]:
        """The plain form. Raises InvalidParamsError."""
        if not isinstance(value, Mapping):
            raise refuse(name, "None or a mapping with kv_connector and kv_role", value)
        if unknown := [key for key in value if key not in _KEYS]:
            raise InvalidParamsError(f"{name} has the key {show(unknown[0])}; there are {', '.join(_KEYS)}", name)
        connector, role = value.get("kv_connector"), value.get("kv_role")
        if not isinstance(connector, str) or connector not in CONNECTORS:
            known = ", ".join(CONNECTORS)
            raise InvalidParamsError(f"{name}: kv_connector must be one of {known}, not {show(connector)}: no other one is there", name)
        if role not in _ROLES:
            raise InvalidParamsError(f"{name}: kv_role must be one of {', '.join(_ROLES)}, not {show(role)}", name)
        given = value.get("kv_peers", [])
        if not isinstance(given, list | tuple):
            raise InvalidParamsError(f"{name}: kv_peers must be a list of URLs, not {show(given)}", name)
        peers = [_peer(name, peer) for peer in given]
        if role == "kv_producer" and peers:
            raise InvalidParamsError(f"{name}: a kv_producer asks nobody: leave kv_peers out, or take kv_both", name)
        if role != "kv_producer" and not peers:
            raise InvalidParamsError(f"{name}: a {role} needs kv_peers, the URLs of the producers that it asks", name)
        least = value.get("kv_min_tokens", 256)
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= 1 << 30:
            raise InvalidParamsError(f"{name}: kv_min_tokens must be an integer in [1, 1,073,741,824], not {show(least)}", name)
        return {"kv_connector": CONNECTORS[connector], "kv_role": role, "kv_peers": peers, "kv_min_tokens": least}


def _peer(name: str, peer: object) -> str:
    """Its URL, with a port. Raises InvalidParamsError."""
    if peer == FRONT:
        return FRONT
    try:
        parts = urllib.parse.urlsplit(peer if isinstance(peer, str) else "")
        port = parts.port or 80
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise InvalidParamsError(f"{name}: a peer is the URL of a server, as in 'http://127.0.0.1:8001', not {show(peer)}", name)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port}"


def asks(transfer: Mapping[str, Any]) -> bool:
    """Whether this engine asks others."""
    return bool(transfer["kv_role"] != "kv_producer")


def answers(transfer: Mapping[str, Any] | None) -> bool:
    """Whether others may ask this engine."""
    return transfer is not None and transfer["kv_role"] != "kv_consumer"


def check_transfer(given: Mapping[str, Any]) -> None:
    """Refuses what prefills by others do not go with."""
    if given["kv_transfer_config"] is None:
        return
    name = "kv_transfer_config"
    if not given["enable_prefix_caching"]:
        raise UnsupportedCombinationError(
            f"{name}: blocks from elsewhere are hits of the prefix cache, and enable_prefix_caching = False turns it off",
            name,
            "enable_prefix_caching",
        )
    if given["prefix_cache_dir"] is not None:
        raise UnsupportedCombinationError(
            f"{name} with prefix_cache_dir: an engine has one place of blocks so far; leave one of them out", name, "prefix_cache_dir"
        )
    for degree in ("tensor_parallel_size", "pipeline_parallel_size"):
        if given[degree] > 1:
            raise UnsupportedCombinationError(
                f"{name} with {degree} > 1: blocks of several processes are not handed over so far; leave one of them out", name, degree
            )
