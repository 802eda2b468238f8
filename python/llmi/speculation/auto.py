"""speculative_config="auto": the drafters that are there for a model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from llmi.base.log import log
from llmi.base.travel import Alike
from llmi.speculation.corpus import CorpusDrafter
from llmi.speculation.drafters import Drafter, PromptLookup
from llmi.text.vocabulary_digest import vocabulary_digest

if TYPE_CHECKING:
    from llmi.session import Session

SHIPPED = Path(__file__).with_name("shipped")


class AutoDrafters(Alike, Drafter):
    """The drafter called "auto": it stands for those that a model has, which are known when an LLM uses it."""

    def parts(self, llm: Session) -> list[Drafter]:
        """Table, then prompt lookup. Drafters that were trained for the model go first."""
        table = shipped_table(vocabulary_digest(llm.tokenizer))
        if table is None:
            log.info(
                "speculative_config='auto': %s has neither heads nor a table, so prompt lookup drafts alone; `llmi train-heads` makes heads",
                llm.model_info.path,
            )
        return [*([] if table is None else [table]), PromptLookup()]

    def __repr__(self) -> str:
        return "'auto'"


@functools.cache
def shipped_table(digest: str) -> CorpusDrafter | None:
    """The table that comes with llmi for this vocabulary (`corpus*.safetensors` in SHIPPED), read once; None: there is none."""
    drafters = (CorpusDrafter.load(path) for path in sorted(SHIPPED.glob("corpus*.safetensors")))
    return next((drafter for drafter in drafters if drafter.tokenizer_digest == digest), None)
