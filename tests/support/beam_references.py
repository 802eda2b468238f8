"""Writes tests/data/beam_references.json: groups of beams by transformers 4.52.4, the last version that has them.

By command, with that version in an environment of its own (`pip install --target ENV --no-deps transformers==4.52.4 tokenizers==0.21.4
huggingface_hub==0.36.0`, then `PYTHONPATH=ENV python tests/support/beam_references.py`). The model is a tiny one with random weights, which a test
makes again.
"""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from llmi.testing import tiny_model

FILE = Path(__file__).parents[1] / "data" / "beam_references.json"
ENDS, VOCAB = [0, 7, 19], 48
STOPPING = (False, True, "never")


def model_path(folder: Path | None = None) -> Path:
    return tiny_model("llama", vocab_size=VOCAB, num_layers=2, path=folder)


def cases() -> list[dict[str, Any]]:
    """Arguments of transformers' generate, and the prompt."""
    found: list[dict[str, Any]] = []
    for seed in (0, 5, 7, 8):  # where its ending rule and that of later versions find the same texts
        rng = np.random.default_rng(seed)
        prompt = rng.integers(1, VOCAB, size=int(rng.integers(3, 9))).tolist()
        shared = {
            "prompt": prompt,
            "max_new_tokens": 10,
            "early_stopping": STOPPING[seed % 3],
            "length_penalty": (-1.0, 0.0, 1.0, 2.0)[seed % 4],
        }
        width, groups = ((4, 2), (6, 3), (6, 2), (3, 3))[seed % 4]
        found.append(shared | {"num_beams": width, "num_beam_groups": groups, "diversity_penalty": (0.3, 1.0, 2.5)[seed % 3]})
    return found


def run(model: Any, case: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import GenerationConfig

    options = {name: value for name, value in case.items() if name != "prompt"}
    config = GenerationConfig(
        do_sample=False,
        num_return_sequences=case["num_beams"],
        pad_token_id=0,
        eos_token_id=ENDS,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    ids = torch.tensor([case["prompt"]])
    with torch.no_grad():
        result = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    outputs = [without_end(sequence[len(case["prompt"]) :].tolist()) for sequence in result.sequences]
    return case | {"outputs": outputs, "scores": result.sequences_scores.tolist()}


def without_end(tokens: list[int]) -> list[int]:
    """Up to the token that ends the text: that version writes the first of these ids, whichever came."""
    return list(itertools.takewhile(lambda token: token not in ENDS, tokens))


def main() -> None:
    import torch
    import transformers

    assert transformers.__version__ == "4.52.4", "another version has not these searches"
    warnings.simplefilter("ignore")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path(), torch_dtype=torch.float32, attn_implementation="eager")
    FILE.write_text("[\n" + ",\n".join(json.dumps(run(model, case)) for case in cases()) + "\n]\n")


if __name__ == "__main__":
    main()
