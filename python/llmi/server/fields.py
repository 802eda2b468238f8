"""The fields of each endpoint's body, each understood, inert, or refused by name; what is in no list is refused too.

Understood are the fields that the endpoint itself reads, and all of SamplingParams and BeamSearchParams by the names of their tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from llmi.base.kinds import Flag, Maybe, Text
from llmi.params.beams import BEAMS
from llmi.params.foreign_options import CALL_FOREIGN, CALL_HINTS, Foreign
from llmi.params.options import nearest, option
from llmi.params.sampling import ALIASES, SAMPLING
from llmi.server.admission import Admission
from llmi.server.client_fields import ANYTHING, CLIENTS, inert, refused
from llmi.server.errors import ApiError
from llmi.server.nested import wrong

_WORDS = Maybe(Text(empty=True))
#: Parameters that are Python, or that say what an endpoint says already.
NOT_OVER_HTTP = {
    "logits_processors": "it is Python code: use LLM.generate",
    "logits_processor": "it is Python code: use LLM.generate",
    "stopping_criteria": "it is Python code: use LLM.generate",
    "sampler": "it is Python code: use LLM.generate",
    "detokenize": "answers are texts",
    "output_kind": "give stream",
    "streamer": "give stream",
}
#: Parameters of LLM.generate that go on to it under their own names.
PASSED_ON = frozenset(
    name
    for name in (
        *SAMPLING,
        *BEAMS,
        *ALIASES,
        *(alias for option in BEAMS.values() for alias in option.aliases),
        "do_sample",
        "suppress_tokens",
        "sequence_bias",
    )
    if name not in NOT_OVER_HTTP
)


_NOT_JSON = {
    name: Foreign(name, why, ([], True) if name == "detokenize" else ([],), state="is not offered") for name, why in NOT_OVER_HTTP.items()
}
#: llmi's own, in every endpoint that generates.
_LLMI = ("receipt", "cache_salt", "priority", "timeout_s", "request_id")
#: vLLM's, the same in both of OpenAI's endpoints.
_STRUCTURED = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag")
_SHARED = {
    **CLIENTS,
    **_NOT_JSON,
    **inert("nothing is stored or billed here", _WORDS, "user", "service_tier", "safety_identifier"),
    **inert("nothing is stored here", Flag(), "store"),
    **inert("nothing is stored here", Maybe(ANYTHING), "metadata"),
    **inert(
        "the prefix cache changes no token",
        Maybe(ANYTHING),
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "cache_control",
    ),
    **inert("llguidance is the one engine of grammars", _WORDS, "guided_decoding_backend"),
    **refused("give structured_outputs.whitespace", "guided_whitespace_pattern"),
    **refused("answers are not moderated", "moderation"),
    **refused("engines hand blocks over by themselves: see --kv-transfer-config", "kv_transfer_params"),
    **refused("give beam_width= (num_beams), with n", "use_beam_search", neutral=(False,)),
    **refused("a request has no arguments for plug-ins", "vllm_xargs", neutral=({},)),
    **refused("models take text alone", "mm_processor_kwargs", "multi_modal_uuids", neutral=({},)),
}
_OPENAI_CHAT = {
    **inert("it says what the answer may look like, and changes no token", Maybe(ANYTHING), "prediction"),
    **inert("the model has one manner", _WORDS, "verbosity"),
    **refused("answers are text alone", "modalities", neutral=(["text"],)),
    **refused("answers are text alone", "audio"),
    **refused("nothing is searched here", "web_search_options"),
    **refused("it has been replaced: give tools", "functions", neutral=([],)),
    **refused("it has been replaced: give tool_choice", "function_call"),
    **refused("the prompt of a chat is made by its template: use /v1/completions", "echo", neutral=(False,)),
}


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One endpoint's fields: `own` are read by its code; `foreign` are inert or refused; SamplingParams' are passed on unless
    `is_strict`."""

    name: str
    own: frozenset[str]
    foreign: Mapping[str, Foreign]
    is_strict: bool = False

    def knows(self, name: str) -> bool:
        """Whether the field is in a list."""
        return name in self.own or name in self.foreign or (not self.is_strict and (name in PASSED_ON or name in CALL_FOREIGN))

    def take(self, body: Mapping[str, Any], admission: Admission | None = None) -> Taken:
        """Sorts a body's fields. Raises ApiError or InvalidParamsError that names what is wrong."""
        if unknown := [name for name in body if not self.knows(name)]:
            known = sorted(self.own | (frozenset() if self.is_strict else PASSED_ON))
            listed = ", ".join(f"{name[:80]!r}{nearest(name, known, CALL_HINTS)}" for name in unknown[:8])
            raise ApiError(400, f"{self.name} has no field {listed}", param=unknown[0][:80], code="unknown_field")
        own = {name: value for name, value in body.items() if name in self.own}
        params: dict[str, Any] = {}
        ignored = []
        for name, value in body.items():
            if name in own:
                continue
            entry = self.foreign.get(name) or (None if name in PASSED_ON else CALL_FOREIGN.get(name))
            if entry is None:
                params[name] = value
                continue
            entry.check(value, self.name)
            if entry.inert is not None and value is not None:
                ignored.append(name)
        return Taken(own, params, ignored, admission or Admission())


