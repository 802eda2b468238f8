"""What the matrices of a model read while it runs over a text: sums of squares by column, and products of columns."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.gguf_entries import number_entry, text_entry, texts_entry
from llmi.base.kinds import Flag, Whole, parse
from llmi.base.progress import progress
from llmi.base.travel import StaysHere
from llmi.compress.gguf_file import GgufSource, NewTensor, StoredTensor, write_gguf
from llmi.compress.own_text import own_text
from llmi.compress.texts import given_texts, judged_text
from llmi.errors import InvalidParamsError, ModelFileError, call_core
from llmi.llm import LLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_TOKENS, _SEED = Whole(2, 1 << 30), Whole(0, (1 << 31) - 1)
_WINDOW = 512
_SHARED = 32  # tokens in a row that no calibration text shares with the judged one
_ENTRY = "llmi.calibration"
_SQUARES, _COUNTS, _PRODUCTS = ".in_sum2", ".counts", ".gram"
_F32 = 0


class Calibration(StaysHere):
    """Sums over what each matrix of a model read.

    Attributes
    ----------
    made : dict
        How it was made: model (SHA-256 of the source), text, num_tokens, seed, gram. Empty for a file of llama-imatrix.

    Examples
    --------
    >>> from llmi.compress import calibrate
    >>> from llmi.testing import tiny_model
    >>> calibrate(tiny_model(), texts=[[5, 9, 2, 7, 1, 8, 3, 6]]).made["num_tokens"]
    8
    """

    def __init__(
        self, sums: dict[str, tuple[F32, F32]], products: dict[str, _Products], made: dict[str, Any], path: str = "the calibration"
    ) -> None:
        self._sums, self._products, self.made, self._path = sums, products, made, path

    def __contains__(self, name: object) -> bool:
        return name in self._sums

    def __repr__(self) -> str:
        return f"Calibration({len(self._sums)} matrices, {len(self._products)} with products, {self.made or 'of llama-imatrix'})"

    @property
    def num_tensors(self) -> int:
        """Of which it has sums."""
        return len(self._sums)

    @property
    def has_gram(self) -> bool:
        """Whether products of columns were gathered."""
        return bool(self._products)

    def norms(self, name: str) -> F32:
        """The root mean square of each column of what this tensor read: float32 [columns], of experts [experts, columns].

        Raises
        ------
        InvalidParamsError
            It has no such tensor.
        """
        squares, counts = self._of(name)
        norms: F32 = np.sqrt(squares / np.maximum(counts, 1)[:, None])
        return norms[0] if len(norms) == 1 else norms

    def num_rows(self, name: str) -> int:
        """Rows that this tensor read, of experts the fewest that one of them read. Raises InvalidParamsError."""
        return int(self._of(name)[1].min())

    def gram(self, name: str) -> F32:
        """X^T X of the rows that this tensor read, float32 [columns, columns]. Read from the file at each call.

        Raises
        ------
        InvalidParamsError
            It has no such tensor, or was made without gram=True.
        """
        self._of(name)
        if name not in self._products:
            raise InvalidParamsError(f"calibration: it has no products of the columns of {name}: make it with gram=True", "calibration")
        return self._products[name].read()

    def shares_gram(self, name: str) -> str | None:
        """A key that tensors with the same products have in common; None without products."""
        found = self._products.get(name)
        return None if found is None else found.key

    def of_tensors(self, names: Mapping[str, Sequence[str]]) -> Calibration:
        """The same for another form of the model. names: its tensors, and of each that which it is made of, or those of all experts."""
        sums, products = dict(self._sums), dict(self._products)
        for new, old in names.items():
            if all(name in self._sums for name in old):
                squares, counts = zip(*(self._sums[name] for name in old), strict=True)
                sums[new] = np.concatenate(squares), np.concatenate(counts)
            if old[0] in products:
                products[new] = products[old[0]]
        return Calibration(sums, products, self.made, self._path)

    def digest(self) -> str:
        """SHA-256 of all sums and products."""
        digest = hashlib.sha256()
        for name in sorted(self._sums):
            for values in self._sums[name]:
                digest.update(name.encode() + values.tobytes())
        for key, stored in sorted({stored.key: stored for stored in self._products.values()}.items()):
            digest.update(key.encode() + stored.read().tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes llama.cpp's GGUF form of an importance matrix, whole or not at all, with products as further tensors.

        Raises
        ------
        InvalidParamsError
            The file exists or cannot be written.
        """
        target = Path(path)
        if target.exists():
            raise InvalidParamsError(f"out: {target} exists: nothing is written over a file", "out")
        shared = {name: stored.key for name, stored in self._products.items()}
        entries = {
            "general.type": text_entry("imatrix"),
            "imatrix.datasets": texts_entry([str(self.made.get("text", ""))]),
            "imatrix.chunk_count": number_entry(int(self.made.get("num_windows", 1))),
            "imatrix.chunk_size": number_entry(_WINDOW),
            _ENTRY: text_entry(json.dumps({"made": self.made, "grams": shared}, sort_keys=True)),
        }
        tensors = []
        for name in sorted(self._sums):
            squares, counts = self._sums[name]
            tensors.append(NewTensor(name + _SQUARES, (squares.shape[1], len(squares)), _F32, squares.tobytes))
            tensors.append(NewTensor(name + _COUNTS, (1, len(counts)), _F32, counts.tobytes))
        for stored in sorted({stored.key: stored for stored in self._products.values()}.values(), key=lambda stored: stored.key):
            tensors.append(NewTensor(stored.key + _PRODUCTS, (stored.size, stored.size), _F32, stored.bytes_of))
        try:
            write_gguf(target, entries, tensors, lambda: None)
        except OSError as error:
            raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Reads a file of `save`, or one that llama-imatrix wrote as GGUF.

        Raises
        ------
        ModelFileError
            It is no such file, is cut short, or holds NaN, infinity or a negative sum.
        """
        return _load(Path(path))

    def _of(self, name: str) -> tuple[F32, F32]:
        if name not in self._sums:
            raise InvalidParamsError(f"calibration: {self._path} has nothing about {name}", "calibration")
        return self._sums[name]


class _Descriptor:
    """An open file, which is closed with the last object that reads it."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class _Products:
    """Products in a file, of which the upper triangle is right."""

    def __init__(self, file: _Descriptor, key: str, offset: int, size: int) -> None:
        self.file, self.key, self.offset, self.size = file, key, offset, size

    def read(self) -> F32:
        data = bytearray(4 * self.size * self.size)
        place = 0
        while place < len(data) and (count := os.preadv(self.file.number, [memoryview(data)[place:]], self.offset + place)):
            place += count
        if place < len(data):
            raise ModelFileError(f"calibration: the products of the columns of {self.key} are cut short", "calibration")
        upper = np.triu(np.frombuffer(data, np.float32).reshape(self.size, self.size))
        upper += np.triu(upper, 1).T
        if not np.isfinite(upper).all():
            raise InvalidParamsError(f"calibration: the products of the columns of {self.key} hold NaN or infinity", "calibration")
        return upper

    def bytes_of(self) -> bytes:
        return self.read().tobytes()


