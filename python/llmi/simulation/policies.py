"""The policies of published systems over llmi's scheduler: what each changes, and what of the paper is left out."""

from __future__ import annotations

import dataclasses

from llmi.engine.options import POLICIES


@dataclasses.dataclass(frozen=True)
class Policy:
    """How engines schedule, and how requests are shared out.

    paper, left_out : where it is from, and what of that is not simulated.
    scheduling_policy : of each engine.
    cuts : a prompt may be cut to a step's room.
    shares : equal beginnings of prompts are computed once.
    spares : prompts may slow decodes by llmi's factor alone.
    most_tokens : in a step; None: max_num_batched_tokens. Where prompts are not cut, the longest prompt fits, too.
    has_pools : some replicas compute prompts alone, and hand them over.
    overlaps : K and V of a layer go while the next ones are computed.
    answers_first : the first token comes of the replica that computed the prompt.
    soonest : a request goes where it waits least by the costs, and is turned away if that is beyond the slo's ttft.
    """

    paper: str
    left_out: str = "nothing"
    scheduling_policy: str = "fcfs"
    cuts: bool = True
    shares: bool = False
    spares: bool = False
    most_tokens: int | None = None
    has_pools: bool = False
    overlaps: bool = False
    answers_first: bool = False
    soonest: bool = False


_OWN = Policy("llmi", shares=True, spares=True)

NAMED: dict[str, Policy] = {
    **{name: dataclasses.replace(_OWN, scheduling_policy=name) for name in POLICIES},
    "llmi": _OWN,
    "static": dataclasses.replace(_OWN, paper="batching before Orca", left_out="padding", scheduling_policy="static"),
    "orca": Policy("Orca (OSDI 2022)", "memory set aside for the longest output: pages here", cuts=False),
    "vllm": Policy("vLLM (SOSP 2023)", "swapping to host memory", scheduling_policy="prefill_first", cuts=False),
    "sarathi": Policy("Sarathi-Serve (OSDI 2024)", "the budget that its profile picks: 512 tokens here", most_tokens=512),
    "splitfuse": Policy("DeepSpeed-FastGen (2024)", "padding of steps to one size: 2,048 tokens at most here", most_tokens=2048),
    "distserve": Policy(
        "DistServe (OSDI 2024)", "the search for parallel degrees, and its pull of K and V", cuts=False, has_pools=True, answers_first=True
    ),
    "splitwise": Policy(
        "Splitwise (ISCA 2024)",
        "the mixed pool, and machines of two kinds",
        cuts=False,
        has_pools=True,
        overlaps=True,
        answers_first=True,
    ),
    "mooncake": Policy(
        "Mooncake (FAST 2025)",
        "a pool of blocks on SSDs, and blocks that prefill replicas fetch from each other",
        shares=True,
        has_pools=True,
        overlaps=True,
        answers_first=True,
        soonest=True,
    ),
}
