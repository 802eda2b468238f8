"""Which files of a path make up a model; where none do, what the path is and what to do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from llmi import _core
from llmi.base.log import log
from llmi.errors import ModelFileError, UnsupportedModelError, from_core
from llmi.models.gguf_parts import part_of
from llmi.models.input_file import is_directory, is_there, read_json, what_it_is

INDEX, WHOLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
WANTED = "a model's directory holds config.json, model.safetensors (or its shards) and tokenizer.json, or one .gguf file"
MERGE = "merge it into its base model first (peft: model.merge_and_unload().save_pretrained(NEW)) and load what that saves"
_SHARD = re.compile(r"model-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_PIECE = re.compile(r"(?P<whole>.+\.gguf)[.-](split-[a-z]|part[-_]?\w+|\d{2,3}|a[a-z])", re.IGNORECASE)
_MAX_PARTS = 1000
_MAX_SHOWN = 8
# By how their names end: what they are and how they become something that llmi reads.
_CONVERT = (
    'convert it once: python -c "from transformers import AutoModelForCausalLM as M;'
    " M.from_pretrained({directory!r}).save_pretrained('NEW')\""
)
_FOREIGN = (
    ((".bin", ".pt", ".pth", ".ckpt"), f"a PyTorch checkpoint, which may hold code and is never loaded: {_CONVERT}"),
    ((".h5",), f"a TensorFlow checkpoint: {_CONVERT.replace('({directory!r}', '({directory!r}, from_tf=True')}"),
    ((".msgpack",), f"a Flax checkpoint: {_CONVERT.replace('({directory!r}', '({directory!r}, from_flax=True')}"),
    ((".onnx",), "an ONNX graph, which llmi does not run: take the model's safetensors, or a GGUF file of it"),
    ((".tflite", ".mlmodel", ".mlpackage", ".engine", ".plan"), "a compiled graph, which llmi does not run: take the model's safetensors"),
    ((".npz", ".npy"), "NumPy arrays, which llmi does not load: take the model's safetensors, or a GGUF file of it"),
)


@dataclasses.dataclass
class Layout:
    """The files of a model.

    Attributes
    ----------
    path : Path
        What the model goes by: a GGUF file (the first of its parts), or a directory.
    weights : list of Path
        The parts of a GGUF, or safetensors.
    config, index : Path or None
        Of a directory.
    """

    path: Path
    weights: list[Path]
    config: Path | None = None
    index: Path | None = None


def find(path: Path) -> Layout:
    """The files of the model at `path`, which exists.

    Raises
    ------
    ModelFileError
        There is none: the message says what is there, what is missing, and the next step.
    """
    if is_directory(path):
        return _directory(path)
    lower = path.name.lower()
    folder = path.parent
    if lower.endswith(".index.json"):
        raise ModelFileError(f"{path}: an index of weights, not a model: give its directory, {folder}", path)
    if lower == CONFIG:
        raise ModelFileError(f"{path}: a config without weights: give the model's directory, {folder}", path)
    if lower.endswith(".safetensors"):
        if lower.startswith("adapter_model"):
            raise UnsupportedModelError(f"{path}: an adapter (LoRA), not a model: {MERGE}", path)
        step = f"give its directory, {folder}" if is_there(folder / CONFIG) else f"put it into a directory; {WANTED}"
        raise ModelFileError(f"{path}: weights alone, without config.json and tokenizer.json: {step}", path)
    if (foreign := _foreign(path)) and not _is_ggml(path):
        raise ModelFileError(f"{path}: {foreign}", path)
    if piece := _PIECE.fullmatch(path.name):
        whole = piece["whole"]
        raise ModelFileError(f"{path}: a piece of a file that was cut: join all pieces first, in order: cat {whole}?* > {whole}", path)
    return Layout(*_gguf(path))


def gguf_of(directory: Path) -> Path | None:
    """The one GGUF model of a directory, None where there is none; raises ModelFileError for several."""
    ggufs = [path for path in _files(directory) if path.suffix.lower() == ".gguf"]
    sets: dict[str, Path] = {}
    for path in ggufs:
        part = part_of(path.name)
        sets.setdefault(f"{part.stem}-of-{part.count}" if part else path.name, path)
    models = [path for path in sets.values() if "mmproj" not in path.name.lower()]
    if len(models) > 1:
        models = [path for path in models if _is_model(path)]
    if len(models) > 1:
        raise ModelFileError(
            f"{directory}: {len(models)} models are here, name one of them: {_shown(path.name for path in models)}", directory
        )
    if not models and ggufs:
        raise UnsupportedModelError(
            f"{directory}: {_shown(path.name for path in ggufs)}: no language model (a projector of images, an adapter or an importance"
            " matrix)",
            directory,
        )
    return models[0] if models else None


def _is_model(path: Path) -> bool:
    try:
        file = _core.GgufFile(str(path))
    except _core.CoreError:  # it is named among the models, and says what is wrong when it is loaded
        return True
    return file.text("general.type") in ("", "model") and file.text("general.architecture") not in ("clip", "imatrix")


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise ModelFileError(f"{directory}: {error.strerror}", directory) from None


def _is_ggml(path: Path) -> bool:
    """By its first bytes: older GGUF files are called .bin, too, and the formats before it always were."""
    try:
        return _core.InputFile(str(path)).read(0, 4) in (b"GGUF", b"lmgg", b"fmgg", b"tjgg", b"algg")
    except _core.CoreError:
        return False


def _shown(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    return ", ".join(listed[:_MAX_SHOWN]) + more


def _foreign(path: Path) -> str:
    for suffixes, what in _FOREIGN:
        if path.name.lower().endswith(suffixes):
            directory = path.parent if is_there(path.parent / CONFIG) else Path("MODEL")
            return what.format(directory=str(directory))
    return ""


def _gguf(path: Path) -> tuple[Path, list[Path]]:
    """(first part, all parts)."""
    part = part_of(path.name)
    if part is None:
        return path, [path]
    if not 1 <= part.number <= part.count <= _MAX_PARTS:
        raise ModelFileError(f"{path}: part {part.number} of {part.count}: a model has 1 to {_MAX_PARTS} parts", path)
    parts = [path.parent / name for name in part.all_names()]
    _require(path, parts, "a split GGUF model")
    return parts[0], parts


def _require(path: Path, files: list[Path], what: str) -> None:
    missing = [file.name for file in files if not is_there(file)]
    if missing:
        raise ModelFileError(
            f"{path}: {what} of {len(files)} files, of which {len(missing)} {'is' if len(missing) == 1 else 'are'} missing:"
            f" {_shown(missing)}",
            path,
        )


def _directory(directory: Path) -> Layout:
    names = {path.name for path in _files(directory)}
    config, whole, index = directory / CONFIG, directory / WHOLE, directory / INDEX
    for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"):
        if name in names:
            raise UnsupportedModelError(f"{directory}: {name}: {_adapter(directory)}", directory, name)
    if INDEX in names:
        weights = _indexed(directory)
    elif WHOLE in names:
        weights = [whole]
    else:
        weights = _shards(directory, names)
    if not weights:
        gguf = gguf_of(directory)
        if gguf is not None:
            return Layout(*_gguf(gguf))
        raise ModelFileError(f"{directory}: {_what_is_there(directory, names)}", directory)
    if CONFIG not in names:
        raise ModelFileError(f"{directory}: config.json is missing: {WANTED}", directory, CONFIG)
    return Layout(directory, weights, config, index if INDEX in names and weights != [whole] else None)


def _adapter(directory: Path) -> str:
    base = ""
    if is_there(directory / "adapter_config.json"):
        settings = read_json(directory / "adapter_config.json")
        base = settings.get("base_model_name_or_path", "") if isinstance(settings, dict) else ""
    of = f" of {base}" if isinstance(base, str) and base else ""
    return f"an adapter (LoRA){of}, which llmi does not apply: {MERGE}"


def _indexed(directory: Path) -> list[Path]:
    index, whole = directory / INDEX, directory / WHOLE
    try:
        shards = sorted(set(_core.read_shard_index(open_input(index, "json")).values()))
    except _core.CoreError as error:
        raise from_core(error, index) from None
    missing = [name for name in shards if not is_there(directory / name)]
    if WHOLE not in shards and is_there(whole):
        # transformers takes the whole file, too.
        state = (
            f"{len(missing)} of the {len(shards)} files that it names are missing" if missing else "the shards that it names are not read"
        )
        log.warning("%s: loads %s; %s is stale: %s", directory, WHOLE, INDEX, state)
        return [whole]
    _require(index, [directory / name for name in shards], "the index names a model")
    return [directory / name for name in shards]


def _shards(directory: Path, names: set[str]) -> list[Path]:
    """Shards without an index."""
    counts = {int(match["count"]) for name in names if (match := _SHARD.fullmatch(name))}
    if not counts:
        return []
    if len(counts) > 1 or not 1 <= min(counts) <= _MAX_PARTS:
        raise ModelFileError(f"{directory}: shards of {len(counts)} models, and no {INDEX} that says which are wanted", directory)
    count = counts.pop()
    shards = [directory / f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    _require(directory, shards, f"a model without {INDEX}, by its names")
    log.info("%s: %s is missing: all %d shards are loaded", directory, INDEX, count)
    return shards


def _what_is_there(directory: Path, names: set[str]) -> str:
    foreign = [name for name in sorted(names) if _foreign(directory / name)]
    weights = [name for name in foreign if not re.fullmatch(r"(training_args|optimizer|scheduler|rng_state.*|scaler)\.(bin|pt|pth)", name)]
    if weights:
        return f"{_shown(weights)}: {_foreign(directory / weights[0])}"
    others = [name for name in sorted(names) if name.endswith(".safetensors")]
    if others:
        return f"{WHOLE} is missing, and {_shown(others)} has another name: rename it if it holds the whole model; {WANTED}"
    if "snapshots" in names:
        found = _shown(path.name for path in _files(directory / "snapshots"))
        return f"a folder of the hub's cache: give the snapshot in it ({found or 'there is none'}), {directory / 'snapshots' / 'REVISION'}"
    missing = [name for name in (CONFIG, WHOLE) if name not in names]
    return f"no model: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; {WANTED}"


def open_input(path: Path, form: str) -> _core.InputFile:
    """Opens a file of a model; raises ModelFileError if its first bytes are not those of its form ("gguf", "safetensors" or "json")."""
    try:
        str(path).encode()
        file = _core.InputFile(str(path))
        head: bytes = file.read(0, 4096)
    except _core.CoreError as error:
        raise from_core(error, path) from None
    except ValueError as error:  # a NUL in the name, or what is not UTF-8
        raise ModelFileError(f"{path!r}: {error}", path) from None
    # Header length and header: the lowest bytes of the length may be those of any magic.
    is_safetensors = head[8:9] == b"{" and not any(head[4:8])
    if form == "gguf" and head[:4] != b"GGUF":
        what = "this is a safetensors file: give its directory" if is_safetensors else _described(head) or "its first bytes are not GGUF"
        raise ModelFileError(f"{path}: not a GGUF file: {what}", path, "magic")
    if form == "safetensors" and not is_safetensors and (what := _described(head)):
        raise ModelFileError(f"{path}: not a safetensors file: {what}", path, "header length")
    if form == "json" and (what := what_it_is(head)):
        raise ModelFileError(f"{path}: not valid JSON: this is {what}", path, "json")
    return file


def _described(head: bytes) -> str:
    """The kind of a file that should hold weights, in words; "" if the first bytes do not tell."""
    if kind := what_it_is(head):
        return f"this is {kind}"
    try:
        text = head.decode("utf-8", "strict" if len(head) < 4096 else "ignore")
    except UnicodeDecodeError:
        return ""
    if not all(character.isprintable() or character.isspace() for character in text):
        return ""
    if text.lstrip()[:1] in ("{", "["):
        return "this is JSON text (an error message of a download, or another file of the model?)"
    return f"this is text, which begins with {text.strip()[:40]!r}"
