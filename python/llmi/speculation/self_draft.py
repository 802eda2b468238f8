"""SelfDraft: a cheaper form of the target drafts for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import Listed, Maybe, Whole, parse
from llmi.base.opening import open_llm
from llmi.base.travel import Alike
from llmi.engine.options import ACTIVATION_BITS, ENGINE
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.speculation.context import DraftContext
from llmi.speculation.draft_model import DRAFT_BITS, SHORTLIST, DraftModel, checked_shortlist

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_MIN_KV_BYTES = 1 << 26


class SelfDraft(Alike, DraftModel):
    """The target's own weights, with layers left out or at lower bits, draft with the target's noise. Give exactly one.

    The draft model is loaded from the target's file at the first use with the target; it is an engine of its own, with its own cache.
    Leaving layers out follows Zhang et al., Draft & Verify, 2024; leaving early, Elhoushi et al., LayerSkip, 2024.

    Parameters
    ----------
    skip_layers : iterable of int, optional
        Layers that are left out.
    exit_layer : int, optional
        How many of the first layers run, before the final norm and head.
    quantization : {"q8_0", "q4_0"}, optional
        The same layers at lower bits (see LLM).
    shortlist : int, optional
        See DraftModel.
    activation_bits : {8, 16}
        Of the draft's quantised layers (see LLM), whatever the target has: 8 draft faster, and the target's own verification decides.

    Examples
    --------
    >>> params = SamplingParams(max_tokens=8, seed=1)
    >>> llm.generate("The sea", params, speculative_config=SelfDraft(exit_layer=1)).texts == llm.generate("The sea", params).texts
    True
    """

    expected_acceptance = 0.8

    def __init__(
        self,
        *,
        skip_layers: Iterable[int] | None = None,
        exit_layer: int | None = None,
        quantization: str | None = None,
        shortlist: int | None = SHORTLIST,
        activation_bits: int = DRAFT_BITS,
    ) -> None:
        given = {"skip_layers": skip_layers, "exit_layer": exit_layer, "quantization": quantization}
        if sum(value is not None for value in given.values()) != 1:
            raise InvalidParamsError("SelfDraft needs exactly one of skip_layers, exit_layer and quantization", "skip_layers")
        layers = parse(Maybe(Listed(Whole(0, 2**31 - 1), "a list of layers", 1 << 16)), "skip_layers", skip_layers)
        self.skip_layers: list[int] | None = None if layers is None else sorted(set(layers))
        self.exit_layer: int | None = parse(Maybe(Whole(1, 2**31 - 1)), "exit_layer", exit_layer)
        self.quantization: str | None = ENGINE["quantization"].parse(quantization)
        self.draft_sample_method = "probabilistic"
        self.shortlist = checked_shortlist(shortlist)
        self.activation_bits: int = ACTIVATION_BITS.parse("activation_bits", activation_bits)
        self._target: tuple[Any, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Its arguments: in another process it loads a model of its own."""
        arguments = {name: value for name, value in self.__dict__.items() if name not in ("llm", "_listed")}
        return {**arguments, "_target": None}

    def propose_batch(self, contexts: list[DraftContext]) -> list[Any]:
        if self._target is None:
            raise UnsupportedCombinationError("this SelfDraft has no model so far: generate with it once first", "SelfDraft", "arena")
        return super().propose_batch(contexts)

    def _steering_of(self, context: DraftContext) -> Mapping[int, F32] | None:
        """The request's own, each vector after the last layer that the draft has up to its place."""
        given = context.sampling_params.steering
        if given is None:
            return None
        result: dict[int, F32] = {}
        num_layers = context._llm.model_info.num_layers
        kept = self._kept(num_layers) if self.quantization is None else range(num_layers)
        for layer, vector in given.items():
            place = sum(index < (num_layers if layer == -1 else layer) for index in kept)
            result[place] = np.asarray(vector, np.float32) + result.get(place, np.float32(0))
        return result

    def _attach(self, llm: Session) -> None:
        args = llm._engine_args
        target = (llm.model_info.path, args.dtype, args.quantization, args.kv_cache_dtype, args.hf_overrides)
        if self._target == target:
            return
        if self._target is not None:
            raise UnsupportedCombinationError("this SelfDraft belongs to another model: make one for each", "SelfDraft", "LLM")
        self.llm = self._load(llm)
        self._target = target

    def _load(self, llm: Session) -> Session:
        layers = self._kept(llm.model_info.num_layers)
        kv_bytes = llm.memory_report().kv_bytes * len(layers) // llm.model_info.num_layers
        same = llm._engine_args.same_bits() | {"activation_bits": self.activation_bits}
        if self.quantization:
            same |= {"dtype": "auto", "quantization": self.quantization, "linear_dtype": "auto", "deterministic": True}
        draft = open_llm(
            llm.model_info.path,
            tokenizer=llm.tokenizer,
            **same,
            max_model_len=llm.model_info.max_model_len,
            kv_cache_memory_bytes=max(kv_bytes, _MIN_KV_BYTES),
            _layers=layers if self.quantization is None else (),
            _files=llm._files,
        )
        if self.quantization is not None and draft.model_info.weight_bytes >= llm.model_info.weight_bytes:
            sizes = f"{draft.model_info.weight_bytes / 1e6:.0f} MB, the target {llm.model_info.weight_bytes / 1e6:.0f} MB"
            draft.close()
            raise UnsupportedCombinationError(
                f"quantization={self.quantization!r} makes this model no smaller: the draft would have {sizes}", "SelfDraft", "quantization"
            )
        return draft

    def _kept(self, num_layers: int) -> list[int]:
        if self.exit_layer is not None:
            if not 1 <= self.exit_layer < num_layers:
                raise InvalidParamsError(f"exit_layer must lie in [1, {num_layers - 1}], not {self.exit_layer}", "exit_layer")
            return list(range(self.exit_layer))
        skipped = self.skip_layers or []
        if wrong := [layer for layer in skipped if not 0 <= layer < num_layers]:
            raise InvalidParamsError(f"skip_layers holds {wrong[0]}: the model has layers 0 to {num_layers - 1}", "skip_layers")
        kept = [layer for layer in range(num_layers) if layer not in skipped]
        if not kept:
            raise InvalidParamsError("skip_layers leaves no layer", "skip_layers")
        return kept

    def __repr__(self) -> str:
        given = [name for name in ("skip_layers", "exit_layer", "quantization") if getattr(self, name) is not None]
        given += ["activation_bits"] if self.activation_bits != DRAFT_BITS else []
        return f"SelfDraft({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"