@dataclasses.dataclass(slots=True)
class Taken:
    """A body's fields: the endpoint's own, SamplingParams', and the names of those that are known to be without effect; and how it came."""

    own: dict[str, Any]
    params: dict[str, Any]
    ignored: list[str]
    admission: Admission = dataclasses.field(default_factory=Admission)

    @property
    def limit_s(self) -> float | None:
        """How long it may take from its arrival: its own timeout_s or the server's deadline_s, the shorter. Raises InvalidParamsError."""
        own_s = option("timeout_s", self.own.get("timeout_s"))
        return min((each for each in (own_s, self.admission.limits.deadline_s) if each is not None), default=None)

    def flag(self, name: str, default: bool = False) -> bool:
        """An own field that is True or False; null is the default. Raises InvalidParamsError."""
        value = self.own.get(name)
        return default if value is None else Flag().parse(name, value)

    def text(self, name: str) -> str | None:
        """An own field that is a string. Raises InvalidParamsError."""
        value = self.own.get(name)
        return None if value is None else str(Text(1 << 20, empty=True).parse(name, value))

    def mapping(self, name: str) -> dict[str, Any] | None:
        """An own field that is an object. Raises ApiError."""
        value = self.own.get(name)
        if value is not None and not isinstance(value, dict):
            raise wrong(name, "must be an object")
        return value

    def entries(self, name: str) -> list[Any] | None:
        """An own field that is a list. Raises ApiError."""
        value = self.own.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong(name, "must be a list")
        return value


def _own(*groups: Iterable[str]) -> frozenset[str]:
    return frozenset(name for group in groups for name in group)


