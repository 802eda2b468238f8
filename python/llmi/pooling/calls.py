"""LLM.embed and LLM.score."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llmi.base.kinds import Maybe, Text, Whole, parse
from llmi.errors import InvalidParamsError, UnsupportedModelError
from llmi.outputs.pooling import EmbeddingOutput, EmbeddingRequestOutput, ScoringOutput, ScoringRequestOutput
from llmi.params.options import option
from llmi.pooling.inputs import Input, Inputs, pairs_of
from llmi.pooling.running import pooling_of, scores, vectors
from llmi.pooling.settings import Classifier, PoolingSettings
from llmi.pooling.steps import cosine
from llmi.text.prompts import Prompt

if TYPE_CHECKING:
    import numpy as np

    from llmi.session import Session
else:
    from llmi.base.lazy_numpy import np


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
    results = []
    for given, values in zip(made, vectors(llm, made, size, asked.shown), strict=True):
        vector = values.astype(np.float32)
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
    return [
        ScoringRequestOutput(str(next(llm._ids)), ScoringOutput(_rounded(value)), given.ids)
        for given, value in zip(made, scores(llm, made, asked.shown), strict=True)
    ]


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _cosines(
    llm: Session, settings: PoolingSettings, inputs: Inputs, pairs: list[tuple[str, str]], instruction: str | None, asked: Asked
) -> list[ScoringRequestOutput]:
    if instruction is not None:
        raise InvalidParamsError("instruction is for Qwen3-Reranker: this model compares vectors", "instruction")
    if settings.by_class and llm._spec.generates:
        raise UnsupportedModelError(
            f"{llm._files.path}: no file says that this model scores or makes vectors. A Qwen3-Reranker does by"
            ' hf_overrides={"classifier_from_token": ["no", "yes"]}',
            llm._files.path,
            "classifier_from_token",
        )
    names = [name if name in settings.prompts else None for name in ("query", "document")]
    texts = [list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1)]
    made = [inputs.of_texts(each, name) for each, name in zip(texts, names, strict=True)]
    flat = asked.checked([given for side in made for given in side])
    found = vectors(llm, flat, None, asked.shown)
    known = [dict(zip(texts[0], found, strict=False)), dict(zip(texts[1], found[len(texts[0]) :], strict=True))]
    ids = [dict(zip(each, side, strict=True)) for each, side in zip(texts, made, strict=True)]
    return [
        ScoringRequestOutput(
            str(next(llm._ids)),
            ScoringOutput(_rounded(cosine(known[0][query], known[1][document]))),
            [*ids[0][query].ids, *ids[1][document].ids],
        )
        for query, document in pairs
    ]
