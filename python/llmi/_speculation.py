"""Speculation: a drafter proposes tokens, the engine verifies them in one pass.

Under coupled verification the tokens are those of plain decoding, bit for bit, whatever a drafter proposes: a draft
can only change the speed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from llmi import _core
from llmi._errors import InvalidParamsError, LlmiError, UnsupportedCombinationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmi._llm import LLM
    from llmi._params import SamplingParams
    from llmi._request import Submission
    from llmi._sequence import TokenSequence

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
    I32 = NDArray[np.int32]

MAX_SPECULATIVE_TOKENS = 256


class TokenTree:
    """Tokens to try behind a sequence: a chain, or a tree.

    Parameters
    ----------
    token_ids : ids [num_nodes]
    parents : ints [num_nodes], optional
        parents[i] < i is the node before node i; -1 = after the last committed token. None: a chain.
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None) -> None:
        self.token_ids: I32 = np.asarray([int(token) for token in token_ids], np.int32)
        chain = np.arange(-1, len(self.token_ids) - 1, dtype=np.int32)
        self.parents: I32 = chain if parents is None else np.asarray([int(parent) for parent in parents], np.int32)
        if len(self.parents) != len(self.token_ids):
            raise InvalidParamsError(f"{len(self.parents)} parents for {len(self.token_ids)} tokens", "parents")

    @classmethod
    def from_paths(cls, paths: Iterable[Iterable[int]], max_nodes: int | None = None) -> TokenTree:
        """The tree of these paths: shared beginnings are merged, earlier paths first, cut to max_nodes nodes."""
        nodes: dict[tuple[int, int], int] = {}
        token_ids: list[int] = []
        parents: list[int] = []
        for path in paths:
            node = -1
            for token in path:
                key = (node, int(token))
                if key not in nodes:
                    if max_nodes is not None and len(token_ids) >= max_nodes:
                        break
                    nodes[key] = len(token_ids)
                    token_ids.append(int(token))
                    parents.append(node)
                node = nodes[key]
        return cls(token_ids, parents)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.token_ids.tolist()}, parents={self.parents.tolist()})"


