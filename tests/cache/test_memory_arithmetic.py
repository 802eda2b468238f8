"""Memory and arithmetic: a model that does not fit is refused with the whole sum; `llmi inspect`; windows of perplexity."""

from __future__ import annotations

import json
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM
from llmi.cli.capacity import parse_bytes, parse_count, parse_rate
from llmi.models.inspection import decode_flops, inspect_model, prefill_flops
from llmi.requests.scoring import windows
from llmi.testing import tiny_model
from waiting import HANG_S

# --- a model that does not fit


def huge_model(path: Path, num_layers: int = 4, **fields: Any) -> Path:
    """A sparse file: all of a model's tensors, none of its bytes. At 4 layers 2.2 TB in fp32."""
    tiny_model(path=path, num_layers=1, hidden_size=64, vocab_size=257)
    config = json.loads((path / "config.json").read_text())
    config |= {"num_hidden_layers": num_layers, "hidden_size": 1 << 16, "intermediate_size": 1 << 19, "num_attention_heads": 512}
    config |= {"num_key_value_heads": 64, "head_dim": 128, "torch_dtype": "float32", **fields}
    (path / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    offset = 0
    (path / "model.safetensors").unlink()
    for tensor in inspect_model(path).tensors:
        size = 4 * int(np.prod([int(extent) for extent in tensor.shape], dtype=object))
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return path


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_model_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    path = huge_model(tmp_path)
    before = peak_mb()
    with pytest.raises(llmi.OutOfMemoryError) as caught:
        LLM(path, max_model_len=1024)
    assert peak_mb() - before < 200, "its tensors were read"
    error, message = caught.value, str(caught.value)
    report = inspect_model(path)
    for part in ("weights", "KV cache", "workspace", "are free", "1,024 tokens", "f32"):
        assert part in message
    sums = re.search(r"needs ([\d,]+) MB, ([\d,]+) MB are free: weights ([\d,]+) MB .* cache ([\d,]+) MB .* workspace ([\d,]+) MB", message)
    assert sums is not None, message
    needed, free, weights, cache, workspace = (int(part.replace(",", "")) for part in sums.groups())
    assert abs(weights + cache + workspace - needed) <= 2
    assert abs(weights - report.weight_bytes / 1e6) < 0.01 * weights
    assert cache == (2 * 4 * 64 * 128 * 2 * 1024) // 10**6
    assert error.needed_bytes // 10**6 == needed and error.available_bytes // 10**6 == free
    with pytest.raises(llmi.OutOfMemoryError, match=r"bf16 [\d,]+ MB"):
        LLM(path, dtype="bfloat16")
    with pytest.raises(llmi.OutOfMemoryError, match="take a smaller model"):
        LLM(path, quantization="q4_0")


def test_a_cache_that_does_not_fit_is_refused_with_the_sum(tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(llmi.OutOfMemoryError, match=r"KV cache 9,000,000 MB \(kv_cache_memory_bytes\).*lower kv_cache_memory_bytes"):
        LLM(tiny_path(), kv_cache_memory_bytes=9 * 10**12)


@pytest.mark.parametrize("quantization", [None, "q8_0", "q4_0"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_what_is_foretold_is_what_is_packed(tmp_path: Path, dtype: str, quantization: str | None) -> None:
    """The sum's weights, made visible by asking for too large a cache."""
    path = tiny_model("gemma3", path=tmp_path, hidden_size=128, vocab_size=4096)
    options: dict[str, Any] = {"dtype": dtype} if quantization is None else {"quantization": quantization}
    with LLM(path, kv_cache_memory_bytes=1 << 24, **options) as llm:
        packed = llm.model_info.weight_bytes
    with pytest.raises(llmi.OutOfMemoryError) as caught:
        LLM(path, kv_cache_memory_bytes=9 * 10**12, **options)
    workspace = inspect_model(path).workspace_bytes
    vectors = 0.02 * packed  # norms
    assert 0 <= caught.value.needed_bytes - 9 * 10**12 - workspace - packed < vectors + 1


# --- inspect


SHAPES = {
    "7b": {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32},
    "13b": {"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40, "num_key_value_heads": 40},
    "70b-mha": {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
    },
    "70b": {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8},
}


def write_config(path: Path, **fields: Any) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "rope_theta": 10000.0,
        **fields,
    }
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def inspect(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from llmi.cli.commands import main; sys.exit(main())", "inspect", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("shape", "arguments", "facts"),
    [
        ("7b", [], ["1,073.7 MB", "6,738.4 M parameters", "13,476.8 MB of weights", "MHA"]),
        ("13b", ["--memory", "14GB"], ["0.82 MB", "17,089 tokens, 8 sequences of 2,048", "26,031.7 MB of weights", "DO NOT FIT"]),
        (
            "13b",
            ["--memory", "40e9", "--qps", "10", "--one-device-qps", "3"],
            ["sequences of 2,048", "10 requests a second / 3 of one device (given): 4"],
        ),
        ("70b-mha", ["--tokens", "16384"], ["2.62 MB", "42,949.7 MB"]),  # as 16 sequences of 1,024
        ("70b", [], ["0.33 MB", "GQA: 64 heads, 8 KV heads of 128", "68,976.6 M parameters"]),
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_the_missions_numbers_by_a_config_alone(tmp_path: Path, shape: str, arguments: list[str], facts: list[str], as_file: bool) -> None:
    path = write_config(tmp_path / shape, **SHAPES[shape])
    done = inspect(path / "config.json" if as_file else path, *arguments)
    assert done.returncode == 0, done.stderr
    for fact in facts:
        assert fact in done.stdout, f"{fact} is not in\n{done.stdout}"


def test_a_config_without_a_type_is_taken_for_bfloat16(tmp_path: Path) -> None:
    path = write_config(tmp_path / "m", **SHAPES["7b"], torch_dtype=None)
    assert "bfloat16 is assumed" in str(inspect_model(path)) and inspect_model(path).weight_bytes == 2 * inspect_model(path).num_params
    path = write_config(tmp_path / "n", **SHAPES["7b"], torch_dtype="float32")
    assert inspect_model(path).weight_bytes == 4 * inspect_model(path).num_params


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_config_counts_what_the_file_holds(tmp_path: Path, architecture: str) -> None:
    path = tiny_model(architecture, path=tmp_path, num_layers=3)
    whole, alone = inspect_model(path), inspect_model(path / "config.json")
    assert sorted((tensor.name, tensor.shape) for tensor in whole.tensors) == sorted(
        (tensor.name, tensor.shape) for tensor in alone.tensors
    )
    assert whole.weight_bytes == alone.weight_bytes


def test_windows_count_in_operations() -> None:
    """By counting pairs of queries and keys one by one."""
    layers = [0, 5, 5, 9]
    for tokens in (1, 4, 5, 6, 9, 10, 40):
        pairs = sum(min(i, window) if window else i for window in layers for i in range(1, tokens + 1))
        ours = prefill_flops(0, 4, 16, tokens, layers)
        assert abs(ours - 4 * 16 * pairs) <= 4 * 16 * len(layers) * tokens / 2 + 1  # L^2 / 2 for L (L + 1) / 2
        assert decode_flops(0, 4, 16, tokens, layers) == 4 * 16 * sum(min(tokens, window) if window else tokens for window in layers)
    assert prefill_flops(7, 4, 16, 100) == prefill_flops(7, 4, 16, 100, [0] * 4) == 2 * 7 * 100 + 2 * 4 * 100**2 * 16
    whole, local = ([0] * 26, [0 if (i + 1) % 6 == 0 else 512 for i in range(26)])
    assert 4 < prefill_flops(0, 26, 1024, 32768, whole) / prefill_flops(0, 26, 1024, 32768, local) < 6


@pytest.mark.parametrize("value", ["-5", "0", "1e3", "2.5", "", "nan", "9" * 30, "1000000000001", "-0", "five"])
def test_counts_are_counts(value: str, tmp_path: Path) -> None:
    import argparse

    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        parse_count(value)
    if value in ("-5", "0"):
        done = inspect(write_config(tmp_path / "m", **SHAPES["7b"]), f"--tokens={value}")
        assert done.returncode == 2 and "--tokens" in done.stderr and "Traceback" not in done.stderr
        with pytest.raises(llmi.InvalidParamsError, match="tokens"):
            inspect_model(tmp_path / "m", num_tokens=int(value))


def test_amounts_of_memory() -> None:
    import argparse

    assert [parse_bytes(text) for text in ("80e9", "80GB", "80 gb", "1.5KiB", "7")] == [80 * 10**9] * 3 + [1536, 7]
    for text in ("-1", "0", "", "GB", "inf", "nan", "80 GBs", "1e999", "1e30", "0x10", "80GB80"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_bytes(text)
    for text in ("-1", "0", "nan", "inf", "x", "1e-30"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_rate(text)


def test_what_bounds_and_how_many_devices(smollm_path: Path) -> None:
    done = inspect(smollm_path, "--machine", "--qps", "100", "--memory", "4GB", "--tokens", "512")
    assert done.returncode == 0, done.stderr
    for fact in ("ridge", "measured here", "-bound", "activations", "estimated from this machine's ceilings", "requests a second"):
        assert fact in done.stdout, done.stdout
    assert "ridge" not in inspect(smollm_path).stdout
    done = inspect(smollm_path, "--one-device-qps", "3")
    assert done.returncode != 0 and "--qps" in done.stderr


# --- windows of perplexity


def rolling(token_list: list[int], prefix: int, max_seq_len: int) -> list[tuple[list[int], list[int]]]:
    """lm-eval's get_rolling_token_windows with context_len 1, made disjoint: (context, scored), in plain words.

    A first window of the prefix and all but the last of the first max_seq_len tokens, which it scores. Then windows of max_seq_len inputs
    that end before the last token scored; each scores the next max_seq_len tokens, or what is left.
    """
    pairs = [([prefix], token_list[:max_seq_len])]
    done = max_seq_len
    while done < len(token_list):
        count = min(max_seq_len, len(token_list) - done)
        end = done + count
        inputs = token_list[end - max_seq_len - 1 : end - 1]
        pairs.append((inputs[: len(inputs) - (count - 1)], token_list[done:end]))
        done = end
    return pairs


@pytest.mark.parametrize("max_length", [2, 3, 7, 8, 16, 100])
def test_rolling_windows_are_those_of_lm_eval(max_length: int) -> None:
    for num_tokens in range(1, 70):
        tokens = list(range(1, num_tokens + 1))
        whole = [0, *tokens]
        ours = [(whole[begin:first], whole[first:end]) for begin, end, first in windows(len(whole), max_length, None)]
        assert ours == rolling(tokens, 0, max_length), num_tokens
        for stride in range(1, max_length):
            scored = [token for _, end, first in windows(len(whole), max_length, stride) for token in whole[first:end]]
            assert scored == tokens
            assert all(end - begin <= max_length + 1 for begin, end, _ in windows(len(whole), max_length, stride))


def test_perplexity_is_the_sum_over_these_windows(tiny_path: Callable[..., Path]) -> None:
    """Up to the whole context: the last token of a window is scored, not read."""
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, max_model_len=24) as llm:
        rng = np.random.default_rng(3)
        for count, max_length in [(5, 24), (24, 24), (25, 24), (60, 24), (60, None), (60, 7), (24, 8)]:
            tokens = rng.integers(1, 257, size=count).tolist()
            found = llm.perplexity([tokens], max_length=max_length)[0]
            pairs = rolling(
                tokens,
                min(llm.tokenizer.eos_token_ids) if llm.tokenizer.bos_token_id is None else llm.tokenizer.bos_token_id,
                max_length or 24,
            )
            scores = llm.loglikelihood([([*context], [*scored]) for context, scored in pairs])
            assert_same_bits(found.token_logprobs, np.concatenate([score.token_logprobs for score in scores]), (count, max_length))
            assert found.num_tokens == count
        with pytest.raises(llmi.PromptTooLongError):
            llm.loglikelihood([([1] * 20, [2] * 6)])
