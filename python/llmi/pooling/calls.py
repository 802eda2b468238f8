"""LLM.embed and LLM.score."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from llmi import _core
from llmi.base.kinds import Maybe, Text, Whole, parse
from llmi.base.progress import progress
from llmi.errors import InvalidParamsError, OutOfMemoryError, UnsupportedModelError, call_core
from llmi.outputs.pooling import EmbeddingOutput, EmbeddingRequestOutput, ScoringOutput, ScoringRequestOutput
from llmi.params.options import option
from llmi.pooling import settings
from llmi.pooling.inputs import Input, Inputs, pairs_of
from llmi.pooling.settings import Classifier, PoolingSettings, Tokens
from llmi.pooling.steps import Normalize, cosine, pooled, sigmoid
from llmi.text.prompts import Prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

T = TypeVar("T")
_MOST_AT_ONCE = 256  # texts of one call into the core


class PoolingCalls:
    """The part of LLM that makes vectors and scores of texts."""

    def embed(
        self: Session,
        prompts: Prompt | Iterable[Prompt],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        parse_special: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of texts. A text's bits depend on the model and the text alone: nothing is padded.

        Pooling, dense layers, normalisation, the longest text and prompts come from the model's files (modules.json and its folders); where
        they say nothing, from its class: decoders take the last token, encoders the first, and vectors have the length 1.

        Parameters
        ----------
        prompts : str, list of int, dict, or an iterable of these
            Texts are wrapped in the model's special tokens; token ids are taken as they are.
        prompt_name : str, optional
            Which of the model's prompts stands in front, such as "query"; None: its default, if it has one.
        dimensions : int, optional
            Only the first values, which are normalised again: for models that were trained for it.
        truncate_prompt_tokens : int, optional
            A longer text is cut to its first tokens, the special ones included; -1: to the model's longest. None: it is an error.
        parse_special, use_tqdm
            As in generate; names of special tokens in a text are letters unless parse_special is True.

        Returns
        -------
        list of EmbeddingRequestOutput

        Raises
        ------
        InvalidParamsError, PromptTooLongError, ModelFileError, UnsupportedModelError, OutOfMemoryError

        Examples
        --------
        >>> llm.embed("The sea")[0].outputs.embedding.shape  # doctest: +SKIP
        (384,)
        """
        return embed(self, prompts, Asked(truncate_prompt_tokens, parse_special, use_tqdm), prompt_name, dimensions)

    def score(
        self: Session,
        queries: str | list[str],
        documents: str | list[str],
        *,
        instruction: str | None = None,
        truncate_prompt_tokens: int | None = None,
        parse_special: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well documents answer a query: of a reranker its score, of a model for vectors the cosine of the two texts' vectors.

        Parameters
        ----------
        queries, documents : str or list of str
            One query with each document, or as many queries as documents.
        instruction : str, optional
            Of Qwen3-Reranker, which reads both in a prompt of its own: what the documents are wanted for.
        truncate_prompt_tokens : int, optional
            Of a pair that is longer the longer text is cut; -1: to the model's longest. None: it is an error.
        parse_special, use_tqdm
            As in embed.

        Returns
        -------
        list of ScoringRequestOutput

        Raises
        ------
        InvalidParamsError, PromptTooLongError, ModelFileError, UnsupportedModelError, OutOfMemoryError

        Examples
        --------
        >>> [output.outputs.score for output in llm.score("Where is Nice?", ["In France.", "Cats sleep."])]  # doctest: +SKIP
        [0.994, 0.0001]
        """
        return score(self, queries, documents, Asked(truncate_prompt_tokens, parse_special, use_tqdm), instruction)


@dataclasses.dataclass(slots=True)
class Asked:
    """Arguments that both calls have. check: called with the number of tokens of each text or pair before any runs."""

    truncate_prompt_tokens: object = None
    parse_special: object = False
    use_tqdm: object = False
    check: Callable[[int], None] = lambda num_tokens: None

    def inputs(self, llm: Session, found: PoolingSettings) -> Inputs:
        """The maker of inputs."""
        return Inputs(llm, found, self.truncate_prompt_tokens, option("parse_special", self.parse_special))

    def checked(self, made: list[Input]) -> list[Input]:
        """The inputs, if none is refused."""
        for given in made:
            self.check(len(given.ids))
        return made

    @property
    def shown(self) -> bool | None:
        """Whether there is a progress bar."""
        value: bool | None = option("use_tqdm", self.use_tqdm)
        return value


def embed(
    llm: Session, prompts: object, asked: Asked, prompt_name: object = None, dimensions: object = None
) -> list[EmbeddingRequestOutput]:
    """LLM.embed."""
    found = pooling_of(llm)
    if isinstance(found.scorer, Classifier):
        raise InvalidParamsError("this model is a reranker: it scores pairs of texts (score) and has no vector of one", "model")
    width = found.width(llm.model_info.hidden_size)
    size = parse(Maybe(Whole(1, width, f"None or a number of values in [1, {width}]")), "dimensions", dimensions)
    name = parse(Maybe(Text()), "prompt_name", prompt_name)
    made = asked.checked(asked.inputs(llm, found).of_texts(prompts, name))
    vectors = _each(llm, made, lambda given, rows: _vector(found, given, rows, size).astype(np.float32), asked.shown)
    results = []
    for given, vector in zip(made, vectors, strict=True):
        vector.flags.writeable = False
        results.append(EmbeddingRequestOutput(str(next(llm._ids)), EmbeddingOutput(vector), given.ids))
    return results


def score(llm: Session, queries: object, documents: object, asked: Asked, instruction: object = None) -> list[ScoringRequestOutput]:
    """LLM.score."""
    found = pooling_of(llm)
    pairs, inputs = pairs_of(queries, documents), asked.inputs(llm, found)
    wanted = parse(Maybe(Text()), "instruction", instruction)
    if found.scorer is None:
        return _cosines(llm, found, inputs, pairs, wanted, asked)
    made = asked.checked(inputs.of_pairs(pairs, wanted))
    scores = _each(llm, made, lambda given, rows: _score(llm, found, rows), asked.shown)
    return [ScoringRequestOutput(str(next(llm._ids)), ScoringOutput(value), given.ids) for given, value in zip(made, scores, strict=True)]


def pooling_of(llm: Session) -> PoolingSettings:
    """The model's settings, read once."""
    found: PoolingSettings | None = vars(llm).get("_pooling")
    if found is None:
        found = vars(llm)["_pooling"] = settings.settings_of(llm)
    return found


def _vector(found: PoolingSettings, given: Input, rows: F32, size: int | None) -> F64:
    steps, is_normal = found.steps, bool(found.steps) and isinstance(found.steps[-1], Normalize)
    vector = pooled(found.kind, rows[given.num_unpooled :], steps[:-1] if is_normal else steps)[:size]
    return Normalize().apply(vector) if is_normal else vector


def _score(llm: Session, found: PoolingSettings, rows: F32) -> float:
    scorer = found.scorer
    if isinstance(scorer, Tokens):
        _, [logits] = llm.head(rows[-1:], shortlist=[scorer.no, scorer.yes])
        return _rounded(sigmoid(float(logits[1]) - float(logits[0])))
    assert isinstance(scorer, Classifier)
    if scorer.num_labels != 1:
        raise UnsupportedModelError(
            f"{llm._files.path}: its head has {scorer.num_labels} labels, and a score is of one", llm._files.path, "num_labels"
        )
    value = float(pooled(found.kind, rows, scorer.steps)[0])
    return _rounded(sigmoid(value) if scorer.sigmoid else value)


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _cosines(
    llm: Session, found: PoolingSettings, inputs: Inputs, pairs: list[tuple[str, str]], instruction: str | None, asked: Asked
) -> list[ScoringRequestOutput]:
    if instruction is not None:
        raise InvalidParamsError("instruction is for Qwen3-Reranker: this model compares vectors", "instruction")
    if found.by_class and llm._spec.generates:
        raise UnsupportedModelError(
            f"{llm._files.path}: no file says that this model scores or makes vectors. A Qwen3-Reranker does by"
            ' hf_overrides={"classifier_from_token": ["no", "yes"]}',
            llm._files.path,
            "classifier_from_token",
        )
    names = [name if name in found.prompts else None for name in ("query", "document")]
    texts = [list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1)]
    made = [inputs.of_texts(each, name) for each, name in zip(texts, names, strict=True)]
    flat = asked.checked([given for side in made for given in side])
    vectors = _each(llm, flat, lambda given, rows: _vector(found, given, rows, None), asked.shown)
    known = [dict(zip(texts[0], vectors, strict=False)), dict(zip(texts[1], vectors[len(texts[0]) :], strict=True))]
    ids = [dict(zip(each, side, strict=True)) for each, side in zip(texts, made, strict=True)]
    return [
        ScoringRequestOutput(
            str(next(llm._ids)),
            ScoringOutput(_rounded(cosine(known[0][query], known[1][document]))),
            [*ids[0][query].ids, *ids[1][document].ids],
        )
        for query, document in pairs
    ]


