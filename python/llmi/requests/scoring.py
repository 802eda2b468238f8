"""Scoring text under the model: log-likelihoods and perplexity, with lm-eval's rules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import Text, entries_of, parse, refuse, show
from llmi.errors import InvalidParamsError, PromptTooLongError
from llmi.outputs.scores import LogLikelihood, Perplexity
from llmi.params.options import option
from llmi.requests.prefix import prefix_token
from llmi.text.prompts import Prompt, as_list, check_unsteered, tokenize, warn_of_markup

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

else:
    from llmi.base.lazy_numpy import np


def encode_pair(llm: Session, context: Prompt, continuation: Prompt, parse_special: bool = False) -> tuple[list[int], list[int]]:
    """Ids of both, by lm-eval's rule: spaces at the context's end move over; the continuation is what the joint text has behind as many
    tokens as the context alone has. Where a token spans the join and nothing is left, the continuation is encoded alone."""
    if isinstance(context, str) and isinstance(continuation, str):
        for part in (context, continuation):
            parse(Text(empty=True), "pairs", part)
        if context == "":
            return [prefix_token(llm)], llm.tokenizer.encode(continuation, add_special_tokens=False, parse_special=parse_special)
        num_spaces = len(context) - len(context.rstrip())
        if num_spaces:
            context, continuation = context[:-num_spaces], context[-num_spaces:] + continuation
        encode, prefix = llm.tokenizer.encode, llm.tokenizer._loaded.prefix
        context_ids = encode(context, add_special_tokens=False, parse_special=parse_special)
        tail = encode(context + continuation, add_special_tokens=False, parse_special=parse_special)[len(context_ids) :]
        if not tail:
            tail = encode(continuation, add_special_tokens=False, parse_special=parse_special)
        if not (parse_special and prefix and context_ids[: len(prefix)] == prefix):  # else the text has it itself
            context_ids = prefix + context_ids
        return context_ids or [prefix_token(llm)], tail
    context_ids = tokenize(context, llm.tokenizer, "pairs", parse_special)[1]
    if isinstance(continuation, str):  # which stands behind something: it is not wrapped
        text = parse(Text(empty=True), "pairs", continuation)
        return context_ids or [prefix_token(llm)], llm.tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
    continuation_ids = tokenize(continuation, llm.tokenizer, "pairs", parse_special)[1]
    return context_ids or [prefix_token(llm)], continuation_ids


def pairs_of(pairs: object) -> list[list[Any]]:
    """The given pairs, each [context, continuation]."""
    entries = entries_of("pairs", pairs)
    if entries is None:
        raise refuse("pairs", "a list of (context, continuation)", pairs)
    result = []
    for index, entry in enumerate(entries):
        pair = entries_of(f"pairs[{index}]", entry)
        for prompt in pair or ():
            check_unsteered(prompt, "loglikelihood")
        if pair is None or len(pair) != 2:
            raise InvalidParamsError(f"pairs[{index}] must be (context, continuation), not {show(entry)}", "pairs")
        result.append(pair)
    return result


def score(llm: Session, sequences: list[list[int]], use_tqdm: bool | None) -> list[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Raw log-probability and rank of each token after the first."""
    requests = llm._score(sequences, use_tqdm)
    return [(request.prompt_token_logprobs, request.prompt_token_ranks) for request in requests]


def _asked_special(parse_special: bool | None, texts: list[Prompt], llm: Session) -> bool:
    """Whether names of special tokens are these tokens; a warning where there are some and nobody said it."""
    if parse_special is None:
        warn_of_markup(texts, llm.tokenizer)
        return False
    return bool(option("parse_special", parse_special))


