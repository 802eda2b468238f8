"""One EAGLE-3 layer of random weights in the layouts of SpecForge, speculators and llama.cpp, and what their own code makes of it.

    python tests/support/eagle3_layouts.py LLAMA_CPP

writes tests/data/eagle3.npz (hidden rows, outputs and logits by the code of speculators 0.9.0 and SpecForge 0.2.0), eagle3_configs.json
(config.json as these libraries save it) and eagle3.gguf.xz (what llama.cpp's converter makes of a folder). Both libraries must be
importable, with transformers 5.8.1 and torch; LLAMA_CPP is llama.cpp's source, as in vendor/llama.cpp of llama-cpp-python 0.3.36's source
distribution. test_eagle3_layouts.py holds llmi against these files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from converted_files import values_of
from llmi.testing.tiny import save_safetensors, tiny_model

DATA = Path(__file__).parents[1] / "data"
ARRAYS, CONFIGS, CONVERTED = DATA / "eagle3.npz", DATA / "eagle3_configs.json", DATA / "eagle3.gguf.xz"
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, NUM_LAYERS = 64, 4, 2, 16, 128, 64, 3
TAPS, TOKENS = [1, 2, 3], [*range(1, 50), 52, 57, 60, 63]
#: Tokens of a text: the hidden rows of the first ROWS are given, the rest follow as a draft does.
ROWS = 12
TEXT = [*((7 * i * i + 3 * i + 5) % VOCAB for i in range(ROWS + 1)), 0, 0]
Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A file: the library that it is for, the kind of its layer, and its switches."""

    layout: str
    kind: str = "llama"
    flags: tuple[str, ...] = ()
    has_embedding: bool = False


CASES = {
    "specforge": Case("specforge"),
    "specforge_fc_norm": Case("specforge", flags=("fc_norm",), has_embedding=True),
    "speculators": Case("speculators", has_embedding=True),
    "speculators_residual": Case("speculators", flags=("norm_before_residual", "norm_before_fc")),
    "speculators_output": Case("speculators", flags=("norm_before_residual", "norm_before_fc", "norm_output")),
    "speculators_qwen3": Case("speculators", "qwen3", ("fc_norm", "norm_output"), has_embedding=True),
}
#: Of which llama.cpp's converter makes a file.
SOURCE = "speculators_residual"


def target(path: Path) -> Path:
    """The model that the layer drafts for."""
    return tiny_model("llama", path=path, vocab_size=VOCAB, num_layers=NUM_LAYERS)


def tapped() -> Array:
    """Hidden states [ROWS, taps * HIDDEN] that the layer reads."""
    return 4 * values_of("tapped", [ROWS, len(TAPS) * HIDDEN])


