"""llmi: a small, fast, open LLM inference engine.

Tokens and log-probabilities are a function of model, numerics id, prompt, parameters and seed alone, bit for bit.

>>> from llmi import LLM
>>> llm = LLM()  # doctest: +SKIP
>>> answer = llm.chat([{"role": "user", "content": "Hello"}], max_tokens=16)[0].text
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names by module; loaded when first used, so that `import llmi` costs little.
_MODULES = {
    "llm": ("LLM",),
    "params.sampling": ("SamplingParams", "TokenContext"),
    "text.tokenizer": ("Tokenizer",),
    "tools.calls": ("ToolCall",),
    "hooks.runners": ("BatchLogitsProcessor",),
    "requests.stream": ("TextStream",),
    "async_llm": ("AsyncLLM",),
    "engine.args": ("RequestInfo", "SchedulingPolicy"),
    "lab.capture": ("Capture",),
    "lab.sequence": ("TokenSequence", "extend"),
    "lab.generate": ("Generate",),
    "speculation.arena": ("drafter_arena", "speculation_forecast"),
    "outputs.trace": ("DecodeTrace", "MaskCost", "TokenExplanation", "TraceDifference"),
    "params.beams": ("BeamSearchParams",),
    "params.constraint": ("Constraint",),
    "params.structured": ("StructuredOutputsParams",),
    "speculation.drafters": ("Draft", "Drafter", "PromptLookup"),
    "speculation.corpus": ("CorpusDrafter",),
    "speculation.eagle": ("Eagle",),
    "speculation.medusa": ("Medusa",),
    "speculation.context": ("DraftContext",),
    "speculation.draft_model": ("DraftModel",),
    "speculation.lookahead": ("Lookahead",),
    "speculation.recycling": ("TokenRecycling",),
    "lab.tree": ("TokenTree",),
    "speculation.verification": ("Typical", "Verification", "VerifyContext"),
    "speculation.self_draft": ("SelfDraft",),
    "speculation.config": ("LengthPolicy", "SpeculativeConfig"),
    "outputs.speculation": ("SpecDecodeMetrics",),
    "outputs.receipt": ("Receipt",),
    "requests.replay": ("replay",),
    "families": ("register_family",),
    "cli.doctor": ("doctor",),
    "lab.numeric": ("log_softmax",),
    "outputs.beams": ("BeamSearchOutput", "BeamSearchSequence"),
    "outputs.completion": ("CompletionOutput", "Logprob", "RequestMetrics", "StreamChunk"),
    "outputs.scores": ("LogLikelihood", "Perplexity"),
    "outputs.pooling": ("EmbeddingOutput", "EmbeddingRequestOutput", "ScoringOutput", "ScoringRequestOutput"),
    "outputs.memory": ("MemoryReport",),
    "models.info": ("ModelInfo",),
    "outputs.choice": ("best_of",),
    "outputs.results": ("Outputs", "RequestOutput"),
    "errors": (
        "ChatTemplateError",
        "ConstraintError",
        "DeviceError",
        "DraftError",
        "EngineBusyError",
        "EngineClosedError",
        "EngineError",
        "GrammarTimeoutError",
        "HookError",
        "InvalidParamsError",
        "LlmiError",
        "MissingExtraError",
        "ModelFileError",
        "NonFiniteLogitsError",
        "OutOfMemoryError",
        "PromptTooLongError",
        "QueueFullError",
        "RequestTimeoutError",
        "SlowReaderError",
        "TokenizerError",
        "UnsupportedCombinationError",
        "UnsupportedModelError",
        "WorkerDiedError",
    ),
    "simulation.costs": ("Costs",),
    "simulation.result": ("SimulationResult",),
    "simulation.run": ("simulate",),
    "training.heads": ("train_heads",),
    "outputs.errors": ("GenerationInterrupted", "RequestErrors", "StrategyErrors", "StrategyInterrupted"),
}
#: Packages and modules whose own `__all__` is public.
_PACKAGES = ("smc", "testing", "tools", "watermark")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if TYPE_CHECKING:
    from llmi import smc as smc
    from llmi import testing as testing
    from llmi import tools as tools
    from llmi import watermark as watermark
    from llmi.async_llm import AsyncLLM as AsyncLLM
    from llmi.cli.doctor import doctor as doctor
    from llmi.engine.args import RequestInfo as RequestInfo
    from llmi.engine.args import SchedulingPolicy as SchedulingPolicy
    from llmi.errors import ChatTemplateError as ChatTemplateError
    from llmi.errors import ConstraintError as ConstraintError
    from llmi.errors import DeviceError as DeviceError
    from llmi.errors import DraftError as DraftError
    from llmi.errors import EngineBusyError as EngineBusyError
    from llmi.errors import EngineClosedError as EngineClosedError
    from llmi.errors import EngineError as EngineError
    from llmi.errors import GrammarTimeoutError as GrammarTimeoutError
    from llmi.errors import HookError as HookError
    from llmi.errors import InvalidParamsError as InvalidParamsError
    from llmi.errors import LlmiError as LlmiError
    from llmi.errors import MissingExtraError as MissingExtraError
    from llmi.errors import ModelFileError as ModelFileError
    from llmi.errors import NonFiniteLogitsError as NonFiniteLogitsError
    from llmi.errors import OutOfMemoryError as OutOfMemoryError
    from llmi.errors import PromptTooLongError as PromptTooLongError
    from llmi.errors import QueueFullError as QueueFullError
    from llmi.errors import RequestTimeoutError as RequestTimeoutError
    from llmi.errors import SlowReaderError as SlowReaderError
    from llmi.errors import TokenizerError as TokenizerError
    from llmi.errors import UnsupportedCombinationError as UnsupportedCombinationError
    from llmi.errors import UnsupportedModelError as UnsupportedModelError
    from llmi.errors import WorkerDiedError as WorkerDiedError
    from llmi.families import register_family as register_family
    from llmi.hooks.runners import BatchLogitsProcessor as BatchLogitsProcessor
    from llmi.lab.capture import Capture as Capture
    from llmi.lab.generate import Generate as Generate
    from llmi.lab.numeric import log_softmax as log_softmax
    from llmi.lab.sequence import TokenSequence as TokenSequence
    from llmi.lab.sequence import extend as extend
    from llmi.lab.tree import TokenTree as TokenTree
    from llmi.llm import LLM as LLM
    from llmi.models.info import ModelInfo as ModelInfo
    from llmi.outputs.beams import BeamSearchOutput as BeamSearchOutput
    from llmi.outputs.beams import BeamSearchSequence as BeamSearchSequence
    from llmi.outputs.choice import best_of as best_of
    from llmi.outputs.completion import CompletionOutput as CompletionOutput
    from llmi.outputs.completion import Logprob as Logprob
    from llmi.outputs.completion import RequestMetrics as RequestMetrics
    from llmi.outputs.completion import StreamChunk as StreamChunk
    from llmi.outputs.errors import GenerationInterrupted as GenerationInterrupted
    from llmi.outputs.errors import RequestErrors as RequestErrors
    from llmi.outputs.errors import StrategyErrors as StrategyErrors
    from llmi.outputs.errors import StrategyInterrupted as StrategyInterrupted
    from llmi.outputs.memory import MemoryReport as MemoryReport
    from llmi.outputs.pooling import EmbeddingOutput as EmbeddingOutput
    from llmi.outputs.pooling import EmbeddingRequestOutput as EmbeddingRequestOutput
    from llmi.outputs.pooling import ScoringOutput as ScoringOutput
    from llmi.outputs.pooling import ScoringRequestOutput as ScoringRequestOutput
    from llmi.outputs.receipt import Receipt as Receipt
    from llmi.outputs.results import Outputs as Outputs
    from llmi.outputs.results import RequestOutput as RequestOutput
    from llmi.outputs.scores import LogLikelihood as LogLikelihood
    from llmi.outputs.scores import Perplexity as Perplexity
    from llmi.outputs.speculation import SpecDecodeMetrics as SpecDecodeMetrics
    from llmi.outputs.trace import DecodeTrace as DecodeTrace
    from llmi.outputs.trace import MaskCost as MaskCost
    from llmi.outputs.trace import TokenExplanation as TokenExplanation
    from llmi.outputs.trace import TraceDifference as TraceDifference
    from llmi.params.beams import BeamSearchParams as BeamSearchParams
    from llmi.params.constraint import Constraint as Constraint
    from llmi.params.sampling import SamplingParams as SamplingParams
    from llmi.params.sampling import TokenContext as TokenContext
    from llmi.params.structured import StructuredOutputsParams as StructuredOutputsParams
    from llmi.requests.replay import replay as replay
    from llmi.requests.stream import TextStream as TextStream
    from llmi.simulation.costs import Costs as Costs
    from llmi.simulation.result import SimulationResult as SimulationResult
    from llmi.simulation.run import simulate as simulate
    from llmi.speculation.arena import drafter_arena as drafter_arena
    from llmi.speculation.arena import speculation_forecast as speculation_forecast
    from llmi.speculation.config import LengthPolicy as LengthPolicy
    from llmi.speculation.config import SpeculativeConfig as SpeculativeConfig
    from llmi.speculation.context import DraftContext as DraftContext
    from llmi.speculation.corpus import CorpusDrafter as CorpusDrafter
    from llmi.speculation.draft_model import DraftModel as DraftModel
    from llmi.speculation.drafters import Draft as Draft
    from llmi.speculation.drafters import Drafter as Drafter
    from llmi.speculation.drafters import PromptLookup as PromptLookup
    from llmi.speculation.eagle import Eagle as Eagle
    from llmi.speculation.lookahead import Lookahead as Lookahead
    from llmi.speculation.medusa import Medusa as Medusa
    from llmi.speculation.recycling import TokenRecycling as TokenRecycling
    from llmi.speculation.self_draft import SelfDraft as SelfDraft
    from llmi.speculation.verification import Typical as Typical
    from llmi.speculation.verification import Verification as Verification
    from llmi.speculation.verification import VerifyContext as VerifyContext
    from llmi.text.tokenizer import Tokenizer as Tokenizer
    from llmi.tools.calls import ToolCall as ToolCall
    from llmi.training.heads import train_heads as train_heads

__all__ = ["__version__", *_PACKAGES, *_HOME]


class _Package(ModuleType):
    """llmi and its packages. Public classes and functions name the module in which users find them, so that pickles name it too."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)  # the import system sets a module when it has loaded it
        if not isinstance(value, ModuleType) or not value.__name__.startswith("llmi."):
            return
        if hasattr(value, "__path__"):
            value.__class__ = _Package
        path = value.__name__.removeprefix("llmi.")
        if path == "base.opening":  # it is below LLM, and opens one
            vars(value)["llm_class"] = lambda: __getattr__("LLM")
        public = value.__all__ if path in _PACKAGES else _MODULES.get(path, ())
        for member in public:
            if hasattr(vars(value)[member], "__qualname__"):
                vars(value)[member].__module__ = f"llmi.{path}" if path in _PACKAGES and member not in _HOME else "llmi"


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"llmi.{name}")
    if name == "_core":  # asked for by `from llmi import _core`, the first of which comes here
        return importlib.import_module("llmi.base.compiled").core
    if name not in _HOME:
        raise AttributeError(f"module 'llmi' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"llmi.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
