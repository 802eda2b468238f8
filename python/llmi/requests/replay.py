"""Checking a receipt: its text in one pass over it, where drafts are verified; else by running its request again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from llmi.engine.numerics_id import without_degree
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.outputs.receipt import Receipt
from llmi.outputs.receipt_check import ReceiptCheck, compare
from llmi.params.overrides import overrides_text
from llmi.requests.prepare import CallOptions, prepare, resolve
from llmi.structured import library

if TYPE_CHECKING:
    from llmi.session import Session


def replay(receipt: Receipt | str | Path, llm: Session | None = None) -> bool:
    """Checks a receipt: whether this engine draws its tokens, and gets its text, reasons and log-probability bits.

    `Receipt.verify` does the same and says where the first difference is.

    Parameters
    ----------
    receipt : Receipt or path
    llm : LLM, optional
        The model to use. None loads the file that the receipt names, from the cache or the working directory.

    Returns
    -------
    bool
        True if everything is identical, bit for bit.

    Raises
    ------
    InvalidParamsError
        The model's SHA-256, numerics id or end-of-text ids are others: then bits are not promised.

    Examples
    --------
    >>> output = llm.generate("The sea is", max_tokens=8, seed=1)[0]
    >>> replay(output.receipt(), llm)
    True
    """
    return bool((receipt if isinstance(receipt, Receipt) else Receipt.load(receipt)).verify(llm))


def check_engine(fields: dict[str, object], receipt: Receipt, llm: Session) -> None:
    """Raises InvalidParamsError for an engine that does not promise the receipt's bits."""
    if llm.model_info.sha256 != fields["model_sha256"]:
        raise InvalidParamsError(
            f"the receipt is for a model with SHA-256 {fields['model_sha256']}, this one has {llm.model_info.sha256}", "model"
        )
    if (overrides := llm._engine_args.hf_overrides) != overrides_text(receipt._overrides):
        raise InvalidParamsError(
            f"the receipt's model had hf_overrides = {receipt._overrides}, this one has {json.loads(overrides or '{}')}", "hf_overrides"
        )
    if fields.get("spec_sha256", llm._spec.digest()) != llm._spec.digest():
        raise InvalidParamsError(
            f"the receipt's model was read by the card {fields.get('family')!r} to a spec with SHA-256 {fields['spec_sha256']}, this one to"
            f" {llm._spec.digest()}: another card of this name is registered, or llmi's own has changed",
            "spec_sha256",
        )
    if llm.model_info.numerics_id != without_degree(str(fields["numerics_id"])):
        raise InvalidParamsError(
            f"the receipt has numerics id {fields['numerics_id']}, this engine {llm.model_info.numerics_id}", "numerics_id"
        )
    if fields["format"] != 1 and (ids := llm._builder.eos_token_ids()) != fields["eos_token_ids"]:
        raise InvalidParamsError(
            f"the receipt's texts end with token ids {fields['eos_token_ids']}, this tokenizer's with {ids}", "tokenizer"
        )
    engine = fields.get("grammar_engine")
    if engine is not None and engine != (here := f"llguidance {library.load() and library.version_text()}"):
        raise InvalidParamsError(f"the receipt's grammar was enforced by {engine}, here it is {here}", "grammar_engine")
    if llm._batch_runner is not None:
        raise UnsupportedCombinationError(
            "this engine's batch_processors change every row: a receipt is checked by an LLM without them", "receipt", "batch_processors"
        )


def verify(llm: Session, receipt: object) -> ReceiptCheck:
    """Checks a receipt with this LLM. Raises InvalidParamsError where its bits are not promised here."""
    assert isinstance(receipt, Receipt)
    fields = receipt.fields
    check_engine(fields, receipt, llm)
    params = receipt._sampling_params
    recorded = [output["token_ids"] for output in fields["outputs"]]
    if len(recorded) != _num_results(receipt):
        return ReceiptCheck((f"outputs: the receipt holds {len(recorded)}, and its parameters make {_num_results(receipt)}",))
    options = CallOptions(speculative_config=None, recorded=recorded, checks_recorded=True)
    call = prepare(llm, resolve(llm, {"prompt_token_ids": fields["prompt_token_ids"]}, params, {}, options))
    return compare(llm._finish(call, False)[0], fields)


def _num_results(receipt: Receipt) -> int:
    params = receipt._sampling_params
    params._settle()
    return params.n or 0
