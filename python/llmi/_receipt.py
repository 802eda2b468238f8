"""Receipts: everything that an output is a function of, so that another machine can check it bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi._engine_args import promises_bits, where_it_runs
from llmi._errors import InvalidParamsError, UnsupportedCombinationError
from llmi._input_file import MAX_VOCABULARY_BYTES, read_json
from llmi._overrides import overrides_text

if TYPE_CHECKING:
    from llmi._llm import LLM
    from llmi._outputs import RequestOutput

FORMAT = 1


def _digest(output: RequestOutput) -> str:
    """SHA-256 over the raw bits of all log-probabilities that were asked for."""
    digest = hashlib.sha256()
    for completion in output.outputs:
        for entries in completion.logprobs or []:
            for token_id, entry in entries.items():
                digest.update(struct.pack("<iffi", token_id, entry.logprob, entry.processed_logprob, entry.rank))
    return digest.hexdigest()


@dataclasses.dataclass
class Receipt:
    """What an output is a function of, and what came out. `fields` is JSON."""

    fields: dict[str, Any]

    @classmethod
    def of(cls, output: RequestOutput) -> Receipt:
        """The receipt of a finished output. Hooks are Python and cannot be replayed: they are refused."""
        import llmi

        source = output._receipt_source
        if source.get("hooks"):
            raise UnsupportedCombinationError("an output that Python hooks took part in has no receipt", "receipt", "hooks")
        if not promises_bits(output.numerics_id):
            raise UnsupportedCombinationError(
                "deterministic = False does not promise the same tokens again: its outputs have no receipt", "receipt", "deterministic"
            )
        if source.get("verification", "coupled") != "coupled":
            raise UnsupportedCombinationError(
                "an output's tokens depend on the drafter unless verification is 'coupled': it has no receipt", "receipt", "verification"
            )
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
                "numerics_id": output.numerics_id,
                "prompt_token_ids": output.prompt_token_ids,
                "sampling_params": source["params"],
                "seed": output.seed,
                "outputs": [{"token_ids": completion.token_ids, "text": completion.text} for completion in output.outputs],
                "logprob_digest": _digest(output),
            }
        )

    @property
    def _engine_arguments(self) -> dict[str, Any]:
        """Arguments of an LLM that can repeat it, besides the model."""
        types = {name: self.fields.get(name) for name in ("dtype", "quantization", "kv_cache_dtype")}
        return {**where_it_runs(self.fields["numerics_id"]), **types, "hf_overrides": self._overrides}

    @property
    def _overrides(self) -> dict[str, Any]:
        """Changes to the model's config; {} in receipts from before there were any."""
        overrides: dict[str, Any] = self.fields.get("hf_overrides") or {}
        return overrides

    def save(self, path: str | Path) -> None:
        """Writes JSON."""
        Path(path).write_text(json.dumps(self.fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Receipt:
        """Reads what `save` wrote. Raises InvalidParamsError if it is no receipt."""
        try:
            fields = read_json(path, MAX_VOCABULARY_BYTES)
            if fields["format"] != FORMAT:
                raise InvalidParamsError(f"{path}: receipt format {fields['format']} (this version reads {FORMAT})", "receipt")
            fields["outputs"], fields["prompt_token_ids"], fields["sampling_params"], fields["seed"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidParamsError(f"{path}: not a receipt ({error})", "receipt") from None
        return cls(fields)


def replay(receipt: Receipt | str | Path, llm: LLM | None = None) -> bool:
    """Runs a receipt's request again and compares tokens, text and log-probability bits.

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
        The model's SHA-256 or numerics id is another: then bits are not promised.
    """
    from llmi._llm import LLM
    from llmi._models import NAMED_MODELS

    if not isinstance(receipt, Receipt):
        receipt = Receipt.load(receipt)
    fields = receipt.fields
    owned = llm is None
    if llm is None:
        by_file = {model.file_name: name for name, model in NAMED_MODELS.items()}
        llm = LLM(by_file.get(fields["model"], fields["model"]), **receipt._engine_arguments)
    try:
        if llm.model_info.sha256 != fields["model_sha256"]:
            raise InvalidParamsError(
                f"the receipt is for a model with SHA-256 {fields['model_sha256']}, this one has {llm.model_info.sha256}", "model"
            )
        if (overrides := llm._results.receipt_source["hf_overrides"]) != overrides_text(receipt._overrides):
            raise InvalidParamsError(
                f"the receipt's model had hf_overrides = {receipt._overrides}, this one has {json.loads(overrides or '{}')}", "hf_overrides"
            )
        if llm.model_info.numerics_id != fields["numerics_id"]:
            raise InvalidParamsError(
                f"the receipt has numerics id {fields['numerics_id']}, this engine {llm.model_info.numerics_id}", "numerics_id"
            )
        params = dict(fields["sampling_params"], seed=fields["seed"])
        if params.get("logit_bias"):
            params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
        output = llm.generate({"prompt_token_ids": fields["prompt_token_ids"]}, use_tqdm=False, **params)[0]
    finally:
        if owned:
            llm.close()
    outputs = [{"token_ids": completion.token_ids, "text": completion.text} for completion in output.outputs]
    return bool(outputs == fields["outputs"]) and _digest(output) == str(fields["logprob_digest"])
