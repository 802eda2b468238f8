"""Receipts: everything that an output is a function of, so that another machine can check it bit for bit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from llmi.base.kinds import Place, parse, show
from llmi.base.opening import is_llm, open_llm
from llmi.engine.numerics_id import promises_bits, where_it_runs
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.models.catalogue import NAMED_MODELS
from llmi.models.input_file import MAX_VOCABULARY_BYTES, parse_json, read_text
from llmi.outputs.completion import CompletionOutput, Logprob
from llmi.outputs.receipt_check import ReceiptCheck, digest_of, digests_by_position, results_of
from llmi.params.beams import BEAM_FIELDS, BeamSearchParams
from llmi.params.overrides import overrides_text
from llmi.params.sampling import FIELDS, HOOKS, SAMPLING, SamplingParams
from llmi.params.steering import of_json

if TYPE_CHECKING:
    from llmi.session import Session

#: 1 left out parameters at their default, the prompt's log-probabilities, and why an output ended; such receipts are still read.
FORMAT = 2


class Answer(Protocol):
    """The parts of a RequestOutput that its receipt holds."""

    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    seed: int
    numerics_id: str
    _receipt_source: dict[str, Any]


@dataclasses.dataclass
class Receipt:
    """What an output is a function of, and what came out.

    Attributes
    ----------
    fields : dict
        Strict JSON: numbers that it lacks are "inf", "-inf" and "nan".

    Examples
    --------
    >>> output = llm.generate("The sea is", max_tokens=8, seed=1)[0]
    >>> output.receipt().save("answer.json")
    >>> print(Receipt.load("answer.json").verify(llm))
    identical, bit for bit
    """

    fields: dict[str, Any]

    @classmethod
    def of(cls, output: Answer) -> Receipt:
        """The receipt of a finished output. Hooks are Python and cannot be replayed: they are refused."""
        import llmi  # noqa: PLC0415 (names of the package are loaded when they are read)

        source = output._receipt_source
        if source.get("hooks"):
            raise UnsupportedCombinationError("an output that Python hooks took part in has no receipt", "receipt", "hooks")
        if source.get("chosen"):
            raise UnsupportedCombinationError(
                "best_of left out continuations: take the receipt of the output that it chose from", "receipt", "best_of"
            )
        if source.get("delta"):
            raise UnsupportedCombinationError(
                "an output of output_kind='delta' holds only what is new: take the receipt of the stream's whole()",
                "receipt",
                "output_kind",
            )
        if not promises_bits(output.numerics_id):
            raise UnsupportedCombinationError(
                "deterministic = False does not promise the same tokens again: its outputs have no receipt", "receipt", "deterministic"
            )
        if source.get("verification", "coupled") != "coupled":
            raise UnsupportedCombinationError(
                "an output's tokens depend on the drafter unless verification is 'coupled': it has no receipt", "receipt", "verification"
            )
        if not output.finished or any(completion.finish_reason in ("abort", "error") for completion in output.outputs):
            raise UnsupportedCombinationError("an output that did not come to its own end has no receipt", "receipt", "finish_reason")
        return cls(
            {
                "format": FORMAT,
                "llmi_version": llmi.__version__,
                "model": Path(source["model_path"]).name,
                "model_sha256": source["model_sha256"](),
                "dtype": source["dtype"],
                "quantization": source["quantization"],
                "kv_cache_dtype": source["kv_cache_dtype"],
                "hf_overrides": json.loads(source["hf_overrides"] or "{}"),
                "family": source["spec"].family,
                "spec_sha256": source["spec"].digest(),
                **({"max_model_len": source["max_model_len"]} if source["spec"].rope_choice else {}),
                "numerics_id": output.numerics_id,
                "eos_token_ids": source["eos_token_ids"],
                "prompt_token_ids": output.prompt_token_ids,
                "sampling_params": source["params"],
                "seed": output.seed,
                "outputs": results_of(output, FORMAT),
                "logprob_digest": digest_of(output, FORMAT),
                **({"logprob_digests": digests} if (digests := digests_by_position(output)) else {}),
                **({"grammar_engine": source["grammar_engine"]} if source.get("grammar_engine") else {}),
            }
        )

    def verify(self, llm: Session | None = None) -> ReceiptCheck:
        """Whether an engine draws these tokens, and gets this text, these reasons and the same bits of log-probabilities.

        The recorded tokens go through the model in one pass, or few, and each is drawn as plain decoding draws it. Beam search and
        contrastive search are run again.

        Parameters
        ----------
        llm : LLM, optional
            The model to use. None loads the file that the receipt names, from the cache or the working directory.

        Raises
        ------
        InvalidParamsError
            The model's SHA-256, numerics id or end-of-text ids are others: then bits are not promised.

        Examples
        --------
        >>> print(output.receipt().verify(llm))  # doctest: +SKIP
        identical, bit for bit
        """
        if llm is not None:
            if not is_llm(llm):
                raise InvalidParamsError(f"llm must be None or an LLM, not {show(llm)}", "llm")
            return llm._verify(self)
        own = open_llm(self._model, **self._engine_arguments)
        try:
            return own._verify(self)
        finally:
            own.close()

    @property
    def _model(self) -> str:
        """The model's name, or that of its file."""
        by_file = {model.file_name: name for name, model in NAMED_MODELS.items()}
        name: str = by_file.get(self.fields["model"], self.fields["model"])
        return name

    @property
    def _engine_arguments(self) -> dict[str, Any]:
        """Arguments of an LLM that can repeat it, besides the model."""
        types = {name: self.fields.get(name) for name in ("dtype", "quantization", "kv_cache_dtype")}
        length = {"max_model_len": self.fields["max_model_len"]} if "max_model_len" in self.fields else {}  # it chose the rotary table
        return {**where_it_runs(self.fields["numerics_id"]), **types, **length, "hf_overrides": self._overrides}

    @property
    def _overrides(self) -> dict[str, Any]:
        """Changes to the model's config; {} in receipts of versions that had none."""
        overrides: dict[str, Any] = self.fields.get("hf_overrides") or {}
        return overrides

    @property
    def _sampling_params(self) -> SamplingParams | BeamSearchParams:
        """All of them: what the receipt does not name was at llmi's default, not at the model's."""
        params = dict(self.fields["sampling_params"], seed=self.fields["seed"])
        if params.get("logit_bias"):
            params["logit_bias"] = {int(token): float(bias) for token, bias in params["logit_bias"].items()}
        params["steering"] = of_json(params.get("steering"))
        return BeamSearchParams(**params) if "beam_width" in params else SamplingParams(**params)

    def save(self, path: str | Path) -> None:
        """Writes strict JSON."""
        text = json.dumps(self.fields, indent=1, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Receipt:
        """Reads what `save` wrote, or the receipt in a whole answer of the server. Raises InvalidParamsError if it is neither."""
        path = parse(Place(), "receipt", path)
        try:
            text = read_text(path, MAX_VOCABULARY_BYTES)
            fields = _unpacked(parse_json(text, Path(path)))
            _check_fields(fields)
            if fields["format"] > 1:
                json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
            elif isinstance(bias := fields["sampling_params"].get("logit_bias"), dict):
                fields["sampling_params"]["logit_bias"] = {token: str(float(value)) for token, value in bias.items()}
        except InvalidParamsError as error:
            raise InvalidParamsError(f"{path}: {error}", "receipt") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidParamsError(f"{path}: not a receipt ({error})", "receipt") from None
        return cls(fields)


def _unpacked(value: object) -> Any:
    """The receipt in an answer of the server; what is no answer, as it is. Raises ValueError for an answer that has none, or several."""
    own = value.get("llmi") if isinstance(value, dict) and "format" not in value else None
    if not isinstance(own, dict):
        return value
    receipt = own.get("receipt")
    if receipt is None:
        raise ValueError('it is an answer that has none: ask with "receipt": true')
    if isinstance(receipt, list):
        raise ValueError(f"it is an answer with {len(receipt)} of them, one for each prompt: write one into a file of its own")
    return receipt


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON: such numbers are strings, as in "-inf"')


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits:.40} is too large")
    return value


