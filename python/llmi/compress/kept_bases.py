"""What bases of evaluations computed, kept in llmi's cache: the rows that their heads read, and greedy answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmi.base.whole_file import whole_file
from llmi.engine.numerics_id import promises_bits
from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.models.catalogue import cache_dir

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_DIGEST_BYTES = 32


class Answer(NamedTuple):
    """A greedy answer."""

    token_ids: list[int]
    text: str


class KeptBase:
    """A base's folder. The head makes logits of the rows again, bit for bit: they take a hundredth of the bytes. A file that is damaged is
    computed again, and one that cannot be written costs time alone."""

    def __init__(self, llm: LLM) -> None:
        size = sum(file.size for file in llm._files.files)
        self._keeps = promises_bits(llm.model_info.numerics_id)
        self._columns = llm.model_info.hidden_size
        self._salt = hashlib.sha256(llm.model_info.numerics_id.encode()).digest()
        self.folder = _root() / f"{llm._files.digest()()[:32]}-{size}"

    def rows(self, window: list[int], skip: int, make: Callable[[], F32]) -> F32:
        """Those of a window, read or made."""
        name = self._name("rows", [skip, *window])
        data = self._read(name)
        if data is not None and len(data) % (4 * self._columns) == 0:
            return np.frombuffer(data, np.float32).reshape(-1, self._columns)
        rows = make()
        self._write(name, np.ascontiguousarray(rows, np.float32).tobytes())
        return rows

    def answers(self, questions: list[str], make: Callable[[], list[Answer]]) -> list[Answer]:
        """Those of these questions, read or made."""
        name = self._name("answers", questions)
        data = self._read(name)
        if data is not None:
            return [Answer(*answer) for answer in json.loads(data)]
        answers = make()
        self._write(name, json.dumps(answers).encode())
        return answers

    def _name(self, kind: str, of: object) -> str:
        return f"{hashlib.sha256(self._salt + json.dumps([kind, of]).encode()).hexdigest()[:32]}.{kind}"

    def _read(self, name: str) -> bytes | None:
        if not self._keeps:
            return None
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def _write(self, name: str, content: bytes) -> None:
        if not self._keeps:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / name, sync=False) as file:
                file.write(hashlib.sha256(content).digest() + content)


def kept_bases() -> Iterator[tuple[str, Path, int]]:
    """(name, folder, bytes) of each base in the cache; its name is the beginning of its digest and its size."""
    with contextlib.suppress(OSError):
        for folder in sorted(_root().iterdir()):
            yield folder.name, folder, sum(file.stat().st_size for file in folder.iterdir())


def remove_base(name: str) -> Path | None:
    """Deletes what is kept of a base; None: there is none of this name. Raises InvalidParamsError."""
    for found, folder, _ in kept_bases():
        if name == found:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise InvalidParamsError(f"{folder} cannot be deleted: {error.strerror}", "name") from None
            return folder
    return None


def _root() -> Path:
    return cache_dir() / "bases"
