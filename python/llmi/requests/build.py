"""From a prompt and its parameters to the core's request."""

from __future__ import annotations

import itertools
import os

from llmi import _core
from llmi.base.log import log
from llmi.errors import InvalidParamsError, PromptTooLongError, UnsupportedCombinationError
from llmi.families import ModelSpec
from llmi.params.beams import beams_for_core
from llmi.params.fields import DRY_BREAKERS
from llmi.params.rows import combined, layers_of
from llmi.params.sampling import SAMPLING, SamplingParams
from llmi.params.steps import order_of
from llmi.requests.resolve import Resolved
from llmi.requests.sparse import core_view
from llmi.requests.steering import core_steering
from llmi.requests.submission import Submission
from llmi.text.breakers import token_sequences
from llmi.text.stop_patterns import stop_program
from llmi.text.tokenizer import Tokenizer


def _left_out(name: str) -> object:
    """The value of a parameter that need not be handed on, because the core's is the same; else an object that no value is."""
    default = SAMPLING[name].default
    core = getattr(_core.SamplingParams(), name)
    return default if type(core) is type(default) and core == default else object()


#: Parameters that the core takes unchanged, each with the default that it has itself.
_PASSED_ON = {name: _left_out(name) for name, entry in SAMPLING.items() if entry.passed_on}