class Draft(TokenTree):
    """A TokenTree with the laws that its tokens were drawn from.

    Parameters
    ----------
    draft_probs : arrays [num_nodes, vocab_size], optional
        Row i is the law that node i was drawn from, given its earlier siblings; None: point masses. Coupled
        verification does not need it.
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None, draft_probs: Any = None) -> None:
        super().__init__(token_ids, parents)
        self.draft_probs = draft_probs


class DraftContext:
    """One running sequence, as a drafter sees it.

    Attributes
    ----------
    request_id : str
    index : int
        Of the sample among n.
    token_ids : int32 array [len]
        Prompt and output so far.
    prompt_len : int
    num_speculative_tokens : int
        At most so many nodes may be proposed now.
    sampling_params : SamplingParams
        The request's, with its seed.
    state : any
        The drafter's own slot for this sequence; None at first.
    """

    def __init__(self, llm: LLM, submission: Submission, index: int) -> None:
        self.request_id = submission.hooks.request_id
        self.index = index
        self.token_ids: I32 = np.zeros(0, np.int32)
        self.prompt_len = 0
        self.num_speculative_tokens = 0
        self.sampling_params: SamplingParams = dataclasses.replace(submission.params, seed=submission.seed)
        self.state: Any = None
        self._llm = llm
        self._core_params = submission.core_params
        self._sequences: dict[int, TokenSequence] = {}
        self._round = 0  # of verification; 0: coupled, drafts share the target's noise

    def sequence(self, draft_llm: LLM) -> TokenSequence:
        """This request's own sequence on a draft model, in step with `token_ids`; closed with the request."""
        sequence = self._sequences.get(id(draft_llm))
        if sequence is None:
            sequence = draft_llm.sequence(self.token_ids, seed=self.sampling_params.seed)
            sequence._owned_by_drafter(self.prompt_len, self.index)
            self._sequences[id(draft_llm)] = sequence
        else:
            sequence.sync(self.token_ids)
        return sequence

    def draw(self, source: TokenSequence | F32, *, num_tokens: int = 1, path: Iterable[int] = ()) -> tuple[list[int], list[F32]]:
        """Siblings without replacement, as the target itself would draw them from these logits.

        Parameters
        ----------
        source : TokenSequence or array [vocab_size]
            Logits after this request's tokens and `path`; a sequence knows its path itself.
        num_tokens : int
        path : ids
            Drafted tokens between the request's last token and this position.

        Returns
        -------
        (token ids, rows)
            rows[i] [vocab_size]: the law that token i was drawn from, given its earlier siblings.
        """
        token_ids, law = self._law(source, path)
        drawn = _core.draw_siblings(law, self._core_params, len(token_ids), self.index, num_tokens, self._round)
        greedy = self.sampling_params.temperature == 0
        rows, probs = [], _softmax(law)
        for token in drawn:
            total = probs.sum()
            rows.append(_point(law, token) if greedy else probs / total)
            probs[token] = 0.0
        return drawn, rows

    def _law(self, source: TokenSequence | F32, path: Iterable[int]) -> tuple[list[int], F32]:
        from llmi._sequence import TokenSequence

        if isinstance(source, TokenSequence):
            token_ids, logits = source.token_ids.tolist(), source.logits
        else:
            token_ids, logits = [*self.token_ids.tolist(), *path], np.asarray(source, np.float32)
        vocab_size = self._llm.model_info.vocab_size
        if len(logits) != vocab_size:  # a padded head on either side
            padded = np.full(vocab_size, -np.inf, np.float32)
            padded[: len(logits)] = logits[:vocab_size]
            logits = padded
        law, _ = _core.law(self._llm._engine, self._core_params, token_ids, self.prompt_len, logits, None, self.index, "")
        return token_ids, law

    def _close(self) -> None:
        for sequence in self._sequences.values():
            sequence.close()


def _softmax(law: F32) -> F32:
    probs: F32 = np.exp(law - np.float32(_core.log_sum_exp(law)))
    return probs


def _point(law: F32, token: int) -> F32:
    probs = np.zeros(len(law), np.float32)
    probs[token] = 1.0
    return probs


Proposal = TokenTree | Iterable[int] | None


class Drafter:
    """Proposes tokens. Override `propose`, or `propose_batch` to see all sequences at once.

    Called between steps, on the engine's thread. It may run other LLMs, never its own (EngineBusyError). What it
    raises, or proposes wrongly, ends that request alone with a DraftError.
    """

    def propose(self, context: DraftContext) -> Proposal:
        """A Draft, a TokenTree, token ids, or None for no draft."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither propose nor propose_batch")

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        """One proposal for each context."""
        return [self.propose(context) for context in contexts]

    def observe(self, context: DraftContext, num_accepted: int, target_logprobs: F32) -> None:
        """After each verification, if overridden.

        Parameters
        ----------
        context : DraftContext
            As it was when the draft was proposed.
        num_accepted : int
            Depth to which the draft was accepted.
        target_logprobs : float32 array [num_nodes]
            The target's processed log-probability of each node's token; NaN where the walk did not come by.
        """

    def _attach(self, llm: LLM) -> None:
        """Called once for each LLM that uses this drafter; raises if they do not fit."""

    def _core(self) -> Any:
        """The core's own drafter, if this is one."""
        return None


class _Function(Drafter):
    def __init__(self, function: Callable[[DraftContext], Proposal]) -> None:
        self.function = function

    def propose(self, context: DraftContext) -> Proposal:
        return self.function(context)


