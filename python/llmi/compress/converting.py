"""A folder of safetensors as a GGUF file: the same graph under GGUF's names, checked before it is written."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.base.progress import progress
from llmi.compress.folders import FolderSource
from llmi.compress.gguf_file import NewTensor, StoredTensor, made_ahead, write_gguf, write_header
from llmi.compress.gguf_values import Value, entry_of, rope_tensors, values_of
from llmi.compress.made_files import FLOATS, Source
from llmi.compress.stored_rows import Part, new_tensor
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedModelError
from llmi.families import ModelSpec, spec_of
from llmi.families.config import Config, Shape
from llmi.families.inert import matches
from llmi.families.registry import cards, run_card
from llmi.families.spec import MlpSpec, RopeSpec, TensorBinding
from llmi.models.files import open_model
from llmi.text.to_gguf import gguf_entries

_FILE_TYPES = {FLOATS["F32"]: 0, FLOATS["F16"]: 1, FLOATS["BF16"]: 32}
#: Families whose files have another one's architecture in GGUF; all others that have none of their own are taken for a Llama. Granite 4
#: is one with states for llama.cpp, which knows it without them as a Granite; it runs no GPT-J.
_OTHERS = {"olmo3": "olmo2", "granitemoehybrid": "granite", "gptj": "llama"}
#: Architectures of which llama.cpp reads gate and up as one tensor.
_GATE_UP = ("phi3", "glm4", "chatglm")
#: Of a spec and its parts: names, and the numbers of a rotary table that are a tensor in GGUF.
_NOT_COMPARED = {
    "family", "ignored_tensors", "quantization", "frequency_divisors", "divisors_tensor",
    "llama3_factor", "llama3_low_freq_factor", "llama3_high_freq_factor", "llama3_original_context",
}  # fmt: skip
_XIELU = ("alpha_p", "alpha_n", "beta", "eps")


class Wished(Mapping[str, Shape]):
    """The tensors of a file that is not there yet: all that a family asks for, but for those that the graph has no use for."""

    def __init__(self, known: Mapping[str, Shape], absent: set[str]) -> None:
        self.known, self.absent = known, absent

    def __contains__(self, name: object) -> bool:
        return name in self.known or (name not in self.absent and not str(name).startswith("rope_f"))

    def __getitem__(self, name: str) -> Shape:
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


class Conversion:
    """What a folder becomes.

    Attributes
    ----------
    entries : dict of str to bytes
    tensors : list of NewTensor
    names : dict of str to list of str
        Tensor of the file: that of the folder which it is made of, or those of all experts.
    """

    def __init__(self, source: FolderSource, name: str) -> None:
        """name: what the file says of its name. Raises UnsupportedModelError: GGUF cannot hold this model, or llmi does not know how."""
        self.source, self.spec = source, source.spec
        if not self.spec.generates or self.spec.two_sided:
            raise self._refused("that writes no text")
        config = source.text_config
        own = next(card for card in cards() if card.name == self.spec.family).gguf
        self.architecture = _OTHERS.get(self.spec.family) or (*own, "llama")[0]
        ropes = rope_tensors(self.spec, config)
        self.values = {"general.architecture": self.architecture} | self._xielu() | values_of(self.spec, self.architecture, config)
        pairs = self._pairs(ropes)
        self._check_shapes(self.spec, source.tensors)
        self.names = {new: list(dict.fromkeys(name for part in parts for name in part.names(source))) for new, parts in pairs.items()}
        self._check_all_used()
        self.tensors = [new_tensor(source, new, parts) for new, parts in pairs.items()]
        self.tensors += [NewTensor(new, (len(factors),), FLOATS["F32"], factors.tobytes) for new, factors in ropes.items()]
        largest = max(self.tensors, key=lambda tensor: math.prod(tensor.shape))
        told: dict[str, Value] = {
            "general.type": "model",
            "general.name": name,
            "general.file_type": _FILE_TYPES[largest.type],
            "general.quantization_version": 2,
        }
        self.entries = {key: entry_of(value) for key, value in (self.values | told).items()}
        self.entries |= gguf_entries(source.path, num_rows=self.spec.vocab_size)

    def write(self, path: Path) -> None:
        """Reads the header as llmi will, and writes the file. Raises UnsupportedModelError: it would be another model; OSError."""
        write_header(path, self.entries, self.tensors)
        found = spec_of(open_model(path).core)
        self._compare(found)
        self._check_shapes(found, {tensor.name: tensor for tensor in self.tensors})
        path.unlink()
        with progress(len(self.tensors), "tensors") as bar, made_ahead(self.tensors) as ahead:
            write_gguf(path, self.entries, ahead, partial(bar.update, 1))

    def _refused(self, why: str) -> UnsupportedModelError:
        return self.source.refuse("to GGUF", why)

    def _xielu(self) -> dict[str, Value]:
        """What is in tensors of a folder, and in the metadata of a file."""
        scalars = [[float(self.source.values(each.name).ravel()[0]) for each in layer.mlp.activation_scalars] for layer in self.spec.layers]
        return {f"xielu.{name}": list(values) for name, values in zip(_XIELU, zip(*scalars, strict=True), strict=False)}

    def _pairs(self, ropes: Mapping[str, object]) -> dict[str, list[Part]]:
        """Of each tensor of the file the roles that read it. Values that the architecture does not read go."""
        known: dict[str, Shape] = {"token_embd.weight": (self.spec.vocab_size, self.spec.hidden_size), **dict.fromkeys(ropes, ())}
        absent = set()
        for index, layer in enumerate(self.spec.layers):
            if layer.attention.query.weight.name != layer.attention.key.weight.name:
                absent.add(f"blk.{index}.attn_qkv.weight")
            if layer.mlp.gate.weight.name == layer.mlp.up.weight.name and self.architecture in _GATE_UP:
                absent.add(f"blk.{index}.ffn_gate.weight")
            if not layer.mlp_norm.present:
                absent.add(f"blk.{index}.ffn_norm.weight")
        card = next(card for card in cards() if self.architecture in card.gguf)
        while True:
            c = Config(self.values, str(self.source.path), Wished(known, absent), gguf=self.architecture)
            c.text("general.architecture")
            try:
                spec = run_card(card, c)
            except LlmiError as error:
                raise self._refused(f"of which llmi makes no GGUF file: {error}") from None
            bindings = [(old, new) for _, old, new in _leaves(self.spec, spec) if isinstance(old, TensorBinding)]
            useless = {new.name for old, new in bindings if new.name and not old.name} - absent
            if not useless:
                break
            absent |= useless
        unread = c.unread()
        self.values = {key: value for key, value in self.values.items() if key not in unread}
        places: dict[str, list[int]] = {}
        for old, _ in bindings:
            places.setdefault(old.name, []).append(old.order.first_row)
        pairs: dict[str, list[Part]] = {}
        for old, new in bindings:
            if new.name:
                pairs.setdefault(new.name, []).append(Part(old, new, places[old.name]))
        return pairs

    def _compare(self, found: ModelSpec) -> None:
        """Raises UnsupportedModelError: it is another graph than the folder's."""
        for path, old, new in _leaves(self.spec, found):
            if not _are_same(old, new):
                raise self._refused(f"that no GGUF file of {self.architecture} can hold: {path} would be {_shown(new)}, not {_shown(old)}")

    def _check_shapes(self, spec: ModelSpec, tensors: Mapping[str, StoredTensor | NewTensor]) -> None:
        """Raises UnsupportedModelError: a tensor of the graph is not there, or has another shape."""
        for name, shape in _core.expected_tensors(spec.to_json(), str(self.source.path)).items():
            found = list(reversed(tensors[name].shape)) if name in tensors else None
            if found is None or (found != shape and (len(shape) > 1 or math.prod(found) != shape[0])):  # a vector may be in parts
                raise self._refused(f"with a tensor {name} of shape {found}, not {shape}")

    def _check_all_used(self) -> None:
        """Raises UnsupportedModelError: the folder has tensors that are not known to change nothing."""
        spec, source = self.spec, self.source
        used = {name for names in self.names.values() for name in names} | spec.tensor_names()
        ignored = [*spec.ignored_tensors, "*.rotary_emb.inv_freq"]
        for name, tensor in source.tensors.items():
            if name in used or any(matches(pattern, name) for pattern in ignored):
                continue
            table = source.tensors[spec.embedding.weight.name]
            if spec.head.weight.name or tensor.shape != table.shape or source.bytes_of(tensor) != source.bytes_of(table):
                raise self._refused(f"with a tensor that has no place in it: {name}")


