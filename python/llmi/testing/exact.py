"""The exact distribution of the first tokens, by a walk over the tree of all that may be drawn."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterator

import numpy as np

from llmi.base.kinds import Whole, parse, show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.lab.memory import Memory, at_the_beginning
from llmi.lab.sequence import Drawn, TokenSequence, probabilities
from llmi.llm import LLM
from llmi.params.sampling import SAMPLING, SamplingParams
from llmi.params.structured import StructuredOutputsParams
from llmi.session import Session
from llmi.text.prompts import Prompt

_NUM_TOKENS = Whole(0, 2**20, "an integer of 0 or more")
_AT_ONCE = 64  # sequences
_ENDS = "it ends a text before its last token, and the distribution is that of texts of num_tokens tokens: leave it out, of the draws too"
_REFUSED = {
    "sampler": "it draws tokens by itself, so that its distribution cannot be read; make it a logits processor",
    "stop": _ENDS,
    "stop_token_ids": _ENDS,
    "stopping_criteria": _ENDS,
}


@dataclasses.dataclass(slots=True)
class _Node:
    """A text that may be drawn: its tokens, what its samplers and processors remember, and its probability."""

    path: tuple[int, ...]
    memory: Memory
    mass: float


def exact_distribution(llm: LLM, prompt: Prompt, sampling_params: SamplingParams, *, num_tokens: int) -> dict[tuple[int, ...], float]:
    """The true distribution of the first num_tokens tokens, by summing the tree of all that may be drawn.

    Meant for small vocabularies and few tokens: the tree has as many leaves as the distribution has outcomes. End-of-text is a token
    like any other, as under ignore_eos. It is the distribution of each of n samples, over all seeds.

    What samplers and processors remember moves along the tree: the state of mirostat and adaptive_p, `context.state`, a constraint's
    state. The coin of XTC is summed over. What has no distribution that can be summed is refused: a custom `sampler`, what ends a text,
    and processors and constraints whose rows depend on other things than their arguments and `context.state` (a closure that counts its
    calls, a random generator); each of their rows is computed twice, the second time in another order, and both must be equal.

    Parameters
    ----------
    llm : LLM
    prompt : prompt
        As in `generate`.
    sampling_params : SamplingParams
    num_tokens : int

    Returns
    -------
    {tuple of int: float}
        The probability of each continuation that is possible; they sum to 1.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> with LLM(tiny_model(vocab_size=8), kv_cache_memory_bytes=1 << 24) as small:
    ...     law = exact_distribution(small, [1, 2, 3], SamplingParams(temperature=0.7), num_tokens=2)
    >>> len(law), round(sum(law.values()), 6)
    (64, 1.0)
    """
    num_tokens = parse(_NUM_TOKENS, "num_tokens", num_tokens)
    given = sampling_params if isinstance(sampling_params, SamplingParams) else SamplingParams()
    nodes = [_Node((), at_the_beginning(), 1.0)]
    with llm.sequence(prompt, steering=given.steering, sparse_attention=given.sparse_attention) as root:
        tree = _Tree(root, sampling_params, num_tokens)
        for _ in range(num_tokens):
            nodes = tree.grow(nodes)
        tree.check_rows()
    law: dict[tuple[int, ...], float] = {}
    for node in nodes:
        law[node.path] = law.get(node.path, 0.0) + node.mass
    return law


class _Tree:
    def __init__(self, root: TokenSequence, sampling_params: SamplingParams, num_tokens: int) -> None:
        self.llm, self.root = root.llm, root
        params = root._resolved(sampling_params)
        _check(params, num_tokens)
        self.coins = _coins(params)
        self.python = _python_in_rows(root.llm, params)
        self.rows: list[tuple[_Node, list[bytes]]] = []  # digests of the rows of each node, where Python takes part in them

    def grow(self, nodes: list[_Node]) -> list[_Node]:
        """The nodes behind these. Texts that were drawn by other coins, and remember the same, are one node."""
        grown: dict[tuple[tuple[int, ...], bytes], _Node] = {}
        for node, laws in self._laws(nodes):
            if self.python[0]:
                self.rows.append((node, [_digest(drawn) for _, _, drawn in laws]))
            for share, params, drawn in laws:
                probs = probabilities(drawn, params).astype(np.float64)
                for token in np.flatnonzero(probs).tolist():
                    path, memory = (*node.path, token), drawn.after(token, self.llm)
                    state = memory.sampler
                    key = path, struct.pack("ddd", state.mu, state.weighted_sum, state.total_weight)
                    mass = node.mass * share * float(probs[token])
                    grown.setdefault(key, _Node(path, memory, 0.0)).mass += mass
        return list(grown.values())

    def check_rows(self) -> None:
        """Computes the rows that Python had a part in once more, in the reverse order. Raises if one is another."""
        for (node, known), (_, laws) in zip(reversed(self.rows), self._laws([node for node, _ in reversed(self.rows)]), strict=True):
            if known != [_digest(drawn) for _, _, drawn in laws]:
                name, what = self.python
                raise UnsupportedCombinationError(
                    f"{what} gave two rows for one text, {list(node.path)} behind the prompt: it remembers more than context.state, or"
                    " draws numbers of its own, so there is no one distribution; keep what it remembers in context.state",
                    name,
                    "exact_distribution",
                )

    def _laws(self, nodes: list[_Node]) -> Iterator[tuple[_Node, list[tuple[float, SamplingParams, Drawn]]]]:
        """(node, for each side of its coin: probability, parameters, law)."""
        for begin in range(0, len(nodes), _AT_ONCE):
            some = nodes[begin : begin + _AT_ONCE]
            sequences = [self.root.fork() for _ in some]
            self.llm.extend({sequence: node.path for sequence, node in zip(sequences, some, strict=True)})
            for sequence, node in zip(sequences, some, strict=True):
                yield node, [(share, params, _law(sequence, params, node.memory)) for share, params in self.coins]
                sequence.close()


def _law(sequence: TokenSequence, params: SamplingParams, memory: Memory) -> Drawn:
    return sequence._drawn(params, sequence.logits, memory)


def _digest(drawn: Drawn) -> bytes:
    return hashlib.blake2b(drawn.core.law.tobytes(), digest_size=16).digest()


def _check(params: SamplingParams, num_tokens: int) -> None:
    for name, why in _REFUSED.items():
        value = getattr(params, name)
        if value is not None and value != [] and value != ():
            raise UnsupportedCombinationError(
                f"{name} = {show(value)} does not work with exact_distribution: {why}", name, "exact_distribution"
            )
    if params.max_tokens is not None and num_tokens > params.max_tokens:
        raise InvalidParamsError(
            f"num_tokens = {num_tokens} exceeds max_tokens = {params.max_tokens}: texts are no longer than that", "num_tokens"
        )


def _coins(params: SamplingParams) -> list[tuple[float, SamplingParams]]:
    """(probability, parameters) of each side of the coin that a position depends on: XTC's, which is independent of all else."""
    heads = params.xtc_probability
    if not 0 < heads < 1 or params.temperature == 0:
        return [(1.0, params)]
    return [(heads, params.replace(xtc_probability=1.0)), (1 - heads, params.replace(xtc_probability=0.0))]


def _python_in_rows(llm: Session, params: SamplingParams) -> tuple[str, str]:
    """(the argument, its name in words) of the Python that makes rows; ("", "") without."""
    processors = SAMPLING["logits_processors"].parse(params.logits_processors)
    constraint = params.structured_outputs
    if processors:
        names = ", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in processors)
        return "logits_processors", f"logits_processors ({names})"
    if llm._batch_runner is not None:
        return "batch_processors", "the engine's batch_processors"
    if constraint is not None and not isinstance(constraint, StructuredOutputsParams):
        return "structured_outputs", f"structured_outputs ({type(constraint).__name__})"
    return "", ""
