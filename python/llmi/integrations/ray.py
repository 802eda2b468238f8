"""llmi in Ray's programs: rows of a data set, and an application of Serve (docs/parallel.md)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from llmi.errors import InvalidParamsError, import_extra
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.requests.resolve import derive_seed, resolve_params
from llmi.server.settings import ServerSettings

_PROMPTS = ("prompt", "prompt_token_ids", "messages")


class Generate:
    """Continues the rows of a data set: `ds.map_batches(Generate, fn_constructor_kwargs={"model": ...}, compute=...)`.

    A row has `prompt` (text), `prompt_token_ids` or `messages` (a chat); and its seed as `seed`, or an `id` of which its seed is made.
    So it is continued alike for every number of actors, and whatever rows are in its batch. It comes back with `generated_text`,
    `token_ids` (lists of these where n > 1), `finish_reason` and `error`, which says why a row was refused.

    Parameters
    ----------
    model : path or str
    sampling_params : SamplingParams or dict, optional
        A dict is over the model's own defaults. With a `seed` of its own, rows need none.
    seed : int
        What seeds are made of, with the rows' ids: id i has the seed of prompt i of `LLM(model, seed=seed).generate(prompts)`.
    **options
        Further arguments of LLM.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        seed: int = 0,
        **options: object,
    ) -> None:
        self._llm, self._seed = LLM(model, seed=seed, **cast("dict[str, Any]", options)), seed
        given = sampling_params if isinstance(sampling_params, SamplingParams) else None
        changes = {} if sampling_params is None or isinstance(sampling_params, SamplingParams) else dict(sampling_params)
        resolved = resolve_params(given, changes, self._llm._defaults)
        if resolved.beams is not None:
            raise InvalidParamsError("a row has its seed, and beam search takes none: leave out beam_width", "beam_width")
        self._params = resolved.params

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with what was generated."""
        name = next((name for name in _PROMPTS if name in batch), None)
        if name is None:
            raise InvalidParamsError(f"rows have {', '.join(batch)}: give them a column {', '.join(_PROMPTS[:-1])} or {_PROMPTS[-1]}")
        prompts = [_plain(entry) for entry in batch[name]]
        if name == "messages":
            prompts = [self._llm.tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in prompts]
        params = [dataclasses.replace(self._params, seed=seed) for seed in self._seeds(batch, len(prompts))]
        outputs = self._llm.generate(prompts, params, on_error="return", use_tqdm=False)
        found: dict[str, list[Any]] = {"generated_text": [], "token_ids": [], "finish_reason": [], "error": []}
        for output in outputs:
            samples = output.outputs
            columns: list[list[Any]] = [
                [sample.text for sample in samples],
                [list(sample.token_ids) for sample in samples],
                [sample.finish_reason for sample in samples],
            ]
            for column, values in zip(("generated_text", "token_ids", "finish_reason"), columns, strict=True):
                found[column].append(values[0] if self._params.n == 1 else values)
            found["error"].append(None if output.error is None else str(output.error))
        return {**batch, **found}

    def _seeds(self, batch: Mapping[str, Any], count: int) -> Sequence[int]:
        if "seed" in batch:
            return [int(seed) for seed in batch["seed"]]
        if self._params.seed is not None:
            return [self._params.seed] * count
        if "id" not in batch:
            raise InvalidParamsError("tokens would depend on the batch: give rows a column seed or id, or sampling_params a seed", "seed")
        return [derive_seed(self._seed, entry) for entry in batch["id"]]


def app(
    model: str | os.PathLike[str],
    num_replicas: int = 2,
    *,
    name: str | None = None,
    settings: ServerSettings | None = None,
    **options: object,
) -> Any:
    """An application for `serve.run`: the routes of `llmi serve`, in front of replicas that Ray places.

    Parameters
    ----------
    model : path or str
    num_replicas : int
        Engines, each in an actor. The streams of one that dies go on in another.
    name : str, optional
        What clients call the model; None: as `llmi serve` does.
    settings : llmi.server.settings.ServerSettings, optional
        Keys, limits, and the names of hosts under which clients may call.
    **options
        Further arguments of LLM.

    Raises
    ------
    MissingExtraError
    """
    import_extra("ray", "ray")
    serve = import_extra("ray.serve", "ray")

    def front() -> Any:
        import_extra("starlette", "server")
        from llmi.async_llm import AsyncLLM  # noqa: PLC0415 (in the process that answers)
        from llmi.server.app import make_app  # noqa: PLC0415
        from llmi.server.front import Front  # noqa: PLC0415

        llm = Front(model, data_parallel_size=num_replicas, distributed_executor_backend="ray", **cast("dict[str, Any]", options))
        return make_app({name or Path(llm.model_info.path).name.removesuffix(".gguf"): AsyncLLM(llm=llm)}, settings)

    ingress = serve.ingress(front)(type("LlmiFront", (), {"__module__": __name__}))
    deployment = serve.deployment(num_replicas=1, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})
    return deployment(ingress).bind()


def _plain(value: object) -> Any:
    """A row's value without NumPy."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(entry) for entry in value] if isinstance(value, list) else value
