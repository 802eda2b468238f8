"""User code inside the step loop: logits processors, stopping criteria, custom samplers."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from llmi import _core
from llmi.base.kinds import TOKEN_ID_LIMIT, Whole, plain, show
from llmi.errors import ConstraintError, HookError, NonFiniteLogitsError, UnsupportedCombinationError
from llmi.hooks.constraint import ConstraintMasks, NothingAllowedError
from llmi.params.options import Streamer, is_streamer
from llmi.params.sampling import SAMPLING, SamplingParams, TokenContext
from llmi.params.structured import StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

else:
    from llmi.base.lazy_numpy import np


def _own_form(hook: Any) -> Any:  # Any: which of the forms below it has, its classes' names say
    """Instances of transformers' LogitsProcessor, StoppingCriteria and of streamers are called their way; all else as it is."""
    names = {f"{base.__module__.split('.')[0]}.{base.__name__}" for base in type(hook).__mro__}
    if "transformers.LogitsProcessor" in names:
        return _TransformersProcessor(hook)
    if "transformers.StoppingCriteria" in names:
        return _TransformersCriterion(hook)
    if "transformers.BaseStreamer" in names or (is_streamer(hook) and not callable(hook)):
        return _TransformersStreamer(hook)
    return hook


def _torch() -> Any:
    """An attribute exists if its hook does; by name, so that a type checker of a program that imports llmi does not read it all."""
    return importlib.import_module("torch")


class _Tensor(Protocol):
    def __getitem__(self, index: int) -> _Tensor: ...
    def all(self) -> object: ...
    def numpy(self) -> NDArray[np.float32]: ...


