"""`llmi.simulate`: a trace on engines that only their scheduler runs of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import Choice, Maybe, Place, Real, Whole, parse
from llmi.base.lazy_numpy import np
from llmi.engine.options import POLICIES
from llmi.errors import InvalidParamsError, UnsupportedCombinationError, call_core
from llmi.llm import LLM
from llmi.loadtest.settings import SLO_NAMES
from llmi.models import by_name
from llmi.models.inspection import inspect_model
from llmi.replicas.placing import Beginnings, chain_of, choose
from llmi.simulation.costs import Costs, measure_costs
from llmi.simulation.result import SimulationResult, summarize
from llmi.simulation.trace import TracedRequest, traced_requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES = 2**63 - 1
_NOT_YET = ("prefill_replicas", "tensor_parallel_size", "pipeline_parallel_size")


def simulate(  # noqa: PLR0913 (what a user may change)
    trace: object,
    *,
    model: str | os.PathLike[str] | None = None,
    policy: str = "fcfs",
    costs: object = None,
    replicas: int = 1,
    prefill_replicas: int = 0,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    kv_cache_memory_bytes: int | None = None,
    slo: Mapping[str, float] | None = None,
    seed: int = 0,
) -> SimulationResult:
    """What a load would take: llmi's scheduler, cache and prefix tree under a clock of their own, with steps that take what `costs` say.

    The same call with the same costs gives the same bits.

    Parameters
    ----------
    trace : path or list of dict
        As `llmi bench serve --trace` reads it: timestamp (ms), input_length, output_length, and hash_ids where prompts share beginnings.
    model : str or path, optional
        With `costs` a config.json is enough: its K and V take the pool's pages.
    policy : str
        A scheduling_policy of LLM.
    costs : Costs, path or dict, optional
        None: measured here, with the model's weights.
    replicas : int
        Engines; requests are placed as `llmi serve --replicas` places them.
    prefill_replicas, tensor_parallel_size, pipeline_parallel_size
        Only their defaults, so far.
    max_num_seqs, max_num_batched_tokens : int
    kv_cache_memory_bytes : int, optional
        Of each engine. None: with measured costs, what the engine chose here; else it must be given.
    slo : dict, optional
        Bounds for goodput in ms, as in {"ttft": 1000, "tpot": 100, "e2el": 5000}.
    seed : int
        Of the token ids that stand for prompts.

    Raises
    ------
    InvalidParamsError, ModelFileError, UnsupportedModelError
    """
    for name, value, plain in zip(_NOT_YET, (prefill_replicas, tensor_parallel_size, pipeline_parallel_size), (0, 1, 1), strict=True):
        if value != plain:
            raise UnsupportedCombinationError(f"simulate: {name} = {value!r} is not simulated so far: leave it out", name, "replicas")
    parse(Choice(POLICIES), "policy", policy)
    counts = {
        "replicas": (replicas, 10_000),
        "max_num_seqs": (max_num_seqs, 1 << 20),
        "max_num_batched_tokens": (max_num_batched_tokens, 1 << 20),
    }
    for name, (value, most) in counts.items():
        parse(Whole(1, most), name, value)
    parse(Whole(0, 2**31 - 1), "seed", seed)
    parse(Maybe(Place()), "model", model)
    bounds = _bounds(slo)
    requests = traced_requests(trace, seed)
    memory = parse(Maybe(Whole(1, _BYTES)), "kv_cache_memory_bytes", kv_cache_memory_bytes)
    if costs is None:
        used, memory = _measured(model, memory, max_num_batched_tokens)
    else:
        used = Costs.of(costs)
        if memory is None:
            raise InvalidParamsError(
                "simulate: with costs of elsewhere, kv_cache_memory_bytes says how large the pool is", "kv_cache_memory_bytes"
            )
    spec, source = _spec_of(model)
    engines = [
        call_core(
            _core.SimulatedEngine,
            spec,
            source,
            scheduling_policy=policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            waiting_served_ratio=0.0,
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            streams=True,
            points=list(used.points),
            kv_s=used.kv_s,
            block_size=16,
            kv_cache_dtype="float16",
            kv_cache_memory_bytes=memory,
        )
        for _ in range(replicas)
    ]
    places = _run(engines, requests)
    return _result(engines, requests, places, bounds)


def _bounds(slo: Mapping[str, float] | None) -> dict[str, float] | None:
    if slo is None:
        return None
    if not isinstance(slo, Mapping) or not slo or set(slo) - set(SLO_NAMES):
        raise InvalidParamsError(f"slo holds some of {', '.join(SLO_NAMES)} in ms, as in {{'ttft': 1000}}, not {slo!r:.80}", "slo")
    return {name: parse(Real(0, 1e12, "a number of ms above 0", open_low=True), f"slo[{name!r}]", value) for name, value in slo.items()}


def _measured(model: str | os.PathLike[str] | None, memory: int | None, max_num_batched_tokens: int) -> tuple[Costs, int]:
    given: dict[str, Any] = {} if memory is None else {"kv_cache_memory_bytes": memory}
    with LLM(model, max_num_batched_tokens=max_num_batched_tokens, **given) as llm:
        info = llm._engine.info()
        return measure_costs(llm), info["num_pages"] * info["page_bytes"]


def _spec_of(model: str | os.PathLike[str] | None) -> tuple[str, str]:
    """The model's spec as the core takes it, and where it is from."""
    path = Path(model) if model is not None and Path(model).exists() else by_name.resolve(model, None)
    report = inspect_model(path)
    assert report.spec is not None, "inspect_model reads a spec"
    return report.spec.to_json(), str(path)


