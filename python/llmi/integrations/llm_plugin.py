"""llmi's models for the command line tool `llm`: `pip install llm llmi`, then `llm -m llmi "a question"`, or `llm -m llmi/NAME`.

The tool finds this module by its entry point. Text and schemas are offered; what else a prompt holds (tools, attachments) the tool itself
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import llm
from pydantic import Field

from llmi.llm import LLM
from llmi.models import hub
from llmi.models.catalogue import DEFAULT_MODEL, NAMED_MODELS
from llmi.params.sampling import SamplingParams

Foreign: TypeAlias = Any  # of the tool, which has no types


def _messages(prompt: Foreign) -> list[dict[str, str]]:
    """The chat in the form that templates take: texts, in order."""
    messages = []
    for message in prompt.messages:
        text = "".join(part.text for part in message.parts if type(part).__name__ == "TextPart")
        messages.append({"role": message.role, "content": text})
    return messages


class LlmiModel(llm.Model):  # type: ignore[misc]  # the tool has no types here
    """One model. The engine is loaded for the first prompt and kept.

    Parameters
    ----------
    model_id : str
        As `llm -m` names it.
    place : str
        A path or name, as for LLM.
    """

    can_stream = True
    supports_schema = True

    class Options(llm.Options):  # type: ignore[misc]
        """Fields of SamplingParams; None leaves the model's own default. `path`: another model than the name says."""

        path: str | None = Field(default=None, description="a model file or folder instead of the name's")
        temperature: float | None = Field(default=None, description="0: the likeliest token")
        max_tokens: int | None = Field(default=None, description="most tokens of the answer; without it, to the end of the context")
        seed: int | None = Field(default=None, description="the same seed gives the same answer")
        top_p: float | None = Field(default=None, description="smallest set of tokens with this probability")
        top_k: int | None = Field(default=None, description="draw from this number of the likeliest tokens")
        min_p: float | None = Field(default=None, description="tokens with at least this share of the likeliest one's probability")
        repetition_penalty: float | None = Field(default=None, description="above 1: tokens that came before are less likely")

    def __init__(self, model_id: str, place: str) -> None:
        self.model_id = model_id
        self._place = place
        self._loaded: tuple[str, LLM] | None = None

    def _engine(self, place: str) -> LLM:
        if self._loaded is None or self._loaded[0] != place:
            if self._loaded is not None:
                self._loaded[1].close()
            self._loaded = place, LLM(place)
        return self._loaded[1]

    def execute(self, prompt: Foreign, stream: bool, response: Foreign, conversation: Foreign) -> Iterator[str]:
        """The answer's text as it comes, or at once."""
        options = {name: value for name, value in prompt.options.model_dump().items() if value is not None}
        engine = self._engine(options.pop("path", self._place))
        params = {"temperature": 0.0, **options}
        if prompt.schema is not None:
            params["structured_outputs"] = {"json": prompt.schema}
        SamplingParams(**params).validate()
        with engine.stream(_messages(prompt), **params) as chunks:
            pieces = (chunk.text for chunk in chunks)
            if stream:
                yield from pieces
            else:
                yield "".join(pieces)
            [output] = chunks.outputs
        response.set_usage(input=len(output.prompt_token_ids), output=len(output.token_ids))
        response.response_json = {"seed": output.seed, "numerics_id": output.numerics_id, "finish_reason": output.outputs[0].finish_reason}


@llm.hookimpl  # type: ignore[misc]
def register_models(register: Callable[..., None]) -> None:
    """The models that llmi knows by name, and those of the hub's cache."""
    register(LlmiModel("llmi", DEFAULT_MODEL))
    for name in NAMED_MODELS:
        register(LlmiModel(f"llmi/{name}", name))
    for name, path, _ in hub.cached_models():
        if name not in NAMED_MODELS:
            register(LlmiModel(f"llmi/{name}", str(path)))
