"""What a receipt holds of an output, and where an output is another one."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterable
from typing import Any, Protocol

from llmi.base.kinds import show
from llmi.base.travel import strict_json
from llmi.outputs.completion import CompletionOutput, Logprob

Entries = Iterable["dict[int, Logprob] | None"]


class Results(Protocol):
    """The parts of a RequestOutput that came out."""

    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]


@dataclasses.dataclass(frozen=True)
class ReceiptCheck:
    """Whether an output is the receipt's, bit for bit. True as a condition where it is.

    Attributes
    ----------
    differences : tuple of str
        The first of each continuation, by position, such as "outputs[0].token_ids[17] is 533 here, 534 in the receipt"; empty: identical.
    """

    differences: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        return "identical, bit for bit" if self else "NOT identical: " + "; ".join(self.differences)


def _bits(entries: dict[int, Logprob] | None) -> bytes:
    """The raw bits of a position's log-probabilities."""
    return b"".join(
        struct.pack("<iffi", token_id, entry.logprob, entry.processed_logprob, entry.rank) for token_id, entry in (entries or {}).items()
    )


def digest_of(output: Results, version: int) -> str:
    """SHA-256 over the raw bits of all requested log-probabilities: the prompt's first, since format 2."""
    digest = hashlib.sha256()
    for entries in [*((output.prompt_logprobs or ()) if version > 1 else ()), *(e for c in output.outputs for e in c.logprobs or ())]:
        digest.update(_bits(entries))
    return digest.hexdigest()


def _each(positions: Entries | None) -> list[str]:
    return [hashlib.sha256(_bits(entries)).hexdigest()[:16] for entries in positions or ()]


def digests_by_position(output: Results) -> dict[str, Any]:
    """The beginning of each position's own digest, so that a difference has a place; {} without log-probabilities."""
    if output.prompt_logprobs is None and all(completion.logprobs is None for completion in output.outputs):
        return {}
    return {"prompt": _each(output.prompt_logprobs), "outputs": [_each(completion.logprobs) for completion in output.outputs]}


def results_of(output: Results, version: int) -> list[dict[str, Any]]:
    """The continuations, as a receipt of this format holds them."""
    names = ("token_ids", "text") if version == 1 else ("token_ids", "text", "finish_reason", "stop_reason")
    return [{name: getattr(completion, name) for name in names} | _beam_of(completion) for completion in output.outputs]


def _beam_of(completion: CompletionOutput) -> dict[str, Any]:
    """What a hypothesis of a beam search has besides."""
    if completion.score is None:
        return {}
    return {name: strict_json(getattr(completion, name)) for name in ("score", "cumulative_logprob", "beam_indices")}


def compare(output: Results, fields: dict[str, Any]) -> ReceiptCheck:
    """An output against a receipt's fields."""
    version = fields["format"]
    here, there = results_of(output, version), fields["outputs"]
    if len(here) != len(there):
        return ReceiptCheck((f"outputs: {len(here)} here, {len(there)} in the receipt",))
    own, known = digests_by_position(output), fields.get("logprob_digests") or {}
    found = []
    if known and (place := _first(own.get("prompt", []), known["prompt"])) is not None:
        found.append(f"prompt_logprobs[{place}] has other bits")
    for index, (mine, recorded) in enumerate(zip(here, there, strict=True)):
        digests = (own.get("outputs", []), known.get("outputs", []))
        pair = (digests[0][index], digests[1][index]) if known and all(index < len(side) for side in digests) else ([], [])
        found += _first_of(f"outputs[{index}]", mine, recorded, pair)
    if not found and digest_of(output, version) != fields["logprob_digest"]:
        found.append("logprob_digest is another one" + (", though that of each position is the same" if known else ""))
    if not found and own != known and known:
        found.append("logprob_digests are of other positions")
    return ReceiptCheck(tuple(found))


def _first(mine: list[Any], recorded: list[Any]) -> int | None:
    """The first place at which two lists differ."""
    same = next((i for i, (a, b) in enumerate(zip(mine, recorded, strict=False)) if a != b), min(len(mine), len(recorded)))
    return None if same == len(mine) == len(recorded) else same


def _first_of(name: str, mine: dict[str, Any], recorded: dict[str, Any], digests: tuple[list[str], list[str]]) -> list[str]:
    """The first difference of a continuation: by position its tokens and log-probabilities, then all else."""
    tokens = _first(mine["token_ids"], recorded["token_ids"])
    logprobs = _first(*digests)
    if logprobs is not None and (tokens is None or logprobs < tokens):
        return [f"{name}.logprobs[{logprobs}] has other bits"]
    if tokens is not None:
        a, b = (side["token_ids"][tokens] if tokens < len(side["token_ids"]) else "none" for side in (mine, recorded))
        return [f"{name}.token_ids[{tokens}] is {a} here, {b} in the receipt"]
    other = next((key for key in {**mine, **recorded} if mine.get(key) != recorded.get(key)), None)
    return [] if other is None else [f"{name}.{other} is {show(mine.get(other))} here, {show(recorded.get(other))} in the receipt"]
