"""Writes docs/models.md from the cards: `python tests/support/models_page.py > docs/models.md`."""

from __future__ import annotations

import inspect

from llmi.families import Card
from llmi.families.registry import cards

INTRODUCTION = """# Models that llmi runs

This page is generated from the cards in python/llmi/families (`python tests/support/models_page.py`). A card turns what a file says into a
`ModelSpec`: plain numbers and bindings of tensors, which the core checks and runs without knowing any family. `llmi inspect --spec MODEL`
shows the spec.

What holds for every family:
- Every key of config.json, every key of GGUF metadata and every tensor is used, known to change nothing, or refused by name. A key that
  says what the family computes anyway (`use_parallel_block: true` of a parallel family, `mlp_bias: false` where there is none;
  python/llmi/families/stated.py) changes nothing; at another value it is refused.
- `hf_overrides` sets or removes a key (None), also one inside an object (`{"rope_scaling.factor": 8.0}`,
  `{"text_config.new_key": None}`), or leaves tensors out (`{"*.adapter.*": None}`). An override that changes nothing is refused.
- Rotary scaling: default, linear, llama3, YaRN, LongRoPE and dynamic NTK, in the keys of transformers 4 (`rope_theta`, `rope_scaling`)
  and 5 (`rope_parameters`), and in GGUF's.
- LongRoPE and dynamic NTK have several tables. An engine takes one, by `max_model_len` against the original length, and its numerics id
  names it (`-rope:longrope_long`). transformers changes the table when a text grows past the original length, so its logits of shorter
  texts differ from those of an engine with the long table.
- The text model of a file that has others, too (`...ForConditionalGeneration` with a `text_config`) loads if its `model_type` is one of
  those below. Tensors of vision and audio are left out. Keys of the text model that stand at the top, too, must say the same.
  PaliGemma, which reads a prompt in both directions, is refused.
- docs/published-models.md lists published files that are read.
- Names of tensors may begin otherwise than the family's do, as in checkpoints without the head: the name of the embedding shows how.
- In GGUF files a bias is read where it is stored.
- Models with experts: `llmi inspect` names total and active parameters and the bytes that a token reads; `llm.expert_use()` counts which
  experts were used, by layer and by pairs of consecutive layers, on the CPU. A batch reads more experts than one sequence does: 8 sequences
  of Qwen3-30B-A3B use about 51 of the 128 experts of a layer where one uses 8. So a step of 8 rows costs some five times one of one row
  by arithmetic.
- Latent attention (DeepSeek, GLM-4.7-Flash, MiniCPM3): the cache keeps the latent and the rotated part of each token, once as a key and once
  as a value, as `llmi inspect` counts them: 2 x 576 values a layer for DeepSeek. Prompts run in the absorbed form as decoding does, else
  their bits would differ. Keys of a quantised `kv_b_proj` or `attn_kv_b` are turned in fp32, with the file's values. Layers that draft
  further tokens (MTP) are left out.

## Families

Checked with tiny random models of transformers 5.24 (tests/models/test_families.py, test_gemma4.py): each position's label and top 20 log-probabilities are
within 1e-4 of transformers' float64, or no farther from it than twice transformers' own fp32.

| family | config.json: architectures (model_type) | GGUF | |
| --- | --- | --- | --- |
"""

OWN_FAMILY = """
## Your own family

A model whose layers are made of parts that the core has needs a card of a few lines; notebooks/your_own_family.ipynb runs one.

```python
import llmi
from llmi.families import Style, dense, family

@family("tern", hf="TernForCausalLM", defaults={"rms_norm_eps": 1e-5})
def tern(c):
    spec = dense(c, Style(gated=False, activation="relu2", head_norms=True))
    for layer in spec.layers[::2]:
        layer.attention.window = c.positive("sliding_window")
    return spec

llmi.register_family(tern)
```

`c` reads config.json or GGUF metadata by config.json's names, and notes each key that is looked up. `dense` makes a Llama of the sizes,
changed by a `Style`; what a Style does not say is set in the spec (python/llmi/families/spec.py). An error inside a card names the card.
Receipts hold the spec's digest, and replay only where the card gives the same spec.
"""


def page() -> str:
    """The text of docs/models.md."""
    return INTRODUCTION + "".join(_row(card) for card in cards() if not card.is_users) + OWN_FAMILY


def _row(card: Card) -> str:
    types = ", ".join(f"`{name}`" for name in card.model_types)
    text = " ".join((inspect.getdoc(card.read) or "").split())
    return f"| {card.name} | {', '.join(card.hf)} ({types}) | {', '.join(f'`{name}`' for name in card.gguf) or '-'} | {text} |\n"


if __name__ == "__main__":
    print(page(), end="")
