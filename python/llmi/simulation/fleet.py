"""Simulated engines that share a load: where requests go, and prompts that some engines compute for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.lazy_numpy import np
from llmi.engine.args import PolicyRunner
from llmi.errors import HookError, InvalidParamsError, call_core
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


@dataclasses.dataclass(slots=True)
class _Placed:
    """A request's way: its engines (-1: none), when it arrives at the last one, and its place there."""

    prefill: int = -1
    at_prefill: int = -1
    last: int = -1
    at_last: int = -1
    handed_s: float = 0.0
    num_bytes: int = 0


class _NamedKeys(PolicyRunner):
    """Keys of a policy's file, and what one raised. Requests have the numbers of the trace's lines."""

    failure: HookError | None = None

    def __init__(self, own: PolicyFile) -> None:
        super().__init__(own)
        self._path = own.path

    def key(self, request: _core.PolicyRequest, now_s: float) -> list[float]:
        """The key's floats."""
        try:
            return super().key(request, now_s)
        except Exception as error:
            self.failure = HookError(f"policy {self._path}: key raised {type(error).__name__} for request {request.id}: {error}")
            raise


class Pool:
    """Engines of one kind, and what each has been given."""

    def __init__(self, site: Site, policy: Policy, keys: _NamedKeys | None, count: int, takes_blocks: bool, longest: int) -> None:
        tokens = policy.most_tokens or site.max_num_batched_tokens
        self.shares = policy.shares
        self.engines = [
            call_core(
                _core.SimulatedEngine,
                site.spec,
                site.source,
                scheduling_policy="custom" if keys is not None else policy.scheduling_policy,
                policy_hook=keys,
                max_num_seqs=site.max_num_seqs,
                max_num_batched_tokens=tokens if policy.cuts else max(tokens, longest + site.max_num_seqs),
                waiting_served_ratio=0.0,
                enable_chunked_prefill=policy.cuts,
                enable_prefix_caching=policy.shares or takes_blocks,
                streams=policy.spares,
                points=list(site.costs.points),
                kv_s=site.costs.kv_s,
                logits_s=site.costs.logits_s,
                draft_s=site.costs.draft_s,
                draft_tokens=site.costs.draft_tokens,
                draft_acceptance=site.costs.draft_acceptance,
                block_size=BLOCK,
                kv_cache_dtype="float16",
                kv_cache_memory_bytes=site.kv_bytes,
            )
            for _ in range(count)
        ]
        self._together = _core.SimulatedPool(self.engines)
        self._known = [Beginnings() for _ in self.engines]
        self._first: dict[bytes, set[int]] = {}  # engines that were given a text with this first block
        self._counts = [0] * count

    def views(self, chain: Sequence[bytes]) -> list[ReplicaView]:
        """The engines as a policy sees them, for a text with this chain."""
        pairs = zip(self.engines, self._known, strict=True)
        return [ReplicaView(engine.num_under_way, engine.num_queued_tokens, BLOCK * known.count(chain)) for engine, known in pairs]

    def run_until(self, time_s: float) -> NDArray[Any]:
        """Runs the steps that begin before this time; returns the sequences under way in each engine."""
        loads: NDArray[Any] = call_core(self._together.run_until, time_s)
        return loads

    def usual(self, chain: Sequence[bytes], loads: NDArray[Any]) -> int:
        """The place that `llmi serve --replicas` would choose: of engines that know nothing of the text only the one that does least."""
        places = sorted({int(loads.argmin())} | self._first.get(chain[0] if chain else b"", set()))
        return places[choose([(int(loads[place]), self._known[place]) for place in places], chain)]

    def add(
        self, place: int, chain: Sequence[bytes], request: TracedRequest, at_s: float, *, only_prompt: bool = False, num_given: int = 0
    ) -> int:
        """Gives an engine a request; returns its place among those of that engine."""
        self._known[place].add(chain)
        if chain:
            self._first.setdefault(chain[0], set()).add(place)
        num_output, num_samples = (1, 1) if only_prompt else (request.num_output, request.num_samples)
        call_core(self.engines[place].add, request.tokens, num_output, at_s, num_given, num_samples, request.number)
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
        self._keys = _NamedKeys(own) if own is not None and own.has_key else None
        self.prefill = Pool(site, policy, self._keys, prefill_replicas, False, longest)
        self.last = Pool(site, decoding, self._keys, replicas - prefill_replicas, prefill_replicas > 0, longest)
        self.placed: list[_Placed] = []

    @property
    def engines(self) -> list[_core.SimulatedEngine]:
        """All, those that compute prompts alone first."""
        return [*self.prefill.engines, *self.last.engines]

    def run(self, requests: Sequence[TracedRequest]) -> None:
        """Runs all requests to their end. Raises InvalidParamsError, HookError."""
        try:
            self._run(requests)
        except HookError as error:
            raise (self._keys.failure if self._keys is not None and self._keys.failure is not None else error) from None

    def _run(self, requests: Sequence[TracedRequest]) -> None:
        handed = []
        for number, request in enumerate(requests):
            way = _Placed(handed_s=request.arrival_s)
            self.placed.append(way)
            goes = bool(self.prefill.engines) and (self._policy.has_pools or request.num_prompt >= LEAST_HANDED)
            pool = self.prefill if goes else self.last
            try:
                place, chain = self._place(pool, number, request)
                if place < 0:
                    continue
                if goes:
                    way.prefill, way.at_prefill = place, pool.add(place, chain, request, request.arrival_s, only_prompt=True)
                    handed.append(number)
                elif self.prefill.engines:
                    handed.append(number)  # its engine is chosen when the others' hand-overs are known
                else:
                    way.last, way.at_last = place, pool.add(place, chain, request, request.arrival_s)
            except InvalidParamsError as error:
                raise InvalidParamsError(f"{request.where}: {error}", "trace") from None
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
        loads = pool.run_until(request.arrival_s)
        chain = chain_of(request.tokens.tolist(), "") if pool.shares else []
        if not decides:
            return pool.usual(chain, loads), chain
        views = pool.views(chain)
        if self._own is not None:
            info = RoutedRequest(str(number), 0, request.arrival_s, request.num_prompt, request.num_output)
            if not self._own.admit(info, views):
                return -1, chain
            place = self._own.route(info, views)
            return pool.usual(chain, loads) if place is None else place, chain
        waits = [view.num_queued_tokens + request.num_prompt - view.num_known_tokens for view in views]
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
                way.num_bytes = engine.block_bytes(requests[number].num_prompt - 1)
                seconds = way.num_bytes / rate
                if self._policy.overlaps:  # what the engine's time did not cover: the last layer's share at least
                    seconds = max(seconds / self._site.num_layers, seconds - max(0.0, end_s - max(free_s, float(begins[self._at(number)]))))
                way.handed_s = free_s = max(free_s, end_s) + seconds

    def _at(self, number: int) -> int:
        return self.placed[number].at_prefill

    def _hand_over(self, requests: Sequence[TracedRequest], handed: Sequence[int]) -> None:
        for number in sorted(handed, key=lambda n: self.placed[n].handed_s):
            way, request = self.placed[number], requests[number]
            if self._policy.answers_first and way.prefill >= 0 and request.num_output == 1 and request.num_samples == 1:
                continue
            loads = self.last.run_until(way.handed_s)
            chain = chain_of(request.tokens.tolist(), "") if self.last.shares and len(self.last.engines) > 1 else []
            way.last = self.last.usual(chain, loads)
            num_given = request.num_prompt - 1 if way.prefill >= 0 else 0
            way.at_last = self.last.add(way.last, chain, request, way.handed_s, num_given=num_given)

    def requests(self, requests: Sequence[TracedRequest]) -> dict[str, NDArray[Any]]:
        """The columns of SimulationResult.requests."""
        ways = self.placed
        prefill, at_prefill, last, at_last, num_bytes = (
            np.asarray([getattr(way, name) for way in ways], dtype=np.int64)
            for name in ("prefill", "at_prefill", "last", "at_last", "num_bytes")
        )
        columns: dict[str, NDArray[Any]] = {
            "arrival_s": np.asarray([request.arrival_s for request in requests]),
            "first_token_s": np.full(len(ways), np.nan),
            "end_s": np.full(len(ways), np.nan),
            "cached_tokens": np.zeros(len(ways), np.int64),
            "num_preemptions": np.zeros(len(ways), np.int64),
        }
        for name, column in columns.items():
            if name != "arrival_s":
                _fill(column, self.last, name, last, at_last)
        own = {name: np.full(len(ways), np.nan) for name in columns}
        for name in own:
            _fill(own[name], self.prefill, name, prefill, at_prefill)
        handed = prefill >= 0
        columns["cached_tokens"][handed] = own["cached_tokens"][handed]
        columns["num_preemptions"][handed] += own["num_preemptions"][handed].astype(np.int64)
        if self._policy.answers_first:
            columns["first_token_s"][handed] = own["first_token_s"][handed]
            columns["end_s"][handed & (last < 0)] = own["end_s"][handed & (last < 0)]
        for name, of in (("input_tokens", "num_prompt"), ("output_tokens", "num_output"), ("n", "num_samples")):
            columns[name] = np.asarray([getattr(request, of) for request in requests], dtype=np.int64)
        columns["replica"] = np.where(last >= 0, last + len(self.prefill.engines), prefill)
        return columns | {"prefill_replica": prefill, "transferred_bytes": num_bytes}

    def steps(self) -> dict[str, NDArray[Any]]:
        """The columns of SimulationResult.steps, by their starts."""
        parts = [engine.steps() for engine in self.engines]
        parts_replica = [np.full(len(part["rows"]), place, dtype=np.int64) for place, part in enumerate(parts)]
        order = np.argsort(np.concatenate([part["start_s"] for part in parts]), kind="stable")
        steps = {name: np.concatenate([part.pop(name) for part in parts])[order] for name in list(parts[0])}
        return steps | {"replica": np.concatenate(parts_replica)[order]}

    def hit_share(self) -> float:
        """Of the prompt tokens that engines looked for, those that they had; what was handed over does not count."""
        engines = self.prefill.engines or self.last.engines
        queries = sum(engine.num_prefix_queries for engine in engines)
        return sum(engine.num_prefix_hits for engine in engines) / queries if queries else 0.0


def _fill(column: NDArray[Any], pool: Pool, name: str, places: NDArray[Any], at: NDArray[Any]) -> None:
    """Sets what the pool's engines say of their requests: of request i the engine places[i] under at[i]; none below 0."""
    parts = [engine.requests()[name] for engine in pool.engines]
    if not parts:
        return
    begins = np.cumsum([0, *map(len, parts)])
    here = places >= 0
    column[here] = np.concatenate(parts)[begins[places[here]] + at[here]]
