"""Prefixes in a folder: the next engine has them, with equal bits; whatever happens to the folder moves no token."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError, SamplingParams, UnsupportedCombinationError, _core
from llmi.engine.saved_prefixes import remove_prefixes, saved_prefixes
from llmi.testing import assert_same_tokens
from tier_runs import Runs

PROMPT = [3 + i * 7 % 250 for i in range(200)]
LATER = SamplingParams(temperature=0.7, seed=5, max_tokens=12, logprobs=1, ignore_eos=True)
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 320}
KV_TYPES = ["float16", "float32", "bfloat16", "int8", "fp8"]


def run(model: Path, folder: Path | None, prompt: Any = PROMPT, **engine: Any) -> tuple[Any, dict[str, Any]]:
    """The outputs of a new engine, and its counters before it closes."""
    with LLM(model, prefix_cache_dir=folder, **ENGINE | engine) as llm:
        outputs = llm.generate(prompt, LATER)
        return outputs, llm.get_metrics()


def files(folder: Path) -> list[Path]:
    """In the order of their blocks."""
    return sorted(folder.glob("*.kv1"), key=lambda path: _core.saved_header(path.read_bytes())["index"])  # type: ignore[index]


@pytest.fixture
def saved(tiny_path: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path, Any]:
    """A model, a folder with the prompt's blocks, and what an engine without one answers."""
    model, folder = tiny_path(), tmp_path / "prefixes"
    plain, _ = run(model, None)
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm:
        assert llm.save_prefix(PROMPT) == 192
    for path in files(folder)[12:]:
        path.unlink()  # of the output
    assert len(files(folder)) == 12
    return model, folder, plain


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_next_engine_has_them(tiny_path: Callable[..., Path], tmp_path: Path, architecture: str, kv_type: str) -> None:
    model = tiny_path(architecture)
    plain, _ = run(model, None, kv_cache_dtype=kv_type)
    first, counts = run(model, tmp_path, kv_cache_dtype=kv_type)
    assert first[0].num_cached_tokens == 0 and counts["num_fetched_blocks"] == 0
    second, counts = run(model, tmp_path, kv_cache_dtype=kv_type)
    assert second[0].num_cached_tokens == 192 and counts["num_fetched_blocks"] == 12 and counts["num_prompt_tokens"] == 8
    assert_same_tokens(first, plain)
    assert_same_tokens(second, plain)
    assert counts["audit"] == ""