#: How a chat is rendered; without a chat they have no effect.
RENDERING = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
)
_RENDERED = ("messages", "add_special_tokens", *RENDERING)
_SETTLED = (
    "model", "stream", "stream_options", "max_tokens", "logprobs", "n", "seed", "return_tokens_as_token_ids", "return_token_ids",
    "prompt_logprobs",
)  # fmt: skip
_CHAT_OWN = ("max_completion_tokens", "top_logprobs", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning")
CHAT = Endpoint("/v1/chat/completions", _own(_RENDERED, _SETTLED, _STRUCTURED, _LLMI, _CHAT_OWN), _SHARED | _OPENAI_CHAT)
COMPLETIONS = Endpoint(
    "/v1/completions",
    _own(("prompt", "echo", "parse_special", "add_special_tokens"), _SETTLED, _STRUCTURED, _LLMI),
    _SHARED | refused("there is no model for infilling", "suffix", neutral=("",)),
)
TOKENIZE = Endpoint(
    "/tokenize",
    _own(_RENDERED, ("model", "prompt", "return_token_strs", "parse_special")),
    refused("models take text alone", "mm_processor_kwargs", neutral=({},)),
    is_strict=True,
)
DETOKENIZE = Endpoint("/detokenize", _own(("model", "tokens", "skip_special_tokens")), {}, is_strict=True)
_MESSAGES_OWN = (
    "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "thinking", "output_config", "seed",
    "structured_outputs", "chat_template_kwargs",
)  # fmt: skip
_NO_LOGPROBS = refused(
    "log-probabilities come with /v1/chat/completions", "logprobs", "prompt_logprobs", "logprob_token_ids", "token_ids_logprob"
)
_ANTHROPIC = {
    **CLIENTS,
    **_NO_LOGPROBS,
    **inert(
        "nothing is stored or billed here",
        Maybe(ANYTHING),
        "metadata", "service_tier", "inference_geo", "user_profile_id", "workspace_id", "diagnostics", "billing_policy",
        "fallback_credit_token",
    ),
    **inert("the prefix cache changes no token", Maybe(ANYTHING), "cache_control"),
    **inert("a field of the body says what this header says", Maybe(ANYTHING), "betas", "anthropic_version"),
    **inert("there is one speed", Maybe(ANYTHING), "speed"),
    **inert("there is one model", Maybe(ANYTHING), "fallbacks"),
    **refused("nothing is kept from one request to the next", "container", "thread", "compaction"),
    **refused("no other server is asked", "mcp_servers", neutral=([],)),
}  # fmt: skip
MESSAGES = Endpoint("/v1/messages", _own(_MESSAGES_OWN, ("context_management",), _LLMI), _ANTHROPIC | _NOT_JSON)
COUNT_TOKENS = Endpoint("/v1/messages/count_tokens", _own(_MESSAGES_OWN, ("context_management",)), _ANTHROPIC | _NOT_JSON)
_RESPONSES = {
    **_NO_LOGPROBS,
    **refused("give max_output_tokens", "max_tokens", "max_new_tokens"),
    **{name: entry for name, entry in _SHARED.items() if name not in ("metadata",)},
    **inert("nothing is stored here", Maybe(ANYTHING), "metadata"),
    **refused(
        "nothing is kept from one request to the next: give the whole chat as input", "previous_response_id", "conversation", "prompt",
        "context_management", "access_programs",
    ),
    **refused("the answer comes at once or as a stream", "background", "background_options", neutral=(False,)),
    **refused("answers are text alone", "image"),
    **refused("the number of calls is the model's", "max_tool_calls"),
    **refused("a prompt that is too long is refused", "truncation", neutral=("disabled",)),
    **refused("a stream has no options here", "stream_options", neutral=({}, {"include_obfuscation": False})),
}  # fmt: skip
RESPONSES = Endpoint(
    "/v1/responses",
    _own(
        (
            "model", "input", "instructions", "max_output_tokens", "stream", "tools", "tool_choice", "parallel_tool_calls", "reasoning",
            "text", "include", "top_logprobs", "seed", "chat_template_kwargs",
        ),
        _LLMI,
    ),
    _RESPONSES,
)  # fmt: skip
_VECTORS = inert("nothing is billed here", _WORDS, "user") | inert("texts run in the order of arrival", Maybe(ANYTHING), "priority")
_VECTORS_OWN = ("model", "truncate_prompt_tokens", "parse_special", "timeout_s", "request_id")
EMBEDDINGS = Endpoint(
    "/v1/embeddings", _own(_VECTORS_OWN, ("input", "encoding_format", "dimensions", "prompt_name")), _VECTORS, is_strict=True
)
RERANK = Endpoint(
    "/v1/rerank", _own(_VECTORS_OWN, ("query", "documents", "top_n", "return_documents", "instruction")), _VECTORS, is_strict=True
)
SCORE = Endpoint("/v1/score", _own(_VECTORS_OWN, ("text_1", "text_2", "queries", "documents", "instruction")), _VECTORS, is_strict=True)
PREFILL = Endpoint("/llmi/prefill", frozenset({"identity", "engine", "prompt_token_ids", "cache_salt"}), {}, is_strict=True)
GENERATE = Endpoint(
    "/llmi/generate",
    _own(
        ("model", "prompt_token_ids", "sampling_params", "seed", "cache_salt", "priority", "stream", "speculates", "known"),
        ("timeout_s", "request_id"),
    ),
    {},
    is_strict=True,
)
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, TOKENIZE, DETOKENIZE, MESSAGES, COUNT_TOKENS, EMBEDDINGS, RERANK, SCORE, PREFILL, GENERATE)