def _check_fields(fields: object) -> None:
    """Raises ValueError, or InvalidParamsError for a format of another version, where something is missing or of another kind."""

    def is_int(value: object, low: int = 0, high: int = 2**31 - 1) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    def are_ids(value: object) -> bool:
        return isinstance(value, list) and all(is_int(token) for token in value)

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(what)

    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    need(is_int(fields.get("format")), "it has no format")
    if not 1 <= fields["format"] <= FORMAT:
        raise InvalidParamsError(f"receipt format {fields['format']} (this version reads 1 to {FORMAT})", "receipt")
    for name in ("model", "model_sha256", "dtype", "kv_cache_dtype", "numerics_id", "logprob_digest"):
        need(isinstance(fields.get(name), str), f"{name} is no string")
    need(Path(fields["model"]).name == fields["model"], "model is not the bare name of a file or folder")
    need(fields.get("quantization") is None or isinstance(fields["quantization"], str), "quantization is no string")
    overrides_text(fields.get("hf_overrides"))
    for name in ("family", "spec_sha256"):
        need(isinstance(fields.get(name, ""), str), f"{name} is no string")
    need("max_model_len" not in fields or is_int(fields["max_model_len"], low=1), "max_model_len is no length")
    need(are_ids(fields.get("prompt_token_ids")), "prompt_token_ids is no list of token ids")
    need(fields["format"] == 1 or are_ids(fields.get("eos_token_ids")), "eos_token_ids is no list of token ids")
    need(is_int(fields.get("seed"), high=2**64 - 1), "seed is not in [0, 2^64)")
    params = fields.get("sampling_params")
    if not isinstance(params, dict):
        raise ValueError("sampling_params is no object")
    known = BEAM_FIELDS if "beam_width" in params else FIELDS
    unknown = sorted(set(params) - (set(known) - {*HOOKS, "seed"} | {"structured_outputs"}))
    need(not unknown, f"sampling_params has {', '.join(unknown)[:80]}")
    _check_mappings(params, need)
    has_grammar = params.get("structured_outputs") is not None
    need(not has_grammar or isinstance(params["structured_outputs"], dict), "structured_outputs is no object")
    need(isinstance(fields.get("grammar_engine", ""), str), "grammar_engine is no string")
    _check_digests(fields.get("logprob_digests", {}), need)
    outputs = fields.get("outputs")
    if not isinstance(outputs, list):
        raise ValueError("outputs is no list")
    for output in outputs:
        need(
            isinstance(output, dict) and are_ids(output.get("token_ids")) and isinstance(output.get("text"), str),
            "an output lacks its tokens",
        )


def _check_digests(digests: object, need: Callable[[bool, str], None]) -> None:
    """The digests of positions, if there are any."""

    def are_texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)

    if not isinstance(digests, dict):
        raise ValueError("logprob_digests is no object")
    outputs = digests.get("outputs")
    well = are_texts(digests.get("prompt")) and isinstance(outputs, list) and all(are_texts(entry) for entry in outputs)
    need(not digests or well, "logprob_digests holds no lists of digests")


def _check_mappings(params: dict[str, Any], need: Callable[[bool, str], None]) -> None:
    """The parameters whose keys are numbers."""
    bias = params.get("logit_bias")
    need(bias is None or isinstance(bias, dict), "logit_bias is no object")
    for token, value in (bias or {}).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        need(token.isdecimal() and (is_number or value in ("inf", "-inf")), f"logit_bias has {token!r:.40}: {value!r:.40}")
    SAMPLING["steering"].parse(of_json(params.get("steering")))
