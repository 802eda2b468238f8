"""One object of each public class that can be pickled, made from fixed values."""

from __future__ import annotations

import inspect
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import llmi
from llmi import testing
from llmi.outputs.trace import COLUMNS

ERRORS = [value for value in (getattr(llmi, name) for name in llmi.__all__) if isinstance(value, type) and issubclass(value, BaseException)]


def made_error(kind: type[BaseException]) -> BaseException:
    """One with all its fields given."""
    given: dict[str, Any] = {
        "message": "what happened",
        "parameter": "top_k",
        "feature_a": "a",
        "feature_b": "b",
        "num_tokens": 9,
        "max_model_len": 4,
        "path": Path("m.gguf"),
        "field": "tensor",
        "needed_bytes": 2,
        "available_bytes": 1,
        "advice": "less",
        "hook": "h",
        "request_id": "7",
        "extra": "plot",
        "package": "p",
        "num_waiting": 3,
        "max_queue": 2,
        "retry_after_s": 0.5,
        "deadline_s": 1.5,
        "elapsed_s": 2.0,
        "errors": {1: llmi.HookError("one", "h", "1"), 3: llmi.LlmiError("three")},
        "outputs": llmi.Outputs(),
        "results": [1, None],
        "finished": {0},
    }
    if kind.__init__ is Exception.__init__ or kind.__init__ is RuntimeError.__init__:
        return kind("what happened")
    names = [name for name in inspect.signature(kind.__init__).parameters if name in given]
    return kind(*(given[name] for name in names)) if names else kind("what happened")


def _trace() -> llmi.DecodeTrace:
    ids, floats = np.array([5, 7], np.int32), np.array([-0.5, -1.5], np.float32)
    columns = {name: floats if "logprob" in name or name in ("noise", "draft_prob", "time_s") else ids for name in COLUMNS}
    return llmi.DecodeTrace(columns, ["a", "b"], {"position": ids, "token_id": ids, "raw": floats}, ["c", "d"])


def _outputs() -> list[Any]:
    """A result with all its parts, and the parts."""
    logprob = llmi.Logprob(-0.25, -math.inf, 3, "x")
    metrics = llmi.RequestMetrics(0.5, np.array([0.25, math.nan], np.float32), 0.125, 2.0, 0.0, 1)
    speculation = llmi.SpecDecodeMetrics("PromptLookup", "coupled", True, 3, 6, 4, [3, 1], 4 / 6, 7 / 3, 0.5, 0.25)
    completion = llmi.CompletionOutput(0, "ab", [5, 7], -1.5, [{5: logprob}, {7: logprob}], "stop", 7, speculation, _trace())
    params = {
        "temperature": (0.5, "user"),
        "logits_processors": (("hook",), "user"),
        "max_tokens": (llmi.SamplingParams().max_tokens, "default"),
    }
    request = llmi.RequestOutput(
        "7",
        "p",
        [1, 2],
        [None, {2: logprob}],
        [completion],
        True,
        metrics,
        1,
        2**64 - 1,
        "cpu-i8-kv:f16",
        params,
        llmi.HookError("mine", "h", "7"),
        {"model_path": "m.gguf", "dtype": "auto", "params": {"temperature": 0.5}},
    )
    return [logprob, metrics, speculation, completion, completion.trace, request, llmi.Outputs([request])]


def _memory() -> llmi.MemoryReport:
    from llmi.outputs.memory import SequenceBlocks

    pages, references = [np.array([-1, 4], np.int32)], [np.array([0, 2], np.int32)]
    return llmi.MemoryReport(8, 6, 1, 0.25, 100, 800, [SequenceBlocks("request 1", 17, pages, references)])


def _model_info() -> llmi.ModelInfo:
    from llmi.models.files import ModelDigest

    digest = ModelDigest(Path("m.gguf"), [])
    digest._digest = "ab" * 32
    return llmi.ModelInfo("llama", 2, 64, 4, 2, 16, 259, 2048, 1000, 128, "cpu-i8-kv:f16", "m.gguf", digest)


