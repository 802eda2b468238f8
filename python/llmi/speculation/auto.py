"""speculative_config="auto": the drafters that are there for a model.

What llmi ships is in SHIPPED: eagle*.safetensors, found by the digest of the model's files, and corpus*.safetensors, found by that of its
vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.base.log import log
from llmi.base.travel import Alike
from llmi.families.spec import ModelSpec
from llmi.models.files import ModelDigest
from llmi.speculation.corpus import CorpusDrafter
from llmi.speculation.drafters import Drafter, PromptLookup
from llmi.speculation.eagle import Eagle
from llmi.speculation.heads import open_heads, target_digest
from llmi.text.vocabulary_digest import vocabulary_digest

if TYPE_CHECKING:
    from llmi.session import Session

SHIPPED = Path(__file__).with_name("shipped")
#: The tree of a draft by heads; those of its nodes run that pay. Judged drafts are its chain.
_TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0))


class AutoDrafters(Alike, Drafter):
    """The drafter called "auto": it stands for those that a model has, which are known when an LLM uses it."""

    def parts(self, llm: Session) -> list[Drafter]:
        """The heads that were loaded with the model, then a table, then prompt lookup."""
        table = shipped_table(vocabulary_digest(llm.tokenizer))
        tables: list[Drafter] = [] if table is None else [table]
        if llm._eagle is not None:
            path, shortlist = llm._eagle
            return [Eagle(path, choices=_TREE, shortlist=shortlist), *tables, PromptLookup()]
        others = "prompt lookup drafts alone" if table is None else "a table and prompt lookup draft"
        if shipped_heads(llm._spec, llm._files.digest()) is None:
            log.info("speculative_config='auto': no heads for %s, so %s; `llmi train-heads` makes some", llm.model_info.path, others)
        else:
            log.info(
                "speculative_config='auto': the heads for this model are loaded with it, LLM(speculative_config='auto'); now %s", others
            )
        return [*tables, PromptLookup()]

    def __repr__(self) -> str:
        return "'auto'"


def shipped_heads(target: ModelSpec, digest: ModelDigest) -> Path | None:
    """The heads that come with llmi for the model of these files; None: there are none. Raises ModelFileError if they cannot be read."""
    for path in sorted(SHIPPED.glob("eagle*.safetensors")):
        config = _config_of(path)
        # The digest of a large model takes a second, so it is not asked without need.
        if (config.get("hidden_size"), config.get("vocab_size")) != (target.hidden_size, target.vocab_size):
            continue
        digest.from_cache()
        if target_digest(config) == digest():
            return path
    return None


@functools.cache
def _config_of(path: Path) -> Mapping[str, Any]:
    return open_heads(path).config


@functools.cache
def shipped_table(digest: str) -> CorpusDrafter | None:
    """The table that comes with llmi for this vocabulary (`corpus*.safetensors` in SHIPPED), read once; None: there is none."""
    drafters = (CorpusDrafter.load(path) for path in sorted(SHIPPED.glob("corpus*.safetensors")))
    return next((drafter for drafter in drafters if drafter.tokenizer_digest == digest), None)