def calibrate(
    model: str | os.PathLike[str],
    *,
    texts: str | Iterable[Any] | None = None,
    tokens: int = 20_000,
    seed: int = 0,
    gram: bool = False,
    **engine_args: object,
) -> Calibration:
    """Runs a model over a text, and sums what each of its matrices reads. Equal inputs give equal sums, on any number of threads, in any
    batch, on every instruction set.

    Parameters
    ----------
    model : path or name
    texts : str, or an iterable of str or of lists of token ids, optional
        The default is what the model itself writes: seeded answers to llmi's own questions, and text without a question.
    tokens : int
        At most so many are read, in windows of 512.
    seed : int
        Of the model's own text.
    gram : bool
        Products of all pairs of columns, too (X^T X), which "gptq" needs. They wait in a temporary file.
    **engine_args
        Of LLM.

    Returns
    -------
    Calibration

    Raises
    ------
    InvalidParamsError
        The text shares 32 tokens in a row with the text that `evaluate` judges by.
    ModelFileError
        A sum is NaN or infinite.

    Examples
    --------
    >>> from llmi.compress import calibrate
    >>> from llmi.testing import tiny_model
    >>> calibration = calibrate(tiny_model(), texts=[[5, 9, 2, 7, 1, 8, 3, 6]], gram=True)
    >>> calibration.gram("model.layers.0.mlp.up_proj.weight").shape
    (64, 64)
    """
    tokens, seed, gram = parse(_TOKENS, "tokens", tokens), parse(_SEED, "seed", seed), parse(Flag(), "gram", gram)
    given = None if texts is None else given_texts(texts)[0]
    with LLM(model, enable_prefix_caching=False, **engine_args) as llm:  # type: ignore[arg-type]
        ids = own_text(llm, seed, tokens) if given is None else [_ids_of(llm, text) for text in given]
        windows = _windows_apart(llm, ids, tokens)
        made = {
            "model": llm._files.digest()(),
            "text": "own" if given is None else hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
            "num_tokens": sum(map(len, windows)),
            "num_windows": len(windows),
            "tokens": tokens,
            "seed": seed,
            "gram": gram,
        }
        return _gathered(llm, windows, gram, made)


def own_windows(llm: LLM, tokens: int, seed: int) -> list[list[int]]:
    """What `calibrate` reads without a given text."""
    return _windows_apart(llm, own_text(llm, seed, tokens), tokens)


def _windows_apart(llm: LLM, texts: list[list[int]], tokens: int) -> list[list[int]]:
    _check_apart(llm, texts)
    return list(_windows(llm, texts, tokens))


def _ids_of(llm: LLM, text: str | list[int]) -> list[int]:
    return list(llm.tokenizer.encode(text, add_special_tokens=False)) if isinstance(text, str) else text


def _windows(llm: LLM, texts: list[list[int]], tokens: int) -> Iterator[list[int]]:
    """Each begins as the tokenizer begins texts."""
    begin = llm.tokenizer._loaded.prefix
    size = min(_WINDOW, llm.model_info.max_model_len) - len(begin)
    left = tokens
    for ids in texts:
        for start in range(0, min(len(ids), left), size):
            yield begin + ids[start : min(start + size, left)]
        left -= min(len(ids), left)


