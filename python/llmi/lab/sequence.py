"""Token sequences of the lab: read logits, extend, fork, roll back; any decoding idea in a few lines.

Sequences share cache blocks copy-on-write and exist while requests run. Their cache may be evicted and is computed
again when needed; no bit changes.
"""

from __future__ import annotations

import contextvars
import copy
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from llmi import _core
from llmi.base.kinds import Listed, Whole, array_of, parse, show
from llmi.base.travel import StaysHere
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError, call_core, from_core
from llmi.hooks.constraint import ConstraintMasks
from llmi.hooks.runners import RequestHooks
from llmi.lab.capture import Capture, capture_layers
from llmi.lab.memory import Draw, Draws, Memory
from llmi.lab.single_draw import check_single_draw
from llmi.lab.tree import TokenTree
from llmi.params.constraint import Constraint
from llmi.params.options import SEED, option
from llmi.params.rows import combined
from llmi.params.sampling import SAMPLING, SamplingParams
from llmi.params.structured import StructuredOutputsParams
from llmi.requests.resolve import resolve_params
from llmi.requests.sparse import core_view
from llmi.requests.steering import core_steering
from llmi.structured import constraint_of
from llmi.structured.thinking import written
from llmi.text.prompts import HeldPrompt, token_list, tokenize, warn_of_markup

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]


_NODES = Listed(Whole(0, 2**31 - 1, "a node index, an integer of 0 or more"), "a list of node indices", 1 << 20)


#: Where sequences made inside a strategy are noted, so that they are closed with it.
OWNER: contextvars.ContextVar[list[TokenSequence] | None] = contextvars.ContextVar("OWNER", default=None)


class Drawn(NamedTuple):
    """A processed distribution, the token that this position's noise draws from it, and the memory of hooks once a token follows."""

    core: _core.DrawnLaw
    hooks: dict[str, Any]

    def after(self, token_id: int, llm: Session) -> Memory:
        """The memory once this token is appended."""
        return Memory(self.core.state_after(llm._engine, token_id), self.hooks)