def tensors_of(case: Case) -> dict[str, Array]:
    """The layer's tensors by the names of its layout. Their values are functions of SpecForge's names."""
    rows = {
        "q_proj": (HEADS * DIM, 2 * HIDDEN),
        "k_proj": (KV_HEADS * DIM, 2 * HIDDEN),
        "v_proj": (KV_HEADS * DIM, 2 * HIDDEN),
        "o_proj": (HIDDEN, HEADS * DIM),
    }
    shapes: dict[str, tuple[int, ...]] = {f"midlayer.self_attn.{name}.weight": shape for name, shape in rows.items()}
    if case.kind == "qwen3":
        shapes |= {f"midlayer.self_attn.{name}.weight": (DIM,) for name in ("q_norm", "k_norm")}
        shapes |= {f"midlayer.self_attn.{name}.bias": shape[:1] for name, shape in rows.items()}
    shapes |= {f"midlayer.mlp.{name}.weight": (INNER, HIDDEN) for name in ("gate_proj", "up_proj")} | {
        "midlayer.mlp.down_proj.weight": (HIDDEN, INNER)
    }
    shapes |= {f"midlayer.{name}.weight": (HIDDEN,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    shapes |= {"fc.weight": (HIDDEN, len(TAPS) * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (len(TOKENS), HIDDEN)}
    if "norm_before_fc" in case.flags:
        shapes["input_norm.weight"] = (len(TAPS) * HIDDEN,)
    if "fc_norm" in case.flags:
        shapes |= {f"fc_norm.{tap}.weight": (HIDDEN,) for tap in range(len(TAPS))}
    if case.has_embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    prefix = "midlayer." if case.layout == "specforge" else "layers.0."
    tensors = {name.replace("midlayer.", prefix): values_of(name, list(shape)) for name, shape in shapes.items()}
    present = np.zeros(VOCAB, np.bool_)
    present[TOKENS] = True
    return tensors | {"d2t": np.asarray(TOKENS, np.int64) - np.arange(len(TOKENS)), "t2d": present}


def config_of(case: Case) -> dict[str, Any]:
    """config.json."""
    layer: dict[str, Any] = {
        "model_type": case.kind,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "attention_bias": case.kind == "qwen3",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    flags = dict.fromkeys(case.flags, True)
    if case.layout == "specforge":
        listed = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]}
        return layer | flags | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(TOKENS), "eagle_config": listed}
    how: dict[str, Any] = {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
    }
    return flags | {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": how,
        "transformer_layer_config": layer,
        "draft_vocab_size": len(TOKENS),
        "eagle_aux_hidden_state_layer_ids": TAPS,
    }


def write(case: Case, path: Path) -> Path:
    """The folder of a case."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_of(case)))
    save_safetensors(path / "model.safetensors", tensors_of(case))
    return path


# What follows runs outside CI.


class _Capture:
    """What a module has read and given, call by call."""

    def __init__(self, module: Any) -> None:
        self.read: list[Array] = []
        self.gave: list[Array] = []
        module.register_forward_hook(self)

    def __call__(self, module: Any, inputs: Any, output: Any) -> None:
        self.read.append(inputs[0].detach()[0].numpy().copy())
        self.gave.append(output.detach()[0].numpy().copy())


def _joined(steps: list[Array]) -> Array:
    """All rows of the first step, and of the later ones the last: that of the draft behind the whole text."""
    return np.concatenate([steps[0], *(step[-1:] for step in steps[1:])])


def _embedding(case: Case, model: Path) -> Array:
    from llmi import LLM
    from tiny_eagle import stored

    if case.has_embedding:
        return tensors_of(case)["embed_tokens.weight"]
    with LLM(model, kv_cache_memory_bytes=1 << 22) as llm:
        return stored(llm, "model.embed_tokens.weight")


def _load(network: Any, case: Case, model: Path) -> None:
    import torch

    state = {name: torch.from_numpy(values.copy()) for name, values in tensors_of(case).items()}
    state["embed_tokens.weight"] = torch.from_numpy(_embedding(case, model).copy())
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected and not [name for name in missing if not name.startswith("verifier_")], (missing, unexpected)


def by_speculators(case: Case, model: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Hidden rows, outputs and logits by speculators' forward pass of training; and config.json as it saves it."""
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_dict(config_of(case))
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
    config.transformer_layer_config._attn_implementation = "eager"
    network = Eagle3DraftModel(config).eval()
    _load(network, case, model)
    fc, head, norm = _Capture(network.fc), _Capture(network.lm_head), _Capture(network.norm)
    ids = torch.tensor([TEXT[1 : 1 + ROWS]])
    with torch.no_grad():  # the second step reads tokens one further on, and 0 behind the last: so TEXT ends with zeros
        network(torch.from_numpy(tapped())[None], ids, torch.zeros_like(ids), ttt_steps=len(TEXT) - ROWS)
    outputs = head.read if config.norm_output else norm.read
    return {"hidden": fc.gave[0], "outputs": _joined(outputs), "logits": _joined(head.gave)}, saved


def by_specforge(case: Case, model: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The same by SpecForge's steps of training."""
    import torch
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    config = LlamaConfig(**config_of(case))
    network = LlamaForCausalLMEagle3(config).eval()
    _load(network, case, model)
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
    mask = network.prepare_decoder_attention_mask(torch.ones(1, ROWS, dtype=torch.bool), torch.zeros(1, ROWS, HIDDEN), 1, ROWS, 0)
    outputs, logits, cache = [], [], [[], []]
    with torch.no_grad():
        fused = rows = network.project_hidden_states(torch.from_numpy(tapped())[None])
        for step in range(len(TEXT) - ROWS):
            ids = torch.tensor([(TEXT + [0] * step)[1 + step : 1 + step + ROWS]])
            rows = network.backbone(network.embed_input_ids(ids), rows, cache, mask, torch.arange(ROWS)[None])
            outputs.append(rows[0].numpy())
            logits.append(network.compute_logits(rows)[0].numpy())
    return {"hidden": fused[0].numpy(), "outputs": _joined(outputs), "logits": _joined(logits)}, saved


#: Runs in a process of its own. The tokenizer is not looked at: a drafter's file needs none here.
_CONVERTER = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
import conversion.llama
conversion.llama.LlamaModel.set_vocab = lambda self: None
import convert_hf_to_gguf
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "f32", "--target-model-dir", sys.argv[4]]
convert_hf_to_gguf.main()
"""


def convert(llama_cpp: Path, model: Path) -> bytes:
    """The bytes of the file that llama.cpp's converter makes."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = write(CASES[SOURCE], Path(folder) / "source"), Path(folder) / "made.gguf"
        subprocess.run([sys.executable, "-c", _CONVERTER, str(llama_cpp), str(source), str(made), str(model)], check=True)
        return made.read_bytes()


def main() -> None:
    """Writes the three files anew."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    parser = argparse.ArgumentParser(description="Writes tests/data/eagle3.* anew.")
    parser.add_argument("llama_cpp", type=Path)
    args = parser.parse_args()
    arrays: dict[str, Array] = {}
    configs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = target(Path(folder))
        for name, case in CASES.items():
            made, configs[name] = (by_specforge if case.layout == "specforge" else by_speculators)(case, model)
            arrays |= {f"{name}.{part}": values for part, values in made.items()}
        CONVERTED.write_bytes(lzma.compress(convert(args.llama_cpp, model), preset=9))
    np.savez_compressed(ARRAYS, **arrays)
    CONFIGS.write_text(json.dumps(configs, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
