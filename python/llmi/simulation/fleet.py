"""Simulated engines that share a load: where requests go, and prompts that some engines compute for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.lazy_numpy import np
from llmi.engine.args import PolicyRunner
from llmi.errors import InvalidParamsError, call_core
from llmi.replicas.placing import BLOCK, Beginnings, chain_of, choose
from llmi.replicas.policy import PolicyFile, ReplicaView, RoutedRequest
from llmi.simulation.costs import Costs
from llmi.simulation.policies import Policy
from llmi.simulation.trace import TracedRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_HANDED = 256  # tokens of a prompt that another engine computes


@dataclasses.dataclass(frozen=True)
class Site:
    """What all engines of a simulation are made of. kv_bytes: of each one's pool."""

    spec: str
    source: str
    num_layers: int
    costs: Costs
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_bytes: int


@dataclasses.dataclass
class _Placed:
    """A request's way: its engines (-1: none), when it arrives at the last one, and its place there."""

    prefill: int = -1
    at_prefill: int = -1
    last: int = -1
    at_last: int = -1
    handed_s: float = 0.0
    num_bytes: int = 0


class Pool:
    """Engines of one kind, and what each has been given."""

    def __init__(self, site: Site, policy: Policy, own: PolicyFile | None, count: int, takes_blocks: bool, longest: int) -> None:
        tokens = policy.most_tokens or site.max_num_batched_tokens
        has_key = own is not None and own.has_key
        self.shares = policy.shares
        self.engines = [
            call_core(
                _core.SimulatedEngine,
                site.spec,
                site.source,
                scheduling_policy="custom" if has_key else policy.scheduling_policy,
                policy_hook=PolicyRunner(own) if own is not None and has_key else None,
                max_num_seqs=site.max_num_seqs,
                max_num_batched_tokens=tokens if policy.cuts else max(tokens, longest + site.max_num_seqs),
                waiting_served_ratio=0.0,
                enable_chunked_prefill=policy.cuts,
                enable_prefix_caching=policy.shares or takes_blocks,
                streams=policy.spares,
                points=list(site.costs.points),
                kv_s=site.costs.kv_s,
                block_size=BLOCK,
                kv_cache_dtype="float16",
                kv_cache_memory_bytes=site.kv_bytes,
            )
            for _ in range(count)
        ]
        self._known = [Beginnings() for _ in self.engines]
        self._counts = [0] * count

    def views(self, chain: Sequence[bytes]) -> list[ReplicaView]:
        """The engines as a policy sees them, for a text with this chain."""
        pairs = zip(self.engines, self._known, strict=True)
        return [ReplicaView(engine.num_under_way, engine.num_queued_tokens, BLOCK * known.count(chain)) for engine, known in pairs]

    def run_until(self, time_s: float) -> None:
        """Runs the steps that begin before this time."""
        for engine in self.engines:
            call_core(engine.run_until, time_s)

    def usual(self, chain: Sequence[bytes]) -> int:
        """The place that `llmi serve --replicas` would choose."""
        return choose([(engine.num_under_way, known) for engine, known in zip(self.engines, self._known, strict=True)], chain)

    def add(self, place: int, chain: Sequence[bytes], request: TracedRequest, num_output: int, at_s: float, num_given: int = 0) -> int:
        """Gives an engine a request; returns its place among those of that engine."""
        self._known[place].add(chain)
        call_core(self.engines[place].add, request.tokens, num_output, at_s, num_given)
        self._counts[place] += 1
        return self._counts[place] - 1