class TokenSequence(StaysHere, HeldPrompt):
    """A sequence of tokens with its cache, made by `llm.sequence()`. Hashable by identity; a context manager.

    Attributes
    ----------
    llm : LLM
    prompt_len : int
    parent : TokenSequence or None
        The sequence from which it was forked.
    seed : int
        The key of its noise.
    steering : mapping or None
        {layer: vector} that it was made with; its forks have it, too, and so have requests that continue it.
    sparse_attention : mapping or None
        What its rows see, likewise.

    Examples
    --------
    >>> with llm.sequence("The sea is") as sequence:
    ...     branch = sequence.fork()
    ...     for _ in range(4):
    ...         token = sequence.extend([sequence.sample(SamplingParams(temperature=0))])
    ...     (len(sequence.token_ids) - sequence.prompt_len, len(branch.token_ids) - branch.prompt_len)
    (4, 0)
    """

    def __init__(
        self, llm: Session, core: _core.LabSequence, prompt_len: int, seed: int, prompt_text: str | None, parent: TokenSequence | None
    ) -> None:
        self.llm = llm
        self.prompt_len = prompt_len
        self.parent = parent
        self.seed = seed
        self._core = core
        self._prompt_text = prompt_text
        self._sample_index = 0
        self._num_forks = 0
        self._logits: F32 | None = None
        self._layer_logits: dict[int, F32] = {}
        self._hidden_states: dict[int, F32] = {}
        self._attention: dict[int, F32] = {}
        self._draws = Draws()  # of sample()
        self.steering: Mapping[int, F32] | None = None if parent is None else parent.steering
        self.sparse_attention: Mapping[str, Any] | None = None if parent is None else parent.sparse_attention
        self._constraint: tuple[Constraint[Any], int] | None = None  # of `constrain`, and where it begins
        self._places: dict[str, Any] = {}  # where the sequence stands in its constraint
        owner = OWNER.get()
        if owner is not None:
            owner.append(self)

    # --- what it holds

    @property
    def token_ids(self) -> I32:
        """Prompt and output, int32 [len]."""
        ids: I32 = self._core.token_ids
        return ids

    @property
    def text(self) -> str:
        """Text of prompt and output."""
        if self._prompt_text is None:
            tokenizer = self.llm.tokenizer
            known = [token for token in self.token_ids[: self.prompt_len].tolist() if token < tokenizer.vocab_size]
            self._prompt_text = tokenizer.decode(known)
        return self._prompt_text + self.output_text

    @property
    def output_text(self) -> str:
        """Text of the tokens after the prompt."""
        return self.llm._decode(self.token_ids[self.prompt_len :].tolist())

    @property
    def block_table(self) -> I32:
        """Pages of its cache in the first KV group, int32; empty if nothing is cached."""
        tables = self._core.block_table
        return np.asarray(tables[0] if tables else [], np.int32)

    @property
    def logits(self) -> F32:
        """Raw logits after the last token, float32 [vocab_size], read-only; computed when they are first read."""
        if self._logits is None:
            _extend(self.llm, {self: []})
        assert self._logits is not None
        return self._logits

    @property
    def layer_logits(self) -> dict[int, F32]:
        """{layer: [vocab_size]} after the last token, for the layers of `Capture.layer_logits`."""
        _ = self.logits
        return self._layer_logits

    @property
    def hidden_states(self) -> dict[int, F32]:
        """{layer: [num_new, hidden_size]} of the last extension, for the layers of `Capture.hidden_states`."""
        _ = self.logits
        return self._hidden_states

    @property
    def attention(self) -> dict[int, F32]:
        """{layer: [num_new, num_heads, len]} of the last extension, for the layers of `Capture.attention`.

        Row i sums to 1 over what its token sees, itself included; what it does not see is 0.
        """
        _ = self.logits
        return self._attention

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the raw log-probabilities of the output tokens; scores the sequence once."""
        ids = self.token_ids.tolist()
        if len(ids) == self.prompt_len:
            return 0.0
        if self.prompt_len == 0:
            raise InvalidParamsError("the first token of a sequence without a prompt has no probability", "prompt")
        return float(
            self.llm._score([ids], False, self.steering, self.sparse_attention)[0]
            .prompt_token_logprobs[self.prompt_len - 1 :]
            .astype(np.float64)
            .sum()
        )

    # --- what can be done with it

    def fork(self, *, same_noise: bool = False) -> TokenSequence:
        """A copy that shares all cache blocks until one of the two writes.

        It draws with noise of its own, keyed by the parent's seed and the fork's ordinal; same_noise=True repeats the
        parent's.
        """
        same_noise = option("same_noise", same_noise)
        self._check_no_tree("forked")
        seed = self.seed
        if not same_noise:
            self._num_forks += 1
            digest = hashlib.blake2b(f"{self.seed}/{self._sample_index}/fork/{self._num_forks}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "little")
        child = TokenSequence(
            self.llm, call_core(_core.lab_fork, self.llm._engine, self._core), self.prompt_len, seed, self._prompt_text, self
        )
        child._sample_index = self._sample_index if same_noise else 0
        child._logits, child._layer_logits, child._hidden_states = self._logits, self._layer_logits, self._hidden_states
        child._attention = self._attention
        child._draws = self._draws.copied()
        child._constraint, child._places = self._constraint, copy.deepcopy(self._places)
        return child

    def extend(self, tokens: Iterable[int] | TokenTree) -> F32:
        """Appends tokens; raw logits after each, float32 [num_new, vocab_size].

        A TokenTree is tried, not appended: row i is after node i. Then only `commit` or `rollback(0)` may follow.
        """
        return _extend(self.llm, {self: tokens})[self]

    def commit(self, path: Iterable[int]) -> None:
        """Keeps a path of the pending tree: node indices from a root to a node. The rest is freed."""
        nodes = parse(_NODES, "path", path)
        if not self._core.has_tree:
            raise InvalidParamsError("commit: no tree is pending", "path")
        logits, hidden, layers, attention = self._tree.logits, self._tree.hidden_states, self._tree.layer_logits, self._tree.attention
        num_before = self._core.num_tokens
        self._forget()  # before: an exception may come on the way back
        call_core(_core.lab_commit, self.llm._engine, self._core, nodes)
        if nodes:
            kept = [*range(num_before), *(num_before + node for node in nodes)]
            self._logits = logits[nodes[-1]]
            self._layer_logits = {layer: rows[nodes[-1]] for layer, rows in layers.items()}
            self._hidden_states = {layer: _read_only(rows[nodes]) for layer, rows in hidden.items()}
            self._attention = {layer: _read_only(rows[nodes][:, :, kept]) for layer, rows in attention.items()}

    def rollback(self, num_tokens: int) -> None:
        """Drops a pending tree, and the last num_tokens tokens."""
        num_tokens = option("num_tokens", num_tokens)
        self._forget()
        before = self._core.num_tokens
        try:
            call_core(_core.lab_rollback, self.llm._engine, self._core, num_tokens)
        finally:
            self._draws.shorten(before, self._core.num_tokens)

    def sync(self, token_ids: Iterable[int]) -> int:
        """Makes token_ids the content, keeping the cache of the common beginning; returns that beginning's length.

        Nothing is computed until logits are read or the sequence is extended.
        """
        ids = token_list(token_ids, "token_ids")
        before = self._core.num_tokens
        try:
            common = int(call_core(_core.lab_sync, self.llm._engine, self._core, ids))
        except BaseException:
            self._forget()
            raise
        self._draws.shorten(before, common)
        if common < before or common < len(ids):
            self._forget()
        return common

    def probs(self, sampling_params: SamplingParams | None = None, *, logits: F32 | None = None) -> F32:
        """The processed distribution, float32 [vocab_size]: what sampling draws from and verification verifies against.

        Parameters
        ----------
        sampling_params : SamplingParams, optional
            None: the model's defaults.
        logits : array [vocab_size], optional
            None: this sequence's own.
        """
        params = self._resolved(sampling_params)
        params.sampler = None  # it draws, and has no part in the distribution
        return probabilities(self._drawn(params, self._row(logits)), params)

    def sample(self, sampling_params: SamplingParams | None = None, *, logits: F32 | None = None) -> int:
        """Draws the next token with this position's noise; does not append it.

        What mirostat and adaptive_p remember, and `context.state`, follow the drawn token once that token is appended; `probs` changes
        nothing. The noise is that of the sequence's seed, or of the parameters' own where they have one. max_tokens, stop_token_ids and
        end-of-text end nothing here: the caller sees the token. What it cannot honour (n, stop, stop_regex, repetition_detection,
        stopping_criteria) is refused. Log-probabilities are not part of what it returns: log_softmax(sequence.logits) and probs() have
        them.
        """
        params = self._resolved(sampling_params)
        if not self._drafts:  # a draft model's sequence has all parameters of its request
            check_single_draw(params)
        drawn = self._drawn(params, self._row(logits))
        token: int = drawn.core.token_id
        self._draws.note(Draw(int(self._core.num_tokens), token, Memory(drawn.core.sampler_state, drawn.hooks)))
        return token

    def constrain(self, constraint: StructuredOutputsParams | Mapping[str, Any] | Constraint[Any] | None) -> None:
        """From the next token on, `probs` and `sample` keep to a constraint, in forks, too; None ends that.

        Parameters
        ----------
        constraint : StructuredOutputsParams, dict of its fields, Constraint or None
            As SamplingParams.structured_outputs, which must then be None. It reads what follows the sequence's present end. Requests and
            particle filters refuse a constrained sequence as prompt: they have arguments of their own for it.

        Raises
        ------
        InvalidParamsError
            The grammar cannot be enforced.

        Examples
        --------
        >>> sequence.constrain({"regex": "[0-9]+"})  # doctest: +SKIP
        """
        made = constraint_of(SAMPLING["structured_outputs"].parse(constraint), self.llm.tokenizer, lambda: _written(self, None))
        self._constraint = None if made is None else (made, int(self._core.num_tokens))
        self._places = {}

    def close(self) -> None:
        """Gives its cache back."""
        self._core.close()

    def __enter__(self) -> TokenSequence:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._core.num_tokens)

    def __repr__(self) -> str:
        return f"TokenSequence({len(self)} tokens, {self._core.num_computed} computed, seed={self.seed})"

    # --- inner

    @property
    def _held(self) -> _core.LabSequence:
        return self._core

    @property
    def _steering(self) -> Mapping[int, F32] | None:
        return self.steering

    @property
    def _sparse_attention(self) -> Mapping[str, Any] | None:
        return self.sparse_attention

    @property
    def _is_constrained(self) -> bool:
        return self._constraint is not None

    _drafts = False  # a draft model, which steering does not reach, has it for a request
    _tree: _core.LabResult  # the result of the tree that waits for commit or rollback

    def _owned_by_drafter(self, prompt_len: int, sample_index: int) -> None:
        self.prompt_len = prompt_len
        self._sample_index = sample_index
        self._drafts = True

    def _forget(self) -> None:
        self._logits, self._layer_logits, self._hidden_states, self._attention = None, {}, {}, {}

    def _check_no_tree(self, what: str) -> None:
        if self._core.has_tree:
            raise InvalidParamsError(f"a sequence with a pending tree cannot be {what}: commit a path or roll it back first", "tokens")

    def _given_logits(self, logits: object) -> F32:
        row = array_of("logits", logits)
        size = self.llm.model_info.vocab_size
        if row.dtype.kind not in "iuf" or row.shape != (size,):
            raise InvalidParamsError(f"logits must be None or an array of numbers [vocab_size] = [{size}], not {show(logits)}", "logits")
        return np.ascontiguousarray(row, np.float32)

    def _allowed(self, params: SamplingParams) -> NDArray[np.uint32] | None:
        """What a constraint allows next, a bit for each token; None without one."""
        own = constraint_of(params.structured_outputs, self.llm.tokenizer, lambda: _written(self, self.prompt_len))
        if own is not None and self._constraint is not None:
            raise UnsupportedCombinationError("the sequence keeps to a constraint of its own", "structured_outputs", "constrain")
        constraint, begin = self._constraint or (own, self.prompt_len)
        if constraint is None:
            return None
        masks = ConstraintMasks(constraint, self.llm._builder.ends(params))
        given = None if self._constraint is not None else params.structured_outputs
        if self._places.get("of") != given:  # other parameters have another automaton
            self._places = {"of": copy.copy(given) if isinstance(given, StructuredOutputsParams) else given}
        return masks.words(masks.place(self._places, self.token_ids[begin:]), self.llm.model_info.vocab_size)

    def _resolved(self, sampling_params: SamplingParams | None) -> SamplingParams:
        """Parameters whose distribution this sequence can have. Raises for others."""
        resolved = resolve_params(sampling_params, {}, self.llm._defaults)
        if resolved.beams is not None:
            raise UnsupportedCombinationError(
                "beam_width: a sequence has the distribution of one text: give beams to generate", "beam_width", "sequence"
            )
        params = resolved.params
        if (name := combined(params)) is not None:
            raise UnsupportedCombinationError(
                f"a sequence has one row, and {name} makes a row of several: combine rows and give them as logits=", name, "sample"
            )
        if params.penalty_alpha is not None:
            raise UnsupportedCombinationError(
                "penalty_alpha chooses by the hidden states of its candidates, and a sequence has one row: use generate",
                "penalty_alpha",
                "sequence",
            )
        if params.steering is not None and params.steering != self.steering and not self._drafts:
            raise UnsupportedCombinationError(
                "steering changes the model's rows, and this sequence's are computed: give it to llm.sequence()", "steering", "sequence"
            )
        if params.sparse_attention is not None and params.sparse_attention != self.sparse_attention and not self._drafts:
            raise UnsupportedCombinationError(
                "sparse_attention changes the model's rows, and this sequence's are computed: give it to llm.sequence()",
                "sparse_attention",
                "sequence",
            )
        if params.thinking_token_budget is not None and not self._drafts:
            raise UnsupportedCombinationError(
                "thinking_token_budget counts the tokens of a request: a sequence's tokens are your own, so count them there, or use"
                " generate",
                "thinking_token_budget",
                "sequence",
            )
        return params

    def _row(self, logits: object) -> F32:
        self._check_no_tree("sampled from")
        return self.logits if logits is None else self._given_logits(logits)

    def _drawn(self, params: SamplingParams, row: F32, memory: Memory | None = None) -> Drawn:
        """A row's processed distribution, and this position's draw from it, under resolved parameters. memory None: the sequence's own."""
        memory = self._draws.memory(self.token_ids) if memory is None else memory
        hooks, hook_state = None, memory.hooks
        output = ""
        if params.has_hooks() or self.llm._batch_runner is not None:
            output = self.output_text
            hooks = RequestHooks("sequence", params, self.text.removesuffix(output), self.llm._batch_runner)
            hooks.states[self._sample_index] = hook_state = memory.copy_for_hooks()
        seed = self.seed if params.seed is None else params.seed
        core = self.llm._builder.core_params(params, seed, self.llm.model_info.max_model_len)
        try:
            drawn = _core.law(
                self.llm._engine,
                core,
                row,
                token_ids=self.token_ids.tolist(),
                prompt_len=self.prompt_len,
                sample_index=self._sample_index,
                output_text=output,
                hooks=hooks,
                sampler_state=memory.sampler,
                allowed=self._allowed(params),
            )
        except _core.CoreError as error:
            if hooks is not None and hooks.error is not None:
                raise hooks.error from None
            if error.field == "KeyboardInterrupt":  # it came between two hooks
                raise KeyboardInterrupt from None
            raise from_core(error) from None
        return Drawn(drawn, hook_state)


