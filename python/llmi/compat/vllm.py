"""vLLM's names: `from llmi.compat.vllm import LLM, SamplingParams` where a program says `from vllm import ...`.

What means something else in llmi behaves here as in vLLM: requests without a seed draw theirs from one generator that LLM(seed=0) starts,
so that the same call twice gives two answers; names of special tokens in a prompt are these tokens; max_tokens is 16 where nobody gives
it; the text of a beam holds its prompt. The modules in `MODULES` are other names of this one.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import random
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import llmi
from llmi import BeamSearchOutput, BeamSearchSequence, CompletionOutput, Logprob, StructuredOutputsParams  # noqa: F401 (names to import)
from llmi.engine.options import ENGINE, NO_EFFECT
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.outputs.results import Outputs, RequestOutput
from llmi.params.beams import BeamSearchParams
from llmi.params.foreign_options import ENGINE_FOREIGN
from llmi.params.options import DefaultInt
from llmi.text.chats import is_chat
from llmi.text.prompts import as_list

#: Where vLLM's programs import these names from, below the package.
MODULES = ["inputs", "outputs", "sampling_params", "engine.arg_utils", "engine.llm_engine", "entrypoints.llm", "utils.argparse_utils"]
MODULES += ["engine", "entrypoints", "utils", "v1", "v1.engine", "v1.engine.async_llm", "v1.engine.llm_engine"]
sys.modules.update({f"{__name__}.{name}": sys.modules[__name__] for name in MODULES})

#: Prompts as text, and as token ids.
TextPrompt = TokensPrompt = dict[str, Any]
_MAX_TOKENS = 16
#: What an output of a running request holds: all so far, what is new, or nothing before the end.
RequestOutputKind = enum.Enum("RequestOutputKind", "CUMULATIVE DELTA FINAL_ONLY")


class SamplingParams(llmi.SamplingParams):
    """llmi's, with vLLM's other ways to make one."""

    @classmethod
    def from_optional(cls, **params: Any) -> SamplingParams:
        """Those that are not None; the others have their defaults."""
        return cls(**{name: value for name, value in params.items() if value is not None})


_DEFAULTS: dict[str, Any] = {
    **{name: option.default for name, option in (ENGINE | NO_EFFECT).items()},
    **dict.fromkeys(ENGINE_FOREIGN),
    "seed": 0,
}


class _ArgumentMethods:
    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds a flag for each argument; a value is read as Python writes it, and as text where that fails."""
        for name, default in _DEFAULTS.items():
            flags = {f"--{name.replace('_', '-')}", f"--{name}"}
            parser.add_argument(*flags, dest=name, type=_read, nargs="?", const=True, default=default)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Any:
        """From the flags that `add_cli_args` adds; others in `args` are left alone."""
        return cls(**{name: value for name, value in vars(args).items() if name in _DEFAULTS})


