"""Teacher-forced parity with Hugging Face transformers in fp32, every position; and the cost of default precision.

`LLMI_WHOLE_GRIDS=1 pytest tests/models/test_parity.py` compares 5,120 positions of each real model; without it the tests take 2,048.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import reference_float64
from bits import assert_same_bits
from decoders import open_decoder
from features import WHOLE_GRIDS
from llmi import LLM, Tokenizer, _core

pytestmark = pytest.mark.parity
T = _core.testing
NUM_WINDOWS = 10 if WHOLE_GRIDS else 4
Array = np.ndarray[Any, Any]


def log_softmax(logits: Array) -> Array:
    """In float64, [rows, vocab_size]."""
    import torch

    result: Array = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    return result


def windows(path: Path, text: str, count: int, length: int) -> list[list[int]]:
    tokenizer = Tokenizer(path)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    prefix = tokenizer.encode("")
    step = length - len(prefix)
    return [[*prefix, *tokens[i * step : (i + 1) * step]] for i in range(count)]


def hf_logits(model: Any, tokens: list[int]) -> Array:
    import torch

    with torch.no_grad():
        result: Array = model(torch.tensor([tokens])).logits[0].numpy()
    return result


def load_hf(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    kwargs: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    # The reader slices its memmap for each string of the vocabulary, twice; a plain array costs less.
    memmap = np.memmap
    with mock.patch("numpy.memmap", lambda *args, **options: memmap(*args, **options).view(np.ndarray)):
        return AutoModelForCausalLM.from_pretrained(
            path.parent if path.is_file() else path, dtype=torch.float32, attn_implementation="eager", **kwargs
        )


def log_probs(logits: Array, ids: Array) -> Array:
    """Of ids [rows, n]. A row's sum is taken as the logits are: in float32 its error is that of a logit, a hundredth of what is asked."""
    import torch

    sums = torch.logsumexp(torch.from_numpy(logits), -1).numpy()
    result: Array = np.take_along_axis(logits, ids, -1) - sums[:, None]
    return result


ALLOWED = 1e-4  # between log-probabilities of two computations in fp32


def hf_states(model: Any, tokens: list[int]) -> Array:
    """What enters the last layer, [rows, hidden_size]."""
    import torch

    with torch.no_grad():
        result: Array = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-2][0].double().numpy()
    return result


def ill_conditioned(exact_model: Any, tokens: list[int], rows: Array, own: Array) -> int:
    """Of positions that differ by more than is allowed, from float64 too: transformers' fp32 finds their states no better.

    Few positions of a text magnify rounding: what differs by 1e-7 after three layers differs by 2e-5 after six, in either
    computation, and whose logits end up nearer is luck: transformers' states of the whole text lie as far from those of the text up to
    there, or from the exact ones, as ours may from the exact ones. (Some processors sum a row in one order whatever the text's length:
    the text up to there then tells nothing.)
    """
    exact = reference_float64.hidden_states(exact_model, tokens)
    model = exact_model.float()  # the weights it came from
    whole = hf_states(model, tokens)
    for row in rows:
        spread = max(np.linalg.norm(other - whole[row]) for other in (hf_states(model, tokens[: row + 1])[-1], exact[row]))
        assert np.linalg.norm(own[row] - exact[row]) <= 2 * spread
    reference_float64.in_float64(exact_model)
    return len(rows)


def compare(path: Path, inputs: list[list[int]], double_rows: int) -> dict[str, float]:
    """Label and top-20 log-probabilities at every position; whole rows against float64 at some.

    The order of transformers' own sums, and so its rounding, depends on the machine: a text where the two differ by more than is
    allowed is decided by the same model in float64, at every position.
    """
    import torch

    decoder = open_decoder(path, dtype="float32", kv_dtype="float32", num_pages=256)
    reference = load_hf(path)
    num_layers = reference.config.num_hidden_layers
    worst, positions, magnified = 0.0, 0, 0
    undecided: list[tuple[list[int], Array, Array, Array]] = []
    ours: list[Array] = []
    theirs: list[Array] = []
    for tokens in inputs:
        sequence = decoder.new_sequence()
        logits, (states,) = decoder.forward([(sequence, tokens, None)], [num_layers - 1])
        decoder.free(sequence)
        wanted = hf_logits(reference, tokens)
        if len(ours) < 2:
            ours.append(logits[:double_rows].copy())
            theirs.append(wanted[:double_rows].copy())
        top = torch.topk(torch.from_numpy(wanted), 20).indices.numpy()
        ids = np.concatenate([top, np.array([*tokens[1:], top[-1, 0]])[:, None]], axis=-1)
        own = log_probs(logits, ids)
        difference = float(np.abs(own - log_probs(wanted, ids)).max())
        if difference <= ALLOWED:
            worst = max(worst, difference)
        else:
            undecided.append((tokens, ids, own, states))
        positions += len(tokens)
    exact_model = reference_float64.in_float64(reference)
    for tokens, ids, own, states in undecided:
        differences = np.abs(own - log_probs(reference_float64.logits(exact_model, tokens), ids)).max(-1)
        (beyond,) = np.nonzero(differences > ALLOWED)
        if len(beyond) > 0:
            magnified += ill_conditioned(exact_model, tokens, beyond, states)
        worst = max(worst, float(np.delete(differences, beyond).max()))
    own_distance = hf_distance = 0.0
    for tokens, row, hf_row in zip(inputs[:2], ours, theirs, strict=True):
        exact = log_softmax(reference_float64.logits(exact_model, tokens[:double_rows]))
        own_distance = max(own_distance, float(np.abs(log_softmax(row) - exact).max()))
        hf_distance = max(hf_distance, float(np.abs(log_softmax(hf_row) - exact).max()))
    return {
        "positions": positions,
        "label_and_top20": worst,
        "own_distance": own_distance,
        "hf_distance": hf_distance,
        "magnified": magnified,
    }