def probabilities(drawn: Drawn, params: SamplingParams) -> F32:
    """The processed distribution, float32 [vocab_size]."""
    law = drawn.core.law
    if params.temperature == 0:
        point = np.zeros(len(law), np.float32)
        point[drawn.core.token_id] = 1.0
        return point
    result: F32 = np.exp(law - np.float32(_core.log_sum_exp(law)))
    return result


def open_sequence(
    llm: Session, prompt: object, seed: int | None, capture: Capture | None, steering: object = None, sparse_attention: object = None
) -> TokenSequence:
    """llm.sequence()."""
    sees = cast("Mapping[str, Any] | None", SAMPLING["sparse_attention"].parse(sparse_attention))
    if sees is None and isinstance(prompt, TokenSequence):
        sees = prompt.sparse_attention
    seed = parse(SEED, "seed", seed)
    own_steering = cast("Mapping[int, F32] | None", SAMPLING["steering"].parse(steering))
    if capture is not None and not isinstance(capture, Capture):
        raise InvalidParamsError(f"capture must be None or a Capture, not {show(capture)}", "capture")
    if isinstance(prompt, TokenSequence):
        if prompt.llm is not llm:
            prompt = prompt.token_ids
        elif capture is None and (own_steering is None or own_steering == prompt.steering) and sees == prompt.sparse_attention:
            child = prompt.fork()
            child.prompt_len, child._draws = len(child), Draws()  # what was drawn is prompt now, as in generate
            if seed is not None:
                child.seed = seed
            return child
    warn_of_markup([prompt], llm.tokenizer, stacklevel=4)
    text, ids = (prompt.text, prompt.token_ids.tolist()) if isinstance(prompt, TokenSequence) else tokenize(prompt, llm.tokenizer, "prompt")
    for token in ids:
        if token >= llm.model_info.vocab_size:
            raise InvalidParamsError(f"token id {token} is outside [0, {llm.model_info.vocab_size})", "prompt")
    if not ids and text == "" and llm.tokenizer.bos_token_id is not None:
        ids = [llm.tokenizer.bos_token_id]  # an empty text begins with beginning-of-text
    if isinstance(prompt, TokenSequence) and own_steering is None:
        own_steering = prompt.steering
    layers = capture_layers(capture or Capture(), llm.model_info.num_layers)
    core = _core.LabSequence(llm._engine, ids, *layers, core_steering(own_steering, llm._spec), core_view(sees))
    sequence = TokenSequence(llm, core, len(ids), secrets.randbits(64) if seed is None else seed, text, None)
    sequence.steering, sequence.sparse_attention = own_steering, sees
    return sequence