def _read(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


#: LLM's arguments, and vLLM's that have no effect in llmi or are refused by it, as an object with a field for each.
EngineArgs: Any = dataclasses.make_dataclass(
    "EngineArgs",
    [(name, Any, dataclasses.field(default=default)) for name, default in _DEFAULTS.items()],
    bases=(_ArgumentMethods,),
)
AsyncEngineArgs = EngineArgs
FlexibleArgumentParser = argparse.ArgumentParser  # add_cli_args takes flags with underscores, too


def _seeded(params: Any, draw: random.Random) -> Any:
    """The parameters with a seed, and with vLLM's default of max_tokens."""
    if not isinstance(params, llmi.SamplingParams):
        raise InvalidParamsError(f"sampling_params must be SamplingParams, not {type(params).__name__}", "sampling_params")
    changes: dict[str, Any] = {} if params.seed is not None else {"seed": draw.getrandbits(63)}
    if isinstance(params.max_tokens, DefaultInt):
        changes["max_tokens"] = _MAX_TOKENS
    return dataclasses.replace(params, **changes)


def _given(**options: object) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class LLM(llmi.LLM):
    """llmi's, with vLLM's meanings."""

    def __init__(self, model: Any = None, *, seed: int | None = 0, **engine_args: Any) -> None:
        super().__init__(model, seed=seed, **engine_args)
        self._draw = random.Random(seed)  # seeds of requests that have none

    def _each(self, params: Any, count: int) -> Any:
        params = self.get_default_sampling_params() if params is None else params
        entries = params if isinstance(params, Sequence) else [params] * count
        return [_seeded(entry, self._draw) for entry in entries]

    def generate(self, prompts: Any, sampling_params: Any = None, use_tqdm: Any = True, **options: Any) -> Outputs:
        """As in vLLM."""
        each = as_list(prompts)
        params = self._each(sampling_params, len(each))
        return super().generate(each, params, use_tqdm=use_tqdm, parse_special=True, **_given(**options))

    def chat(self, messages: Any, sampling_params: Any = None, use_tqdm: Any = True, **options: Any) -> Outputs:
        """As in vLLM."""
        params = self._each(sampling_params, 1 if is_chat(messages) else len(messages))
        return super().chat(messages, params, use_tqdm=use_tqdm, **_given(**options))

    def enqueue(self, prompts: Any, sampling_params: Any = None, **options: Any) -> list[str]:
        """As in vLLM."""
        each = as_list(prompts)
        return super().enqueue(each, self._each(sampling_params, len(each)), parse_special=True, **_given(**options))

    def beam_search(self, prompts: Any, params: BeamSearchParams, **options: Any) -> list[BeamSearchOutput]:
        """As in vLLM: the length counts the prompt, no search ends early, and a beam's text holds its prompt."""
        wanted = dataclasses.replace(params, length_includes_prompt=True, early_stopping="never")
        options.pop("concurrency_limit", None)  # which changes no result
        found = super().beam_search(prompts, wanted, parse_special=True, **_given(**options))
        for beam in (beam for output in found for beam in output.sequences):
            beam.text = self.tokenizer.decode(beam.tokens)
        return found


class LLMEngine:
    """Requests that run step by step."""

    def __init__(self, engine_args: Any) -> None:
        self.llm = LLM(**vars(engine_args))
        self._names: dict[str, tuple[str, bool]] = {}  # by llmi's id: the caller's, and whether only the end is wanted

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> LLMEngine:
        """An engine of EngineArgs."""
        return cls(engine_args)

    def add_request(self, request_id: str, prompt: Any, params: Any, **options: Any) -> None:
        """Queues a request."""
        if request_id in (name for name, _ in self._names.values()):
            raise InvalidParamsError(f"request_id {request_id!r} is in use", "request_id")
        kind = getattr(params.output_kind, "name", params.output_kind).lower()
        if kind == "delta":
            raise UnsupportedCombinationError(
                "output_kind = DELTA is offered by AsyncLLM: step() gives all so far", "output_kind", "LLMEngine"
            )
        [number] = self.llm.enqueue([prompt], dataclasses.replace(params, output_kind="cumulative"), **options)
        self._names[number] = (request_id, kind != "cumulative")

    def step(self) -> list[RequestOutput]:
        """One iteration: the outputs of the requests that have news."""
        outputs = []
        for output in self.llm.step():
            name, only_the_end = self._names[output.request_id]
            if output.finished:
                del self._names[output.request_id]
            if output.finished or not only_the_end:
                outputs.append(dataclasses.replace(output, request_id=name))
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether step() has work."""
        return bool(self._names)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Ends requests; step() gives what they have."""
        wanted = {request_ids} if isinstance(request_ids, str) else {*request_ids}
        self.llm.abort([number for number, (name, _) in self._names.items() if name in wanted])


class AsyncLLM:
    """Requests of an asyncio program."""

    def __init__(self, engine_args: Any) -> None:
        self._engine = llmi.AsyncLLM(**vars(engine_args))
        self._draw = random.Random(engine_args.seed)

    @classmethod
    def from_engine_args(cls, engine_args: Any, **options: Any) -> AsyncLLM:
        """An engine of AsyncEngineArgs. options: of logging, without effect."""
        return cls(engine_args)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> AsyncIterator[RequestOutput]:
        """The request's output as it grows, as its output_kind says. Leaving the loop aborts it."""
        return self._engine.generate(prompt, _seeded(sampling_params, self._draw), request_id, parse_special=True, **_given(**options))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            await self._engine.abort(name)

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends all requests and closes the engine."""
        self._engine.abort_all()
        self._engine.llm.close()


AsyncLLMEngine = AsyncLLM
