"""Every key of a family's transformers config class, changed in a tiny model: what moves transformers' logits must move llmi's as far, or
be refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders import Refusal, kind_of, open_decoder
from llmi import _core
from llmi.testing import tiny_model

pytestmark = pytest.mark.parity
T = _core.testing
Array = np.ndarray[Any, Any]
PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]
ALLOWED = 1e-4  # as in test_parity.py

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
#: Values of other kinds than the default's, or that a rule would not make.
VALUES: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "relu", "swish", "gelu_pytorch_tanh"],
    "hidden_activation": ["silu", "gelu", "gelu_new"],
    "rope_scaling": [
        {"rope_type": "linear", "factor": 4.0},
        {"type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0, "attention_factor": 2.0},
        {"type": "su", "factor": 2.0},
    ],
    "rope_theta": [500.0, 10, "10000", None],
    "layer_types": [
        ["full_attention"] * 3,
        ["sliding_attention"] * 3,
        ["sliding_attention", "chunked_attention", "full_attention"],
        ["full_attention"],
        None,
    ],
    "sliding_window": [1, 2, 7, 8, None],
    "dtype": ["bfloat16", "float16", "float32"],
    "pruned_heads": [{"0": [0]}],
    "head_dim": [8, 32, None],
    "num_hidden_layers": [1, 2, 3, 4],
    "attn_logit_softcapping": [1.0, 30.0],
    "final_logit_softcapping": [1.0, 30.0],
    "model_type": ["llama", "mistral", "gemma2", "gemma3_text", "qwen2"],
    "architectures": [["MistralForCausalLM"], ["LlamaForCausalLM", "Gemma3ForCausalLM"], [], None],
    "tokenizer_class": ["LlamaTokenizer"],
    "id2label": [{"0": "A"}],
    "bos_token_id": [None, 5, -1, 100000],
    "eos_token_id": [None, 5, [1, 2], -1, 100000],
    "pad_token_id": [None, 5, -1, 100000],
    "transformers_version": ["4.30.0", "5.0.0"],
    "vocab_size": [256, 258, 64, 300],
}
#: Every key of both classes of transformers 4.57.6, at its default: version 5 knows two thirds of them, and writes rope_parameters.
KEYS_4_57: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "config_keys_transformers_4_57.json").read_text())
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "gemma3": {"sliding_window": 4, "num_key_value_heads": 2}}


def changed_values(key: str, value: Any) -> list[Any]:
    """Other values for a key of this default, of its kind."""
    if key in VALUES:
        return VALUES[key]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2 + 2]
    if isinstance(value, float):
        return [value * 2 + 0.25, value / 2 + 1e-3]
    return {str: ["other"], list: [[]], dict: [{}]}.get(type(value), [1, True, "other", [1], 0.5])


class Reference:
    """transformers' logits of a directory, by float32."""

    def __init__(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        self.torch, self.transformers = torch, transformers

    def logits(self, path: Path) -> Array | None:
        """None where transformers cannot load or run it, or makes up weights."""
        try:
            model, info = self.transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=self.torch.float32, attn_implementation="eager", output_loading_info=True
            )
            with self.torch.no_grad():
                result: Array = model(self.torch.tensor([PROMPT]), return_dict=True).logits[0].numpy()
        except Exception:
            return None
        return None if info["missing_keys"] or not np.isfinite(result).all() else result


def own_logits(path: Path) -> Array:
    decoder = open_decoder(path, dtype="float32", kv_dtype="float32", num_pages=8)
    logits: Array = decoder.forward([(decoder.new_sequence(), PROMPT, None)])[0]
    return logits


def distance(a: Array, b: Array) -> float:
    """Of log-probabilities; infinite where the vocabularies differ."""
    if a.shape != b.shape:
        return float("inf")
    rows = [x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (a.astype(np.float64), b.astype(np.float64))]
    return float(np.abs(rows[0] - rows[1]).max())


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def config_class(architecture: str) -> Any:
    import transformers

    return {"llama": transformers.LlamaConfig, "gemma3": transformers.Gemma3TextConfig}[architecture]