def loglikelihood(
    llm: Session, pairs: Iterable[tuple[Prompt, Prompt]], parse_special: bool | None, use_tqdm: bool | None
) -> list[LogLikelihood]:
    """log P(continuation | context) for each pair."""
    shown = option("use_tqdm", use_tqdm)
    given = pairs_of(pairs)
    special = _asked_special(parse_special, [text for pair in given for text in pair], llm)
    encoded = [encode_pair(llm, pair[0], pair[1], special) for pair in given]
    for context, continuation in encoded:
        if not continuation:
            raise InvalidParamsError("a continuation has no token", "pairs")
        num_inputs = len(context) + len(continuation) - 1  # the last token is only scored
        if num_inputs > llm.model_info.max_model_len:
            raise PromptTooLongError(num_inputs, llm.model_info.max_model_len)
    scored = score(llm, [context + continuation for context, continuation in encoded], shown)
    results = []
    for (context, _), (logprobs, ranks) in zip(encoded, scored, strict=True):
        tail = logprobs[len(context) - 1 :]
        results.append(LogLikelihood(float(tail.sum(dtype=np.float64)), bool((ranks[len(context) - 1 :] == 1).all()), tail))
    return results


def windows(num_tokens: int, max_length: int, stride: int | None) -> list[tuple[int, int, int]]:
    """(begin, end, first scored) over `num_tokens` tokens, of which token 0 is the prefix.

    The model reads the tokens from begin to end - 1, at most max_length of them, and scores those from the first scored to the end. Each
    token is scored once. Without a stride, lm-eval's rule (rolling windows, context_len=1, made disjoint): max_length tokens are scored
    a window; the first one begins with the prefix, each later one with the last token scored before it, and the last one, if it is
    short, reads as many tokens before it as fit. With a stride, windows are `stride` apart, and all read max_length tokens.
    """
    result = []
    scored = 1
    while scored < num_tokens:
        end = min(num_tokens, scored + (max_length if stride is None or scored == 1 else stride))
        result.append((max(0, end - max_length - 1), end, scored))
        scored = end
    return result


def perplexity(
    llm: Session, texts: object, max_length: int | None, stride: int | None, parse_special: bool | None, use_tqdm: bool | None
) -> list[Perplexity]:
    """Perplexity of each text; every token is scored once."""
    max_length, stride, shown = option("max_length", max_length), option("stride", stride), option("use_tqdm", use_tqdm)
    limit = llm.model_info.max_model_len if max_length is None else max_length
    if not 2 <= limit <= llm.model_info.max_model_len:
        raise InvalidParamsError(f"max_length must lie in [2, {llm.model_info.max_model_len}], not {limit}", "max_length")
    if stride is not None and not 1 <= stride < limit:
        raise InvalidParamsError(f"stride must lie in [1, max_length), which is [1, {limit - 1}], not {stride}", "stride")
    jobs: list[tuple[int, int, int]] = []  # text, begin of its logprobs within its window, window
    sequences: list[list[int]] = []
    sizes = []
    given = as_list(texts)
    special = _asked_special(parse_special, given, llm)
    for index, text in enumerate(given):
        check_unsteered(text, "perplexity")
        if isinstance(text, str):
            ids = llm.tokenizer.encode(parse(Text(empty=True), f"texts[{index}]", text), add_special_tokens=False, parse_special=special)
        else:
            ids = tokenize(text, llm.tokenizer, "texts", special)[1]
        if (special or not isinstance(text, str)) and ids[:1] == [prefix_token(llm)] and len(ids) > 1:  # it is there already
            ids = ids[1:]
        if not ids:
            raise InvalidParamsError(f"text {index} has no token", "texts")
        sizes.append(len(text.encode()) if isinstance(text, str) else len(llm.tokenizer.decode(ids).encode()))
        whole = [prefix_token(llm), *ids]
        for begin, end, first in windows(len(whole), limit, stride):
            jobs.append((index, first - begin - 1, len(sequences)))
            sequences.append(whole[begin:end])
    scored = score(llm, sequences, shown)
    results = []
    for index, num_bytes in enumerate(sizes):
        parts = [scored[window][0][skip:] for text, skip, window in jobs if text == index]
        logprobs = np.concatenate(parts)
        nll = -float(logprobs.sum(dtype=np.float64))
        results.append(Perplexity(nll, len(logprobs), math.exp(nll / len(logprobs)), nll / math.log(2) / max(num_bytes, 1), logprobs))
    return results
