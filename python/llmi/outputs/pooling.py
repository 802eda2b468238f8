"""Results of embed and score: vectors and scores of texts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi.base.travel import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclasses.dataclass(slots=True, eq=False)
class EmbeddingOutput(Record):
    """A text's vector.

    Attributes
    ----------
    embedding : array of float32 [dimensions]
        Read-only.

    Examples
    --------
    >>> vector = llm.embed("The sea")[0].outputs.embedding
    >>> vector.shape
    (64,)
    """

    embedding: NDArray[np.float32]


@dataclasses.dataclass(slots=True, eq=False)
class EmbeddingRequestOutput(Record):
    """The result of one text.

    Attributes
    ----------
    request_id : str
    outputs : EmbeddingOutput
    prompt_token_ids : list of int
        Those that the model read, its own special tokens among them.
    finished : bool
        True.

    Examples
    --------
    >>> output = llm.embed("The sea")[0]
    >>> len(output.prompt_token_ids)
    7
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclasses.dataclass(slots=True, eq=False)
class ScoringOutput(Record):
    """How well a document answers a query.

    Attributes
    ----------
    score : float
        On the model's own scale, mostly 0 to 1.

    Examples
    --------
    >>> [round(output.score, 2) for output in (ScoringOutput(0.75), ScoringOutput(0.1))]
    [0.75, 0.1]
    """

    score: float


@dataclasses.dataclass(slots=True, eq=False)
class ScoringRequestOutput(Record):
    """The result of one pair.

    Attributes
    ----------
    request_id : str
    outputs : ScoringOutput
    prompt_token_ids : list of int
        Of a cosine, those of the query and then those of the document.
    finished : bool
        True.

    Examples
    --------
    >>> outputs = [ScoringRequestOutput("0", ScoringOutput(0.1), [5, 7]), ScoringRequestOutput("1", ScoringOutput(0.75), [5, 9])]
    >>> max(outputs, key=lambda output: output.outputs.score).request_id
    '1'
    """

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True