def _each(llm: Session, inputs: list[Input], work: Callable[[Input, F32], T], shown: bool | None) -> list[T]:
    """What `work` makes of the hidden states of each input, some of which run together."""
    results: list[T] = []
    shown = shown if shown is not None or len(inputs) > 1 else False
    with progress(len(inputs), "embed", "text", shown) as bar:
        for group in _groups(inputs, llm._engine_args.max_num_batched_tokens):
            results += [work(given, rows) for given, rows in zip(group, _rows(llm, group), strict=True)]
            bar.update(len(group))
    return results


def _groups(inputs: list[Input], num_tokens: int) -> Iterator[list[Input]]:
    """The inputs in their order, as many at once as one step takes."""
    group: list[Input] = []
    total = 0
    for given in inputs:
        if group and (total + len(given.ids) > num_tokens or len(group) == _MOST_AT_ONCE):
            yield group
            group, total = [], 0
        group.append(given)
        total += len(given.ids)
    if group:
        yield group


def _rows(llm: Session, group: list[Input]) -> list[F32]:
    last = llm.model_info.num_layers
    if not isinstance(llm._engine, _core.Engine):
        raise InvalidParamsError(
            "a server with data_parallel_size of 2 or more makes no vectors: its engines are in other processes", "model"
        )
    try:
        rows = call_core(_core.hidden_rows, llm._engine, [given.ids for given in group], [last], True, [given.second for given in group])
        return [each[last] for each in rows]
    except OutOfMemoryError:  # of KV cache, for all of them at once
        if len(group) == 1:
            raise
    return [row for given in group for row in _rows(llm, [given])]
