"""llama-cpp-python's names: `from llmi.compat.llama_cpp import Llama` where a program says `from llama_cpp import Llama`.

Sampling has llama.cpp's defaults and order of steps, prompts are read with their special tokens, and answers are its dicts and streams of
dicts. Arguments that change no token there have no effect here; others that llmi does not have are refused by name.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import llmi
from llmi.errors import UnsupportedCombinationError
from llmi.outputs.results import RequestOutput
from llmi.speculation.drafters import PromptLookup

sys.modules.update({f"{__name__}.{name}": sys.modules[__name__] for name in ("llama", "llama_grammar", "llama_speculative")})

Answer = dict[str, Any]
#: Arguments of Llama that change no token.
NO_EFFECT = ("n_batch", "n_ubatch", "n_threads_batch", "use_mmap", "use_mlock", "verbose", "offload_kqv", "flash_attn", "logits_all")
_DEFAULTS = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "top_k": 40, "repeat_penalty": 1.0}


class LlamaGrammar:
    """A grammar for `grammar=`."""

    def __init__(self, constraint: Answer) -> None:
        self.constraint = constraint

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """From GBNF."""
        return cls({"grammar": grammar})

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """From the text of a JSON schema."""
        return cls({"json": json_schema})


class LlamaPromptLookupDecoding(PromptLookup):
    """Prompt lookup for `draft_model=`; it changes no token."""

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        super().__init__(max_ngram_size, 1)
        self.num_pred_tokens = num_pred_tokens


class Llama:
    """A model, and the calls that continue texts and chats."""

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        seed: int = 0xFFFFFFFF,
        n_ctx: int = 512,
        n_threads: int | None = None,
        last_n_tokens_size: int = 64,
        draft_model: LlamaPromptLookupDecoding | None = None,
        **others: object,
    ) -> None:
        for name, value in others.items():
            if name not in NO_EFFECT and value not in (None, False):
                raise UnsupportedCombinationError(f"{name} = {value!r} is not available in llmi.compat.llama_cpp", name, "Llama")
        self.model_path, self._last_n = str(model_path), last_n_tokens_size
        self._llm = llmi.LLM(
            model_path,
            device="cuda" if n_gpu_layers else "auto",
            seed=None if seed == 0xFFFFFFFF else seed,
            max_model_len=n_ctx or None,
            num_threads=n_threads,
            speculative_config=draft_model and llmi.SpeculativeConfig(draft_model, num_speculative_tokens=draft_model.num_pred_tokens),
        )

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Llama:
        """A model of the hub; `filename` is one of its files."""
        return cls(repo_id if filename is None else f"{repo_id}/{filename}", **options)

    def create_completion(
        self, prompt: str | list[int], max_tokens: int | None = 16, *, echo: bool = False, stream: bool = False, **options: Any
    ) -> Any:
        """A text's continuation; with `stream`, its parts."""
        params = {**self._params(options, max_tokens), "parse_special": True}
        head = self._head("cmpl", "text_completion")
        echoed = "" if not echo else prompt if isinstance(prompt, str) else self._llm.tokenizer.decode(prompt)
        if stream:
            return self._parts(prompt, params, head, echoed, lambda text: {"text": text})
        output = self._llm.generate(prompt, **params, use_tqdm=False)[0]
        return {**head, "choices": [_choice(output, text=echoed + output.text)], "usage": _usage(output)}

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: list[Any],
        *,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        stream: bool = False,
        response_format: Answer | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ) -> Any:
        """A chat's answer; with `stream`, its parts."""
        params = self._params({"temperature": 0.2, **options}, max_tokens)
        if response_format is not None and response_format["type"] == "json_object":
            params["structured_outputs"] = {"json": response_format["schema"]} if "schema" in response_format else {"json_object": True}
        if stream and tools:
            raise UnsupportedCombinationError("stream=True with tools: calls are read in the whole answer", "stream", "tools")
        if stream:
            return self._parts(messages, params, self._head("chatcmpl", "chat.completion.chunk"), None, _delta)
        output = self._llm.chat(messages, tools=tools, tool_choice=tool_choice, **params, use_tqdm=False)[0]
        choice = _choice(output, message=output.outputs[0].as_message())
        return {**self._head("chatcmpl", "chat.completion"), "choices": [choice], "usage": _usage(output)}

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text."""
        return self._llm.tokenizer.encode(text.decode(), add_special_tokens=add_bos, parse_special=special)

    def detokenize(self, tokens: Iterable[int], special: bool = False) -> bytes:
        """The text of token ids."""
        return self._llm.tokenizer.decode(tokens, skip_special_tokens=not special).encode()

    def close(self) -> None:
        """Gives back weights and cache."""
        self._llm.close()

    def _params(self, options: Answer, max_tokens: int | None) -> Answer:
        """llmi's parameters of one call. max_tokens: None or below 1: to the end of the context."""
        params = _DEFAULTS | {name: value for name, value in options.items() if value is not None}
        params["repetition_penalty"] = params.pop("repeat_penalty")
        if mirostat := params.pop("mirostat_mode", 0):  # it filters alone there
            params |= {"mirostat": mirostat, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        if grammar := params.pop("grammar", None):
            params["structured_outputs"] = grammar.constraint
        if bias := params.pop("logit_bias", None):
            params["logit_bias"] = {int(token): value for token, value in bias.items()}
        length = max_tokens if max_tokens and max_tokens > 0 else None
        return {**params, "max_tokens": length, "sampler_order": "llama.cpp", "penalty_last_n": self._last_n}

    def _head(self, prefix: str, kind: str) -> Answer:
        return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": self.model_path}

    def _parts(self, prompt: Any, params: Answer, head: Answer, first: str | None, form: Any) -> Iterator[Answer]:
        """Chunks; form: what a choice holds of a text; first: the text before the answer; None: whose turn it is."""

        def part(content: Answer, reason: str | None = None) -> Answer:
            return {**head, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}]}

        with self._llm.stream(prompt, **params) as chunks:
            if first or first is None:
                yield part({"delta": {"role": "assistant"}} if first is None else form(first))
            for chunk in chunks:
                if chunk.text:
                    yield part(form(chunk.text))
        yield part(form(""), chunks.outputs[0].outputs[0].finish_reason)


def _delta(text: str) -> Answer:
    return {"delta": {"content": text} if text else {}}


def _choice(output: RequestOutput, **content: object) -> Answer:
    """An answer's only choice; logprobs in OpenAI's form, the chosen token of each position and the likeliest ones."""
    done = output.outputs[0]
    logprobs = None
    if done.logprobs is not None:
        chosen = [next(iter(position.values())) for position in done.logprobs]
        logprobs = {
            "tokens": [entry.decoded_token for entry in chosen],
            "token_logprobs": [entry.logprob for entry in chosen],
            "top_logprobs": [{entry.decoded_token: entry.logprob for entry in position.values()} for position in done.logprobs],
        }
    return {"index": 0, **content, "logprobs": logprobs, "finish_reason": "tool_calls" if done.tool_calls else done.finish_reason}


def _usage(output: RequestOutput) -> dict[str, int]:
    prompt, new = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