class PromptLookup(Drafter):
    """Proposes what followed when the last tokens stood earlier in the prompt or the output.

    The longest n-gram first, the latest of several (Saxena, 2023). Free, and good where the output copies: summaries,
    questions over a text, code edits.

    Parameters
    ----------
    prompt_lookup_max, prompt_lookup_min : int
        Longest and shortest n-gram to look for, in tokens; 1 <= min <= max <= 64.
    """

    def __init__(self, prompt_lookup_max: int = 4, prompt_lookup_min: int = 1) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max <= 64:
            raise InvalidParamsError(
                f"1 <= prompt_lookup_min <= prompt_lookup_max <= 64 is needed, not {prompt_lookup_min} and {prompt_lookup_max}",
                "prompt_lookup_max",
            )
        self.prompt_lookup_max = prompt_lookup_max
        self.prompt_lookup_min = prompt_lookup_min

    def _core(self) -> Any:
        return _core.PromptLookup(self.prompt_lookup_min, self.prompt_lookup_max)

    def propose(self, context: DraftContext) -> list[int]:
        """The same from Python, for drafters that ask this one; an engine uses the core's own, which keeps its index."""
        ids: list[int] = self._core().propose(context.token_ids.tolist(), context.num_speculative_tokens)
        return ids

    def __repr__(self) -> str:
        return f"PromptLookup(prompt_lookup_max={self.prompt_lookup_max}, prompt_lookup_min={self.prompt_lookup_min})"


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts with the target's own noise, so that it often draws the same token.

    Parameters
    ----------
    model : LLM or path
        A path is loaded with `engine_args`.
    draft_sample_method : {"probabilistic", "greedy"}
        "probabilistic" draws under the target's temperature, filters and noise; "greedy" takes the likeliest token.
    """

    def __init__(
        self, model: Any, *, draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic", **engine_args: Any
    ) -> None:
        from llmi._llm import LLM

        if draft_sample_method not in ("probabilistic", "greedy"):
            raise InvalidParamsError("draft_sample_method must be 'probabilistic' or 'greedy'", "draft_sample_method")
        self.llm = model if isinstance(model, LLM) else LLM(model, **engine_args)
        self.draft_sample_method = draft_sample_method

    def _attach(self, llm: LLM) -> None:
        if llm is self.llm:
            raise UnsupportedCombinationError("a model cannot draft for itself: give DraftModel another LLM", "DraftModel", "LLM")
        ours, theirs = self.llm.tokenizer.vocab_bytes, llm.tokenizer.vocab_bytes
        shared = min(len(ours), len(theirs))  # heads are padded differently; what has text must agree
        if ours[:shared] != theirs[:shared] or any(ours[shared:]) or any(theirs[shared:]):
            raise UnsupportedCombinationError(
                "the draft model has another tokenizer than its target: token ids would mean other text", "DraftModel", "tokenizer"
            )

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        sequences = [context.sequence(self.llm) for context in contexts]
        drafts: list[list[int]] = [[] for _ in contexts]
        rows: dict[int, list[F32]] = {id(context): [] for context in contexts}
        self.llm.extend({sequence: [] for sequence in sequences})
        greedy = self.draft_sample_method == "greedy"
        while True:
            step = {}
            for context, sequence, draft in zip(contexts, sequences, drafts, strict=True):
                room = min(context.num_speculative_tokens, self.llm.model_info.max_model_len - len(context.token_ids))
                if len(draft) >= room:
                    continue
                _, law = context._law(sequence, ())
                position = len(context.token_ids) + len(draft)
                token = (
                    int(law.argmax())
                    if greedy
                    else _core.draw_siblings(law, context._core_params, position, context.index, 1, context._round)[0]
                )
                draft.append(token)
                if context._round:
                    rows[id(context)].append(_point(law, token) if greedy or context.sampling_params.temperature == 0 else _softmax(law))
                if len(draft) < room:
                    step[sequence] = [token]
            if not step:
                return [Draft(draft, None, rows[id(c)] if c._round else None) for c, draft in zip(contexts, drafts, strict=True)]
            self.llm.extend(step)

    def __repr__(self) -> str:
        return f"DraftModel({self.llm!r})"


class LengthPolicy(Protocol):
    """Chooses how many tokens to draft; may not look at drawn tokens."""

    def choose(self, acceptance: F32, cost_curve: F32, num_running: int) -> int:
        """A length.

        Parameters
        ----------
        acceptance : float32 array [32]
            Probability that the draft's token at each depth is accepted, given those before it were.
        cost_curve : float32 array [32]
            Seconds of a step of 1, 2, ... rows on this machine.
        num_running : int
            Sequences that run.
        """
        ...


class Verification:
    """How drafted tokens are accepted. The law of what is emitted can be enumerated: no random numbers inside.

    Override `accept_probability`, and `residual` if need be. Set `lossless = True` if the law stays the target's.
    """

    lossless: ClassVar[bool] = False

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        """Probability of accepting `token_id`, in [0, 1].

        Parameters
        ----------
        token_id : int
        target_probs : float64 array [vocab_size]
            The processed law at this position, and what earlier siblings left of it.
        draft_probs : float64 array [vocab_size]
            The law that the token was drawn from.
        """
        target, draft = float(target_probs[token_id]), float(draft_probs[token_id])
        return 1.0 if target >= draft else target / draft

    def residual(self, target_probs: F64, draft_probs: F64) -> F64:
        """What is left of the target after a rejection: by default the normalised positive part of target - draft."""
        left: F64 = np.maximum(target_probs - draft_probs, 0.0)
        total = left.sum()
        return left / total if total > 0 else left


class Typical(Verification):
    """Accepts what is typical of the target: probability above min(epsilon, delta exp(-entropy)) (Cai et al., Medusa, 2024).

    Lossy: likely tokens become likelier.
    """

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon <= 1 and delta > 0):
            raise InvalidParamsError(f"0 < epsilon <= 1 and 0 < delta are needed, not {epsilon} and {delta}", "epsilon")
        self.epsilon = epsilon
        self.delta = delta

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        kept = target_probs[target_probs > 0]
        entropy = float(-(kept * np.log(kept)).sum())
        return float(target_probs[token_id] > min(self.epsilon, self.delta * float(np.exp(-entropy))))


class VerificationRunner:
    """Between the core and a Verification: point masses become rows."""

    def __init__(self, verification: Verification) -> None:
        self._verification = verification

    def accept_probability(self, token_id: int, target: F64, draft: F32) -> float:
        """The rule's answer."""
        return float(self._verification.accept_probability(token_id, target, self._row(token_id, target, draft)))

    def residual(self, token_id: int, target: F64, draft: F32) -> F64:
        """The rule's residual."""
        return np.asarray(self._verification.residual(target, self._row(token_id, target, draft)), np.float64)

    def _row(self, token_id: int, target: F64, draft: F32) -> F64:
        if len(draft):
            return draft.astype(np.float64)
        row = np.zeros(len(target), np.float64)
        row[token_id] = 1.0
        return row


