"""What replicas of one model must have in common, so that each draws the tokens of every other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import llmi

if TYPE_CHECKING:
    from llmi.session import Session

#: LLM's arguments on which tokens, or a server's forms, depend: a router opens MODEL with those of its servers.
ALIKE = (
    "dtype", "quantization", "activation_bits", "kv_cache_dtype", "attention_dtype", "linear_dtype", "deterministic", "max_model_len",
    "max_num_seqs", "scheduling_policy", "speculative_config", "tokenizer", "chat_template", "generation_config", "hf_overrides",
)  # fmt: skip


def identity_of(llm: Session) -> dict[str, Any]:
    """The facts that are compared, as JSON: the file by its size and time, since reading it whole would take long."""
    return {
        "version": llmi.__version__,
        "numerics_id": llm.model_info.numerics_id,
        "spec_sha256": llm._spec.digest(),
        "max_model_len": llm.model_info.max_model_len,
        "eos_token_ids": llm._builder.eos_token_ids(),
        "files": [[file.name, file.size, Path(file.path).stat().st_mtime_ns] for file in llm._files.files],
    }


def difference(own: dict[str, Any], other: dict[str, Any]) -> str:
    """The first fact that differs, in words; "" if none does."""
    for name, value in own.items():
        if other.get(name) != value:
            return f"its {name} is {other.get(name)}, that of the others {value}"
    return ""