@pytest.mark.parametrize("model", ["smollm", "gemma"])
def test_real_models(model: str, request: pytest.FixtureRequest, text: str) -> None:
    path: Path = request.getfixturevalue(f"{model}_path")
    report = compare(path, windows(path, text, NUM_WINDOWS, 512), double_rows=250)
    print(model, report)
    assert report["positions"] == 512 * NUM_WINDOWS
    assert report["label_and_top20"] <= ALLOWED
    assert report["magnified"] <= 2, "one of Gemma's 5,120 positions, where the machine has AVX2 alone"
    assert report["own_distance"] <= 2 * report["hf_distance"]


LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    ("llama", {"attention_bias": True}),
    ("llama", {"rope_scaling": LLAMA3_SCALING, "rope_theta": 500000.0, "head_dim": 32}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("gemma3", {}),
    ("gemma3", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 24, "num_layers": 7}),
]


@pytest.mark.parametrize(("architecture", "overrides"), TINY, ids=str)
def test_tiny_random_models(tiny_path: Callable[..., Path], architecture: str, overrides: dict[str, Any]) -> None:
    path = tiny_path(architecture, **overrides)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 257, 300).tolist() for _ in range(2)]
    report = compare(path, inputs, double_rows=300)
    print(report)
    assert report["label_and_top20"] <= ALLOWED
    # 0 where transformers rounds as we do by chance; on a Xeon with AMX 4 of 600, at which it is as far from float64 (ill_conditioned).
    assert report["magnified"] <= 4
    assert report["own_distance"] <= 2 * report["hf_distance"] + 1e-6


def test_safetensors_of_a_real_model(smollm_path: Path, tmp_path: Path) -> None:
    """The GGUF's weights, saved by transformers as sharded safetensors: the same logits from both files."""
    from transformers import AutoTokenizer

    model = load_hf(smollm_path)
    model.hf_quantizer = None  # its weights are unpacked, but it counts as one that cannot be saved
    del model.config.quantization_config
    model.save_pretrained(tmp_path, max_shard_size="200MB")

    AutoTokenizer.from_pretrained(smollm_path.parent, gguf_file=smollm_path.name).save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = np.random.default_rng(0).integers(3, 49000, 60).tolist()
    rows = []
    for path in (smollm_path, tmp_path):
        with LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 26, max_model_len=512) as llm:
            rows.append(llm.sequence([1]).extend(tokens).copy())
    assert rows[0].shape[0] == len(tokens)
    assert_same_bits(rows[0], rows[1])
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 26, max_model_len=512) as llm:
        assert "Paris" in llm.generate("The capital of France is", temperature=0, max_tokens=4)[0].text
        assert 2 in llm.tokenizer.eos_token_ids


def test_default_precision(smollm_path: Path, text: str) -> None:
    """Against own fp32, int8 activations and the fp16 cache: mean KL at most 2.5e-3, same top token at least 97 %; an int8 cache adds at
    most 1e-3."""
    inputs = windows(smollm_path, text, 16, 512)
    decoders = {
        "exact": open_decoder(smollm_path, dtype="float32", kv_dtype="float32", num_pages=64),
        "default": open_decoder(smollm_path, num_pages=64),
        "int8 cache": open_decoder(smollm_path, kv_dtype="int8", num_pages=64),
        "bf16 attention": open_decoder(smollm_path, kv_dtype="bfloat16", num_pages=64),
    }
    divergences: dict[str, list[Any]] = {name: [] for name in decoders}
    agreements: dict[str, list[Any]] = {name: [] for name in decoders}
    for tokens in inputs:
        logits = {}
        for name, decoder in decoders.items():
            sequence = decoder.new_sequence()
            logits[name] = decoder.forward([(sequence, tokens, None)])[0]
            decoder.free(sequence)
        for begin in range(0, len(tokens), 16):  # a few rows at a time: what is in between stays in the caches
            exact = logits["exact"][begin : begin + 16]
            p, top = log_softmax(exact), exact.argmax(-1)
            probs = np.exp(p)
            for name in decoders:
                rows = logits[name][begin : begin + 16]
                divergences[name].append((probs * (p - log_softmax(rows))).sum(-1))
                agreements[name].append(rows.argmax(-1) == top)
    kl = {name: np.concatenate(rows) for name, rows in divergences.items()}
    same = {name: np.concatenate(rows).mean() for name, rows in agreements.items()}
    for name, values in kl.items():
        error = values.std() / np.sqrt(len(values))
        print(
            f"{name}: mean KL {values.mean():.3e} +- {error:.1e}, 99.9 % {np.quantile(values, 0.999):.1e}, same top token {same[name]:.4f}"
        )
    assert kl["default"].mean() <= 2.5e-3 and same["default"] >= 0.97
    for name in ("int8 cache", "bf16 attention"):
        assert 0 < (kl[name] - kl["default"]).mean() <= 1e-3
