"""llmi as a model of lm-evaluation-harness, under the name "llmi".

`python -m llmi.integrations.lm_eval run --model llmi --model_args pretrained=PATH --tasks ...` is the harness' own command with the name
known to it; in Python, importing this module makes it known. The arithmetic is that of the harness' `local-completions`: the same tokens
are scored in the same windows and summed in the same order, so that numbers in process and through `llmi serve` are equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lm_eval.models  # noqa: F401 (the harness reads its own models only while none is registered)
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.requests.prefix import prefix_token
from llmi.requests.scoring import windows

_DEFAULT_TOKENS = 256


def _generation(given: dict[str, Any], end_text: str | None, max_gen_toks: int, seed: int) -> SamplingParams:
    """The harness' arguments of one generation. What is none of its own names must be a parameter of llmi's."""
    kwargs = dict(given)
    until = kwargs.pop("until", None)
    stop = [until] if isinstance(until, str) else list(until or [])
    if end_text and end_text not in stop:
        stop.append(end_text)
    kwargs.pop("do_sample", None)
    num_tokens = kwargs.pop("max_gen_toks", max_gen_toks)
    num_tokens = kwargs.pop("max_tokens", num_tokens)
    return SamplingParams(temperature=kwargs.pop("temperature", 0.0), max_tokens=int(num_tokens), stop=stop, seed=seed, **kwargs)


@register_model("llmi")
class LlmiLM(TemplateLM):  # type: ignore[misc]  # the harness has no types here
    """The harness' three kinds of requests.

    Parameters
    ----------
    pretrained : str
        A path or name, as for LLM; `model` is another name for it.
    max_length : int, optional
        Longest context, one token of which is left for generation, as in `local-completions`. None is the engine's.
    max_gen_toks : int
        Tokens of a generation whose task names no number.
    add_bos_token : bool
        Whether contexts begin with beginning-of-text. False is `local-completions`'s; the harness' `hf` adds it where the tokenizer does.
    seed : int
        Of all generations.
    batch_size, max_batch_size, device
        Of the harness' command line: the engine makes its batches itself, so the sizes have no effect; `device` goes to LLM.
    **engine_args
        As for LLM.

    Examples
    --------
    >>> lm_eval.simple_evaluate(LlmiLM(pretrained="model.gguf"), tasks=["hellaswag"])  # doctest: +SKIP
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        max_length: int | None = None,
        max_gen_toks: int = _DEFAULT_TOKENS,
        add_bos_token: bool = False,
        seed: int = 1234,
        batch_size: object = None,
        **engine_args: object,
    ) -> None:
        super().__init__()
        engine_args.pop("max_batch_size", None)
        if engine_args.get("device", "") is None:
            del engine_args["device"]
        name = engine_args.pop("model", None) if pretrained is None else pretrained
        self.llm = LLM(name, **engine_args)  # type: ignore[arg-type]  # LLM checks its own arguments
        self.tokenizer = self.llm.tokenizer
        self.max_length = (self.llm.model_info.max_model_len if max_length is None else int(max_length)) - 1
        self._max_gen_toks, self._seed, self._is_chat = int(max_gen_toks), int(seed), False
        self._prefix = [prefix_token(self.llm)] if add_bos_token else []

    @property
    def eot_token_id(self) -> int | None:
        """The token that ends a text."""
        ids = self.tokenizer.eos_token_ids
        return min(ids) if ids else None

    @property
    def prefix_token_id(self) -> int:
        """The token that an empty context is."""
        return prefix_token(self.llm)

    @property
    def tokenizer_name(self) -> str:
        """The model's name in the harness' cache of requests."""
        return str(self.llm.model_info.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Ids of a text. Names of special tokens are these tokens only in rendered chats."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False, parse_special=self._is_chat) if string else []
        return ids if add_special_tokens is False or ids[:1] == self._prefix else self._prefix + ids

    def apply_chat_template(self, chat_history: list[Any], add_generation_prompt: bool = True) -> str:
        """A chat as text. From then on the texts of requests are taken to be such chats."""
        self._is_chat = True
        text = self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt, continue_final_message=not add_generation_prompt
        )
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's template, for the harness' notes."""
        return self.tokenizer.chat_template if chat_template else None

    def _scored(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Log-probability of each second part behind its first, summed token by token, and whether greedy decoding would say it."""
        kept = []
        for context, continuation in pairs:
            ids = (context + continuation)[-self.max_length :]
            context_len = len(context) - max(0, len(context) + len(continuation) - self.max_length)
            kept.append((ids[:context_len], ids[context_len:]))
        scores = self.llm.loglikelihood(kept, use_tqdm=None)
        return [(sum(score.token_logprobs.tolist()), score.is_greedy) for score in scores]

    def _loglikelihood_tokens(self, requests: list[Any], **_: object) -> list[tuple[float, bool]]:
        answers = self._scored([(context, continuation) for _, context, continuation in requests])
        for (key, _, _), answer in zip(requests, answers, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answer)
        return answers

    def loglikelihood_rolling(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each token once, in the harness' windows."""
        texts = [request.args[0] for request in requests]
        pairs, owners = [], []
        for owner, text in enumerate(texts):
            ids = [self.prefix_token_id, *self.tok_encode(text)]
            for begin, end, first in windows(len(ids), self.max_length - 1, None):
                pairs.append((ids[begin:first], ids[first:end]))
                owners.append(owner)
        sums: list[list[float]] = [[] for _ in texts]
        for owner, (logprob, _) in zip(owners, self._scored(pairs), strict=True):
            sums[owner].append(logprob)
        answers = [float(sum(parts)) for parts in sums]
        for text, answer in zip(texts, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return answers

    def generate_until(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to a stop text. A context that leaves no room is cut at its beginning, as the harness does."""
        given = [request.args for request in requests]
        end_text = self.tokenizer._text_of(self.eot_token_id)
        params = [_generation(kwargs, end_text, self._max_gen_toks, self._seed) for _, kwargs in given]
        prompts = []
        for context, kwargs in given:
            num_tokens = int(kwargs.get("max_gen_toks", self._max_gen_toks))
            room = self.max_length - num_tokens
            if room < 1:
                raise InvalidParamsError(
                    f"max_gen_toks = {num_tokens:,} leaves no room for a context: max_length = {self.max_length + 1:,}; give less, or a"
                    " longer max_length",
                    "max_gen_toks",
                )
            prompts.append({"prompt_token_ids": self.tok_encode(context)[-room:]})
        texts: list[str] = list(self.llm.generate(prompts, params, use_tqdm=None).texts)
        for (context, kwargs), text in zip(given, texts, strict=True):
            self.cache_hook.add_partial("generate_until", (context, kwargs), text)
        return texts


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
