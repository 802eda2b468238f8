"""Receipts of answers: in the answer where the body wants one, and as files in a folder where the server was told so."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from llmi.base.whole_file import write_whole
from llmi.errors import LlmiError
from llmi.outputs.results import RequestOutput
from llmi.server.errors import public_text

log = logging.getLogger("llmi.server")


class Receipts:
    """Makes receipts, and writes them into `directory` if there is one. Counts those that could not be written: answers still go out."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.num_failed = 0

    def wanted(self, asked: bool) -> bool:
        """Whether an answer needs one."""
        return asked or self.directory is not None

    async def of(self, answer_id: str, outputs: list[RequestOutput], asked: bool) -> dict[str, Any]:
        """The part of `llmi` about receipts: {"receipt": ...}, a list where there are several prompts; null with a reason where there is
        none."""
        if not self.wanted(asked):
            return {}
        try:
            fields = [output.receipt().fields for output in outputs]
        except LlmiError as error:
            return {"receipt": None, "receipt_reason": public_text(error)} if asked else {}
        found: dict[str, Any] = {"receipt": fields[0] if len(fields) == 1 else fields} if asked else {}
        if self.directory is None:
            return found
        try:
            await asyncio.to_thread(self._write, answer_id, fields)
        except OSError as error:
            self.num_failed += len(fields)
            log.error("a receipt could not be written into %s: %s", self.directory, error.strerror or error)
            reason = f"it could not be written: {error.strerror or error}"
            return {"receipt": None, "receipt_reason": reason}
        return found

    def _write(self, answer_id: str, fields: list[dict[str, Any]]) -> None:
        assert self.directory is not None
        for index, entry in enumerate(fields):
            name = f"{answer_id}.json" if len(fields) == 1 else f"{answer_id}-{index}.json"
            text = json.dumps(entry, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            write_whole(self.directory / name, text, private=True, sync=False)