def _written(sequence: TokenSequence, end: int | None) -> str:
    """Its text up to a position, special tokens included."""
    return written(sequence.llm.tokenizer, sequence.token_ids[:end].tolist())


def _read_only(values: F32) -> F32:
    values.setflags(write=False)
    return values


def extend(tokens: Mapping[TokenSequence, Iterable[int] | TokenTree]) -> dict[TokenSequence, F32]:
    """Extends sequences of one or several LLMs, one forward for each LLM; see TokenSequence.extend.

    Parameters
    ----------
    tokens : {TokenSequence: list of int or TokenTree}
        What is appended to each. An empty list only computes what is missing for `logits`.

    Returns
    -------
    {TokenSequence: float32 array [num_new, vocab_size]}
        Raw logits after each new token.

    Raises
    ------
    InvalidParamsError, PromptTooLongError, OutOfMemoryError, EngineClosedError
        After an error all sequences are as before.

    Examples
    --------
    >>> sea, sky = llm.sequence("The sea"), llm.sequence("The sky")
    >>> rows = extend({sea: [33, 34], sky: [33]})
    >>> rows[sea].shape[0], rows[sky].shape[0]
    (2, 1)
    """
    _check_mapping(tokens)
    by_llm: dict[int, dict[TokenSequence, Any]] = {}
    for sequence, new in tokens.items():
        by_llm.setdefault(id(sequence.llm), {})[sequence] = new
    results: dict[TokenSequence, F32] = {}
    draws = {sequence: sequence._draws.copied() for sequence in tokens} if len(by_llm) > 1 else {}
    try:
        for group in by_llm.values():
            results |= _extend(next(iter(group)).llm, group)
    except LlmiError:  # all sequences are as before, those of another LLM too
        for sequence, rows in results.items():
            sequence.rollback(0 if sequence._core.has_tree else len(rows))
            sequence._draws = draws[sequence]
        raise
    return {sequence: results[sequence] for sequence in tokens}


