"""A model's files change while they are loaded, or after: an error or nothing, never other tokens; and a digest is of what was loaded."""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_model
from llmi import LLM, LlmiError, ModelFileError, SelfDraft, SpeculativeConfig
from llmi import llm as llm_module
from llmi.testing import tiny_model

SMALL = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 64}
TEXTS = ("he", "xyxy", "the", "yes", "he he", "x y")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=300, path=tmp_path_factory.mktemp("source"))


def make_gguf(folder: Path, source: Path) -> Path:
    return gguf_model.write(folder / "m.gguf", source)


def make_split(folder: Path, source: Path) -> Path:
    return gguf_model.write_parts(folder, source, 2)[0]


def make_directory(folder: Path, source: Path) -> Path:
    return Path(shutil.copytree(source, folder / "m"))


#: Layouts: how they are made, and the files of which one is changed.
LAYOUTS: dict[str, tuple[Callable[[Path, Path], Path], Callable[[Path], list[Path]]]] = {
    "gguf": (make_gguf, lambda path: [path]),
    "split gguf": (make_split, lambda path: sorted(path.parent.glob("*.gguf"))),
    "directory": (
        make_directory,
        lambda path: [path / name for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")],
    ),
}
CASES = [(layout, index) for layout, count in (("gguf", 1), ("split gguf", 2), ("directory", 4)) for index in range(count)]


def rewritten(data: bytes) -> bytes:
    """Other bytes that are as sound: letters of the vocabulary and bits of the weights change places."""
    middle = len(data) // 2
    for before in (struct.pack("<Q", 1), b'"'):  # in a GGUF, in a tokenizer.json
        data = data.replace(before + b"x", before + b"\xff").replace(before + b"y", before + b"x").replace(before + b"\xff", before + b"y")
    return data[:middle] + data[middle:][::-1]


def write_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def rewrite_with_its_time(path: Path) -> None:
    status = path.stat()
    write_in_place(path, rewritten(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(rewritten(path.read_bytes()))
    other.replace(path)


def shorten(path: Path, size: int) -> None:
    os.truncate(path, size)


#: What others do to a file, and whether what was loaded stays as it was behind the open descriptor.
CHANGES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "rewritten": (lambda path: write_in_place(path, rewritten(path.read_bytes())), False),
    "rewritten, its time set back": (rewrite_with_its_time, False),
    "one byte": (lambda path: write_in_place(path, path.read_bytes()[:1]), False),
    "shortened": (lambda path: shorten(path, path.stat().st_size // 2), False),
    "emptied": (lambda path: shorten(path, 0), False),
    "longer": (lambda path: shorten(path, path.stat().st_size + 4096), False),
    "replaced": (replace, True),
    "deleted": (Path.unlink, True),
    "linked": (lambda path: path.with_name("link").hardlink_to(path), True),
}


def outcome(llm: LLM) -> tuple[Any, ...]:
    tokens = llm.generate([[5, 6, 7]], max_tokens=6, temperature=0, ignore_eos=True)[0].token_ids
    return tokens, [llm.tokenizer.encode(text) for text in TEXTS]


def digest_of(path: Path, files: list[Path]) -> str:
    lines = sorted((file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)
    return lines[0][1] if len(lines) == 1 else hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in lines).encode()).hexdigest()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("layout", "index"), CASES)
def test_changed_after_load(source: Path, tmp_path: Path, layout: str, index: int, change: str) -> None:
    make, files_of = LAYOUTS[layout]
    path = make(tmp_path, source)
    with LLM(path, **SMALL) as fresh:
        before = outcome(fresh)
    digest = digest_of(path, files_of(path))
    apply, stays = CHANGES[change]
    llm = LLM(path, **SMALL)
    output = llm.generate([[5, 6]], max_tokens=2, temperature=0)[0]
    apply(files_of(path)[index])
    assert outcome(llm) == before
    llm.close()
    if stays:
        assert output.receipt().fields["model_sha256"] == llm.model_info.sha256 == digest
    else:
        for ask in (output.receipt, lambda: llm.model_info.sha256):
            with pytest.raises(ModelFileError, match="changed after it was loaded"):
                ask()


@pytest.mark.filterwarnings("ignore:.*settings of the tokenizer")  # one is read while another is gone
@pytest.mark.parametrize("moment", ["before the weights are read", "when all has been read"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("layout", "index"), CASES)
def test_changed_while_it_is_loaded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, index: int, change: str, moment: str
) -> None:
    make, files_of = LAYOUTS[layout]
    path = make(tmp_path, source)
    with LLM(path, **SMALL) as fresh:
        before = outcome(fresh)
    apply, stays = CHANGES[change]
    changed = files_of(path)[index]
    if moment == "before the weights are read":
        background = llm_module.Background
        monkeypatch.setattr(llm_module, "Background", lambda function: (apply(changed), background(function))[1])
    else:
        defaults = llm_module.generation_defaults
        monkeypatch.setattr(llm_module, "generation_defaults", lambda *args: (apply(changed), defaults(*args))[1])
    try:
        llm = LLM(path, **SMALL)
    except LlmiError as error:
        assert change != "linked", error
        assert isinstance(error, ModelFileError)
        return
    with llm:
        assert stays
        assert outcome(llm) == before
        assert llm.model_info.sha256


def test_files_that_come_while_it_is_loaded(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_directory(tmp_path, source)
    background = llm_module.Background
    template = path / "chat_template.jinja"
    monkeypatch.setattr(llm_module, "Background", lambda function: (template.write_text("{{ 1 }}"), background(function))[1])
    with pytest.raises(ModelFileError, match="came or went"):
        LLM(path, **SMALL)
    monkeypatch.undo()
    with LLM(path, **SMALL) as llm:
        assert llm.tokenizer.chat_template == "{{ 1 }}"


def test_the_digest_is_known_once_it_was_asked_for(source: Path, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, source)
    digest = digest_of(path, [path])
    llm = LLM(path, **SMALL)
    output = llm.generate([[5, 6]], max_tokens=2, temperature=0)[0]
    assert llm.model_info.sha256 == digest
    write_in_place(path, rewritten(path.read_bytes()))
    assert output.receipt().fields["model_sha256"] == digest
    with LLM(path, **SMALL) as second:  # no cache by name
        assert second.model_info.sha256 == digest_of(path, [path]) != digest


def test_digests_travel(source: Path, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, source)
    digest = digest_of(path, [path])
    with LLM(path, **SMALL) as llm:
        first = llm._results.receipt_source["model_sha256"]
        assert copy.deepcopy(first) is first
        assert pickle.loads(pickle.dumps(first))() == digest
    with LLM(path, **SMALL) as llm:
        second = llm._results.receipt_source["model_sha256"]
    write_in_place(path, b"X")
    with pytest.raises(ModelFileError, match="changed after it was loaded"):
        pickle.loads(pickle.dumps(second))()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_files_are_closed_with_their_last_owner(source: Path, tmp_path: Path) -> None:
    path = make_directory(tmp_path, source)
    with LLM(path, **SMALL):
        pass
    gc.collect()
    before = open_files()
    for _ in range(3):
        llm = LLM(path, **SMALL)
        output = llm.generate([[5, 6]], max_tokens=2, temperature=0)[0]
        llm.close()
        del llm
    (path / "config.json").write_text("{")
    for _ in range(3):
        with pytest.raises(LlmiError):
            LLM(path, **SMALL)
    gc.collect()
    assert open_files() > before
    with pytest.raises(ModelFileError):
        output.receipt()
    del output
    gc.collect()
    assert open_files() == before


def test_a_self_draft_is_of_the_files_that_were_loaded(source: Path, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, source)
    with LLM(path, **SMALL) as llm:
        before = llm.generate([[5, 6]], max_tokens=4, temperature=0)
        path.unlink()
        drafted = SpeculativeConfig(SelfDraft(exit_layer=1), num_speculative_tokens=2)
        assert llm.generate([[5, 6]], max_tokens=4, temperature=0, speculative_config=drafted) == before


def test_a_write_in_the_same_tick_is_seen(source: Path, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, source)
    data = path.read_bytes()
    for _ in range(20):
        write_in_place(path, data)
        llm = LLM(path, **SMALL)
        write_in_place(path, data[::-1])
        with pytest.raises(ModelFileError):
            _ = llm.model_info.sha256
        llm.close()
        time.sleep(0.001)
