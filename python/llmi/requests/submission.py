"""One prompt of a call, with everything that its request and its result need."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from llmi import _core
from llmi.errors import LlmiError
from llmi.hooks.runners import RequestHooks
from llmi.outputs.speculation import SpecDecodeMetrics
from llmi.params.beams import BeamSearchParams
from llmi.params.sampling import SamplingParams
from llmi.tools.chat import ToolChat


class Speculation(Protocol):
    """How one request speculates: llmi.speculation makes it, requests and results are built with it."""

    @property
    def is_coupled(self) -> bool:
        """Whether its tokens are those of plain decoding."""
        ...

    @property
    def judges_whole_drafts(self) -> bool:
        """Whether its verification sees all rows of a draft at once."""
        ...

    @property
    def verification_name(self) -> str:
        """As metrics and receipts show it."""
        ...

    def build(self, submission: Submission, request_id: int) -> _core.SpeculationConfig:
        """The core's configuration for one request."""
        ...

    def metrics(self, counts: _core.SpeculationStats) -> SpecDecodeMetrics:
        """The metrics of one continuation, from the core's counts."""
        ...


@dataclasses.dataclass
class Submission:
    """One prompt with everything its result will need. `params.n` results come back, of a beam search too."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    resolved: dict[str, tuple[Any, str]]
    seed: int
    hooks: RequestHooks
    request: _core.Request | None = None
    core_params: _core.SamplingParams | None = None
    speculation: Speculation | None = None
    negative_token_ids: list[int] = dataclasses.field(default_factory=list)  # of guidance; empty without it
    cache_salt: str = ""
    priority: int = 0
    streams: bool = False  # news are wanted as they come
    tells: bool = False  # they are, or its end may be far: where it runs elsewhere they come in any case
    trace: bool = False
    source: _core.LabSequence | None = None  # the sequence that the prompt continues
    stop_names: dict[Any, str] = dataclasses.field(default_factory=dict)  # stop strings that are special tokens, by id
    error: LlmiError | None = None  # refused at submission
    beams: BeamSearchParams | None = None  # what `params` lacks of a beam search
    receipt_source: dict[str, Any] = dataclasses.field(default_factory=dict)  # of results: made when the first one is
    what: str = ""  # which prompt it is, for errors: "prompt 3: "
    thinking: tuple[int | None, int, int, bool] | None = (
        None  # token that begins it, token that ends it, budget, whether the prompt is inside
    )
    recorded: list[list[int]] = dataclasses.field(default_factory=list)  # outputs, or beginnings of them, that are drafted
    checks_recorded: bool = False  # each ends where it differs
    tools: ToolChat | None = None  # how its answers are read, if it is a chat
    template_time_s: float = 0.0
    tokenizer_time_s: float = 0.0
    compile_time_s: float = 0.0  # of the grammar, or of waiting for one that another request compiles

    @property
    def built(self) -> _core.Request:
        """The core's request, which RequestBuilder.build has made."""
        assert self.request is not None
        return self.request

    def refuse(self, error: LlmiError) -> None:
        """Keeps the error of this prompt, which says which one it is."""
        error.args = (f"{self.what}{error}", *error.args[1:])
        self.error = error
