"""A model's open files. The core loads them together, and their digest identifies them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.errors import LlmiError, ModelFileError, from_core
from llmi.models import digest_cache
from llmi.models.layout import find, open_input

#: Further files of a directory that make tokens of texts, and texts of tokens.
BESIDE_WEIGHTS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
#: What makes tokens where there is no tokenizer.json.
OTHER_VOCABULARIES = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "merges.txt", "tiktoken.model", "qwen.tiktoken")
_CHUNK_BYTES = 1 << 22


class ModelDigest:
    """SHA-256 of the files that were loaded, computed when it is first read; it can be pickled.

    For one file it is the file's own; for several, the digest of the lines "digest  name", sorted by the names. The files are read through
    the descriptors that the model was loaded by: they are the files of that time even if others have their names by now.

    >>> digest()  # doctest: +SKIP
    'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
    """

    def __init__(self, path: Path, files: list[_core.InputFile]) -> None:
        self._path = str(path)
        self._files = files
        self._lock = threading.Lock()
        self._digest: str | None = None
        self._problem: str | None = None  # of a digest that was pickled when it could no longer be had

    def __call__(self) -> str:
        """The digest. Raises ModelFileError if a file was written to since it was loaded."""
        with self._lock:
            if self._digest is None:
                if self._problem is not None:
                    raise ModelFileError(self._problem, self._path)
                self._digest = self._compute()
                self._files = []  # closed with their last owner
            return self._digest

    def from_cache(self) -> None:
        """Computes the digest now; files that were read before and have not changed since are not read again."""
        with self._lock:
            if self._digest is not None or self._problem is not None:
                return
            known = digest_cache.known_digests()
            found: dict[str, str] = {}
            digests = []
            for file in self._files:
                problem = file.difference()
                key = "" if problem else digest_cache.key_of(file.path)
                with contextlib.suppress(_core.CoreError):
                    file.check_unchanged()  # so that the key is of the file that is open
                    if key in known:
                        digests.append((file.name, known[key]))
                        continue
                digests.append((file.name, self._sha256(file)))
                found[key] = digests[-1][1]
            self._digest = _joined(sorted(digests))
            self._files = []
        digest_cache.keep({key: digest for key, digest in found.items() if key})

    def _compute(self) -> str:
        return _joined(sorted((file.name, self._sha256(file)) for file in self._files))

    def _sha256(self, file: _core.InputFile) -> str:
        digest = hashlib.sha256()
        problem = file.difference()
        if not problem:
            try:
                for offset in range(0, file.size, _CHUNK_BYTES):
                    digest.update(file.read(offset, _CHUNK_BYTES))
                problem = file.difference()
            except _core.CoreError as error:
                problem = str(from_core(error))
        if problem:
            raise ModelFileError(
                f"{file.path}: the file was changed after it was loaded ({problem}): the digest of what was loaded can no longer be had,"
                " and without it there is no receipt. Load the model again",
                file.path,
            )
        return digest.hexdigest()

    def __deepcopy__(self, memo: object) -> ModelDigest:
        return self

    def __getstate__(self) -> dict[str, Any]:
        digest = problem = None
        try:
            digest = self()
        except LlmiError as error:
            problem = str(error)
        return {"path": self._path, "digest": digest, "problem": problem}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path, self._files, self._lock = state["path"], [], threading.Lock()
        self._digest, self._problem = state["digest"], state["problem"]


def _joined(digests: list[tuple[str, str]]) -> str:
    """The digest of files with these (name, digest), in the order of their names."""
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests).encode()).hexdigest()


@dataclasses.dataclass
class OpenModel:
    """The open files of a model.

    Attributes
    ----------
    path : Path
        What it goes by: a GGUF file, or a directory.
    core : _core.ModelFiles
    files : list of _core.InputFile
        All that its digest is of.
    other_files : list of Path
        Those that are not the core's.
    """

    path: Path
    core: _core.ModelFiles
    files: list[_core.InputFile]
    other_files: list[Path]

    def digest(self) -> ModelDigest:
        """The digest of the loaded files."""
        return ModelDigest(self.path, list(self.files))

    def check_unchanged(self) -> None:
        """Raises ModelFileError if a file was written to since it was opened, or another has its name."""
        for file in self.files:
            try:
                file.check_unchanged()
            except _core.CoreError as error:
                raise from_core(error, file.path) from None
        if self.other_files != _other_files(self.path):  # they are read by their names
            raise ModelFileError(
                f"{self.path}: files came or went while the model was loaded. Load it again when nobody writes there", self.path
            )


def open_model(path: Path) -> OpenModel:
    """Opens the model at `path` and reads what its headers say; weights are not read.

    Raises
    ------
    ModelFileError, UnsupportedModelError
        See find; or a header is wrong.
    """
    layout = find(path)
    form = "gguf" if layout.config is None else "safetensors"
    weights = [open_input(file, form) for file in layout.weights]
    config = None if layout.config is None else open_input(layout.config, "json")
    index = None if layout.index is None else open_input(layout.index, "json")
    other_files = _other_files(layout.path)
    try:
        core = _core.ModelFiles(str(layout.path), weights, config, index)
        others = [_core.InputFile(str(file)) for file in other_files]
    except _core.CoreError as error:
        raise from_core(error, layout.path) from None
    return OpenModel(layout.path, core, [*weights, *(file for file in (config, index) if file is not None), *others], other_files)


def _other_files(path: Path) -> list[Path]:
    names = BESIDE_WEIGHTS if (path / BESIDE_WEIGHTS[0]).is_file() else (*BESIDE_WEIGHTS, *OTHER_VOCABULARIES)
    return [file for name in names if (file := path / name).is_file()]


def open_gguf(path: Path) -> _core.GgufFile:
    """The GGUF file at `path`, all its parts; a vocabulary is enough. Raises ModelFileError."""
    layout = find(path)
    weights = [open_input(file, "gguf") for file in layout.weights]
    try:
        gguf = _core.ModelFiles(str(layout.path), weights, None, None).gguf
    except _core.CoreError as error:
        raise from_core(error, layout.path) from None
    assert gguf is not None  # without a config
    return gguf
