"""Fields that clients made for other servers send to all: those that change no token here are named in the answer, the others are refused
by name."""

from __future__ import annotations

from typing import Any

from llmi.base.kinds import Kind, Maybe, Object
from llmi.params.foreign_options import Foreign

ANYTHING = Object("anything", lambda value: True)


def refused(why: str, *names: str, neutral: tuple[Any, ...] = ()) -> dict[str, Foreign]:
    """Fields that are refused unless at one of the values `neutral`."""
    return {name: Foreign(name, why, neutral, state="is not offered") for name in names}


def inert(why: str, kind: Kind, *names: str) -> dict[str, Foreign]:
    """Fields without effect, whatever value of this kind they have."""
    return {name: Foreign(name, why, inert=kind) for name in names}


_ANY = Maybe(ANYTHING)
CLIENTS = {
    # Open WebUI, where the page itself asks the server (direct connections), and pages like it
    **inert(
        "it names the client's own records",
        _ANY,
        "chat_id", "session_id", "conversation_id", "message_id", "parent_id", "parent_message", "id", "model_item",
    ),
    **inert("the client does it itself", _ANY, "background_tasks", "features", "variables"),
    **refused("give tools", "tool_servers", "tool_ids", neutral=([],)),
    **refused("give their texts as messages", "files", neutral=([],)),
    **refused("give its fields by themselves", "params", "options", neutral=({},)),
    # Ollama's and LM Studio's
    **inert("the model stays loaded", _ANY, "keep_alive", "ttl"),
    **inert(
        "it is a matter of the engine: see the flags of llmi serve",
        _ANY,
        "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap", "use_mlock", "low_vram", "numa", "draft_model",
    ),
    **refused("give chat_template_kwargs: {enable_thinking: ...}", "think"),
    **refused("give response_format", "format", neutral=("",)),
    # llama.cpp's
    **inert("the prefix cache changes no token", _ANY, "cache_prompt", "n_cache_reuse", "id_slot"),
    **inert("a prompt that is too long is refused, and none is shifted", _ANY, "n_keep", "n_discard"),
    **inert(
        "drafts change no token",
        _ANY,
        "speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.p_split", "speculative.type", "backend_sampling",
    ),
    **inert("see /metrics", _ANY, "timings_per_token", "return_progress", "verbose"),
    **inert("a stream that is silent gets comments", _ANY, "sse_ping_interval"),
    **refused("reasoning comes as reasoning_content: give include_reasoning", "reasoning_format", neutral=("auto", "deepseek")),
    **refused("calls are told apart from text wherever tools are given", "parse_tool_calls", neutral=(True,)),
    **refused("give max_tokens", "n_predict", neutral=(-1,)),
    **refused("give repetition_penalty", "repeat_penalty", neutral=(1.0,)),
    **refused("give typical_p", "typ_p", neutral=(1.0,)),
    **refused("give logprobs", "n_probs", neutral=(0,)),
    **refused("write it as a logits processor for LLM.generate", "min_keep", neutral=(0, 1)),
    **refused("give return_token_ids", "return_tokens", neutral=(False,)),
    **refused(
        "answers have the model's own log-probabilities and those of the distribution drawn from", "post_sampling_probs", neutral=(False,)
    ),
    **refused("give timeout_s", "t_max_predict_ms", neutral=(-1, 0)),
    **refused("adapters are not loaded", "lora", neutral=([],)),
    # OpenRouter's and SGLang's
    **inert("there is one provider, and usage always comes", _ANY, "provider", "usage", "route"),
    **refused("a prompt that is too long is refused", "transforms", neutral=([],)),
    **refused("reasoning comes as reasoning_content, as it is made", "separate_reasoning", "stream_reasoning", neutral=(True,)),
    **inert("give request_id", _ANY, "rid"),
}  # fmt: skip
