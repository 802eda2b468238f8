"""Running a receipt again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from llmi.base.kinds import show
from llmi.base.opening import is_llm, open_llm
from llmi.errors import InvalidParamsError
from llmi.models.catalogue import NAMED_MODELS
from llmi.outputs.receipt import Receipt, digest_of, results_of
from llmi.params.overrides import overrides_text
from llmi.structured import library

if TYPE_CHECKING:
    from llmi.session import Session


def replay(receipt: Receipt | str | Path, llm: Session | None = None) -> bool:
    """Runs a receipt's request again and compares tokens, text, reasons and log-probability bits.

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
    """
    if llm is not None and not is_llm(llm):
        raise InvalidParamsError(f"llm must be None or an Session, not {show(llm)}", "llm")
    if not isinstance(receipt, Receipt):
        receipt = Receipt.load(receipt)
    fields = receipt.fields
    owned = llm is None
    if llm is None:
        by_file = {model.file_name: name for name, model in NAMED_MODELS.items()}
        llm = open_llm(by_file.get(fields["model"], fields["model"]), **receipt._engine_arguments)
    try:
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
        if llm.model_info.numerics_id != fields["numerics_id"]:
            raise InvalidParamsError(
                f"the receipt has numerics id {fields['numerics_id']}, this engine {llm.model_info.numerics_id}", "numerics_id"
            )
        if fields["format"] > 1 and (ids := llm._builder.eos_token_ids()) != fields["eos_token_ids"]:
            raise InvalidParamsError(
                f"the receipt's texts end with token ids {fields['eos_token_ids']}, this tokenizer's with {ids}", "tokenizer"
            )
        engine = fields.get("grammar_engine")
        if engine is not None and engine != (here := f"llguidance {library.load() and library.version_text()}"):
            raise InvalidParamsError(f"the receipt's grammar was enforced by {engine}, here it is {here}", "grammar_engine")
        output = llm.generate({"prompt_token_ids": fields["prompt_token_ids"]}, receipt._sampling_params, use_tqdm=False)[0]
    finally:
        if owned:
            llm.close()
    version = fields["format"]
    return bool(results_of(output, version) == fields["outputs"] and digest_of(output, version) == fields["logprob_digest"])