class Model:
    """A tiny directory with every key of its config class (of transformers 4.57, or of the installed version), and its logits by both."""

    def __init__(self, architecture: str, path: Path, reference: Reference, *, installed: bool = False, **overrides: Any) -> None:
        arguments = {"vocab_size": 257, "num_layers": 3 if architecture == "gemma3" else 2, **FAMILIES[architecture], **overrides}
        self.path = tiny_model(architecture, path=path, **arguments)
        given = json.loads((path / "config.json").read_text())
        self.config: dict[str, Any] = config_class(architecture)(**given).to_dict() if installed else KEYS_4_57[architecture] | given
        self.reference = reference
        self.write(self.config)
        self.expected = reference.logits(path)
        self.own = own_logits(path)

    def write(self, config: dict[str, Any]) -> None:
        (self.path / "config.json").write_text(json.dumps(config))

    def fault(self, config: dict[str, Any]) -> str:
        """What is wrong with llmi's answer to this config; empty if nothing is."""
        self.write(config)
        try:
            own = own_logits(self.path)
        except Refusal as error:
            return "" if kind_of(error) in ("model_file", "unsupported_model") else f"refused as {kind_of(error)}: {error}"
        scaling = config.get("rope_scaling")
        if isinstance(scaling, dict) and "type" in scaling and config["model_type"] == "gemma3_text":
            # transformers' Gemma 3 does not read the old name: version 5 leaves the scaling out without a word.
            self.write(config | {"rope_scaling": {"rope_type" if name == "type" else name: value for name, value in scaling.items()}})
        wanted = self.reference.logits(self.path)
        if wanted is None:
            return "" if distance(own, self.own) == 0 else "changed, where transformers cannot load it"
        gap, moved = distance(own, wanted), distance(wanted, self.expected)
        return "" if gap <= ALLOWED else f"off by {gap:.2g}, where the change moves transformers by {moved:.2g}"


@pytest.mark.parametrize("version", ["4.57.6", "installed"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_key_of_the_config_class(architecture: str, version: str, tmp_path: Path, reference: Reference) -> None:
    model = Model(architecture, tmp_path, reference, installed=version == "installed")
    assert distance(model.own, model.expected) <= ALLOWED, "the base, with every key of the class at its default, loads and agrees"
    faults, read = [], 0
    for key, value in model.config.items():
        for other in changed_values(key, value):
            if other == value and type(other) is type(value):
                continue
            config = {**model.config, key: other}
            fault = model.fault(config)
            read += 1
            if fault:
                faults.append(f"{key} = {other!r}: {fault}")
    print(architecture, version, read)
    assert read > (80 if version == "4.57.6" else 40)
    assert not faults, "\n".join(faults)


#: What the keys say together with the tensors that they speak of, and sizes with tensors to match.
WITH_TENSORS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("llama", {"head_dim": 48}),
    ("llama", {"head_dim": 80}),
    ("gemma3", {"attention_bias": True}),
    ("gemma3", {"head_dim": 48, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("gemma3", {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("architecture", "overrides"), WITH_TENSORS, ids=str)
def test_keys_with_their_tensors(architecture: str, overrides: dict[str, Any], tmp_path: Path, reference: Reference) -> None:
    model = Model(architecture, tmp_path, reference, **overrides)
    assert distance(model.own, model.expected) <= ALLOWED
    for key in set(overrides) & {"attention_bias", "mlp_bias", "tie_word_embeddings"}:
        with pytest.raises(Refusal) as error:  # the tensors are there, and the config says that they are not
            model.write(model.config | {key: not overrides[key]})
            own_logits(tmp_path)
        assert kind_of(error.value) == "unsupported_model"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_directories_as_transformers_saves_them(architecture: str, tmp_path: Path, reference: Reference) -> None:
    """With all defaults of the class, in both dtypes, tied and not."""
    import transformers

    model = {"llama": transformers.LlamaForCausalLM, "gemma3": transformers.Gemma3ForCausalLM}[architecture]
    sizes = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    for tied in (False, True):
        config = config_class(architecture)(**sizes, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=None)
        model(config).to(reference.torch.bfloat16 if tied else reference.torch.float32).save_pretrained(tmp_path)
        wanted = reference.logits(tmp_path)
        assert wanted is not None and distance(own_logits(tmp_path), wanted) <= ALLOWED