def _leaves(old: object, new: object, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The numbers and bindings of two specs, side by side."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _leaves(*pair, f"{path}[{index}]")
    elif isinstance(old, TensorBinding) or not dataclasses.is_dataclass(old):
        yield path, old, new
    else:
        if isinstance(old, RopeSpec) and isinstance(new, RopeSpec):
            yield f"{path}.divisors_tensor", old.llama3_factor != 1 or bool(old.frequency_divisors), bool(new.divisors_tensor)
        elif isinstance(old, MlpSpec) and isinstance(new, MlpSpec) and old.activation_scalars:  # tensors of a folder, values of a file
            old = dataclasses.replace(old, activation_scalars=[], activation_values=new.activation_values)
        for field in dataclasses.fields(old):
            if field.name not in _NOT_COMPARED:
                yield from _leaves(getattr(old, field.name), getattr(new, field.name), f"{path}.{field.name}".lstrip("."))


def _are_same(old: object, new: object) -> bool:
    """But for what a file's fp32 rounds, and for how tensors are stored."""
    if isinstance(old, TensorBinding) and isinstance(new, TensorBinding):
        return bool(old.name) == bool(new.name) and (new.times, new.plus) == (1, 0)
    return math.isclose(old, new, rel_tol=1e-6) if isinstance(old, float) and isinstance(new, float) else old == new


def _shown(value: object) -> str:
    return (value.name or "none") if isinstance(value, TensorBinding) else repr(value)


@contextlib.contextmanager
def in_form_of(source: Source, target: Path, name: str = "") -> Iterator[tuple[Source, Mapping[str, Sequence[str]]]]:
    """(the source in the form of what is made of it, what each of its tensors is made of). A folder of which a file is made is converted,
    beside that file, and is there as long as it is read. name: the folder's, if a receipt has another one than it has now.

    Raises InvalidParamsError, UnsupportedModelError.
    """
    if target.suffix != ".gguf" or not isinstance(source, FolderSource):
        yield source, {}
        return
    name = name or source.path.name
    made = Conversion(source, name)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        path = Path(folder) / Path(f"{name}.gguf").name
        try:
            made.write(path)
        except OSError as error:
            raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
        yield Source(path), made.names
