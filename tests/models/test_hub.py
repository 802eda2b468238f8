"""Names of models: which file of a repository is taken, and what is said when it cannot be had. The hub is one of our own."""

from __future__ import annotations

import errno
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, Repository, fake_hub
from llmi import LLM, InvalidParamsError, ModelFileError
from llmi.models import by_name
from llmi.models import hub as hub_module
from llmi.models.hub_files import PREFERRED_TYPES, HubName, choose

ALL = [f"tiny-{name}.gguf" for name in PREFERRED_TYPES]
PARTS = [f"big/m-Q8_0-{index:05d}-of-00003.gguf" for index in (1, 2, 3)]


def chosen(name: str, files: list[str]) -> list[str]:
    parsed = HubName.parse(name)
    assert parsed is not None
    return list(choose(parsed, files).files)


@pytest.mark.parametrize(
    "name",
    ["a", "a/", "/a/b", "a/b/", "a/b/c", "a/b/../c.gguf", "a/b.gguf", "a/b:", "a/b:Q4/x", "a b/c", "a/b/c.gguf:Q4_0", "é/b", "./a/b"],
)
def test_what_is_no_name_of_the_hub(name: str) -> None:
    assert HubName.parse(name) is None


def test_types_are_taken_in_order() -> None:
    """Whatever a repository holds besides, the first type of the list that is there."""
    rng = random.Random(0)
    for first in range(len(ALL)):
        rest = [
            *ALL[first:],
            "README.md",
            "mmproj-tiny-Q4_K_M.gguf",
            "mmproj-f16.gguf",
            "tiny-imatrix.gguf",
            "tiny-IQ3_M.gguf",
            "tiny-Q5_K_XL.gguf",
        ]
        rng.shuffle(rest)
        assert chosen("u/r", rest) == [ALL[first]]
    assert chosen("u/r", ["odd.gguf", "mmproj-odd.gguf"]) == ["odd.gguf"]


@pytest.mark.parametrize("type_name", PREFERRED_TYPES)
@pytest.mark.parametrize("shape", ["m-{}.gguf", "m.{}.gguf", "{}/m-{}.gguf", "m-UD-{}.GGUF", "{}.gguf", "m_{}.gguf"])
def test_a_type_is_the_end_of_a_name(type_name: str, shape: str) -> None:
    files = [shape.format(*[name] * shape.count("{}")) for name in (*PREFERRED_TYPES, "Q4_K_L", "IQ3_M", "Q4_0_4_4")]
    for asked in (type_name, type_name.lower()):
        wanted = shape.format(*[type_name] * shape.count("{}"))
        assert chosen(f"u/r:{asked}", files) == [wanted]
    with pytest.raises(ModelFileError, match=r"no GGUF file of type Q4_K; it has"):
        chosen("u/r:Q4_K", files)


