"""What a smaller model costs: its distribution beside that of its base, text by text and answer by answer."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import Whole, parse
from llmi.base.progress import progress
from llmi.compress.kept_bases import Answer, KeptBase
from llmi.compress.results import Difference, Evaluation
from llmi.compress.texts import given_texts, judged_text
from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.params.sampling import SAMPLING, SamplingParams
from llmi.training.turns import turns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

_WINDOW, _COUNT = Whole(2, 1 << 24), Whole(0, 1 << 20)
_ROWS = 128  # of logits in float64 at once
_DEFAULT_WINDOWS = 8  # of the text that llmi brings
_ANSWER_TOKENS = 64
_ROUNDS = 3
_DECODED = 32
_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_UNQUANTIZED = ("F32", "F16", "BF16", "F64")


def evaluate(
    model: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    texts: str | Iterable[Any] | None = None,
    window: int = 512,
    skip: int = 1,
    answers: int = 0,
    sparse_attention: Mapping[str, Any] | None = None,
    **engine_args: object,
) -> Evaluation:
    """A model's perplexity, and beside a base the divergence of its distribution, its answers and its speed.

    Parameters
    ----------
    model, base : path or name
        As LLM takes them. Both have the same vocabulary.
    texts : str, or an iterable of str or of lists of token ids, optional
        Cut into windows without overlap; what is left at the end of a text is not read. Where the tokenizer begins texts with a token, so
        does each window of a str. The default is 8 windows of a text that llmi brings (pages of Python's documentation).
    window : int
        Tokens of a window.
    skip : int
        Tokens at the beginning of each window that are not scored. window // 2 is what llama-perplexity leaves out.
    answers : int
        Greedy answers of at most 64 tokens that are compared.
    sparse_attention : mapping, optional
        As in SamplingParams, of the model, not of the base.
    **engine_args
        Of the model's LLM, not of the base's: so `base` may be the same file.

    Returns
    -------
    Evaluation

    Raises
    ------
    InvalidParamsError
        A text shorter than a window, a base of another vocabulary, and what LLM refuses.

    Examples
    --------
    >>> from llmi.compress import evaluate
    >>> from llmi.testing import tiny_model
    >>> model = tiny_model()
    >>> result = evaluate(model, base=model, texts=[[5, 9, 2, 7, 1, 8, 3, 6]], window=4)
    >>> result.kl, result.same_top, result.num_tokens
    (0.0, 1.0, 6)
    """
    given = {"base": base, "texts": texts, "window": window, "skip": skip, "answers": answers, "sparse_attention": sparse_attention}
    [result] = evaluate_all([model], **given, **engine_args)  # type: ignore[arg-type]
    return result


def evaluate_all(
    models: Sequence[str | os.PathLike[str]],
    *,
    base: str | os.PathLike[str] | None = None,
    texts: str | Iterable[Any] | None = None,
    window: int = 512,
    skip: int = 1,
    answers: int = 0,
    sparse_attention: Mapping[str, Any] | None = None,
    keep_base: bool = False,
    **engine_args: object,
) -> list[Evaluation]:
    """`evaluate` of several models over one base, which is loaded and read once.

    Parameters
    ----------
    models : list of paths or names
    base, texts, window, skip, answers, sparse_attention, **engine_args
        As of `evaluate`.
    keep_base : bool
        What the base computes is kept in llmi's cache for other evaluations, and read from there.

    Returns
    -------
    list of Evaluation
        In the order of the models.

    Raises
    ------
    InvalidParamsError
        As `evaluate`.

    Examples
    --------
    >>> from llmi.compress import evaluate_all
    >>> from llmi.testing import tiny_model
    >>> models = [tiny_model(), tiny_model("gemma3")]
    >>> [result.num_tokens for result in evaluate_all(models, texts=[[5, 9, 2, 7, 1, 8, 3, 6]], window=4)]
    [6, 6]
    """
    window, answers = parse(_WINDOW, "window", window), parse(_COUNT, "answers", answers)
    skip = parse(Whole(1, window - 1, f"an integer in [1, window - 1], which is [1, {window - 1}]"), "skip", skip)
    sees = SAMPLING["sparse_attention"].parse(sparse_attention)
    given, named = given_texts(texts)
    results = []
    with progress(len(models), "models") as bar:
        original = Judged(LLM(base), window, skip) if base is not None else None
        try:
            if original is not None and keep_base:
                original.kept = KeptBase(original.llm)
            for model in models:
                with LLM(model, **engine_args) as llm:  # type: ignore[arg-type]
                    results.append(_beside(Judged(llm, window, skip, sees), original, given, named, answers))
                bar.update(1)
        finally:
            if original is not None:
                original.llm.close()
    return results


class Judged:
    """A model, and what it made of windows and questions: a base is asked once for several models."""

    def __init__(self, llm: LLM, window: int, skip: int, sparse_attention: Mapping[str, Any] | None = None) -> None:
        self.llm, self.window, self.skip, self.sparse_attention = llm, window, skip, sparse_attention
        if window > llm.model_info.max_model_len:
            raise InvalidParamsError(f"window = {window} is more than the model's context of {llm.model_info.max_model_len}", "window")
        self.kept: KeptBase | None = None
        self._rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._answers: list[Answer] = []

    def rows(self, window: list[int]) -> NDArray[np.float32]:
        """The rows before each scored token, after the final norm: ready for the head."""
        key = tuple(window)
        if key not in self._rows:
            self._rows[key] = self._made(window) if self.kept is None else self.kept.rows(window, self.skip, lambda: self._made(window))
        return self._rows[key]

    def _made(self, window: list[int]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self.llm.hidden_states([window], normed=True, sparse_attention=self.sparse_attention)[0][-1]
        return rows[self.skip - 1 : -1].copy()

    @property
    def name(self) -> str:
        """The file's, and what its rows see."""
        name = Path(self.llm.model_info.path).name
        if self.sparse_attention is None:
            return name
        return f"{name} ({', '.join(f'{key} {value}'.removeprefix('method ') for key, value in self.sparse_attention.items())})"

    def answers(self, questions: list[str]) -> list[Answer]:
        """Greedy answers."""
        if not self._answers:
            made = partial(self._answered, questions)
            self._answers = made() if self.kept is None else self.kept.answers(questions, made)
        return self._answers

    def _answered(self, questions: list[str]) -> list[Answer]:
        params = SamplingParams(temperature=0, max_tokens=_ANSWER_TOKENS, sparse_attention=self.sparse_attention)
        if self.llm.tokenizer.chat_template:
            chats = [[{"role": "user", "content": question}] for question in questions]
            outputs = self.llm.chat(chats, params, use_tqdm=False)
        else:
            outputs = self.llm.generate(questions, params, use_tqdm=False)
        return [Answer(list(output.token_ids), output.text) for output in outputs]


def divergence(path: Path, base: Judged, windows: Sequence[list[int]]) -> float:
    """Mean KL(base || model) of a file over windows that the base has read, and nothing else."""
    with LLM(path, enable_prefix_caching=False) as llm:
        judged = Judged(llm, base.window, base.skip)
        return float(np.concatenate([measure(judged, base, window)[2] for window in windows]).mean())


def _windows(llm: LLM, texts: list[str | list[int]], window: int) -> Iterator[list[int]]:
    prefix = llm.tokenizer._loaded.prefix
    for index, text in enumerate(texts or [judged_text()]):
        ids = llm.tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else text
        begin = prefix if isinstance(text, str) else []
        size = window - len(begin)
        if len(ids) < size:
            raise InvalidParamsError(f"texts[{index}] has {len(ids)} tokens, fewer than a window of {size}: give a smaller window", "texts")
        most = len(ids) if texts else min(len(ids), _DEFAULT_WINDOWS * size)
        for start in range(0, most - size + 1, size):
            yield [*begin, *ids[start : start + size]]


def _log_law(llm: LLM, rows: NDArray[np.float32]) -> F64:
    """Log-probabilities of rows in float64."""
    logits = np.asarray(llm.head(rows), np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def measure(judged: Judged, base: Judged | None, window: list[int]) -> F64:
    """[5, scored tokens] of a window: log-probability of the token, the base's, KL, whether both find the same likeliest, change of the
    token's probability."""
    rows, base_rows = judged.rows(window), None if base is None else base.rows(window)
    targets = window[judged.skip :]
    parts = []
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        law = _log_law(judged.llm, rows[part])
        places = np.arange(len(law)), targets[part]
        found = np.zeros((5, len(law)))
        found[0] = law[places]
        if base is not None and base_rows is not None:
            other = _log_law(base.llm, base_rows[part])
            found[1] = other[places]
            found[3] = law.argmax(axis=1) == other.argmax(axis=1)
            found[4] = np.exp(found[0]) - np.exp(found[1])
            with np.errstate(invalid="ignore"):  # a token that both rule out: 0 times nan
                gap = np.where(np.isneginf(other), 0.0, other - law)
            found[2] = (np.exp(other) * gap).sum(axis=1)
        parts.append(found)
    return np.concatenate(parts, axis=1)


def _error(values: Sequence[float]) -> float:
    """Standard error of a mean over windows; nan of one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _beside(judged: Judged, base: Judged | None, texts: list[str | list[int]], named: str, answers: int) -> Evaluation:
    if base is not None and not _same_vocabulary(judged.llm, base.llm):
        raise InvalidParamsError(f"base: {base.llm.model_info.path} has another vocabulary than {judged.llm.model_info.path}", "base")
    windows = list(_windows(judged.llm, texts, judged.window))
    with ThreadPoolExecutor(2) as pool:  # the core computes a window's rows while NumPy sums another's
        measured = list(pool.map(lambda window: measure(judged, base, window), windows))
    joined = np.concatenate(measured, axis=1)
    losses = [-float(part[0].mean()) for part in measured]
    speeds = _speeds(judged, windows[0])
    result = Evaluation(
        model=judged.name,
        base=None,
        text=named,
        bytes=sum(file.size for file in judged.llm._files.files),
        num_tokens=joined.shape[1],
        perplexity=math.exp(-float(joined[0].mean())),
        perplexity_error=_error(losses),
        prompt_tokens_per_s=speeds[0],
        tokens_per_s=speeds[1],
    )
    if base is None:
        return result
    result.base = Path(base.llm.model_info.path).name
    result.base_perplexity = math.exp(-float(joined[1].mean()))
    result.perplexity_error = _error([float((part[1] - part[0]).mean()) for part in measured])
    result.kl = float(joined[2].mean())
    result.kl_error = _error([float(part[2].mean()) for part in measured])
    result.kl_median, result.kl_99, result.kl_max = (float(np.quantile(joined[2], place)) for place in (0.5, 0.99, 1.0))
    result.same_top = float(joined[3].mean())
    result.probability_changes = {place: float(np.percentile(joined[4], place)) for place in _PERCENTILES}
    result.base_types = sorted({kind for kind in _types(base.llm) if kind not in _UNQUANTIZED})
    if answers:
        result.answers = answers
        result.differences = _differences(judged, base, answers)
        result.answers_equal = answers - len(result.differences)
    return result


def _same_vocabulary(a: LLM, b: LLM) -> bool:
    return a.model_info.vocab_size == b.model_info.vocab_size and a.tokenizer.vocab_bytes == b.tokenizer.vocab_bytes


def _types(llm: LLM) -> set[str]:
    tensors = _core.model_tensors(llm._files.core, llm._spec.quantization)
    return {tensor.stored_as or tensor.dtype for tensor in tensors if len(tensor.shape) > 1}


def _speeds(judged: Judged, window: list[int]) -> tuple[float, float]:
    """Tokens a second of a prompt, and of one sequence: medians."""
    llm = judged.llm
    params = SamplingParams(max_tokens=_DECODED, temperature=0, ignore_eos=True, sparse_attention=judged.sparse_attention)
    prompts, steps = [], []
    length = min(len(window), llm.model_info.max_model_len - _DECODED)
    for _ in range(_ROUNDS):
        llm.reset_prefix_cache()
        [output] = llm.generate([window[: max(length, 1)]], params, use_tqdm=False)
        prompts.append(len(output.prompt_token_ids) / output.metrics.time_to_first_token_s)
        gaps = float(output.metrics.inter_token_latencies_s.sum())
        steps.append(len(output.metrics.inter_token_latencies_s) / gaps if gaps else math.nan)
    return statistics.median(prompts), statistics.median(steps)


def _differences(judged: Judged, base: Judged, count: int) -> list[Difference]:
    questions: list[str] = []
    while len(questions) < count:
        questions += [turn.text for turn in turns(0, len(questions), 2 * count) if turn.text]
    questions = questions[:count]
    found = []
    for question, theirs, ours in zip(questions, base.answers(questions), judged.answers(questions), strict=True):
        if theirs.token_ids != ours.token_ids:
            pairs = enumerate(zip(theirs.token_ids, ours.token_ids, strict=False))
            place = next((index for index, (a, b) in pairs if a != b), min(len(theirs.token_ids), len(ours.token_ids)))
            found.append(Difference(question, place, theirs.text, ours.text))
    return found
