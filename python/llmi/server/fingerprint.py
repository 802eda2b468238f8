"""`system_fingerprint`: the digest of everything that an answer is a function of, besides its prompt, parameters and seed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from typing import Any

from llmi.base.travel import strict_json
from llmi.engine.numerics_id import promises_bits
from llmi.llm import LLM
from llmi.models.files import ModelDigest
from llmi.params.sampling import FIELDS, HOOKS

_PACKAGES = ("llmi", "tokenizers", "jinja2", "llguidance")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts(llm: LLM) -> dict[str, Any]:
    """What the fingerprint is the digest of, as strict JSON. Reads the model's files if their digest is not known yet."""
    digest = llm.model_info._digest
    if isinstance(digest, ModelDigest):
        digest.from_cache()
    tokenizer = llm.tokenizer
    loaded = tokenizer._loaded
    defaults = llm.get_default_sampling_params()
    own = str(tokenizer.path) == str(llm.model_info.path)  # then the model's digest covers its files
    vocabulary = None if own else hashlib.sha256(json.dumps(tokenizer.__getstate__()["library"]).encode()).hexdigest()
    speculation = llm._own_speculation
    return {
        "model_sha256": llm.model_info.sha256,
        "spec_sha256": llm._spec.digest(),
        "hf_overrides": llm._engine_args.hf_overrides,
        "tokenizer": vocabulary,
        "eos_token_ids": llm._builder.eos_token_ids(),
        "templates": [tokenizer.chat_template, dict(loaded.chat_templates), strict_json(loaded.template_tokens)],
        "defaults": {name: strict_json(getattr(defaults, name)) for name in FIELDS if name not in (*HOOKS, "seed")},
        "max_model_len": llm.model_info.max_model_len,
        "numerics_id": llm.model_info.numerics_id,
        "versions": {name: _version(name) for name in _PACKAGES},
        "verification": "coupled" if speculation is None else speculation.verification_name,
    }


def fingerprint_of(llm: LLM) -> str | None:
    """ "llmi-" and 16 hexadecimal digits; None where the same request may get other tokens: a verification other than coupled,
    deterministic=False, processors in Python that no digest can name."""
    found = facts(llm)
    if found["verification"] != "coupled" or not promises_bits(found["numerics_id"]) or llm._batch_runner is not None:
        return None
    return "llmi-" + hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
