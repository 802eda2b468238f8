"""Anything that a path of a model may hold: each kind, at each entry point, is loaded or refused by its name, at once."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_model
from llmi import LLM, LlmiError, ModelFileError, Tokenizer, UnsupportedModelError
from llmi.models.inspection import inspect_model
from llmi.testing import tiny_model
from waiting import HANG_S

LFS = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
HTML = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
SMALL = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 64}
SIDES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def load(path: Path) -> list[int]:
    with LLM(path, **SMALL) as llm:
        return llm.generate([[5, 6, 7]], max_tokens=4, temperature=0, ignore_eos=True)[0].token_ids


pytestmark = pytest.mark.timeout(HANG_S)  # a named pipe or a socket must not be waited for
WAYS: dict[str, Callable[[Path], Any]] = {"LLM": load, "Tokenizer": Tokenizer, "inspect": inspect_model}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_model(vocab_size=300, path=tmp_path_factory.mktemp("source"))
    (directory / "generation_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return directory


@pytest.fixture
def model(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


def put_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def put_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "x")


#: What is put in a file's place -> what the error says.
PUT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "named pipe": (os.mkfifo, "named pipe|no regular file"),
    "socket": (put_socket, "socket|o(t a)? regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "device"),
    "directory": (Path.mkdir, "directory"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "link to nothing|No such file"),
    "git-LFS pointer": (lambda path: path.write_text(LFS), "git-LFS pointer.*git lfs pull"),
}
#: The same for files that are no text.
WRITTEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "empty"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "zeros"),
    "web page": (lambda path: path.write_text(HTML), "web page"),
    "error message": (lambda path: path.write_text('{"error": "Entry not found"}'), "JSON"),
    "text": (lambda path: path.write_text("Entry not found\n"), "text.*Entry not found"),
    "zip": (put_zip, "zip archive"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(range(200))), "gzip"),
    "torch.save": (lambda path: path.write_bytes(b"\x80\x02}q\x00" + bytes(range(200))), "torch.save.*convert"),
    "safetensors": (lambda path: path.write_bytes(struct.pack("<Q", 0x0280) + b"{" + b" " * 700), "safetensors file|not valid JSON"),
    "GGML": (lambda path: path.write_bytes(b"lmgg" + bytes(range(200))), "GGML.*GGUF"),
    "GGJT": (lambda path: path.write_bytes(b"tjgg" + bytes(range(200))), "GGJT.*GGUF"),
    "GGLA": (lambda path: path.write_bytes(b"algg" + bytes(range(200))), "GGLA.*adapter"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*PUT, *WRITTEN])
def test_in_the_place_of_a_gguf(tmp_path: Path, kind: str, way: str) -> None:
    put, message = (PUT | WRITTEN)[kind]
    put(tmp_path / "m.gguf")
    # A directory may hold a model, and a path that leads nowhere may be a name.
    message = {"directory": "no model|tokenizer.json is missing", "link to nothing": "(?i)no such file"}.get(kind, message)
    with pytest.raises(ModelFileError, match=message):
        WAYS[way](tmp_path / "m.gguf")


#: The files that each way in reads.
READ = {
    "LLM": ("config.json", "model.safetensors", *SIDES),
    "Tokenizer": ("config.json", *SIDES),
    "inspect": ("config.json", "model.safetensors"),
}


def _is_refused(model: Path, way: str, name: str, put: Callable[[Path], Any], message: str) -> None:
    """`put` replaces the file: the error names the file and says what the path holds."""
    (model / name).unlink()
    put(model / name)
    with pytest.raises(ModelFileError, match=f"(?s){name.replace('.', '[.]')}.*({message})"):
        WAYS[way](model)


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in READ.items() for name in names])
@pytest.mark.parametrize("kind", PUT)
def test_in_the_place_of_a_directorys_file(model: Path, kind: str, way: str, name: str) -> None:
    _is_refused(model, way, name, *PUT[kind])


@pytest.mark.parametrize("way", ["LLM", "inspect"])
@pytest.mark.parametrize("kind", WRITTEN)
def test_in_the_place_of_safetensors(model: Path, kind: str, way: str) -> None:
    put, message = WRITTEN[kind]
    (model / "model.safetensors").unlink()
    put(model / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        WAYS[way](model)


@pytest.mark.parametrize("kind", ["empty", "zeros", "web page", "zip", "torch.save"])
@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in READ.items() for name in names if name.endswith("json")])
def test_in_the_place_of_json(model: Path, kind: str, way: str, name: str) -> None:
    _is_refused(model, way, name, *WRITTEN[kind])


# --- GGUF files that are something else


def cut(path: Path, source: Path) -> None:
    whole = gguf_model.write(path, source).read_bytes()
    path.write_bytes(whole[:-1000])


GGUF_KINDS: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "big-endian": (lambda path, source: gguf_model.write(path, source, endian=">"), "big-endian"),
    "truncated": (cut, r"truncated.*ends at byte \d+, the file has \d+ bytes, \d+ too few"),
    "adapter": (lambda path, source: gguf_model.write(path, source, {"general.type": "adapter"}), "adapter.*merge"),
    "mmproj": (lambda path, source: gguf_model.write(path, source, {"general.type": "mmproj"}), "mmproj.*name the model's own"),
    "older mmproj": (lambda path, source: gguf_model.write(path, source, {"general.architecture": "clip"}), "mmproj"),
    "imatrix": (lambda path, source: gguf_model.write(path, source, {"general.type": "imatrix"}), "imatrix"),
    "another type": (lambda path, source: gguf_model.write(path, source, {"general.type": "dataset"}), "dataset"),
    "vocabulary": (
        lambda path, source: path.write_bytes(gguf_model.encode(gguf_model.metadata_of(source), {})),
        "vocabulary without weights",
    ),
    "part of a split": (
        lambda path, source: gguf_model.write(path, source, {"split.no": 1, "split.count": 3}),
        "part 2 of 3.*NAME-00001-of-00003",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf_that_is_no_model(source: Path, tmp_path: Path, kind: str, way: str) -> None:
    make, message = GGUF_KINDS[kind]
    path = tmp_path / "m.gguf"
    make(path, source)
    if way == "Tokenizer" and kind not in ("big-endian", "truncated", "part of a split"):
        assert Tokenizer(path).encode("he") == [257]
        return
    with pytest.raises(ModelFileError, match=message):
        WAYS[way](path)


# --- layouts that load


def test_split_gguf(source: Path, tmp_path: Path) -> None:
    whole = load(gguf_model.write(tmp_path / "whole.gguf", source))
    folder = tmp_path / "parts"
    folder.mkdir()
    parts = gguf_model.write_parts(folder, source, 3)
    for path in [*parts, folder]:
        assert load(path) == whole
        assert Tokenizer(path).encode("he") == [257]
        assert inspect_model(path).num_params == inspect_model(tmp_path / "whole.gguf").num_params
    for path in (parts[1], parts[0]):
        path.rename(path.with_suffix(".away"))
        for way in WAYS.values():
            with pytest.raises(ModelFileError, match=r"3 files, of which [12] (is|are) missing: .*m-0000[12]-of-00003"):
                way(parts[2])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("split.no", 0, "part 1, its name says 2"), ("split.count", 4, "4 parts, its name says 3"), ("split.tensors.count", 99, "99 tensors")],
)
def test_split_gguf_that_disagrees(source: Path, tmp_path: Path, field: str, value: int, message: str) -> None:
    parts = gguf_model.write_parts(tmp_path, source, 3)
    wrong = parts[2] if field == "split.tensors.count" else parts[1]
    raw = wrong.read_bytes()
    at = raw.index(field.encode()) + len(field) + 4
    wrong.write_bytes(raw[:at] + struct.pack("<I", value) + raw[at + 4 :])
    with pytest.raises(ModelFileError, match=message):
        load(parts[0])


def test_directory_of_gguf(source: Path, tmp_path: Path) -> None:
    whole = load(gguf_model.write(tmp_path / "a.gguf", source))
    gguf_model.write(tmp_path / "mmproj-a-f16.gguf", source, {"general.type": "mmproj"})
    (tmp_path / "README.md").write_text("read me")
    assert load(tmp_path) == whole
    assert Tokenizer(tmp_path).encode("he") == [257]
    gguf_model.write(tmp_path / "adapter.gguf", source, {"general.type": "adapter"})  # told by what it says of itself
    assert load(tmp_path) == whole
    gguf_model.write(tmp_path / "b.gguf", source)
    for way in WAYS.values():
        with pytest.raises(ModelFileError, match=r"2 models are here, name one of them: a[.]gguf, b[.]gguf"):
            way(tmp_path)
    assert load(tmp_path / "b.gguf") == whole
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "b.gguf").unlink()
    (tmp_path / "adapter.gguf").unlink()
    with pytest.raises(UnsupportedModelError, match=r"mmproj.*no language model"):
        load(tmp_path)


def test_gguf_of_another_name(source: Path, tmp_path: Path) -> None:
    whole = load(gguf_model.write(tmp_path / "a.gguf", source))
    shutil.copy(tmp_path / "a.gguf", tmp_path / "ggml-model.bin")
    assert load(tmp_path / "ggml-model.bin") == whole
    (tmp_path / "old.bin").write_bytes(b"tjgg" + bytes(100))
    with pytest.raises(ModelFileError, match="GGJT"):
        load(tmp_path / "old.bin")
    for name in ("a.gguf-split-a", "a.gguf.part1of2", "a.gguf.001", "a.gguf.aa"):
        (tmp_path / name).write_bytes((tmp_path / "a.gguf").read_bytes()[:5000])
        with pytest.raises(ModelFileError, match=r"a piece of a file.*cat a[.]gguf"):
            load(tmp_path / name)


def shard(model: Path, count: int) -> list[Path]:
    """Splits model.safetensors; the whole stays."""
    raw = (model / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    names = {name: entry for name, entry in json.loads(raw[8 : 8 + size]).items() if name != "__metadata__"}
    headers: list[dict[str, Any]] = [{} for _ in range(count)]
    data = [b""] * count
    weight_map = {}
    for i, (name, entry) in enumerate(names.items()):
        part = raw[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
        at = i % count
        headers[at][name] = entry | {"data_offsets": [len(data[at]), len(data[at]) + len(part)]}
        data[at] += part
        weight_map[name] = f"model-{at + 1:05}-of-{count:05}.safetensors"
    paths = [model / f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for path, header, part in zip(paths, headers, data, strict=True):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + part)
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return paths


def test_shards(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = load(model)
    index, whole = model / "model.safetensors.index.json", model / "model.safetensors"
    shards = shard(model, 3)
    caplog.clear()
    with caplog.at_level("WARNING", "llmi"):
        assert load(model) == tokens  # as transformers: the whole file
    assert "index.json is stale" in caplog.text
    whole.unlink()
    assert load(model) == tokens
    text = index.read_text()
    index.unlink()
    assert load(model) == tokens  # without an index
    shards[1].unlink()
    for there in (False, True):
        if there:
            index.write_text(text)
        for way in (load, inspect_model):
            with pytest.raises(ModelFileError, match="3 files, of which 1 is missing: model-00002-of-00003"):
                way(model)


def test_stale_index(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = load(model)
    for path in shard(model, 3):
        path.unlink()
    with caplog.at_level("WARNING", "llmi"):
        assert load(model) == tokens
    assert "3 of the 3 files that it names are missing" in caplog.text


def rename_tensors(model: Path, rename: Callable[[str], str]) -> None:
    path = model / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = {rename(name): entry for name, entry in json.loads(raw[8 : 8 + size]).items()}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("prefix", ["", "language_model.model.", "base_model.model.model.", "model.language_model.", "transformer."])
def test_names_with_another_beginning(tmp_path: Path, prefix: str, tied: bool) -> None:
    model = tiny_model(vocab_size=300, path=tmp_path / "m", tie_word_embeddings=tied)
    tokens = load(model)
    outer = prefix.removesuffix("model.") if prefix.endswith("model.") else ""

    def rename(name: str) -> str:
        return prefix + name.removeprefix("model.") if name.startswith("model.") else outer + name

    rename_tensors(model, rename)
    assert load(model) == tokens


def test_an_adapters_tensors(model: Path) -> None:
    rename_tensors(model, lambda name: name.replace("q_proj.", "q_proj.base_layer."))
    with pytest.raises(UnsupportedModelError, match=r"adapter.*merge"):
        load(model)


# --- paths that are no model

TORCH = r"PyTorch checkpoint.*save_pretrained"
PATHS: dict[str, tuple[tuple[str, ...], str, str]] = {
    # name: (files that are there, which of them is given, the error)
    "nothing": ((), "", "config.json and model.safetensors are missing"),
    "no config": (("model.safetensors", "tokenizer.json"), "", "config.json is missing"),
    "no weights": (("config.json", "tokenizer.json"), "", "model.safetensors is missing"),
    "an index": (
        ("config.json", "model.safetensors", "model.safetensors.index.json"),
        "model.safetensors.index.json",
        "an index.*give its directory",
    ),
    "a safetensors": (("config.json", "model.safetensors"), "model.safetensors", "weights alone.*give its directory"),
    "a config": (("config.json", "model.safetensors"), "config.json", "without weights.*directory"),
    "pytorch_model.bin": (("config.json", "pytorch_model.bin"), "", TORCH),
    "pytorch shards": (("config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"), "", TORCH),
    "pytorch_model.bin itself": (("config.json", "pytorch_model.bin"), "pytorch_model.bin", TORCH),
    "pt": (("model.pt",), "model.pt", TORCH),
    "consolidated": (("params.json", "consolidated.00.pth"), "", TORCH),
    "ckpt": (("config.json", "model.ckpt"), "", TORCH),
    "onnx": (("config.json", "model.onnx"), "", "ONNX"),
    "flax": (("config.json", "flax_model.msgpack"), "", "Flax.*from_flax=True"),
    "tensorflow": (("config.json", "tf_model.h5"), "", "TensorFlow.*from_tf=True"),
    "npz": (("weights.npz",), "", "NumPy"),
    "adapter": (("adapter_config.json", "adapter_model.safetensors"), "", "adapter.*of some/base.*merge"),
    "adapter beside a model": (("config.json", "model.safetensors", "tokenizer.json", "adapter_config.json"), "", "adapter.*merge"),
    "adapter itself": (("adapter_config.json", "adapter_model.safetensors"), "adapter_model.safetensors", "adapter.*merge"),
    "another name": (("config.json", "weights.safetensors"), "", "weights.safetensors has another name"),
    "hub cache": (("snapshots/abc/config.json",), "", "hub's cache.*abc"),
}


#: `inspect` needs no weights where there is a config.json.
CONFIG_IS_ENOUGH = {"no weights", "a config", "pytorch_model.bin", "pytorch shards", "ckpt", "onnx", "flax", "tensorflow"}


@pytest.mark.parametrize("way", ["LLM", "inspect"])
@pytest.mark.parametrize("kind", PATHS)
def test_path_that_is_no_model(source: Path, tmp_path: Path, kind: str, way: str) -> None:
    names, given, message = PATHS[kind]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        whole = source / name
        (tmp_path / name).write_bytes(whole.read_bytes() if whole.is_file() else b'{"base_model_name_or_path": "some/base"}')
    if way == "inspect" and kind in CONFIG_IS_ENOUGH:
        assert "parameters" in str(inspect_model(tmp_path / given))
        return
    with pytest.raises(ModelFileError, match=f"(?s){message}"):
        WAYS[way](tmp_path / given)


# --- bounded time and memory

HOSTILE = """
import struct, sys, time
from pathlib import Path
from llmi import LLM, LlmiError, Tokenizer
from llmi.models.inspection import inspect_model
folder = Path(sys.argv[1])
MiB = 1 << 20