@dataclasses.dataclass
class SpeculativeConfig:
    """How a request speculates.

    Parameters
    ----------
    drafter : Drafter, callable, or a list of them
        Several propose one merged tree, earlier ones first.
    num_speculative_tokens : int, "auto", or LengthPolicy
        Most tokens in a draft. "auto" picks, at each step, the length with the most expected tokens per second from
        the measured cost of a step and the acceptance seen, down to none.
    verification : {"coupled", "rejection", "typical"} or Verification
        "coupled": the very tokens of plain decoding, at any temperature. "rejection": accepts with probability
        min(1, target / draft), else draws from what is left; the law is exactly the target's, the tokens depend on the
        drafter. "typical", and a Verification of your own, may change the law.
    """

    drafter: Any
    num_speculative_tokens: Any = "auto"
    verification: Any = "coupled"

    def __post_init__(self) -> None:
        drafters = self.drafter if isinstance(self.drafter, list | tuple) else [self.drafter]
        self._drafters = [_as_drafter(entry) for entry in drafters]
        if not self._drafters:
            raise InvalidParamsError("drafter is an empty list", "drafter")
        if self.verification == "typical":
            self.verification = Typical()
        if self.verification == "block" or getattr(type(self.verification), "verify", None) is not None:
            raise UnsupportedCombinationError(
                "block verification, and Verification.verify, are not available in this version of llmi: use 'rejection', or override"
                " accept_probability and residual", "verification", "LLM",
            )  # fmt: skip
        if self.verification not in ("coupled", "rejection") and not isinstance(self.verification, Verification):
            raise InvalidParamsError(
                f"verification must be 'coupled', 'rejection', 'typical' or a Verification, not {self.verification!r}", "verification"
            )
        length = self.num_speculative_tokens
        if isinstance(length, bool) or not (length == "auto" or isinstance(length, int) or hasattr(length, "choose")):
            raise InvalidParamsError(
                f"num_speculative_tokens must be a number, 'auto' or a LengthPolicy, not {length!r}", "num_speculative_tokens"
            )
        if isinstance(length, int) and not 1 <= length <= MAX_SPECULATIVE_TOKENS:
            raise InvalidParamsError(
                f"num_speculative_tokens must lie in [1, {MAX_SPECULATIVE_TOKENS}], not {length}", "num_speculative_tokens"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SpeculativeConfig:
        """vLLM's keys: method, model, num_speculative_tokens, prompt_lookup_max, prompt_lookup_min."""
        known = {"method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "verification"}
        if unknown := set(config) - known:
            raise InvalidParamsError(
                f"speculative_config has no key {sorted(unknown)[0]!r}: {', '.join(sorted(known))}", "speculative_config"
            )
        method = config.get("method", "draft_model" if config.get("model") not in (None, "ngram", "[ngram]") else "ngram")
        drafter: Drafter
        if method in ("ngram", "[ngram]", "prompt_lookup"):
            longest = int(config.get("prompt_lookup_max", 4))
            drafter = PromptLookup(longest, int(config.get("prompt_lookup_min", min(longest, 1))))
        elif method == "draft_model":
            if "model" not in config:
                raise InvalidParamsError("speculative_config: method 'draft_model' needs 'model'", "speculative_config")
            drafter = DraftModel(config["model"])
        else:
            raise UnsupportedCombinationError(
                f"speculative_config: method {method!r} is unknown: ngram or draft_model", "speculative_config", str(method)
            )
        return cls(drafter, config.get("num_speculative_tokens", "auto"), config.get("verification", "coupled"))


@dataclasses.dataclass(slots=True)
class SpecDecodeMetrics:
    """What speculation did for one continuation.

    `acceptance_rate` is accepted / drafted; `mean_acceptance_length` is 1 + accepted / drafts: tokens per verifying
    step. `num_accepted_tokens_per_pos[i]` counts drafts whose token at depth i + 1 was accepted.
    """

    drafter: str
    verification: str
    lossless: bool
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    acceptance_rate: float
    mean_acceptance_length: float
    draft_time_s: float
    verify_time_s: float


def _as_drafter(entry: Any) -> Drafter:
    if isinstance(entry, str):
        return _by_name(entry)
    if isinstance(entry, Drafter):
        return entry
    if isinstance(entry, type) or not callable(entry):
        raise InvalidParamsError(f"a drafter is a Drafter or a function of a DraftContext, not {entry!r:.80}", "drafter")
    return _Function(entry)


def _by_name(name: str) -> Drafter:
    """A drafter that a package registered under the entry point group llmi.drafters: a class or function without arguments."""
    from importlib.metadata import entry_points

    if name == "prompt_lookup":
        return PromptLookup()
    found = entry_points(group="llmi.drafters")
    for point in found:
        if point.name == name:
            return _as_drafter(point.load()())
    known = ", ".join(sorted({"prompt_lookup", *(point.name for point in found)}))
    raise InvalidParamsError(f"no drafter is called {name!r}: {known}", "drafter")


def parse_speculation(value: Any) -> SpeculativeConfig | None:
    """Whatever a user may give as speculative_config."""
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, Mapping):
        return SpeculativeConfig.from_dict(value)
    return SpeculativeConfig(value)


def drafter_name(drafter: Drafter) -> str:
    """A drafter's name in reports."""
    if isinstance(drafter, _Function):
        return getattr(drafter.function, "__name__", "function")
    return type(drafter).__name__


class DrafterRunner:
    """Between the core and one Python drafter: keeps a DraftContext for each sequence, catches what goes wrong."""

    def __init__(self, llm: LLM, drafter: Drafter) -> None:
        self._llm = weakref.ref(llm)
        self._drafter = drafter
        self.submissions: weakref.WeakValueDictionary[int, Submission] = weakref.WeakValueDictionary()
        self._contexts: dict[tuple[int, int], DraftContext] = {}
        self._batched = type(drafter).propose_batch is not Drafter.propose_batch
        self.wants_observe = type(drafter).observe is not Drafter.observe

    def propose(self, wanted: list[tuple[Any, ...]]) -> list[tuple[list[int], list[int] | None, str | None, Any]]:
        """For each (request id, index, token ids, prompt length, most nodes, round, wants laws): (ids, parents, message, rows)."""
        contexts: list[DraftContext | None] = [self._context(*entry) for entry in wanted]
        present = [context for context in contexts if context is not None]
        proposals: dict[int, Any] = {}
        if self._batched and present:
            try:
                answers = self._drafter.propose_batch(present)
                if len(answers) != len(present):
                    raise LlmiError(f"propose_batch returned {len(answers)} proposals for {len(present)} contexts")
                proposals = {id(context): answer for context, answer in zip(present, answers, strict=True)}
            except Exception as error:
                for context in present:
                    self._fail(context, error)
                return [([], None, self._message(error), None) for _ in wanted]
        results: list[tuple[list[int], list[int] | None, str | None, Any]] = []
        for entry in contexts:
            if entry is None:  # its call was dropped: nobody waits for it
                results.append(([], None, None, None))
                continue
            try:
                proposal = proposals[id(entry)] if self._batched else self._drafter.propose(entry)
                results.append((*_plain(proposal), None, _rows(proposal, entry) if entry._round else None))
            except Exception as error:
                self._fail(entry, error)
                results.append(([], None, self._message(error), None))
        return results

    def observe(self, request_id: int, index: int, num_accepted: int, target_logprobs: F32) -> None:
        """What became of a sequence's last draft."""
        context = self._contexts.get((request_id, index))
        if context is None:
            return
        try:
            self._drafter.observe(context, num_accepted, target_logprobs)
        except Exception as error:
            self._fail(context, error)
            raise

    def forget(self, request_id: int, index: int) -> None:
        """The sequence has ended."""
        context = self._contexts.pop((request_id, index), None)
        if context is not None:
            context._close()

    def _context(
        self, request_id: int, index: int, token_ids: I32, prompt_len: int, num_nodes: int, round: int, wants_laws: bool
    ) -> DraftContext | None:
        context = self._contexts.get((request_id, index))
        if context is None:
            submission, llm = self.submissions.get(request_id), self._llm()
            if submission is None or llm is None:
                return None
            context = self._contexts[request_id, index] = DraftContext(llm, submission, index)
            first = self._contexts.get((request_id, 0))
            context.state = copy.deepcopy(first.state) if first is not None and index else None
        context.token_ids, context.prompt_len, context.num_speculative_tokens = token_ids, prompt_len, num_nodes
        context._round = round if wants_laws else 0
        return context

    def _fail(self, context: DraftContext, error: Exception) -> None:
        submission = self.submissions.get(int(context.request_id))
        if submission is not None:
            submission.hooks.error = error
            submission.hooks.failed_hook = drafter_name(self._drafter)
            submission.hooks.failed_in_drafter = True

    def _message(self, error: Exception) -> str:
        return f"{drafter_name(self._drafter)} raised {type(error).__name__}: {error}"


def _plain(proposal: Any) -> tuple[list[int], list[int] | None]:
    """(ids, parents or None) of what a drafter returned."""
    if proposal is None:
        return [], None
    if isinstance(proposal, TokenTree):
        return proposal.token_ids.tolist(), proposal.parents.tolist()
    ids = np.asarray(list(proposal) if not isinstance(proposal, np.ndarray) else proposal)
    if ids.size == 0:
        return [], None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"a proposal is a flat list of token ids, not {inspect.cleandoc(repr(proposal))[:80]}")
    return [int(token) for token in ids], None