class Fleet:
    """All engines. The first `prefill_replicas` of `replicas` compute prompts alone."""

    def __init__(
        self,
        site: Site,
        policy: Policy,
        own: PolicyFile | None,
        replicas: int,
        prefill_replicas: int,
        longest: int,
        most_ttft_s: float | None,
    ) -> None:
        self._site, self._policy, self._own, self._most_ttft_s = site, policy, own, most_ttft_s
        decoding = dataclasses.replace(policy, soonest=False) if prefill_replicas else policy
        self.prefill = Pool(site, policy, own, prefill_replicas, False, longest)
        self.last = Pool(site, decoding, own, replicas - prefill_replicas, prefill_replicas > 0, longest)
        self.placed: list[_Placed] = []

    @property
    def engines(self) -> list[_core.SimulatedEngine]:
        """All, those that compute prompts alone first."""
        return [*self.prefill.engines, *self.last.engines]

    def run(self, requests: Sequence[TracedRequest]) -> None:
        """Runs all requests to their end."""
        handed = []
        for number, request in enumerate(requests):
            way = _Placed(handed_s=request.arrival_s)
            self.placed.append(way)
            goes = bool(self.prefill.engines) and (self._policy.has_pools or len(request.tokens) >= LEAST_HANDED)
            pool = self.prefill if goes else self.last
            try:
                place, chain = self._place(pool, number, request)
                if place < 0:
                    continue
                if goes:
                    way.prefill, way.at_prefill = place, pool.add(place, chain, request, 1, request.arrival_s)
                    handed.append(number)
                elif self.prefill.engines:
                    handed.append(number)  # its engine is chosen when the others' hand-overs are known
                else:
                    way.last, way.at_last = place, pool.add(place, chain, request, request.num_output, request.arrival_s)
            except InvalidParamsError as error:
                raise InvalidParamsError(f"trace, request {number}: {error}", "trace") from None
        for engine in self.prefill.engines:
            call_core(engine.run_to_end)
        self._transfer(requests)
        self._hand_over(requests, handed)
        for engine in self.last.engines:
            call_core(engine.run_to_end)

    def _place(self, pool: Pool, number: int, request: TracedRequest) -> tuple[int, list[bytes]]:
        """The engine of a pool for a request that comes, -1 where it is turned away; and the request's chain."""
        several = len(pool.engines) > 1
        decides = self._policy.soonest or (self._own is not None and self._own.places)
        if not several and not decides:
            return 0, []
        pool.run_until(request.arrival_s)
        chain = chain_of(request.tokens.tolist(), "") if pool.shares else []
        if not decides:
            return pool.usual(chain), chain
        views = pool.views(chain)
        if self._own is not None:
            info = RoutedRequest(str(number), 0, request.arrival_s, len(request.tokens), request.num_output)
            if not self._own.admit(info, views):
                return -1, chain
            place = self._own.route(info, views)
            return pool.usual(chain) if place is None else place, chain
        waits = [view.num_queued_tokens + len(request.tokens) - view.num_known_tokens for view in views]
        place = min(range(len(waits)), key=waits.__getitem__)
        at_once = self._site.max_num_batched_tokens
        late = self._most_ttft_s is not None and waits[place] * self._site.costs.seconds(at_once) / at_once > self._most_ttft_s
        return -1 if late else place, chain

    def _transfer(self, requests: Sequence[TracedRequest]) -> None:
        """K and V of each prompt go over the link of the engine that computed it, one after another."""
        rate = self._site.costs.link_bytes_s
        for place, engine in enumerate(self.prefill.engines):
            ends, begins = engine.requests()["end_s"], engine.requests()["arrival_s"]
            free_s = 0.0
            for number in sorted((n for n, way in enumerate(self.placed) if way.prefill == place), key=lambda n: ends[self._at(n)]):
                way, end_s = self.placed[number], float(ends[self._at(number)])
                assert rate is not None, "simulate has checked it"
                way.num_bytes = engine.block_bytes(len(requests[number].tokens) - 1)
                seconds = way.num_bytes / rate
                if self._policy.overlaps:  # what the engine's time did not cover: the last layer's share at least
                    seconds = max(seconds / self._site.num_layers, seconds - max(0.0, end_s - max(free_s, float(begins[self._at(number)]))))
                way.handed_s = free_s = max(free_s, end_s) + seconds

    def _at(self, number: int) -> int:
        return self.placed[number].at_prefill

    def _hand_over(self, requests: Sequence[TracedRequest], handed: Sequence[int]) -> None:
        for number in sorted(handed, key=lambda n: self.placed[n].handed_s):
            way, request = self.placed[number], requests[number]
            if self._policy.answers_first and way.prefill >= 0 and request.num_output == 1:
                continue
            self.last.run_until(way.handed_s)
            chain = chain_of(request.tokens.tolist(), "") if self.last.shares and len(self.last.engines) > 1 else []
            way.last = self.last.usual(chain)
            num_given = len(request.tokens) - 1 if way.prefill >= 0 else 0
            way.at_last = self.last.add(way.last, chain, request, request.num_output, way.handed_s, num_given)

    def requests(self, requests: Sequence[TracedRequest]) -> dict[str, NDArray[Any]]:
        """The columns of SimulationResult.requests."""
        first, last = ([engine.requests() for engine in pool.engines] for pool in (self.prefill, self.last))
        rows = []
        for request, way in zip(requests, self.placed, strict=True):
            row = {"arrival_s": request.arrival_s, "first_token_s": np.nan, "end_s": np.nan, "cached_tokens": 0, "num_preemptions": 0}
            if way.last >= 0:
                row |= {name: last[way.last][name][way.at_last] for name in row if name != "arrival_s"}
            if way.prefill >= 0:
                own = {name: column[way.at_prefill] for name, column in first[way.prefill].items()}
                row["cached_tokens"] = own["cached_tokens"]
                row["num_preemptions"] += own["num_preemptions"]
                if self._policy.answers_first:
                    row["first_token_s"] = own["first_token_s"]
                    row["end_s"] = own["end_s"] if way.last < 0 else row["end_s"]
            row["input_tokens"], row["output_tokens"] = len(request.tokens), request.num_output
            row["replica"] = way.last + len(first) if way.last >= 0 else way.prefill
            row["prefill_replica"], row["transferred_bytes"] = way.prefill, way.num_bytes
            rows.append(row)
        return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}

    def steps(self) -> dict[str, NDArray[Any]]:
        """The columns of SimulationResult.steps, by their starts."""
        parts = [engine.steps() for engine in self.engines]
        steps = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        steps["replica"] = np.concatenate([np.full(len(part["rows"]), place, dtype=np.int64) for place, part in enumerate(parts)])
        order = np.argsort(steps["start_s"], kind="stable")
        return {name: column[order] for name, column in steps.items()}

    def hit_share(self) -> float:
        """Of the prompt tokens that engines looked for, those that they had; what was handed over does not count."""
        engines = self.prefill.engines or self.last.engines
        queries = sum(engine.num_prefix_queries for engine in engines)
        return sum(engine.num_prefix_hits for engine in engines) / queries if queries else 0.0