def safetensors(header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

def gguf(entries, tensors=b"", count=0, size=0):
    path = folder / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, count, entries.count(b"\\xffK")) + entries.replace(b"\\xffK", b"") + tensors)
    if size:
        with path.open("r+b") as file:
            file.truncate(size)
    return path

def array(key, kind, length, items=b""):
    return b"\\xffK" + struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, kind, length) + items

def many(length, kind=8, item=bytes(8)):
    return array(b"tokenizer.ggml.tokens", kind, length, item * length)

entry = b'"%d":{"dtype":"F32","shape":[],"data_offsets":[0,0]}'
small = {
    "a list of zeros": b'{"a":[' + b"0," * (8 * MiB - 4) + b"0]}",
    "zeros in the metadata": b'{"__metadata__":{"a":[' + b"0," * (8 * MiB - 20) + b"0]}}",
    "empty objects": b'{"__metadata__":[' + b"{}," * (5 * MiB) + b"{}]}",
    "small members": b"{" + b",".join(b'"%d":0' % i for i in range(1200000)) + b"}",
    "a shape of ones": b'{"a":{"dtype":"F32","shape":[' + b"1," * (7 * MiB) + b"1]}}",
    "deep": b"[" * (16 * MiB),
    "300,000 tensors": b"{" + b",".join(entry % i for i in range(300000)) + b"}",
}
config = (folder / "config.json").read_bytes()
files = {f"header: {name}": (lambda text=text: safetensors(text[:16 * MiB]) or folder) for name, text in small.items()}
files["header of 17 MiB"] = lambda: safetensors(bytes(17 * MiB)) or folder

