"""Folders of safetensors as sources: their tensors, and the folder that is made of one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmi.base.whole_file import whole_file
from llmi.compress.gguf_file import NewTensor, StoredTensor, checked_bytes, num_bytes
from llmi.compress.made_files import FLOATS, RECEIPT, Source, not_there
from llmi.errors import InvalidParamsError, ModelFileError
from llmi.families import spec_of
from llmi.families.names import bindings
from llmi.families.registry import cards
from llmi.models.files import open_model
from llmi.models.layout import CONFIG, INDEX, WHOLE, find

#: Where config.json of a model with other parts has the text model's keys, and its names of the weights' type.
_INNER, _TYPE = "text_config", ("torch_dtype", "dtype")
#: Its lists with an entry for each layer.
_BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "layer_rope_theta")
#: Weights in other files than those that were read: they would be those of the source.
_WEIGHTS = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf",
)  # fmt: skip
#: Types of safetensors that llmi opens, by the numbers of gguf_file.SIZES.
TYPES = FLOATS | {"I8": -1, "U8": -2, "BOOL": -3, "I32": -4, "I64": -5, "F8_E4M3": -6, "F8_E8M0": -7}
_NAMES = {number: name for name, number in TYPES.items()}


def source_of(path: Path) -> Source:
    """The model at `path`: a GGUF file, or a folder of floats. Raises ModelFileError."""
    if find(path).config is None:
        return Source(path)
    source = FolderSource(path)
    source.check_is_float()
    return source


@dataclasses.dataclass(frozen=True)
class ShardTensor(StoredTensor):
    """A tensor of one of several files."""

    file: Path


class FolderSource(Source):
    """A folder with config.json and safetensors."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: no model is there, or no sound one."""
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays the name that it has
        self.opened = open_model(self.path)
        weights = [Path(file.path) for file in self.opened.files if file.name.endswith(".safetensors")]
        self._format: dict[str, str] = {}
        self.tensors = {tensor.name: tensor for file in weights for tensor in self._tensors_of(file)}
        self._types = {tensor.name: _NAMES[tensor.type] for tensor in self.tensors.values()}
        self._config: dict[str, Any] = json.loads((self.path / CONFIG).read_bytes())

    def _tensors_of(self, path: Path) -> list[ShardTensor]:
        """Of one file, in its order; the core has checked its header."""
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        self._format |= header.pop("__metadata__", {})
        tensors = []
        for name, told in header.items():
            shape = tuple(reversed(told["shape"]))
            tensors.append(ShardTensor(name, shape, TYPES[told["dtype"]], 8 + length + told["data_offsets"][0], path))
        return sorted(tensors, key=lambda tensor: tensor.offset)

    def check_is_float(self) -> None:
        """Raises ModelFileError: config.json says that the weights are quantised, or the graph reads a tensor that is no float."""
        used = self.spec.tensor_names()
        read = next((tensor for tensor in self.tensors.values() if tensor.type < 0 and tensor.name in used), None)
        if self.spec.quantization or read:
            why = f"{CONFIG} says so" if read is None else f"{read.name} is of type {_NAMES[read.type]}"
            raise ModelFileError(
                f"{self.path} is quantised ({why}): folders of {', '.join(FLOATS)} are read, no quantised ones", str(self.path)
            )

    @property
    def text_config(self) -> dict[str, Any]:
        """What config.json says of the text model."""
        return self._config.get(_INNER) or self._config

    @property
    def receipt(self) -> str | None:
        """How it was made, if llmi made it."""
        return self._format.get(RECEIPT)

    @property
    def num_bytes(self) -> int:
        """Of the files that are read."""
        return sum(file.size for file in self.opened.files)

    def bytes_of(self, tensor: StoredTensor) -> bytes:
        """As they are stored. Raises ModelFileError if the file ends before."""
        assert isinstance(tensor, ShardTensor)
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            data = file.read(tensor.num_bytes)
        if len(data) != tensor.num_bytes:
            raise ModelFileError(f"{self.path}: {tensor.name} is cut short", str(self.path))
        return data

    def free_path(self, out: str | os.PathLike[str]) -> Path:
        """A new folder's or GGUF file's. Raises InvalidParamsError."""
        return not_there(Path(os.path.abspath(out)))  # noqa: PTH100

    @property
    def layer_prefix(self) -> str:
        """What names of layers' tensors begin with, before the number. Raises UnsupportedModelError."""
        shared = os.path.commonprefix([binding.name for binding in bindings(self.spec.layers[0])])
        found = re.match(r"((?:.*?\.)?)0\.", shared)
        if found is None:
            raise self.refuse("drop_layers", f"whose names of tensors do not begin with a layer's number ({shared!r})")
        return found[1]

    def with_layers(self, total: int, kept: Sequence[int]) -> dict[str, Any]:
        """What changes in config.json if these layers stay."""
        sections = self._sections("drop_layers", {"num_hidden_layers": len(kept)})
        for section in sections:
            for name in _BY_LAYER:
                if isinstance(section.get(name), list) and len(section[name]) == total:
                    section[name] = [section[name][old] for old in kept]
        return self._changes(sections)

    def with_numbers(self, method: str, numbers: Mapping[str, int]) -> dict[str, Any]:
        """What changes in config.json. Raises UnsupportedModelError: the family's has no key for one."""
        return self._changes(self._sections(method, numbers))

    def untied(self, method: str) -> tuple[str, dict[str, Any]]:
        """The name of a head beside the embedding, and what changes in config.json. Raises UnsupportedModelError: there cannot be one."""
        sections = self._sections(method, {})
        for section in sections:
            section["tie_word_embeddings"] = False
        changes = self._changes(sections)
        with contextlib.suppress(InvalidParamsError):  # the family reads no such key
            if head := spec_of(self.opened.core, json.dumps(changes)).head.weight.name:
                return head, changes
        raise self.refuse(method, f"whose {CONFIG} cannot say that it has a head of its own")

    def _sections(self, method: str, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
        """Copies of what says the model's numbers, with these: text_config, if there is one, and config.json, which may repeat them."""
        aliases = next(card.aliases for card in cards() if card.name == self.spec.family)
        inner = self._config.get(_INNER)
        sections = [dict(inner)] if isinstance(inner, dict) else []
        sections.append(dict(self._config))
        for key, value in numbers.items():
            names = aliases.get(key, (key,))
            if not names:
                raise self.refuse(method, f"whose {CONFIG} has no {key}")
            places = [(section, name) for section in sections for name in names if section.get(name) is not None]
            old = places[0][0][places[0][1]] if places else None
            for section, name in places or [(sections[0], names[0])]:
                if section.get(name) == old:
                    section[name] = value
        return sections

    def _changes(self, sections: Sequence[dict[str, Any]]) -> dict[str, Any]:
        new = sections[-1] | ({_INNER: sections[0]} if len(sections) > 1 else {})
        return {name: value for name, value in new.items() if name not in self._config or self._config[name] != value}

    def metadata(self, changes: Mapping[str, Any], receipt: str, kinds: set[int]) -> dict[str, Any]:
        """Of config.json and the weights' header."""
        config = self._config | dict(changes)
        if kinds:
            told = "float32" if kinds == {FLOATS["F32"]} else "float16"
            inner = {_INNER: _typed(config[_INNER], told)} if isinstance(config.get(_INNER), dict) else {}
            config = _typed(config, told) | inner
        return {CONFIG: config, "__metadata__": self._format | {RECEIPT: receipt}}

    def write(self, path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor], written: Callable[[], object]) -> None:
        """Makes the folder, whole or not at all. Raises OSError."""
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")
        part.mkdir()
        try:
            for file in self._beside():
                with whole_file(part / file.name) as new, file.open("rb") as old:
                    shutil.copyfileobj(old, new)
            self._write_config(part, metadata)
            with whole_file(part / WHOLE) as new:
                new.write(_header(metadata["__metadata__"], tensors))
                for data in checked_bytes(tensors):
                    new.write(data)
                    written()
            not_there(path)
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def write_header(self, folder: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> Path:
        """The same folder's config and weights: shapes that are whole numbers, and zeros that take no room on the disk. Raises OSError."""
        self._write_config(folder, metadata)
        with (folder / WHOLE).open("wb") as file:
            place = file.write(_header(metadata["__metadata__"], tensors))
            for tensor in tensors:
                if tensor.type == TYPES["I64"]:
                    file.seek(place)
                    file.write(tensor.make())
                place += num_bytes(tensor.shape, tensor.type)
            file.truncate(place)
        return folder

    def _write_config(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Its bytes stay where nothing in it changes."""
        config = metadata[CONFIG]
        with whole_file(folder / CONFIG) as file:
            file.write((self.path / CONFIG).read_bytes() if config == self._config else json.dumps(config, indent=2).encode())

    def _beside(self) -> Iterator[Path]:
        """The folder's other files but those of weights; folders in it are not copied."""
        for file in sorted(self.path.iterdir()):
            if file.is_file() and file.name not in (CONFIG, INDEX) and not file.name.endswith(_WEIGHTS):
                yield file


def _typed(section: Mapping[str, Any], told: str) -> dict[str, Any]:
    """The same with another type of weights, where it names one."""
    return {name: told if name in _TYPE and value is not None else value for name, value in section.items()}


def _header(metadata: Mapping[str, str], tensors: Sequence[NewTensor]) -> bytes:
    """All bytes of a safetensors file before its tensors."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        end = offset + num_bytes(tensor.shape, tensor.type)
        header[tensor.name] = {"dtype": _NAMES[tensor.type], "shape": list(reversed(tensor.shape)), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
