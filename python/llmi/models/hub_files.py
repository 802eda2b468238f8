"""Which files of a hub repository are the model. Names only: nothing is fetched here.

docs/decisions/0009-files-and-families.md has the reasons.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from llmi.errors import ModelFileError
from llmi.models.gguf_parts import part_of

#: Taken in this order where a repository holds several and the name chooses none: types with kernels of their own, the usual choice first,
#: then the smaller before the larger; those of fewer than four bits last.
PREFERRED_TYPES = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "MXFP4", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "BF16", "F16",
    "F32", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
)  # fmt: skip
_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)", re.ASCII)
#: Files of sentence-transformers' modules, behind the model itself.
_OF_MODULE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
FORMS = "user/repository, user/repository:TYPE (such as Q4_K_M), or user/repository/file.gguf"


@dataclasses.dataclass(frozen=True)
class HubName:
    """A name such as user/repository, user/repository:Q8_0, user/repository/folder/file.gguf."""

    repository: str
    file: str | None = None
    type_name: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubName | None:
        """None if `name` does not look like a name on the hub."""
        head, colon, type_name = name.partition(":")
        parts = head.split("/")
        if len(parts) < 2 or not _REPOSITORY.fullmatch("/".join(parts[:2])):
            return None
        repository, file = "/".join(parts[:2]), "/".join(parts[2:])
        if len(parts) == 2 and not head.lower().endswith(".gguf"):
            if colon and not re.fullmatch(r"[\w.-]+", type_name):
                return None
            return cls(repository, type_name=type_name or None) if type_name or not colon else None
        if len(parts) > 2 and not colon and file.lower().endswith(".gguf") and all(part not in ("", ".", "..") for part in parts):
            return cls(repository, file=file)
        return None


@dataclasses.dataclass(frozen=True)
class Choice:
    """Files to fetch. `model` is what LLM() opens: a file, or "" for the folder. `why` is for the log."""

    files: tuple[str, ...]
    model: str
    why: str


def _parts_of(file: str, files: Iterable[str]) -> tuple[str, ...]:
    """All parts of the set that `file` belongs to."""
    part = part_of(file)
    if part is None:
        return (file,)
    if part.count < 1:
        raise ModelFileError(f"{file}: a set of {part.count} parts is none", file)
    wanted = part.all_names()
    missing = sorted({*wanted} - {*files})
    if missing:
        raise ModelFileError(
            f"{file}: the repository lacks {len(missing)} of the set's {part.count} parts, the first being {missing[0]}", missing[0]
        )
    return tuple(wanted)


def _is_type(file: str, type_name: str) -> bool:
    """Whether a file's name, or its folder's, ends in the name of a type: Q4_K does not stand for Q4_K_M."""
    part = part_of(file)
    stem = part.stem if part else file[: -len(".gguf")]
    pattern = re.compile(rf"(?:^|[-._]){re.escape(type_name)}$", re.IGNORECASE)
    return any(pattern.search(part) for part in PurePosixPath(stem).parts)


def _listed(files: Iterable[str]) -> str:
    names = sorted(files)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _gguf(name: HubName, files: list[str]) -> Choice:
    models = [file for file in files if file.lower().endswith(".gguf") and not _NO_MODEL.search(PurePosixPath(file).name)]
    firsts = [file for file in models if (part := part_of(file)) is None or part.number == 1]
    if name.file is not None:
        if name.file not in files:
            raise ModelFileError(f"{name.repository} on the hub has no {name.file}; its GGUF files: {_listed(firsts) or 'none'}", name.file)
        if name.file not in models:
            raise ModelFileError(
                f"{name.repository}/{name.file} holds no language model (it is a vision projector or an importance matrix)", name.file
            )
        parts = _parts_of(name.file, files)
        return Choice(parts, parts[0], "as named")
    if name.type_name is not None:
        found = [file for file in firsts if _is_type(file, name.type_name)]
        if not found:
            raise ModelFileError(
                f"{name.repository} on the hub has no GGUF file of type {name.type_name}; it has: {_listed(firsts) or 'none'}",
                name.repository,
            )
        why = "by its type"
    elif len(firsts) == 1:
        found, why = firsts, "the only GGUF model there"
    else:
        found = []
        for type_name in PREFERRED_TYPES:
            found = [file for file in firsts if _is_type(file, type_name)]
            if found:
                why = f"{type_name} of {len(firsts)} GGUF models; {name.repository}:TYPE takes another"
                break
        else:
            raise ModelFileError(
                f"{name.repository} on the hub has several GGUF files, none of a type that llmi takes by itself"
                f" ({', '.join(PREFERRED_TYPES)}): name one as {name.repository}/FILE of {_listed(firsts)}",
                name.repository,
            )
    if len(found) > 1:
        raise ModelFileError(
            f"{name.repository} on the hub has several files of that type: name one as {name.repository}/FILE of {_listed(found)}",
            name.repository,
        )
    parts = _parts_of(found[0], files)
    return Choice(parts, parts[0], why)


def choose(name: HubName, files: Iterable[str]) -> Choice:
    """The files that `name` means, of all those in its repository.

    Raises
    ------
    ModelFileError
        There is none, or nothing says which of several is meant.
    """
    files = list(files)
    top = [file for file in files if "/" not in file]
    weights = [file for file in top if file.endswith(".safetensors")]
    has_gguf = any(file.lower().endswith(".gguf") for file in files)
    if name.file is not None or name.type_name is not None or (has_gguf and not (weights and "config.json" in top)):
        return _gguf(name, files)
    if weights and "config.json" in top:
        if "model.safetensors" in top or "model.safetensors.index.json" in top:  # the same weights may be there twice, under other names
            weights = [file for file in weights if file.startswith("model")]
        companions = [
            file for file in files if file in top and (file.endswith((".json", ".jinja", ".model", ".tiktoken")) or file == "merges.txt")
        ]
        companions += [file for file in files if file.startswith("additional_chat_templates/") and file.endswith(".jinja")]
        companions += [file for file in files if "modules.json" in top and _OF_MODULE.fullmatch(file)]
        why = "safetensors" + (f"; {name.repository}:TYPE takes a GGUF file" if has_gguf else "")
        return Choice((*weights, *companions), "", why)
    if "adapter_config.json" in top:
        raise ModelFileError(
            f"{name.repository} on the hub is an adapter: llmi needs the model itself, with the adapter merged", name.repository
        )
    if any(file.endswith((".bin", ".pt", ".pth")) for file in top):
        raise ModelFileError(
            f"{name.repository} on the hub has weights of PyTorch only, which can hold code: convert them once with"
            " transformers' save_pretrained(folder, safe_serialization=True) and give llmi the folder",
            name.repository,
        )
    raise ModelFileError(
        f"{name.repository} on the hub holds no model that llmi reads (config.json and safetensors, or GGUF)", name.repository
    )