class _TransformersProcessor:
    """A transformers LogitsProcessor: (input_ids [1, len], scores [1, vocab]) to scores, as tensors."""

    def __init__(self, hook: Callable[[object, object], _Tensor]) -> None:
        self.hook = hook
        self.__name__ = type(hook).__name__

    def __call__(self, context: TokenContext, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        torch = _torch()
        scores = self.hook(torch.from_numpy(context.token_ids.astype(np.int64))[None], torch.from_numpy(logits)[None])
        return scores[0].numpy()


class _TransformersCriterion:
    """A transformers StoppingCriteria: (input_ids [1, len], scores [1, vocab]) to a boolean, or one for each row."""

    def __init__(self, hook: Callable[[object, object], bool | _Tensor]) -> None:
        self.hook = hook
        self.__name__ = type(hook).__name__

    def __call__(self, context: TokenContext) -> bool:
        torch = _torch()
        verdict = self.hook(torch.from_numpy(context.token_ids.astype(np.int64))[None], torch.from_numpy(context.logits)[None])
        return bool(verdict if isinstance(verdict, bool) else verdict.all())


def shared_streamer(resolved: Iterable[Any]) -> str | None:
    """The name of a streamer that several prompts' parameters hold; None if there is none."""
    seen: set[int] = set()
    for entry in resolved:
        for hook in getattr(getattr(entry, "params", None), "stopping_criteria", ()):
            if is_streamer(hook) and id(hook) in seen:
                return type(hook).__name__
            seen.add(id(hook))
    return None


class _TransformersStreamer:
    """A transformers BaseStreamer among the stopping criteria: put(prompt), put(token) for each, end()."""

    def __init__(self, streamer: Streamer) -> None:
        self.streamer = streamer
        self.__name__ = type(streamer).__name__
        self._begun = False

    def __call__(self, context: TokenContext) -> bool:
        torch = _torch()
        ids = context.token_ids.astype(np.int64)
        if not self._begun:
            self._begun = True
            self.streamer.put(torch.from_numpy(ids[None, : context.prompt_len]))
        self.streamer.put(torch.from_numpy(ids[-1:]))
        return False


def _row(result: object, vocab_size: int) -> NDArray[np.float32]:
    """What a logits processor returned, as float32 [vocab_size]."""
    row = np.asarray(result)
    if row.dtype.kind not in "iuf":
        raise HookError(f"a logits processor returns None or an array of numbers, not {show(result)}")
    if row.shape != (vocab_size,):
        raise HookError(f"a logits processor returned an array of shape {list(row.shape)}, not [vocab_size] = [{vocab_size}]")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused next
        return np.ascontiguousarray(row, dtype=np.float32)


def _check_row(logits: NDArray[np.float32]) -> None:
    """Raises for NaN and infinity, which no distribution can be made of; -inf bans."""
    largest = logits.max()
    if not largest < np.inf:
        raise NonFiniteLogitsError("a logits processor left NaN or infinity among the logits", "request", "logits_processors")


def _token(drawn: object, vocab_size: int) -> int:
    """What a sampler returned, as a token id."""
    try:
        token = Whole(-TOKEN_ID_LIMIT, TOKEN_ID_LIMIT).parse("token", drawn)
    except ValueError:
        raise HookError(f"a sampler returns a token id, an integer, not {show(drawn)}") from None
    if not 0 <= token < vocab_size:
        raise HookError(f"a sampler returned token id {token}, outside [0, {vocab_size})")
    return token


def _reason(verdict: object) -> str | None:
    """What a stopping criterion returned: its reason, "" for True, None to go on."""
    verdict = plain(verdict)
    if isinstance(verdict, str):
        return verdict or None
    if verdict is None or isinstance(verdict, bool):
        return "" if verdict else None
    raise HookError(f"a stopping criterion returns True, False or a string, not {show(verdict)}")


class BatchLogitsProcessor(Protocol):
    """An engine-wide processor: `LLM(batch_processors=[...])`, for every request, after penalties and before its own ones.

    Examples
    --------
    >>> class NoEven:
    ...     "Bans even token ids."
    ...     def apply(self, contexts, logits):
    ...         logits[:, ::2] = -np.inf
    >>> with LLM(llmi.testing.tiny_model(), batch_processors=[NoEven()], kv_cache_memory_bytes=1 << 24) as odd:
    ...     output = odd.generate("The sea is", max_tokens=8, seed=1)[0]
    >>> {token % 2 for token in output.token_ids}
    {1}
    """

    def apply(self, contexts: list[TokenContext], logits: NDArray[np.float32]) -> None:
        """Changes logits [num_rows, vocab_size] in place; row i is contexts[i]'s.

        Which rows come together is chance: they must not influence each other.
        """
        ...


class BatchRunner:
    """Between the core and the engine-wide processors."""

    def __init__(self, processors: Iterable[BatchLogitsProcessor]) -> None:
        self._processors = list(processors)

    def apply(self, entries: list[_core.HookRow], logits: NDArray[np.float32], before: NDArray[np.float32]) -> list[str | None]:
        """A message for each row of logits that failed, None for the others. before: a copy of logits.

        If a processor raises, the rows are tried one by one, so that only its own requests end.
        """
        rows = [(row.hooks, row.hooks._context(row, logits[i])) for i, row in enumerate(entries)]
        states = [copy.deepcopy(context.state) for _, context in rows]
        try:
            self._apply(rows, logits)
            return [None] * len(rows)
        except BaseException as error:
            logits[:] = before
            del before  # its memory is valid only during this call, so no traceback may keep it
            for (_, context), state in zip(rows, states, strict=True):
                context.state.clear()
                context.state.update(state)
            if isinstance(error, KeyboardInterrupt):  # meant for some of the requests: the core asks again, for each alone
                raise
        messages: list[str | None] = []
        for i, row in enumerate(rows):
            try:
                self.apply_to([row], logits[i : i + 1])
                messages.append(None)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                messages.append(f"{type(error).__name__}: {error}")
        return messages

    def apply_to(self, rows: list[tuple[RequestHooks, TokenContext]], logits: NDArray[np.float32]) -> None:
        """All processors on rows that fail together."""
        try:
            self._apply(rows, logits)
        except BaseException as error:
            for hooks, _ in rows:
                hooks.error = error
                hooks.failed_hook = "a batch processor"
            raise

    def _apply(self, rows: list[tuple[RequestHooks, TokenContext]], logits: NDArray[np.float32]) -> None:
        contexts = [context for _, context in rows]
        for processor in self._processors:
            result = processor.apply(contexts, logits)  # type: ignore[func-returns-value]
            if result is not None and result is not logits:
                raise HookError(f"{type(processor).__name__}.apply returned {show(result)}: it changes logits in place and returns None")


class RequestHooks:
    """The hooks of one request, called by the core on the engine thread, in the order of plain decoding.

    An exception is kept in `error` and ends the request alone.
    """

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        prompt_text: str,
        batch: BatchRunner | None = None,
        constraint: ConstraintMasks | None = None,
    ) -> None:
        self.batch = batch
        self.request_id = request_id
        self.params = params
        self.prompt_text = prompt_text
        self.processors: list[Any] = [_own_form(hook) for hook in SAMPLING["logits_processors"].parse(params.logits_processors)]
        self.constraint = constraint
        self.criteria: list[Any] = [_own_form(hook) for hook in SAMPLING["stopping_criteria"].parse(params.stopping_criteria)]
        self._streamers = [criterion for criterion in self.criteria if isinstance(criterion, _TransformersStreamer)]
        if self._streamers and params.n > 1:
            raise UnsupportedCombinationError("a streamer takes one continuation: n must be 1", "n", self._streamers[0].__name__)
        self.sampler = params.sampler
        self.states: dict[int, dict[str, Any]] = {}
        self.error: BaseException | None = None
        self.failed_hook = ""
        self.failed_in_drafter = False
        self.drops_beams = False  # where nothing is allowed a beam ends, not the request
        self.dropped: ConstraintError | None = None  # why the last one did
        self._ended = False

    @property
    def has_processors(self) -> bool:
        return bool(self.processors) or self.batch is not None

    @property
    def has_code_of_user(self) -> bool:
        """Whether Python of the caller takes part: not a grammar, which StructuredOutputsParams describe whole."""
        declared = isinstance(self.params.structured_outputs, StructuredOutputsParams)
        return bool(self) or (self.constraint is not None and not declared)

    @property
    def has_sampler(self) -> bool:
        return self.sampler is not None

    @property
    def has_criteria(self) -> bool:
        return bool(self.criteria)

    def __bool__(self) -> bool:
        return self.has_processors or self.has_sampler or self.has_criteria

    def _context(self, row: _core.HookRow, logits: NDArray[np.float32]) -> TokenContext:
        if row.slot not in self.states:
            self.states[row.slot] = {}
        text = row.output_text.decode("utf-8", "replace")
        return TokenContext(
            request_id=self.request_id,
            index=row.sample_index,
            token_ids=row.token_ids,
            prompt_len=row.prompt_len,
            text=self.prompt_text + text,
            output_text=text,
            logits=logits,
            sampling_params=self.params,
            state=self.states[row.slot],
        )

    def process(self, row: _core.HookRow, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """All processors in turn; returns the row of logits. row.batched: the engine-wide processors have had it."""
        context = self._context(row, logits)
        if self.batch is not None and not row.batched:
            self.batch.apply_to([(self, context)], logits[None])
        for processor in self.processors:
            try:
                result = processor(context, logits)
                if result is not None:
                    logits = _row(result, len(logits))
                    context.logits = logits
                _check_row(logits)
            except BaseException as error:
                self._fail(processor, error)
                raise
        return logits

    @property
    def core_constraint(self) -> object:
        """What the core makes the request's constraints of: a grammar's matcher, these hooks with a Constraint in Python, or None."""
        if self.constraint is None:
            return None
        template = self.constraint.constraint._template
        return self if template is None else template

    def constraint_step(self, state: object, tokens: list[int], vocab_size: int) -> tuple[object, NDArray[np.uint32]]:
        """(the state after more tokens, the mask of the next one: a bit for each). state: None before the first token."""
        assert self.constraint is not None
        try:
            state = self.constraint.after(state, tokens)
            return state, self.constraint.words(state, vocab_size)
        except NothingAllowedError as error:
            if self.drops_beams:
                self.dropped = error
                return state, np.zeros((vocab_size + 31) // 32, np.uint32)
            self._fail(self.constraint, error)
            raise
        except BaseException as error:
            self._fail(self.constraint, error)
            raise

    def constraint_accepts(self, state: object, tokens: list[int]) -> bool:
        """Whether the text may end after more tokens."""
        assert self.constraint is not None
        return self.constraint.accepts(self.constraint.after(state, tokens))

    def constraint_copy(self, state: object) -> object:
        """The state for another path."""
        return ConstraintMasks.copied(state)

    def sample(self, row: _core.HookRow, law: NDArray[np.float32]) -> int:
        """The custom sampler's token."""
        assert self.sampler is not None
        context = self._context(row, law)
        try:
            return _token(self.sampler(context, law), len(law))
        except BaseException as error:
            self._fail(self.sampler, error)
            raise

    def should_stop(self, row: _core.HookRow, logits: NDArray[np.float32]) -> str | None:
        """The reason of the first criterion that stops, or "" for True; None to go on. All of them see every token, as in transformers."""
        context = self._context(row, logits)
        first: str | None = None
        for criterion in self.criteria:
            try:
                reason = _reason(criterion(context))
            except BaseException as error:
                self._fail(criterion, error)
                raise
            first = reason if first is None else first
        return first

    def end(self) -> None:
        """The request is over: streamers are told, once, on the caller's thread."""
        if self._ended:
            return
        self._ended = True
        for streamer in self._streamers:
            try:
                streamer.streamer.end()
            except Exception as error:
                warnings.warn(f"{streamer.__name__}.end() raised {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)

    def copy_state(self, from_slot: int, to_slot: int) -> None:
        """A trial begins: processors meet tokens that may not be emitted, on a copy of their state."""
        self.states[to_slot] = copy.deepcopy(self.states.get(from_slot, {}))

    def end_trials(self) -> None:
        """All trials are over; theirs are the negative slots."""
        self.states = {slot: state for slot, state in self.states.items() if slot >= 0}

    def _fail(self, hook: object, error: BaseException) -> None:
        self.error = error
        self.failed_hook = getattr(hook, "__name__", type(hook).__name__)
