"""Session: what the packages of llmi use of an LLM. They import this protocol alone, and only for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from llmi import _core
from llmi.engine.args import EngineArgs
from llmi.families import ModelSpec
from llmi.hooks.runners import BatchRunner
from llmi.lab.capture import Capture
from llmi.lab.sequence import TokenSequence
from llmi.lab.tree import TokenTree
from llmi.models.files import OpenModel
from llmi.models.info import ModelInfo
from llmi.outputs.memory import MemoryReport
from llmi.outputs.receipt_check import ReceiptCheck
from llmi.outputs.results import Outputs
from llmi.params.beams import Params
from llmi.requests.build import RequestBuilder
from llmi.requests.call import Call, Router
from llmi.requests.prepare import CallOptions
from llmi.requests.results import ResultBuilder
from llmi.requests.submission import Speculation
from llmi.text.prompts import Prompt
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Session(Protocol):
    """A model and its engine.

    LLM is one. Names with an underscore are for llmi itself: an LLM does not show them to its users.

    Attributes
    ----------
    _engine : the core's engine
    _engine_args : the arguments of the engine
    _spec : all that the core knows of the model
    _files : the model's open files
    _builder, _results : make its requests, and results of them
    _defaults : the model's own sampling parameters by name
    _seed : the engine's seed, from which requests derive theirs
    _no_effect : the engine's arguments that have no effect, for the report of parameters
    _batch_runner : the engine-wide logits processors
    _ids : ids of the next requests
    _eagle : path and shortlist of the EAGLE layer that was loaded with the model; None: none was
    _router : where requests run that need not run here; None: all do
    _medusa : path and number of the Medusa heads that were loaded with the model; None: none were
    """

    tokenizer: Tokenizer
    model_info: ModelInfo
    last_outputs: Outputs
    _engine: _core.Engine
    _engine_args: EngineArgs
    _spec: ModelSpec
    _files: OpenModel
    _builder: RequestBuilder
    _results: ResultBuilder
    _defaults: Mapping[str, Any]
    _seed: int | None
    _no_effect: dict[str, Any]
    _batch_runner: BatchRunner | None
    _ids: Iterator[int]
    _eagle: tuple[str, int | None] | None
    _medusa: tuple[str, int] | None
    _router: Router | None

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: Params | Iterable[Params] | None = None,
        *,
        speculative_config: object = "engine",
        trace: bool = False,
        use_tqdm: bool | None = None,
    ) -> Outputs:
        """LLM.generate."""
        ...

    def sequence(
        self,
        prompt: Prompt = "",
        *,
        seed: int | None = None,
        capture: Capture | None = None,
        steering: Mapping[int, Any] | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> TokenSequence:
        """LLM.sequence."""
        ...

    def extend(self, tokens: Mapping[TokenSequence, Iterable[int] | TokenTree]) -> dict[TokenSequence, Any]:
        """LLM.extend."""
        ...

    def hidden_states(
        self,
        prompts: Prompt | Iterable[Prompt],
        layers: Iterable[int] = (-1,),
        *,
        normed: bool = False,
        parse_special: bool | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> list[dict[int, Any]]:
        """LLM.hidden_states."""
        ...

    def head(
        self, hidden: ArrayLike, *, shortlist: Iterable[int] | None = None
    ) -> Any:  # Any: what numpy makes an array of; one form or the other
        """LLM.head."""
        ...

    @property
    def weights(self) -> Mapping[str, Any]:
        """LLM.weights."""
        ...

    def cost_curve(self) -> dict[int, float]:
        """LLM.cost_curve."""
        ...

    def memory_report(self) -> MemoryReport:
        """LLM.memory_report."""
        ...

    def close(self) -> None:
        """LLM.close."""
        ...

    def _call(self, prompts: object, sampling_params: object, params: Mapping[str, Any], options: CallOptions) -> Call:
        """The requests of a call."""
        ...

    def _run_to_end(self, call: Call, use_tqdm: bool | None, moved: Callable[[int], object] = ...) -> None:
        """Submits a call's requests and waits for their end; `moved` hears how many more have ended."""
        ...

    def _finish(self, call: Call, use_tqdm: bool | None) -> Outputs:
        """Runs a call to its end."""
        ...

    def _verify(self, receipt: object) -> ReceiptCheck:
        """Receipt.verify."""
        ...

    def _speculate(self, value: object) -> Speculation | None:
        """How requests speculate that are given this speculative_config. Raises if it does not fit this model."""
        ...

    def _score(
        self,
        sequences: list[list[int]],
        use_tqdm: bool | None,
        steering: Mapping[int, Any] | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> list[_core.Request]:
        """The core's requests that scored `sequences` as prompts."""
        ...

    def _decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of ids, those outside the vocabulary left out."""
        ...
