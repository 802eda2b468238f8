"""How Python reads a file of a model: regular files only, whole, up to a size, and what it is when it is not what it should be."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from llmi.errors import ModelFileError

#: Settings (config.json and its kind) and templates are small, vocabularies and indexes are not.
MAX_SETTINGS_BYTES = 8 << 20
MAX_VOCABULARY_BYTES = 128 << 20

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

LFS_POINTER = (
    "a git-LFS pointer: the clone holds 130 bytes of text instead of the file. Run `git lfs install` and `git lfs pull` there,"
    " or download the file itself"
)

SERIALIZED = "serialized Python objects (torch.save), which may hold code and are never loaded: convert the model to safetensors"

# What the first bytes say of a file that is none of those wanted.
_MAGICS = (
    (b"version https://git-lfs.github.com/", LFS_POINTER),
    (b"version https://hawser.github.com/", LFS_POINTER),
    (b"oid sha256:", LFS_POINTER),
    (b"PK\x03\x04", "a zip archive (torch.save writes these, too)"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (b"Rar!", "a rar archive: unpack it first"),
    (b"lmgg", "a GGML file, which came before GGUF: get a GGUF file of the model"),
    (b"fmgg", "a GGMF file, which came before GGUF: get a GGUF file of the model"),
    (b"tjgg", "a GGJT file, which came before GGUF: get a GGUF file of the model"),
    (b"algg", "a GGLA file (a LoRA adapter from before GGUF): merge the adapter into its base model and convert that to GGUF"),
    (b"\x80\x02", SERIALIZED),
    (b"\x80\x03", SERIALIZED),
    (b"\x80\x04", SERIALIZED),
    (b"\x80\x05", SERIALIZED),
    (b"\x89HDF", "an HDF5 file (TensorFlow, Keras): convert the model to safetensors"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"GGUF", "a GGUF file"),
)
_MARKUP = (b"<!doctype", b"<html", b"<?xml", b"<head")


def read_bytes(path: str | os.PathLike[str], max_bytes: int, error: type[ModelFileError] = ModelFileError) -> bytes:
    """A regular file's bytes.

    Parameters
    ----------
    path : path
    max_bytes : int
        A larger file is refused.
    error : type
        What is raised.

    Raises
    ------
    ModelFileError or `error`
        There is no such file, it cannot be read, it is too large or no regular file (a pipe would wait for a writer).
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as problem:
        if problem.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise error(f"{path}: not a regular file", path) from None
        why = "a link to nothing" if problem.errno == errno.ENOENT and path.is_symlink() else problem.strerror
        raise error(f"{path}: {why}", path) from None
    except ValueError as problem:  # a NUL in the name
        raise error(f"{path!r}: {problem}", path) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
            raise error(f"{path}: {kind} instead of a file", path)
        if status.st_size > max_bytes:
            raise error(f"{path}: the file has {status.st_size:,} bytes (at most {max_bytes:,})", path)
        parts, left = [], max_bytes + 1
        while left and (part := os.read(descriptor, min(left, 1 << 24))):
            parts.append(part)
            left -= len(part)
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}", path) from None
    finally:
        os.close(descriptor)
    if not left:
        raise error(f"{path}: the file has more than {max_bytes:,} bytes", path)
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_SETTINGS_BYTES, error: type[ModelFileError] = ModelFileError) -> str:
    """A regular file's text, without a byte order mark; also refused: what is not UTF-8, or a git-LFS pointer. See read_bytes."""
    path = Path(path)
    data = read_bytes(path, max_bytes, error)
    kind = what_it_is(data[:4096])
    if kind == LFS_POINTER:
        raise error(f"{path}: {kind}", path)
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as problem:
        what = f"this is {kind}" if kind else f"byte {problem.start} is no UTF-8"
        raise error(f"{path}: not a text: {what}", path) from None


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_SETTINGS_BYTES, error: type[ModelFileError] = ModelFileError) -> Any:
    """A regular file's JSON value; also refused: what is no JSON, or is nested beyond Python's limit. See read_text."""
    path = Path(path)
    return parse_json(read_text(path, max_bytes, error), path, error)


def parse_json(text: str, path: Path, error: type[ModelFileError] = ModelFileError, *, unique_keys: bool = False) -> Any:
    """The JSON value that the text of the file `path` holds. unique_keys: a key that stands twice is refused, too: two readers may take
    another one each."""
    try:
        return json.loads(text, object_pairs_hook=_object_of if unique_keys else None)
    except RecursionError:
        raise error(f"{path}: not valid JSON: it is nested too deeply", path) from None
    except ValueError as problem:
        kind = what_it_is(text[:4096].encode()) if text.strip() else "an empty file"
        raise error(f"{path}: not valid JSON: {f'this is {kind}' if kind else problem}", path) from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r:.60} stands twice")
    return entries


def is_there(path: Path) -> bool:
    """Whether something has this name: also a link to nothing, a pipe, a directory, which reading then refuses."""
    return os.path.lexists(path)


def is_directory(path: Path) -> bool:
    """False also for a name that no file can have, where Path.is_dir raises."""
    return os.path.isdir(path)  # noqa: PTH112


def what_it_is(head: bytes) -> str:
    """What a file that begins with these bytes is, in words; "" if they do not tell."""
    if not head:
        return "an empty file"
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(_MARKUP):
        return "a web page (a download that answered with an error or a login page): download the file again"
    if not head.strip(b"\0"):
        return "nothing but zeros (a download that was not finished)"
    return ""