def _check_apart(llm: LLM, texts: list[list[int]]) -> None:
    """Raises InvalidParamsError if a text has a passage of the judged text."""
    special = {llm.tokenizer.bos_token_id, *llm.tokenizer.eos_token_ids, *llm.tokenizer._loaded.prefix}

    def passages(ids: list[int]) -> Iterator[bytes]:
        plain = np.array([token for token in ids if token not in special], np.int32)
        return (plain[start : start + _SHARED].tobytes() for start in range(len(plain) - _SHARED + 1))

    judged = set(passages(_ids_of(llm, judged_text())))
    for index, ids in enumerate(texts):
        for passage in passages(ids):
            if passage in judged:
                text = llm._decode(np.frombuffer(passage, np.int32).tolist())
                raise InvalidParamsError(
                    f"texts[{index}] shares {_SHARED} tokens in a row with the text that llmi eval judges by: {text!r}."
                    " A method that has seen it would look better than it is: leave the passage out",
                    "texts",
                )


def _gathered(llm: LLM, windows: list[list[int]], gram: bool, made: dict[str, Any]) -> Calibration:
    file = None
    if gram:
        with tempfile.TemporaryFile() as opened:
            file = _Descriptor(os.dup(opened.fileno()))
    call_core(_core.gather_inputs, llm._engine, -1 if file is None else file.number)
    with progress(len(windows), "windows") as bar:
        for window in windows:
            llm.hidden_states([window])
            bar.update(1)
    sums: dict[str, tuple[F32, F32]] = {}
    products: dict[str, _Products] = {}
    for readers, counts, squares, offset, _ in call_core(_core.gathered_inputs, llm._engine):
        if not np.isfinite(squares).all():
            raise ModelFileError(f"{llm._files.path}: what {readers[0][0]} reads holds NaN or infinity", str(llm._files.path))
        rows = squares.reshape(len(counts), -1).astype(np.float32), counts.astype(np.float32)
        for name, matrix in readers:
            sums.setdefault(name, rows if matrix < 0 else (rows[0][matrix : matrix + 1], rows[1][matrix : matrix + 1]))
            if file is not None and offset >= 0:
                products.setdefault(name, _Products(file, readers[0][0], offset, rows[0].shape[1]))
    return Calibration(sums, products, made)


def _load(path: Path) -> Calibration:
    def wrong(why: str) -> ModelFileError:
        return ModelFileError(f"{path}: no calibration: {why}", str(path))

    try:
        source = GgufSource(path)
    except OSError as error:
        raise InvalidParamsError(f"calibration: {path} cannot be read: {error.strerror}", "calibration") from None
    if source.text_of("general.type") != "imatrix":
        raise wrong('its general.type is not "imatrix": llmi calibrate and llama-imatrix (as GGUF) write such files')
    size = path.stat().st_size
    tensors = {tensor.name: tensor for tensor in source.tensors}
    for tensor in source.tensors:
        if tensor.type != _F32 or len(tensor.shape) not in (1, 2) or 0 in tensor.shape or tensor.offset + tensor.num_bytes > size:
            raise wrong(f"{tensor.name} is no matrix of float32 inside the file")

    def values(tensor: StoredTensor) -> F32:
        array = np.frombuffer(source.bytes_of(tensor), np.float32).reshape(tensor.shape[::-1])
        if not np.isfinite(array).all() or array.min() < 0:
            raise wrong(f"{tensor.name} holds NaN, infinity or a number below 0")
        return array.reshape(-1, tensor.shape[0])

    sums = {}
    for name, tensor in tensors.items():
        if name.endswith(_SQUARES):
            own = name.removesuffix(_SQUARES)
            if own + _COUNTS not in tensors:
                raise wrong(f"{own} has sums without counts")
            squares, counts = values(tensor), values(tensors[own + _COUNTS]).reshape(-1)
            if len(counts) != len(squares):
                raise wrong(f"{own} has {len(squares)} rows of sums and {len(counts)} counts")
            sums[own] = squares, counts
    made, grams = _entry(source, wrong)
    file = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) if grams else None
    products = {}
    for name, key in grams.items():
        found = tensors.get(key + _PRODUCTS)
        if found is None or name not in sums or found.shape != (sums[name][0].shape[1],) * 2:
            raise wrong(f"the products of {name} are not there, or are no square of its columns")
        assert file is not None
        products[name] = _Products(file, key, found.offset, found.shape[0])
    return Calibration(sums, products, made, str(path))


def _entry(source: GgufSource, wrong: Callable[[str], ModelFileError]) -> tuple[dict[str, Any], dict[str, str]]:
    """llmi's own entry: how it was made, and whose products a tensor has."""
    if _ENTRY not in source.entries:
        return {}, {}
    try:
        entry = json.loads(source.text_of(_ENTRY) or "")
        made, grams = dict(entry["made"]), {str(name): str(key) for name, key in entry["grams"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise wrong(f"its entry {_ENTRY} cannot be read: {error!r:.200}") from None
    return made, grams
