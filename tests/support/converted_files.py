"""Tiny folders of the families and the GGUF files that llama.cpp's converter makes of them.

By command, outside CI: `python tests/support/converted_files.py LLAMA_CPP [--only NAME]` writes tests/data/converted anew. LLAMA_CPP is llama.cpp's
source, as in vendor/llama.cpp of llama-cpp-python's source distribution; torch and transformers are needed. Of each family two files are
kept: what its folder is (config.json, and the shapes of its tensors, whose values follow from their names), and the converter's file,
compressed. A test loads both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from llmi.testing.tiny import byte_tokenizer, save_safetensors

CONVERTED = Path(__file__).parents[1] / "data" / "converted"
Array = np.ndarray[Any, Any]

#: Smaller than the models of tiny_families.py: they are committed.
SMALLER = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "n_layer": 2, "n_inner": 64, "ffn_dim": 64}

#: Keys of the published files that transformers 5 no longer writes; the converter asks for them.
PUBLISHED = {"gpt2": {"n_ctx": 512}, "cohere2": {"rotary_pct": 1.0}, "bloom": {"seq_length": 512}}

#: What a GGUF file of these architectures cannot hold, or what the converter writes whatever the config says, is as it writes it.
HELD: dict[str, dict[str, Any]] = {
    "gpt2": {"n_inner": 256},
    "gpt_bigcode": {"n_inner": 256},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"vocab_size": 258, "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 2},
    "mistral": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "phi": {"num_key_value_heads": 4, "intermediate_size": 256},
    "mixtral": {"sliding_window": None, "num_local_experts": 4},
    "qwen2_moe": {"mlp_only_layers": [], "num_experts": 4},
    "qwen3_moe": {"decoder_sparse_step": 1, "num_experts": 4},
    "olmoe": {"num_experts": 4},
    "gpt_oss": {"swiglu_limit": 7.0, "num_local_experts": 4},
    "granitemoe": {"num_local_experts": 4},
    "granitemoeshared": {"num_local_experts": 4},
    "ernie4_5_moe": {"moe_num_experts": 4, "intermediate_size": 128},
    "glm4_moe": {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
}

#: Runs in a process of its own: the byte tokenizer has no name of its own there, and every family writes it as GPT-2's.
CONVERTER = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
import conversion, conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
found = conversion.get_model_class
def plain(*args, **kwargs):
    model = found(*args, **kwargs)
    model.set_vocab = lambda self: self._set_vocab_gpt2()
    return model
conversion.get_model_class = plain
import convert_hf_to_gguf
convert_hf_to_gguf.get_model_class = plain
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "f32"]
convert_hf_to_gguf.main()
"""


def values_of(name: str, shape: list[int]) -> Array:
    """A tensor's values, which its name decides. They have four bits, so that the files compress; vectors lie around one, or zero for
    biases."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    codes = np.random.default_rng(seed).integers(-7, 8, shape)
    if len(shape) == 1:
        return (codes / 32 + (0.0 if name.endswith("bias") or "alpha" in name else 1.0)).astype(np.float32)
    return (codes / 32).astype(np.float32)


def write_folder(recipe: dict[str, Any], path: Path) -> Path:
    """The model's folder: config.json, model.safetensors and a tokenizer of bytes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(recipe["config"]))
    tokenizer = byte_tokenizer(257)
    tokenizer["model"] |= {"vocab": tokenizer["model"]["vocab"] | {"he": 257}, "merges": ["h e"]}  # the converter writes no empty list
    tokenizer["pre_tokenizer"]["use_regex"] = True  # so are words cut where tokenizer.ggml.pre is gpt-2
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}))
    save_safetensors(path / "model.safetensors", {name: values_of(name, shape) for name, shape in recipe["tensors"].items()})
    return path


def read(name: str) -> tuple[dict[str, Any], bytes]:
    """The folder's recipe, and the converter's file, whose digest is checked."""
    recipe = json.loads((CONVERTED / f"{name}.json").read_text())
    data = lzma.decompress((CONVERTED / f"{name}.gguf.xz").read_bytes())
    assert hashlib.sha256(data).hexdigest() == recipe["gguf_sha256"], name
    return recipe, data


def names() -> list[str]:
    return sorted(path.stem for path in CONVERTED.glob("*.json"))


def _recipe(name: str) -> dict[str, Any]:
    import transformers

    from tiny_families import EXPERTS, FAMILIES, OLD_SIZES, SIZES, config_of

    family = (FAMILIES | EXPERTS)[name]
    known = set(SIZES | OLD_SIZES if family.items() >= OLD_SIZES.items() else SIZES) | set(family)
    shown = config_of(name)
    changes = {key: value for key, value in SMALLER.items() if key in known and getattr(shown, key, None) is not None}
    for key, value in family.items():  # lists with an entry for each layer
        if isinstance(value, list) and len(value) == 4:
            changes[key] = value[1:3]
    config = config_of(name, **(changes | HELD.get(name, {})))
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        stored = json.loads((Path(scratch) / "config.json").read_text())
        stored |= PUBLISHED.get(name, {})
        from safetensors import safe_open

        with safe_open(f"{scratch}/model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    return {"config": stored, "tensors": shapes}


def convert(name: str, llama_cpp: Path) -> str:
    """Writes the family's two files; answers what came of it."""
    recipe = _recipe(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = write_folder(recipe, Path(scratch) / "model"), Path(scratch) / "model.gguf"
        run = subprocess.run(
            [sys.executable, "-c", CONVERTER, str(llama_cpp), str(folder), str(file)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            return "not converted: " + run.stderr.strip().splitlines()[-1]
        data = file.read_bytes()
    recipe["gguf_sha256"] = hashlib.sha256(data).hexdigest()
    CONVERTED.mkdir(exist_ok=True)
    (CONVERTED / f"{name}.json").write_text(json.dumps(recipe, indent=1, sort_keys=True) + "\n")
    (CONVERTED / f"{name}.gguf.xz").write_bytes(lzma.compress(data, preset=9))
    return f"{len(data)} bytes, {(CONVERTED / f'{name}.gguf.xz').stat().st_size} compressed"


def main() -> None:
    from tiny_families import EXPERTS, FAMILIES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("--only", nargs="*", default=[*FAMILIES, *EXPERTS])
    arguments = parser.parse_args()
    for name in arguments.only:
        print(f"{name}: {convert(name, arguments.llama_cpp)}", flush=True)


if __name__ == "__main__":
    main()