def _rows(proposal: Any, context: DraftContext) -> list[F32] | None:
    """draft_probs as dense rows; None: point masses."""
    rows = getattr(proposal, "draft_probs", None)
    if rows is None:
        return None
    vocab_size = context._llm.model_info.vocab_size
    if isinstance(rows, tuple) and len(rows) == 2:  # ids and probs [num_nodes, m]
        dense = np.zeros((len(rows[0]), vocab_size), np.float32)
        np.put_along_axis(dense, np.asarray(rows[0], np.int64), np.asarray(rows[1], np.float32), axis=1)
        return list(dense)
    return [np.asarray(row, np.float32) for row in rows]


class SpeculationFactory:
    """Builds the core's configurations for one LLM; one core drafter for each Python one, so that calls are batched."""

    def __init__(self, llm: LLM) -> None:
        self._llm = weakref.ref(llm)
        self._built: dict[int, tuple[object, Any, DrafterRunner | None]] = {}  # by identity; the key object is kept alive

    def check(self, config: SpeculativeConfig) -> None:
        """Raises if a drafter does not fit this LLM."""
        llm = self._llm()
        assert llm is not None
        for drafter in config._drafters:
            drafter._attach(llm)

    def build(self, config: SpeculativeConfig, submission: Submission, request_id: int) -> Any:
        """The core's SpeculationConfig for one request."""
        parts = []
        for drafter in config._drafters:
            core, runner = self._core_drafter(drafter)
            if runner is not None:
                runner.submissions[request_id] = submission
            parts.append(core)
        combined = parts[0] if len(parts) == 1 else self._union(config, parts)
        length = config.num_speculative_tokens
        custom = isinstance(config.verification, Verification)
        return _core.SpeculationConfig(
            combined, length if isinstance(length, int) else -1, None if isinstance(length, int | str) else length,
            "custom" if custom else config.verification, VerificationRunner(config.verification) if custom else None,
        )  # fmt: skip

    def _union(self, config: SpeculativeConfig, parts: list[Any]) -> Any:
        if id(config) not in self._built:
            self._built[id(config)] = (config, _core.UnionDrafter(parts), None)
        return self._built[id(config)][1]

    def _core_drafter(self, drafter: Drafter) -> tuple[Any, DrafterRunner | None]:
        known = self._built.get(id(drafter))
        if known is not None:
            return known[1], known[2]
        core, runner = drafter._core(), None
        if core is None:
            llm = self._llm()
            assert llm is not None
            runner = DrafterRunner(llm, drafter)
            core = _core.PyDrafter(runner, drafter_name(drafter))
        self._built[id(drafter)] = (drafter, core, runner)
        return core, runner


def spec_metrics(config: SpeculativeConfig, counts: tuple[int, int, int, list[int], float, float]) -> SpecDecodeMetrics:
    """From the core's counts."""
    num_drafts, num_draft_tokens, num_accepted, per_position, draft_time_s, verify_time_s = counts
    return SpecDecodeMetrics(
        drafter="+".join(drafter_name(drafter) for drafter in config._drafters),
        verification=config.verification if isinstance(config.verification, str) else type(config.verification).__name__,
        lossless=isinstance(config.verification, str) or config.verification.lossless,
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted,
        num_accepted_tokens_per_pos=per_position,
        acceptance_rate=num_accepted / num_draft_tokens if num_draft_tokens else float("nan"),
        mean_acceptance_length=1 + num_accepted / num_drafts if num_drafts else float("nan"),
        draft_time_s=draft_time_s,
        verify_time_s=verify_time_s,
    )