def _reports() -> list[Any]:
    from llmi.cli.doctor import Doctor
    from llmi.speculation.arena import ArenaReport, ArenaRow, ForecastRow, SpeculationForecast

    arena = ArenaReport([ArenaRow("lookup", 9, 3, 6, 4, [3, 2], [3, 1])])
    forecast = SpeculationForecast([ForecastRow("lookup", [0.5], 1, 1.25, [1.0, 1.25])])
    forecast.cost_curve = {1: 0.5, 2: 0.75}
    return [arena, forecast, Doctor({"llmi": "0.1.0"})]


def _beams() -> list[Any]:
    best = llmi.BeamSearchSequence([1, 5], [5], [{5: llmi.Logprob(-0.25, -0.5, 1, "x")}], -0.5, -0.5, [0], "x", "stop")
    params = llmi.BeamSearchParams(beam_width=4, n=2, early_stopping="never", stop=["b"], max_tokens=9)
    structured = llmi.StructuredOutputsParams(json={"type": "object"}, whitespace="one")
    return [best, llmi.BeamSearchOutput([best]), params, structured]


def _tokenizer() -> llmi.Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = llmi.Tokenizer(testing.tiny_model(path=Path(folder)))
        assert tokenizer.encode("ab")  # the whole vocabulary has been read
    tokenizer.path = Path("tiny")
    return tokenizer


def objects() -> dict[str, Any]:
    """By the name of the class."""
    scores = np.array([-0.5, -1.0], np.float32)
    columns = {name: np.array([1, 0]) for name in ("token_id", "kept", "chosen")}
    plain = [
        *_outputs(),
        *_reports(),
        _memory(),
        _model_info(),
        llmi.LogLikelihood(-1.5, True, scores),
        llmi.Perplexity(1.5, 2, 2.0, 0.5, scores),
        llmi.EmbeddingRequestOutput("1", llmi.EmbeddingOutput(scores), [1, 2]),
        llmi.ScoringRequestOutput("1", llmi.ScoringOutput(0.5), [1, 2]),
        llmi.EmbeddingOutput(scores),
        llmi.ScoringOutput(0.5),
        llmi.StreamChunk(0, 1, "ab", [5, 7], None),
        llmi.Receipt({"format": 2, "seed": 3}),
        llmi.SamplingParams(stop=["a"], logit_bias={3: -math.inf}, seed=2**64 - 1, temperature=0.5),
        llmi.Generate([[1]], llmi.SamplingParams(), max_tokens=3),
        llmi.TraceDifference(1, 5, None, 0.5, math.nan),
        llmi.MaskCost(np.array([2, 3]), np.array([0.5, 0.0]), np.array([0.75, 0.0])),
        llmi.Costs(((1, 0.01), (8, 0.02)), 1e-6, "a note"),
        llmi.SimulationResult({"end_s": np.array([0.5, 1.5])}, {"rows": np.array([1, 2])}, {"is_stable": True, "goodput": None}),
        llmi.TokenExplanation(3, columns, ["a", "b"]),
        llmi.Typical(0.125),
        llmi.PromptLookup(3, 2),
        llmi.SelfDraft(exit_layer=1),
        llmi.Eagle("heads", 3),
        llmi.Medusa("heads", choices=[(0,), (1,)]),
        llmi.TokenTree([1, 2], [-1, -1]),
        llmi.Draft([1], None, [np.ones(4)]),
        llmi.SpeculativeConfig([llmi.PromptLookup(), llmi.PromptLookup(2)], "auto", "block"),
        llmi.Capture(hidden_states=(0, -1), attention=(1,)),
        *_beams(),
        llmi.RequestInfo("1", 0, 0.5, 1, 2, 3, 4),
        llmi.Drafter(),
        llmi.Verification(),
        llmi.Constraint(),
        llmi.ToolCall("call_1", "add", {"a": 1}, '{"a": 1}'),
        llmi.CorpusDrafter([[1, 2, 1, 3]]),
        llmi.TokenRecycling(),
        llmi.Lookahead(4, 2),
        testing.random_drafter(0.5),
        _tokenizer(),
    ]
    return {type(value).__name__: value for value in [*plain, *map(made_error, ERRORS)]}