def test_unequal_engines_share_them(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """Threads, chunks, the pool's size and kernels may differ."""
    model = tiny_path("gemma3")
    plain, _ = run(model, None)
    run(model, tmp_path, num_threads=2, max_num_batched_tokens=33)
    outputs, _ = run(model, tmp_path, num_threads=1, kv_cache_memory_bytes=1 << 23)
    assert outputs[0].num_cached_tokens == 192
    assert_same_tokens(outputs, plain)


def flip(paths: list[Path]) -> None:
    data = bytearray(paths[5].read_bytes())
    data[-100] ^= 4
    paths[5].write_bytes(data)


def cut(paths: list[Path]) -> None:
    os.truncate(paths[5], paths[5].stat().st_size - 7)


def exchange(paths: list[Path]) -> None:
    paths[4].rename(paths[4].with_suffix(".tmp"))
    shutil.copy(paths[5], paths[4])


def neighbour(paths: list[Path]) -> None:
    """The same tokens at another position would be this."""
    shutil.copy(paths[4], paths[5])


def missing(paths: list[Path]) -> None:
    paths[5].unlink()


@pytest.mark.parametrize(
    "harm, counter, num_cached",
    [
        (flip, "num_damaged_blocks", 80),
        (cut, "num_cut_blocks", 80),
        (exchange, "num_exchanged_blocks", 64),
        (neighbour, "num_exchanged_blocks", 80),
        (missing, "num_missing_blocks", 80),
    ],
)
def test_faulty_blocks_are_computed_and_counted(
    saved: tuple[Path, Path, Any], harm: Callable[[list[Path]], None], counter: str, num_cached: int
) -> None:
    model, folder, plain = saved
    harm(files(folder))
    outputs, counts = run(model, folder)
    assert_same_tokens(outputs, plain)
    assert outputs[0].num_cached_tokens == num_cached and counts[counter] == 1, counts
    # They were written anew when that engine closed.
    outputs, counts = run(model, folder)
    assert outputs[0].num_cached_tokens == 192
    assert_same_tokens(outputs, plain)


def test_equal_tokens_at_another_position(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    prompt = [9] * 100
    plain, _ = run(tiny_path(), None, prompt)
    with LLM(tiny_path(), prefix_cache_dir=tmp_path, **ENGINE) as llm:
        llm.save_prefix(prompt)
    paths = files(tmp_path)
    shutil.copy(paths[2], paths[1])
    outputs, counts = run(tiny_path(), tmp_path, prompt)
    assert_same_tokens(outputs, plain)
    assert counts["num_exchanged_blocks"] == 1 and outputs[0].num_cached_tokens == 16


def test_blocks_that_a_window_had_passed(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """They serve the same text, and no shorter one whose window sees them."""
    model = tiny_path("gemma3")
    run(
        model, tmp_path, [*PROMPT, *PROMPT[:100]], max_num_batched_tokens=32, kv_cache_memory_bytes=40_000
    )  # pages of passed blocks go first
    lacking = [path for path in files(tmp_path) if path.stat().st_size < files(tmp_path)[-1].stat().st_size]
    assert len(lacking) > 3
    for length in (60, 100, 140):
        copy = tmp_path.with_name(f"{tmp_path.name}-copy")
        shutil.copytree(tmp_path, copy)
        plain, _ = run(model, None, PROMPT[:length])
        outputs, _ = run(model, copy, PROMPT[:length])
        assert_same_tokens(outputs, plain)
        shutil.rmtree(copy)


@pytest.mark.parametrize("kv_type", ["float16", "int8"])
def test_a_device_shares_the_form(tiny_path: Callable[..., Path], tmp_path: Path, device: str, kv_type: str) -> None:
    plain, _ = run(tiny_path(), None, device="cuda", kv_cache_dtype=kv_type)
    run(tiny_path(), tmp_path, device="cuda", kv_cache_dtype=kv_type)
    outputs, _ = run(tiny_path(), tmp_path, device="cuda", kv_cache_dtype=kv_type)
    assert outputs[0].num_cached_tokens == 192
    assert_same_tokens(outputs, plain)


def test_another_text_model_arithmetic_salt_or_steering_never_hits(saved: tuple[Path, Path, Any], tiny_path: Callable[..., Path]) -> None:
    model, folder, _ = saved
    others: list[tuple[Path, Any, dict[str, Any]]] = [
        (tiny_path(seed=1), PROMPT, {}),
        (model, PROMPT, {"kv_cache_dtype": "float32"}),
        (model, PROMPT, {"quantization": "q8_0"}),
        (model, PROMPT, {"block_size": 32}),
        (model, PROMPT, {"hf_overrides": {"rope_theta": 20_000}}),
        (model, {"prompt_token_ids": PROMPT, "cache_salt": "a"}, {}),
        (model, [4, *PROMPT[1:]], {}),
    ]
    for path, prompt, engine in others:
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        _, counts = run(path, copy, prompt, **engine)
        assert counts["num_fetched_blocks"] == 0, (prompt, engine)
        shutil.rmtree(copy)
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm:
        llm.generate(PROMPT, max_tokens=1, steering={1: np.ones(64, np.float32)})
        assert llm.get_metrics()["num_fetched_blocks"] == 0
        llm.generate(PROMPT, max_tokens=1)
        assert llm.get_metrics()["num_fetched_blocks"] == 12


def test_a_salt_finds_its_own(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    prompt = {"prompt_token_ids": PROMPT, "cache_salt": "mine"}
    with LLM(tiny_path(), prefix_cache_dir=tmp_path, **ENGINE) as llm:
        assert llm.save_prefix(prompt) == 192
    outputs, _ = run(tiny_path(), tmp_path, prompt)
    assert outputs[0].num_cached_tokens == 192


def test_blocks_are_written_at_their_second_use_and_when_they_leave_the_pool(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    with LLM(tiny_path(), prefix_cache_dir=tmp_path, **ENGINE | {"kv_cache_memory_bytes": 1 << 19}) as llm:
        llm.generate(PROMPT, max_tokens=1)
        assert llm.get_metrics()["num_saved_blocks"] == 0 and not files(tmp_path)
        llm.generate(PROMPT, max_tokens=1)
        llm.save_prefix([9])  # waits for the writer
        assert len(files(tmp_path)) == 12
        used = llm.get_metrics()["num_saved_blocks"]
        for first in range(10, 40):
            llm.generate([first, *PROMPT[1:]], max_tokens=1)
        llm.save_prefix([9])
        counts = llm.get_metrics()
        assert counts["num_prefix_evictions"] > 50 and counts["num_saved_blocks"] > used + 50 and counts["num_unsaved_blocks"] == 0


def test_many_requests_wait_for_one_reading(saved: tuple[Path, Path, Any]) -> None:
    model, folder, _ = saved
    prompts = [[*PROMPT[: 200 - 9 * i], i] for i in range(8)]
    with LLM(model, **ENGINE) as llm:
        plain = llm.generate(prompts, LATER)
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm:
        outputs = llm.generate(prompts, LATER)
        assert_same_tokens(outputs, plain)
        counts = llm.get_metrics()
        assert 9 <= counts["num_fetched_blocks"] <= 12 and counts["audit"] == ""
        assert all(output.num_cached_tokens >= (len(prompt) - 1) // 16 * 16 - 16 for output, prompt in zip(outputs, prompts, strict=True))


def test_stepping_by_hand_and_aborts(saved: tuple[Path, Path, Any]) -> None:
    model, folder, plain = saved
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm:
        ids = llm.enqueue([PROMPT, PROMPT], LATER)
        llm.abort(ids[:1])
        outputs = llm.wait_for_completion()
        assert_same_tokens(outputs[1:], plain)
        assert llm.get_metrics()["audit"] == ""


def test_a_tight_pool(saved: tuple[Path, Path, Any]) -> None:
    """What comes from elsewhere takes pages from nobody: it gives up."""
    model, folder, _ = saved
    prompts = [PROMPT, [7, *PROMPT], [8, *PROMPT], PROMPT[:150]]
    with LLM(model, **ENGINE) as llm:
        plain = llm.generate(prompts, LATER)
    for num_bytes in (60_000, 90_000, 150_000):
        with LLM(model, prefix_cache_dir=folder, **ENGINE | {"kv_cache_memory_bytes": num_bytes * 4}) as llm:
            assert_same_tokens(llm.generate(prompts, LATER), plain)
            assert llm.get_metrics()["audit"] == ""


def test_the_least_recently_used_go_first(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    with LLM(tiny_path(), prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=1 << 20, **ENGINE) as llm:
        block = 0
        for first in range(3, 60):
            llm.save_prefix([first, *PROMPT[1:]])
            llm.save_prefix([2, *PROMPT[1:]])  # written once, used often
            block = files(tmp_path)[0].stat().st_size
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 1 << 20
        llm.reset_prefix_cache()
        llm.generate([2, *PROMPT[1:]], max_tokens=1)
        assert llm.get_metrics()["num_fetched_blocks"] == 12, "what is used often stays"
    assert len(files(tmp_path)) * block > (1 << 19)


def test_a_folder_that_cannot_be_written(saved: tuple[Path, Path, Any], caplog: pytest.LogCaptureFixture) -> None:
    model, folder, plain = saved
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm, caplog.at_level(logging.WARNING, "llmi"):
        shutil.rmtree(folder)
        for _ in range(3):
            assert_same_tokens(llm.generate(PROMPT, LATER), plain)
            llm.save_prefix([9] * 40)
        assert llm.get_metrics()["num_unsaved_blocks"] > 0
    assert sum("could not be written" in record.message for record in caplog.records) == 1


def test_folders_that_are_refused(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    def refused(folder: Path, words: str) -> None:
        with pytest.raises(InvalidParamsError, match=words) as error:
            LLM(tiny_path(), prefix_cache_dir=folder, **ENGINE)
        assert error.value.parameter == "prefix_cache_dir"

    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "it is a file")
    refused(tmp_path / "no" / "folder", "cannot be made")
    (tmp_path / "open").mkdir()
    for mode in (0o777, 0o770, 0o702):
        (tmp_path / "open").chmod(mode)
        refused(tmp_path / "open", "other users may write")
    if os.geteuid() == 0:
        (tmp_path / "other").mkdir(mode=0o700)
        os.chown(tmp_path / "other", 12345, -1)
        refused(tmp_path / "other", "another user")
    with LLM(tiny_path(), prefix_cache_dir=tmp_path / "new", **ENGINE):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_what_it_does_not_go_with(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    for options in ({"enable_prefix_caching": False}, {"tensor_parallel_size": 2}):
        with pytest.raises(UnsupportedCombinationError, match="prefix_cache_dir"):
            LLM(tiny_path(), prefix_cache_dir=tmp_path, **ENGINE, **options)
    with LLM(tiny_path(), **ENGINE) as llm, pytest.raises(InvalidParamsError, match="no prefix_cache_dir"):
        llm.save_prefix(PROMPT)


def test_lists_and_removals(saved: tuple[Path, Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from llmi.cli.commands import main

    model, folder, _ = saved
    with LLM(model, prefix_cache_dir=folder, **ENGINE) as llm:
        llm.save_prefix([*PROMPT[:64], *[5] * 40])
    (folder / "notes.kv1").write_text("not a block")
    (folder / "notes.kv2").write_text("a later form")
    found = saved_prefixes(folder)
    assert sorted(prefix.num_tokens for prefix in found) == [96, 192]
    assert main(["cache", "prefixes", str(folder)]) == 0
    assert "192 tokens  " in capsys.readouterr().out
    longer = next(prefix for prefix in found if prefix.num_tokens == 192)
    assert main(["cache", "prefixes", str(folder), "--rm", longer.name]) == 0
    assert [prefix.num_tokens for prefix in saved_prefixes(folder)] == [96], "what both have stays"
    assert remove_prefixes(folder, "all") == 6
    assert sorted(path.name for path in folder.iterdir()) == ["notes.kv1", "notes.kv2"]
    with pytest.raises(InvalidParamsError):
        remove_prefixes(folder, "nobody")


def test_hostile_files(saved: tuple[Path, Path, Any]) -> None:
    """Any bytes are a block, or are not, and never end the process."""
    model, folder, plain = saved
    rng = random.Random(3)
    good = files(folder)[3].read_bytes()
    assert _core.saved_block_fault(good) == ""
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.3:
                data = data[: rng.randrange(len(data))]
            if data:
                at = rng.randrange(min(len(data), rng.choice([16, 120, 400, len(data)])))
                data[at : at + 4] = rng.choice([rng.randbytes(1), b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(4)])
        header = _core.saved_header(bytes(data))
        fault = _core.saved_block_fault(bytes(data))
        assert data == good or fault in ("cut", "damaged")
        assert header is None or 0 < header["num_tokens"] <= 1024
    for path in files(folder)[2:]:
        path.write_bytes(rng.randbytes(rng.choice([0, 5, 200, 5000])))
    (folder / ("ab" * 32 + ".kv1")).symlink_to("/etc/passwd")
    assert_same_tokens(run(model, folder)[0], plain)


def test_two_writers_at_once(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """Two engines with small budgets that evict each other's blocks."""
    prompts = [[first, *PROMPT[1:150]] for first in range(3, 23)]
    with LLM(tiny_path(), **ENGINE) as llm:
        plain = llm.generate(prompts, LATER)
    problems: list[BaseException] = []

    def work(order: list[int]) -> None:
        try:
            with LLM(tiny_path(), prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=1 << 20, num_threads=1, **ENGINE) as llm:
                for i in order:
                    assert_same_tokens(llm.generate(prompts[i], LATER), [plain[i]])
                    llm.save_prefix(prompts[i])
                    llm.reset_prefix_cache()
        except BaseException as error:  # told below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in (list(range(20)), list(range(19, -1, -1)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


def test_random_runs(tmp_path: Path) -> None:
    counts = Runs(tmp_path, seed=3).run(12)
    # How many blocks come in time is the machine's.
    assert counts["runs"] == 12 and counts["fetched"] + counts["handed over"] > 0 and counts["harmed"] > 0, counts