def _run(engines: Sequence[_core.SimulatedEngine], requests: Sequence[TracedRequest]) -> list[int]:
    """Runs all requests; returns the engine of each."""
    known = [Beginnings() for _ in engines]
    places = []
    for number, request in enumerate(requests):
        place = 0
        if len(engines) > 1:
            for engine in engines:
                engine.run_until(request.arrival_s)
            chain = chain_of(request.tokens.tolist(), "")
            place = choose([(engine.num_under_way, beginnings) for engine, beginnings in zip(engines, known, strict=True)], chain)
            known[place].add(chain)
        try:
            call_core(engines[place].add, request.tokens, request.num_output, request.arrival_s)
        except InvalidParamsError as error:
            raise InvalidParamsError(f"trace, request {number}: {error}", "trace") from None
        places.append(place)
    for engine in engines:
        call_core(engine.run_to_end)
    return places


def _result(
    engines: Sequence[_core.SimulatedEngine], requests: Sequence[TracedRequest], places: Sequence[int], slo: Mapping[str, float] | None
) -> SimulationResult:
    place_of = np.asarray(places, dtype=np.int64)
    found = [engine.requests() for engine in engines]
    columns: dict[str, NDArray[Any]] = {}
    for name in found[0]:
        column = np.empty(len(requests), dtype=found[0][name].dtype)
        for place, part in enumerate(found):
            column[place_of == place] = part[name]
        columns[name] = column
    columns["input_tokens"] = np.asarray([len(request.tokens) for request in requests], dtype=np.int64)
    columns["replica"] = place_of
    parts = [engine.steps() for engine in engines]
    steps = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    steps["replica"] = np.concatenate([np.full(len(part["rows"]), place, dtype=np.int64) for place, part in enumerate(parts)])
    order = np.argsort(steps["start_s"], kind="stable")
    steps = {name: column[order] for name, column in steps.items()}
    queries = sum(engine.num_prefix_queries for engine in engines)
    hits = sum(engine.num_prefix_hits for engine in engines) / queries if queries else 0.0
    return SimulationResult(columns, steps, summarize(columns, steps, slo, sum(engine.num_pages for engine in engines), hits))