def with_config(text):
    (folder / "config.json").write_bytes(text)
    return folder

for name, text in {"zeros": b'{"a":[' + b"0," * (2 * MiB - 8) + b"0]}", "objects": b'{"a":[' + b"{}," * (MiB) + b"{}]}", "deep": b"[" * (4 * MiB)}.items():
    files[f"config: {name}"] = lambda text=text: with_config(text)
files["index: zeros"] = lambda: (with_config(config), (folder / "model.safetensors").unlink(), (folder / "model.safetensors.index.json").write_bytes(b'{"weight_map":{"a":[' + b"0," * (8 * MiB - 20) + b"0]}}")) and folder
files["gguf: 2^31 strings"] = lambda: gguf(array(b"k", 8, 1 << 31), size=20 << 30)
files["gguf: 2^40 bytes"] = lambda: gguf(array(b"k", 0, 1 << 40), size=2 << 40)
files["gguf: 4 million empty tokens"] = lambda: gguf(many(4 * MiB))
files["gguf: 9 lists"] = lambda: gguf(b"".join(array(b"k%d" % i, 0, 1 << 22, bytes(1 << 22)) for i in range(9)))
files["gguf: a string of 1 GiB"] = lambda: gguf(b"\\xffK" + struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", 8, 1 << 30), size=2 << 30)
files["gguf: 2^63 tensors"] = lambda: gguf(b"", count=1 << 63)
files["gguf: 2^63 alignment"] = lambda: gguf(b"\\xffK" + struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<IQ", 10, 1 << 62))
for name, make in files.items():
    path = make()
    for way in (Tokenizer, inspect_model, LLM) if name.startswith("gguf") else (inspect_model, LLM):
        try:
            way(path)
            print("WRONG: loaded", name, way)
        except LlmiError as error:
            text = str(error)
            if len(text) > 2000:
                print("WRONG: long error", name, len(text))
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])  # ru_maxrss would begin with what the parent held
    print(name, "::", peak >> 10, "MB", text[:150].replace(str(folder), ""), flush=True)
"""


def test_hostile_headers_take_bounded_time_and_memory(model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE, str(model)], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "WRONG" not in done.stdout, done.stdout
    peak = max(int(line.split(" :: ")[1].split()[0]) for line in done.stdout.splitlines())
    assert peak < 800, done.stdout  # the child makes texts of 100 MB itself


def test_every_error_is_an_llmi_error(tmp_path: Path) -> None:
    for name in ("a\0b.gguf", "x" * 300 + ".gguf", "nothing.gguf", "\udcff.gguf"):
        for way in (Tokenizer, inspect_model):
            with pytest.raises(LlmiError):
                way(tmp_path / name)
