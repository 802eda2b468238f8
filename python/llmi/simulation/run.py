"""`llmi.simulate`: a trace on engines that only their scheduler runs of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.base.kinds import Maybe, Place, Real, Whole, parse
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.llm import LLM
from llmi.loadtest.settings import SLO_NAMES
from llmi.models import by_name
from llmi.models.inspection import ModelReport, inspect_model
from llmi.replicas.policy import PolicyFile
from llmi.simulation.costs import Costs, measure_costs
from llmi.simulation.fleet import Fleet, Site
from llmi.simulation.policies import NAMED, Policy
from llmi.simulation.ranks import rank_costs
from llmi.simulation.result import SimulationResult, summarize
from llmi.simulation.trace import traced_requests

_BYTES = 2**63 - 1


def simulate(  # noqa: PLR0913 (what a user may change)
    trace: object,
    *,
    model: str | os.PathLike[str] | None = None,
    policy: str | os.PathLike[str] = "llmi",
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
        As `llmi bench serve --trace` reads it: timestamp (ms), input_length, output_length, hash_ids where prompts share
        beginnings, and n where a prompt has several outputs.
    model : str or path, optional
        With `costs` a config.json is enough: its K and V take the pool's pages.
    policy : str or path
        A scheduling_policy of LLM, the name of a published system (docs/simulator.md), or a file of your own: `key`, `route`, `admit`.
    costs : Costs, path or dict, optional
        None: measured here, with the model's weights.
    replicas : int
        Engines; requests are placed as `llmi serve --replicas` places them, unless the policy says otherwise.
    prefill_replicas : int
        So many of them compute prompts and hand K and V over, which takes the time that `costs` say (link_bytes_s).
    tensor_parallel_size : int
        Ranks of each engine: `costs` are those of one, and their rank_link carries the gathers that `llmi inspect --tp` counts.
    pipeline_parallel_size : int
        Only 1: steps that are under way in several stages are not simulated.
    max_num_seqs, max_num_batched_tokens : int
    kv_cache_memory_bytes : int, optional
        Of each engine. None: with measured costs, what the engine chose here; else it must be given.
    slo : dict, optional
        Bounds for goodput in ms, as in {"ttft": 1000, "tpot": 100, "e2el": 5000}.
    seed : int
        Of the token ids that stand for prompts.

    Returns
    -------
    SimulationResult

    Raises
    ------
    InvalidParamsError, ModelFileError, UnsupportedModelError, HookError

    Examples
    --------
    >>> trace = [{"timestamp": 100 * i, "input_length": 64, "output_length": 16} for i in range(8)]
    >>> result = simulate(trace, model=llmi.testing.tiny_model(), costs=Costs(((1, 0.01), (8, 0.02))), kv_cache_memory_bytes=1 << 22)
    >>> result.summary["num_turned_away"]
    0
    """
    if pipeline_parallel_size != 1:
        raise UnsupportedCombinationError(
            f"simulate: pipeline_parallel_size = {pipeline_parallel_size!r}: steps in several stages are not simulated, leave it out",
            "pipeline_parallel_size",
            "replicas",
        )
    counts = {
        "replicas": (replicas, 10_000),
        "tensor_parallel_size": (tensor_parallel_size, 256),
        "max_num_seqs": (max_num_seqs, 1 << 20),
        "max_num_batched_tokens": (max_num_batched_tokens, 1 << 20),
    }
    for name, (value, most) in counts.items():
        parse(Whole(1, most), name, value)
    named, own = _policy_of(policy)
    _check_pools(named, policy, replicas, parse(Whole(0, 10_000), "prefill_replicas", prefill_replicas))
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
    if prefill_replicas and used.link_bytes_s is None:
        raise InvalidParamsError("simulate: with prefill_replicas the costs say how fast K and V travel: link_bytes_s", "costs")
    report = _inspected(model)
    longest = max(request.num_prompt for request in requests)
    if tensor_parallel_size > 1:
        used = rank_costs(used, report, tensor_parallel_size, max(max_num_batched_tokens, longest) + max_num_seqs)
    _check_bounds(bounds, used)
    assert report.spec is not None, "inspect_model reads a spec"
    spec = report.spec.to_json()
    site = Site(spec, str(report.path), len(json.loads(spec)["layers"]), used, max_num_seqs, max_num_batched_tokens, memory)
    most_ttft_s = bounds["ttft"] / 1e3 if bounds is not None and "ttft" in bounds else None
    fleet = Fleet(site, named, own, replicas, prefill_replicas, longest, most_ttft_s)
    fleet.run(requests)
    columns, steps = fleet.requests(requests), fleet.steps()
    pages = sum(engine.num_pages for engine in fleet.engines)
    return SimulationResult(columns, steps, summarize(columns, steps, bounds, pages, fleet.hit_share()))


def _policy_of(given: str | os.PathLike[str]) -> tuple[Policy, PolicyFile | None]:
    """The policy of this name, or llmi's own with what a file of the user's says."""
    if given in NAMED:
        return NAMED[str(given)], None
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".py")):
        return NAMED["llmi"], PolicyFile(given)
    raise InvalidParamsError(f"policy is one of {', '.join(NAMED)}, or a file that ends in .py, not {given!r:.60}", "policy")


def _check_pools(named: Policy, policy: object, replicas: int, prefill_replicas: int) -> None:
    if prefill_replicas >= replicas:
        raise InvalidParamsError(
            f"prefill_replicas = {prefill_replicas} of replicas = {replicas} leaves none that decodes: give fewer", "prefill_replicas"
        )
    if named.has_pools and not prefill_replicas:
        raise InvalidParamsError(f"policy {policy!r} has a pool that computes prompts: give prefill_replicas", "prefill_replicas")


def _check_bounds(bounds: Mapping[str, float] | None, costs: Costs) -> None:
    """Refuses a goal that no step can keep."""
    least = 1e3 * costs.seconds(1)
    for name, bound in (bounds or {}).items():
        if bound < least:
            raise InvalidParamsError(f"slo: {name} = {bound:g} ms cannot be kept: a step of one row takes {least:.4g} ms", "slo")


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


def _inspected(model: str | os.PathLike[str] | None) -> ModelReport:
    return inspect_model(Path(model) if model is not None and Path(model).exists() else by_name.resolve(model, None))