class RequestBuilder:
    """Builds core requests for one engine."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int, spec: ModelSpec) -> None:
        self.tokenizer = tokenizer
        self.spec = spec
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._breaker_sequences: dict[str, set[tuple[int, ...]]] = {}

    def fit_max_tokens(self, resolved: Resolved, prompt_len: int, negative_len: int = 0) -> None:
        """Settles max_tokens: None means up to the end of the context, and so does a default that exceeds the room.

        negative_len: tokens of the negative prompt; the output follows it, too.
        """
        params = resolved.params
        if prompt_len > self.max_model_len:
            raise PromptTooLongError(prompt_len, self.max_model_len)
        room = self.max_model_len - prompt_len + 1  # the last token needs no place in the context
        given = params.max_tokens
        negative_room = self.max_model_len - negative_len + 1
        wanted = min(given, room) if given is not None and resolved.sources["max_tokens"] == "user" else 1
        if negative_room < wanted:
            raise InvalidParamsError(
                f"negative_prompt: {negative_len:,} tokens and max_tokens = {wanted:,} behind them do not fit into max_model_len = "
                f"{self.max_model_len:,}: room for {max(negative_room, 0):,} is left",
                "negative_prompt",
            )
        room = min(room, negative_room)
        if given is None:
            params.max_tokens = room
        elif given > room and resolved.sources["max_tokens"] == "user":
            raise InvalidParamsError(
                f"max_tokens = {given:,} does not fit: {prompt_len:,} prompt tokens leave room for {room:,} within max_model_len = "
                f"{self.max_model_len:,} (give max_tokens=None to go on to the end of the context)",
                "max_tokens",
            )
        elif given > room:
            params.max_tokens = room
            log.info(
                "max_tokens = %d (%s) is shortened to %d: %d prompt tokens, max_model_len = %d",
                given,
                "the model's generation_config.json" if resolved.sources["max_tokens"] == "model" else "the default",
                room,
                prompt_len,
                self.max_model_len,
            )
        else:
            params.max_tokens = int(given)
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            raise InvalidParamsError(
                "max_tokens (max_new_tokens) = 0 generates nothing: give prompt_logprobs to have the prompt scored", "max_tokens"
            )
        if params.max_tokens == 0 and params.n > 1:
            raise UnsupportedCombinationError(
                f"max_tokens = 0 scores the prompt, and n = {params.n} continuations have no token", "n", "max_tokens"
            )
        if params.min_tokens > params.max_tokens:
            raise InvalidParamsError(f"min_tokens = {params.min_tokens} exceeds max_tokens = {params.max_tokens}", "min_tokens")

    def build(
        self,
        submission: Submission,
        request_id: int,
        *,
        priority: int = 0,
        stream: bool = False,
        stepped: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        """Fills `submission.request`."""
        params = submission.params
        limit = int(params.max_tokens or 0) if max_tokens is None else max_tokens
        submission.core_params = self.core_params(params, submission.seed, limit, submission.prompt_token_ids)
        submission.stop_names = {
            token: text for token, text in self.stop_tokens(params).items() if token not in (params.stop_token_ids or ())
        }
        speculation = None if submission.speculation is None else submission.speculation.build(submission, request_id)
        beams = None if submission.beams is None else beams_for_core(submission.beams)
        submission.request = _core.Request(
            id=request_id,
            prompt_token_ids=submission.prompt_token_ids,
            params=submission.core_params,
            negative_token_ids=submission.negative_token_ids,
            n=params.n,
            priority=priority,
            stream=stream,
            stepped=stepped,
            hooks=submission.hooks if submission.hooks else None,
            speculation=speculation,
            constraint=submission.hooks.core_constraint,
            constraint_ends=self.ends(params),
            drafts_forced=_drafts_forced(submission),
            recorded=self._known(submission.recorded),
            checks_recorded=submission.checks_recorded,
            thinking=submission.thinking,
            source=submission.source,
            cache_salt=submission.cache_salt,
            steering=core_steering(params.steering, self.spec),
            view=core_view(params.sparse_attention),
            trace=submission.trace,
            beams=beams,
        )

    def core_params(
        self, params: SamplingParams, seed: int, max_tokens: int, prompt_token_ids: list[int] | None = None
    ) -> _core.SamplingParams:
        """The core's form of resolved parameters."""
        core = _core.SamplingParams()
        for name, default in _PASSED_ON.items():
            value = getattr(params, name)
            if value is not default:
                setattr(core, name, value)
        core.top_k = max(params.top_k, 0)
        core.top_h = params.top_h or 0.0
        core.penalty_alpha = -1.0 if params.penalty_alpha is None else params.penalty_alpha
        core.sampler_order = [] if params.sampler_order is None else list(order_of(params.sampler_order))
        core.guidance_scale = 1.0 if params.guidance_scale is None else params.guidance_scale
        core.dola_layers = layers_of(params.dola_layers, len(self.spec.layers), not self.spec.head.weight.name)
        core.dola_transformers = params.dola_rule == "transformers"
        if params.dry_multiplier:
            core.dry_breakers = self._breakers(params)
        core.max_tokens = max_tokens
        core.seed = seed
        if wrong := [token for token in own_eos(params) if token >= self.vocab_size]:
            raise InvalidParamsError(f"eos_token_id holds token id {wrong[0]}, outside [0, {self.vocab_size})", "eos_token_id")
        core.stop = params.stop_list()
        if params.stop_regex:
            core.stop_regex = [params.stop_regex] if isinstance(params.stop_regex, str) else list(params.stop_regex)
            core.stop_program = list(stop_program(tuple(core.stop_regex)))
        if (repetition := params.repetition_detection) is not None:
            core.repetition_max_size = repetition["max_pattern_size"]
            core.repetition_min_size = repetition["min_pattern_size"]
            core.repetition_min_count = repetition["min_count"]
        core.logprob_token_ids = params.logprob_token_ids or []
        core.stop_token_ids = [*(params.stop_token_ids or []), *own_eos(params), *self.stop_tokens(params)]
        core.eos_token_ids = self.eos_token_ids() if params.eos_token_id is None else []
        core.logit_bias = list((params.logit_bias or {}).items())
        core.allowed_token_ids = params.allowed_token_ids or []
        core.bad_words = self._bad_words(params, prompt_token_ids or [])
        core.num_logprobs = self._count(params.logprobs)
        core.num_prompt_logprobs = self._count(params.prompt_logprobs)
        return core

    def eos_token_ids(self) -> list[int]:
        """The tokenizer's ids that the model has."""
        return sorted(token for token in self.tokenizer.eos_token_ids if token < self.vocab_size)

    def ends(self, params: SamplingParams) -> list[int]:
        """The ids that end a text for this request."""
        return self.eos_token_ids() if params.eos_token_id is None else own_eos(params)

    def stop_tokens(self, params: SamplingParams) -> dict[int, str]:
        """The special tokens that stop strings name, by id: while special tokens are left out, the text never holds them.

        Raises UnsupportedCombinationError for a stop string that needs the text of a special token and more.
        """
        found: dict[int, str] = {}
        if not params.skip_special_tokens or not params.stop:
            return found
        texts = {text: token for token, text in self.tokenizer.special_tokens.items() if text and token < self.vocab_size}
        for stop in params.stop_list():
            if stop in texts:
                if params.include_stop_str_in_output:
                    raise UnsupportedCombinationError(
                        f"stop = {stop!r} is a special token, which the text leaves out: include_stop_str_in_output needs"
                        " skip_special_tokens=False",
                        "stop",
                        "include_stop_str_in_output",
                    )
                found[texts[stop]] = stop
            elif part := next((text for text in texts if text in stop), None):
                raise UnsupportedCombinationError(
                    f"stop = {stop!r} holds the special token {part!r}, which the text leaves out, so it would never be found: "
                    "give skip_special_tokens=False, or the special token alone",
                    "stop",
                    "skip_special_tokens",
                )
        return found

    def _breakers(self, params: SamplingParams) -> list[list[int]]:
        """The token sequences in which DRY's breakers end, ascending."""
        given = params.dry_sequence_breakers
        texts = DRY_BREAKERS if given is None else [given] if isinstance(given, str) else given
        found: set[tuple[int, ...]] = set()
        for text in texts:
            if text not in self._breaker_sequences:
                self._breaker_sequences[text] = token_sequences(text, self.tokenizer, self.vocab_size)
            found |= self._breaker_sequences[text]
        return [list(ids) for ids in sorted(found)]

    def _known(self, outputs: list[list[int]]) -> list[list[int]]:
        """Recorded outputs up to the first id that the model has not, since no such token is drawn."""
        return [list(itertools.takewhile(lambda token: token < self.vocab_size, ids)) for ids in outputs]

    def _count(self, value: int | None) -> int:
        return -1 if value is None else self.vocab_size if value == -1 else value

    def _bad_words(self, params: SamplingParams, prompt_token_ids: list[int]) -> list[list[int]]:
        """Each word as it is written at a text's start and after a space, and as a special token; ids as they are."""
        sequences: list[list[int]] = []
        for word in params.bad_words or []:
            if isinstance(word, str):
                for text in _written(word):
                    for special in (False, True):
                        ids = self.tokenizer.encode(text, add_special_tokens=False, parse_special=special)
                        if ids and ids not in sequences:
                            sequences.append(ids)
                continue
            ids = list(word)
            if len(ids) == 1 and ids[0] in self.ends(params):
                log.info(
                    "bad_words_ids: end-of-text (id %d) may still be generated, as in transformers (ignore_eos continues past it)", ids[0]
                )
                continue
            for length in range(1, min(len(ids) - 1, len(prompt_token_ids)) + 1):
                if prompt_token_ids[-length:] == ids[:length]:  # transformers looks at the prompt, too; llmi at the output alone
                    raise UnsupportedCombinationError(
                        f"bad_words_ids: the prompt ends with the beginning of {ids}; a sequence across prompt and output is not banned"
                        " here",
                        "bad_words",
                        "prompt",
                    )
            if ids not in sequences:
                sequences.append(ids)
        return sequences


def _written(word: str) -> list[str]:
    """A word as it is written at a text's start, and after a space, unless it begins with one."""
    return [word] if word.startswith(" ") else [word, f" {word}"]


def _drafts_forced(submission: Submission) -> bool:
    """Whether tokens that a grammar forces are drafted: where that changes no token, or keeps the distribution."""
    hooks, speculation, params = submission.hooks, submission.speculation, submission.params
    if hooks.constraint is None or hooks.core_constraint is hooks or submission.beams is not None or params.penalty_alpha is not None:
        return False
    if params.sampler is not None and combined(params) is not None:
        return False
    named = "coupled" if speculation is None else speculation.verification_name
    return named in ("coupled", "rejection", "block") and os.environ.get("LLMI_FORCED_DRAFTS") != "0"


def own_eos(params: SamplingParams) -> list[int]:
    """The request's own end-of-text ids; [] where the model's are used, or none."""
    value = params.eos_token_id
    return [] if value is None or params.ignore_eos else [value] if isinstance(value, int) else list(value)