def _check_mapping(tokens: object) -> None:
    if not isinstance(tokens, Mapping):
        raise InvalidParamsError(f"tokens must be a mapping {{sequence: tokens}}, not {show(tokens)}", "tokens")
    for sequence in tokens:
        if not isinstance(sequence, TokenSequence):
            raise InvalidParamsError(f"tokens must be a mapping {{sequence: tokens}}: {show(sequence)} is no TokenSequence", "tokens")


def _extend(llm: Session, tokens: Mapping[TokenSequence, Iterable[int] | TokenTree]) -> dict[TokenSequence, F32]:
    _check_mapping(tokens)
    wanted = []
    for sequence, new in tokens.items():
        if sequence.llm is not llm:
            raise InvalidParamsError("a sequence belongs to another LLM: use llmi.extend for several", "tokens")
        if sequence._core.is_closed:
            raise InvalidParamsError("a sequence in this call is closed", "tokens")
        is_tree = isinstance(new, TokenTree)
        ids = new.token_ids.tolist() if isinstance(new, TokenTree) else token_list(new, "tokens")
        parents = new.parents.tolist() if isinstance(new, TokenTree) else []
        wanted.append(
            _core.LabExtension(
                sequence=sequence._core,
                token_ids=ids,
                parents=parents,
                is_tree=is_tree and bool(ids),
                wants_last=not ids and sequence._logits is None,
            )
        )
    try:
        return _take_rows(tokens, wanted, call_core(_core.lab_extend, llm._engine, wanted))
    except LlmiError:  # the sequences are as before
        raise
    except BaseException:
        for sequence in tokens:
            sequence._forget()  # whatever was added or not: logits are computed again
        raise


def _take_rows(
    sequences: Iterable[TokenSequence], wanted: list[_core.LabExtension], results: list[_core.LabResult]
) -> dict[TokenSequence, F32]:
    rows: dict[TokenSequence, F32] = {}
    for sequence, result, extension in zip(sequences, results, wanted, strict=True):
        logits = result.logits
        rows[sequence] = logits if extension.token_ids else logits[:0]
        if len(logits) == 0:
            continue
        if extension.is_tree:
            sequence._forget()
            sequence._tree = result
            continue
        sequence._logits = logits[-1]
        sequence._hidden_states, sequence._attention = result.hidden_states, result.attention
        sequence._layer_logits = {layer: values[-1] for layer, values in result.layer_logits.items()}
    return rows