def test_sets_are_taken_whole() -> None:
    for name in ("u/r", "u/r:Q8_0", f"u/r/{PARTS[0]}", f"u/r/{PARTS[2]}"):
        assert chosen(name, PARTS) == PARTS
        with pytest.raises(ModelFileError, match=r"lacks 1 of the set's 3 parts, the first being big/m-Q8_0-00002-of-00003.gguf"):
            chosen(name, [PARTS[0], PARTS[2]])
    with pytest.raises(ModelFileError, match="lacks 99998 of"):
        chosen("u/r", ["m-00001-of-99999.gguf"])
    with pytest.raises(ModelFileError, match="a set of 0 parts"):
        chosen("u/r", ["m-00001-of-00000.gguf"])


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("u/r", ["a-Q4_0.gguf", "b-Q4_0.gguf"], "several files of that type.*a-Q4_0.gguf, b-Q4_0.gguf"),
        ("u/r:Q4_0", ["a-Q4_0.gguf", "b-Q4_0.gguf"], "several files of that type"),
        ("u/r", ["a-IQ2_M.gguf", "a-IQ1_S.gguf"], "none of a type that llmi takes by itself"),
        ("u/r/x.gguf", ["a.gguf"], r"has no x.gguf; its GGUF files: a.gguf"),
        ("u/r/mmproj.gguf", ["a.gguf", "mmproj.gguf"], "no language model"),
        ("u/r", ["config.json", "pytorch_model.bin"], "convert them once"),
        ("u/r", ["adapter_config.json", "adapter_model.safetensors"], "an adapter"),
        ("u/r", ["README.md", "onnx/model.onnx"], "no model that llmi reads"),
        ("u/r", [], "no model that llmi reads"),
    ],
)
def test_nothing_is_guessed(name: str, files: list[str], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        chosen(name, files)


def test_safetensors_come_first_and_once() -> None:
    names = ["config.json", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
    weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    beside = ["consolidated.safetensors", "onnx/config.json", "original/params.json", "m-Q4_0.gguf", "training.bin", "README.md"]
    assert sorted(chosen("u/r", names + weights + beside)) == sorted(names + weights)
    assert chosen("u/r:Q4_0", names + weights + beside) == ["m-Q4_0.gguf"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a repository u/r, and an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with fake_hub() as made:
        import huggingface_hub

        api = huggingface_hub.HfApi
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api(endpoint=made.url))
        download = huggingface_hub.hf_hub_download
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: download(*a, **k, endpoint=made.url))
        made.repositories["u/r"] = Repository({"tiny-Q8_0.gguf": b"eight" * 1000, "tiny-Q4_0.gguf": b"four" * 1000, "mmproj.gguf": b"no"})
        yield made


def test_files_come_from_the_hub_once(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llmi")
    for name, data in (("u/r", b"four"), ("u/r:Q8_0", b"eight"), ("u/r/tiny-Q4_0.gguf", b"four")):
        path = by_name.resolve(name)
        assert path.read_bytes() == data * 1000
        assert path.name in caplog.text and "takes tiny-Q4_0.gguf (Q4_0 of 2 GGUF models" in caplog.text
    assert sorted(name for name, _, _ in hub.downloads) == ["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]
    assert {name for name, _, _ in hub_module.cached_models()} == {"u/r/tiny-Q4_0.gguf", "u/r/tiny-Q8_0.gguf"}
    with pytest.raises(ModelFileError, match="hf cache rm"):
        by_name.remove_cached("u/r")


def test_folders_and_sets(hub: FakeHub) -> None:
    hub.repositories["u/set"] = Repository({name: name.encode() for name in PARTS})
    path = by_name.resolve("u/set")
    assert path.name.endswith("00001-of-00003.gguf") and all((path.parent.parent / name).is_file() for name in PARTS)
    hub.repositories["u/st"] = Repository(
        {"config.json": b"{}", "model.safetensors": b"x", "sub/[a].gguf": b"odd", "tokenizer.json": b"{}"}
    )
    assert sorted(entry.name for entry in by_name.resolve("u/st").iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert by_name.resolve("u/st/sub/[a].gguf").read_bytes() == b"odd"


def test_revisions(hub: FakeHub) -> None:
    hub.repositories["u/r"].revisions = ("main", "v2")
    assert by_name.resolve("u/r", "v2").is_file() and by_name.resolve("u/r", "a" * 40).is_file()
    with pytest.raises(ModelFileError, match="no revision 'v3'"):
        by_name.resolve("u/r", "v3")
    with pytest.raises(InvalidParamsError, match="revision"):
        by_name.resolve("u/r", 3)  # type: ignore[arg-type]


def test_a_revision_of_a_path_has_no_effect_and_says_so(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "u" / "r").mkdir(parents=True)
    caplog.set_level(logging.INFO, "llmi")
    assert by_name.resolve("u/r", "v2") == Path("u/r")
    assert "is a path here" in caplog.text and "has no effect" in caplog.text


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", "gated: accept its terms at http.*/u/r, and give a token"),
        (403, "GatedRepo", "gated: accept its terms"),
        (401, "RepoNotFound", "no such model on the hub, or it is private"),
        (404, "RepoNotFound", "no such model on the hub, or it is private"),
        (403, "", "refuses access"),
        (500, "", "answers 500"),
        (503, "", "answers 503"),
    ],
)
def test_refusals_say_what_to_do(hub: FakeHub, status: int, code: str, message: str) -> None:
    hub.repositories["u/r"].status, hub.repositories["u/r"].error_code = status, code
    with pytest.raises(ModelFileError, match=message) as caught:
        LLM("u/r")
    assert "\n" not in str(caught.value)


def test_a_token_that_is_not_valid(hub: FakeHub) -> None:
    hub.message, hub.repositories["u/r"].status = "Invalid credentials in Authorization header", 401
    with pytest.raises(ModelFileError, match="does not know the token"):
        LLM("u/r")


def test_the_cache_serves_while_the_hub_cannot_be_reached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = by_name.resolve("u/r:Q8_0")
    hub.repositories["u/r"].status = 503
    assert by_name.resolve("u/r:Q8_0") == path
    with pytest.raises(ModelFileError, match="answers 503"):
        by_name.resolve("u/r:Q4_0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("u/r:Q8_0", "u/r", "u/r/tiny-Q8_0.gguf"):
        assert by_name.resolve(name) == path
    with pytest.raises(ModelFileError, match="HF_HUB_OFFLINE is set"):
        by_name.resolve("u/r:Q4_0")


def test_the_cache_does_not_serve_what_the_hub_refuses(hub: FakeHub) -> None:
    by_name.resolve("u/r")
    hub.repositories["u/r"].status, hub.repositories["u/r"].error_code = 403, "GatedRepo"
    with pytest.raises(ModelFileError, match="gated"):
        by_name.resolve("u/r")


def test_a_broken_download_goes_on_where_it_stopped(hub: FakeHub) -> None:
    data = os.urandom(30_000_000)
    hub.repositories["u/big"] = Repository({"m.gguf": data}, break_after=15_000_000)
    try:
        path = by_name.resolve("u/big")
    except ModelFileError as error:
        assert "goes on where it stopped" in str(error)
        path = by_name.resolve("u/big")
    assert path.read_bytes() == data
    (_, first, _), (_, second, _) = hub.downloads
    assert first == 0 and second > 0


def test_a_full_disk(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the download by its size; in it, if others fill the disk meanwhile."""
    import huggingface_hub

    hub.repositories["u/r"].sizes["tiny-Q4_0.gguf"] = 10**18
    with pytest.raises(ModelFileError, match=r"disk of .* is full \(1,000,000,000,000 MB are needed"):
        by_name.resolve("u/r")
    assert not hub.downloads

    def full(*_: object, **__: object) -> str:
        raise RuntimeError("inner") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(ModelFileError, match=r"disk of .* is full \(No space left"):
        by_name.resolve("u/r:Q8_0")


def test_a_cache_that_cannot_be_made(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelFileError, match=r"cannot be written.*set HF_HOME"):
        by_name.resolve("u/r")


def test_no_hub_at_all(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    api = type(huggingface_hub.HfApi())
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api(endpoint="http://127.0.0.1:9"))
    with pytest.raises(ModelFileError, match=r"cannot be reached.*give a local path"):
        by_name.resolve("u/r")


def test_the_command_line_takes_hub_names(hub: FakeHub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    run = [sys.executable, "-m", "llmi"]
    done = subprocess.run([*run, "inspect", "u/r:Q8_0"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and "tiny-Q8_0.gguf" in done.stderr and "Traceback" not in done.stderr  # fetched, and then it is no GGUF
    listed = subprocess.run([*run, "cache", "list"], capture_output=True, text=True, env=environment, check=True).stdout
    assert "u/r/tiny-Q8_0.gguf" in listed


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_full_disk_of_the_cache(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that llmi knows by name: one sentence, nothing left behind."""
    from llmi.models import download as download_module

    monkeypatch.setenv("LLMI_CACHE", str(tmp_path))

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if full == "before":
        usage = type(download_module.shutil.disk_usage(tmp_path))
        monkeypatch.setattr(download_module.shutil, "disk_usage", lambda _: usage(1, 1, 5_000_000))
    monkeypatch.setattr(download_module, "_from_hub", disk_full)
    with pytest.raises(
        ModelFileError, match=r"98 MB are needed, 5 MB are free.*LLMI_CACHE" if full == "before" else r"No space left.*LLMI_CACHE"
    ):
        by_name.fetch("smollm2-135m-instruct")
    assert list((tmp_path / "models").iterdir()) == []
