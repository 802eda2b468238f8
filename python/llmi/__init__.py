"""llmi: a small, fast, open LLM inference engine.

Tokens and log-probabilities are a function of model, numerics id, prompt, parameters and seed alone, bit for bit.

>>> from llmi import LLM
>>> llm = LLM()
>>> llm.chat([{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names by module; loaded when first used, so that `import llmi` costs little.
_MODULES = {
    "_llm": ("LLM",),
    "_params": ("SamplingParams",),
    "_tokenizer": ("Tokenizer",),
    "_hooks": ("BatchLogitsProcessor", "TokenContext"),
    "_stream": ("TextStream",),
    "_async": ("AsyncLLM",),
    "_engine_args": ("RequestInfo", "SchedulingPolicy"),
    "_sequence": ("Capture", "TokenSequence", "extend"),
    "_strategy": ("Generate",),
    "_arena": ("drafter_arena", "speculation_forecast"),
    "_trace": ("DecodeTrace", "TokenExplanation", "TraceDifference"),
    "_constraint": ("Constraint",),
    "_drafters": ("Draft", "DraftContext", "DraftModel", "Drafter", "PromptLookup", "TokenTree"),
    "_verification": ("Typical", "Verification", "VerifyContext"),
    "_self_draft": ("SelfDraft",),
    "_speculation": ("LengthPolicy", "SpecDecodeMetrics", "SpeculativeConfig"),
    "_receipt": ("Receipt", "replay"),
    "_doctor": ("doctor",),
    "_numeric": ("log_softmax",),
    "_outputs": (
        "CompletionOutput", "LogLikelihood", "Logprob", "MemoryReport", "ModelInfo", "Outputs", "Perplexity",
        "RequestMetrics", "RequestOutput", "StreamChunk",
    ),
    "_errors": (
        "ChatTemplateError", "ConstraintError", "DeviceError", "DraftError", "EngineBusyError", "EngineClosedError", "EngineError", "GenerationInterrupted",
        "HookError", "InvalidParamsError", "LlmiError", "MissingExtraError", "ModelFileError", "NonFiniteLogitsError",
        "OutOfMemoryError", "PromptTooLongError", "RequestErrors", "TokenizerError", "UnsupportedCombinationError",
        "UnsupportedModelError",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if TYPE_CHECKING:
    from llmi import testing as testing
    from llmi._arena import drafter_arena as drafter_arena
    from llmi._arena import speculation_forecast as speculation_forecast
    from llmi._async import AsyncLLM as AsyncLLM
    from llmi._constraint import Constraint as Constraint
    from llmi._doctor import doctor as doctor
    from llmi._drafters import Draft as Draft
    from llmi._drafters import DraftContext as DraftContext
    from llmi._drafters import Drafter as Drafter
    from llmi._drafters import DraftModel as DraftModel
    from llmi._drafters import PromptLookup as PromptLookup
    from llmi._drafters import TokenTree as TokenTree
    from llmi._engine_args import RequestInfo as RequestInfo
    from llmi._engine_args import SchedulingPolicy as SchedulingPolicy
    from llmi._errors import ChatTemplateError as ChatTemplateError
    from llmi._errors import ConstraintError as ConstraintError
    from llmi._errors import DeviceError as DeviceError
    from llmi._errors import DraftError as DraftError
    from llmi._errors import EngineBusyError as EngineBusyError
    from llmi._errors import EngineClosedError as EngineClosedError
    from llmi._errors import EngineError as EngineError
    from llmi._errors import GenerationInterrupted as GenerationInterrupted
    from llmi._errors import HookError as HookError
    from llmi._errors import InvalidParamsError as InvalidParamsError
    from llmi._errors import LlmiError as LlmiError
    from llmi._errors import MissingExtraError as MissingExtraError
    from llmi._errors import ModelFileError as ModelFileError
    from llmi._errors import NonFiniteLogitsError as NonFiniteLogitsError
    from llmi._errors import OutOfMemoryError as OutOfMemoryError
    from llmi._errors import PromptTooLongError as PromptTooLongError
    from llmi._errors import RequestErrors as RequestErrors
    from llmi._errors import TokenizerError as TokenizerError
    from llmi._errors import UnsupportedCombinationError as UnsupportedCombinationError
    from llmi._errors import UnsupportedModelError as UnsupportedModelError
    from llmi._hooks import BatchLogitsProcessor as BatchLogitsProcessor
    from llmi._hooks import TokenContext as TokenContext
    from llmi._llm import LLM as LLM
    from llmi._numeric import log_softmax as log_softmax
    from llmi._outputs import CompletionOutput as CompletionOutput
    from llmi._outputs import LogLikelihood as LogLikelihood
    from llmi._outputs import Logprob as Logprob
    from llmi._outputs import MemoryReport as MemoryReport
    from llmi._outputs import ModelInfo as ModelInfo
    from llmi._outputs import Outputs as Outputs
    from llmi._outputs import Perplexity as Perplexity
    from llmi._outputs import RequestMetrics as RequestMetrics
    from llmi._outputs import RequestOutput as RequestOutput
    from llmi._outputs import StreamChunk as StreamChunk
    from llmi._params import SamplingParams as SamplingParams
    from llmi._receipt import Receipt as Receipt
    from llmi._receipt import replay as replay
    from llmi._self_draft import SelfDraft as SelfDraft
    from llmi._sequence import Capture as Capture
    from llmi._sequence import TokenSequence as TokenSequence
    from llmi._sequence import extend as extend
    from llmi._speculation import LengthPolicy as LengthPolicy
    from llmi._speculation import SpecDecodeMetrics as SpecDecodeMetrics
    from llmi._speculation import SpeculativeConfig as SpeculativeConfig
    from llmi._strategy import Generate as Generate
    from llmi._stream import TextStream as TextStream
    from llmi._tokenizer import Tokenizer as Tokenizer
    from llmi._trace import DecodeTrace as DecodeTrace
    from llmi._trace import TokenExplanation as TokenExplanation
    from llmi._trace import TraceDifference as TraceDifference
    from llmi._verification import Typical as Typical
    from llmi._verification import Verification as Verification
    from llmi._verification import VerifyContext as VerifyContext

__all__ = ["__version__", "testing", *_HOME]


class _Package(ModuleType):
    """llmi itself. Its classes and functions name the module in which users find them, so that pickles name it too."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        public = value.__all__ if name == "testing" else _MODULES.get(name, ())  # the import system sets a module when it has loaded it
        for member in public:
            vars(value)[member].__module__ = "llmi.testing" if name == "testing" else "llmi"


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("llmi.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'llmi' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"llmi.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
