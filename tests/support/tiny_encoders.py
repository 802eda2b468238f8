"""Nine tiny random models that make vectors or scores, in folders as their makers publish them, and what transformers computes in float64.

Pooling, dense layers and normalisation are written here once more, in NumPy, from sentence-transformers' documentation. Windows are shorter
than the texts; norms and biases are perturbed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

import reference_float64
from llmi.testing.tiny import byte_tokenizer
from tiny_families import draw_parameters

Array = np.ndarray[Any, Any]
CLS, SEP, NO, YES = 257, 258, 259, 261  # 260 is "ye"
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 640,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
    "pad_token_id": 1,
}
QWEN = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
GEMMA = QWEN | {
    "use_bidirectional_attention": True,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODERN = SIZES | {"local_attention": 16, "global_attn_every_n_layers": 3, "cls_token_id": CLS, "sep_token_id": SEP}

TEXTS = ["The sea is calm tonight", "a", "Where ignorant armies clash by night, on the darkling plain" * 3, "The tide is full"]
QUERY = "Where is the sea?"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the"
    ' answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model's class, its configuration, and what its folder says of vectors; pooling None: it gives scores."""

    architecture: str
    model_type: str
    config: dict[str, Any]
    pooling: str | None = None  # a key of its pooling's config.json
    dense: tuple[tuple[int, str], ...] = ()  # outputs and activation of each
    normalize: bool = False
    wraps: bool = True  # [CLS] and [SEP] stand around a text


MODELS = {
    "qwen3_embedding": Tiny("Qwen3ForCausalLM", "qwen3", QWEN, "pooling_mode_lasttoken", normalize=True),
    "qwen3_reranker": Tiny("Qwen3ForCausalLM", "qwen3", QWEN, wraps=False),
    "qwen3_scores": Tiny("Qwen3ForSequenceClassification", "qwen3", QWEN | {"num_labels": 1}, wraps=False),
    "bert": Tiny("BertModel", "bert", SIZES, "pooling_mode_mean_tokens", normalize=True),
    "bert_scores": Tiny("BertForSequenceClassification", "bert", SIZES | {"num_labels": 1}),
    "xlm_roberta": Tiny("XLMRobertaModel", "xlm-roberta", SIZES | {"type_vocab_size": 1}, "pooling_mode_cls_token", ((48, "Tanh"),)),
    "xlm_roberta_scores": Tiny("XLMRobertaForSequenceClassification", "xlm-roberta", SIZES | {"type_vocab_size": 1, "num_labels": 1}),
    "modernbert": Tiny("ModernBertModel", "modernbert", MODERN, "pooling_mode_mean_tokens"),
    "embedding_gemma": Tiny(
        "Gemma3TextModel", "gemma3_text", GEMMA, "pooling_mode_mean_tokens", ((96, "Identity"), (64, "Identity")), normalize=True
    ),
}


def tokenizer_json(tiny: Tiny) -> dict[str, Any]:
    """Bytes, with [CLS] and [SEP] around texts and pairs, and tokens "no" and "yes"."""
    data = byte_tokenizer(257)
    model = data["model"]
    model["vocab"] |= {"<cls>": CLS, "<sep>": SEP, "no": NO, "ye": 260, "yes": YES}
    model["merges"] = [["n", "o"], ["y", "e"], ["ye", "s"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data["added_tokens"] += [{"id": number, "content": text, **flags} for text, number in (("<cls>", CLS), ("<sep>", SEP))]
    if not tiny.wraps:
        return data
    special = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in (("<cls>", CLS), ("<sep>", SEP))}
    cls, sep, second_sep = ({"SpecialToken": {"id": name, "type_id": kind}} for name, kind in (("<cls>", 0), ("<sep>", 0), ("<sep>", 1)))
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    pair = [cls, first, sep, second, second_sep]
    if tiny.model_type == "xlm-roberta":
        pair = [cls, first, sep, sep, {"Sequence": {"id": "B", "type_id": 0}}, sep]
    template = {"type": "TemplateProcessing", "single": [cls, first, sep], "pair": pair, "special_tokens": special}
    data["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template],
    }
    return data


def make(name: str, path: Path) -> dict[str, Array]:
    """Writes the folder and returns transformers' {"vectors": [len(TEXTS), width]} or {"scores": [len(TEXTS)]} in float64."""
    import torch
    import transformers

    tiny = MODELS[name]
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(len(name))
    config = transformers.AutoConfig.for_model(tiny.model_type, **tiny.config)
    config._attn_implementation = "eager"
    model = getattr(transformers, tiny.architecture)(config).float().eval()
    with torch.no_grad():
        draw_parameters(model)
        model.save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json(tiny)))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    dense = _write_modules(tiny, path)
    model = reference_float64.in_float64(model)
    if tiny.pooling is None:
        return {"scores": np.array([_score(name, model, path, document) for document in TEXTS])}
    return {"vectors": np.array([_vector(tiny, _hidden(model, *_ids(path, text)), dense) for text in TEXTS])}


def _write_modules(tiny: Tiny, path: Path) -> list[tuple[Array, Array]]:
    from safetensors.numpy import save_file

    if tiny.pooling is None:
        return []
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 64, tiny.pooling: True, "pooling_mode_max_tokens": False})
    )
    layers: list[tuple[Array, Array]] = []
    width = 64
    draw = np.random.default_rng(0)
    for number, (outputs, activation) in enumerate(tiny.dense, 2):
        folder = f"{number}_Dense"
        modules.append((folder, "Dense"))
        (path / folder).mkdir()
        weight, bias = draw.normal(0, width**-0.5, (outputs, width)).astype(np.float32), draw.normal(0, 0.1, outputs).astype(np.float32)
        layers.append((weight, bias))
        kind = {"Tanh": "activation", "Identity": "linear"}[activation]
        stated = {
            "in_features": width,
            "out_features": outputs,
            "bias": True,
            "activation_function": f"torch.nn.modules.{kind}.{activation}",
        }
        (path / folder / "config.json").write_text(json.dumps(stated))
        save_file({"linear.weight": weight, "linear.bias": bias}, path / folder / "model.safetensors")
        width = outputs
    if tiny.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"} for i, (place, kind) in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(listed))
    return layers


def _ids(path: Path, first: str, second: str | None = None) -> tuple[list[int], list[int]]:
    import tokenizers

    encoding = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).encode(first, second)
    return encoding.ids, encoding.type_ids


def _run(model: Any, ids: list[int], types: list[int]) -> Any:
    import torch

    more = {"token_type_ids": torch.tensor([types])} if any(types) else {}
    with reference_float64.float64_arithmetic(), torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True, **more)


def _hidden(model: Any, ids: list[int], types: list[int]) -> Array:
    """After the final norm."""
    states: Array = _run(getattr(model, "model", model), ids, types).last_hidden_state[0].numpy()
    assert states.dtype == np.float64
    return states


def _vector(tiny: Tiny, states: Array, dense: list[tuple[Array, Array]]) -> Array:
    vector: Array = {"last": states[-1], "cls_": states[0], "mean": states.mean(axis=0)}[str(tiny.pooling)[13:17]]
    for (weight, bias), (_, activation) in zip(dense, tiny.dense, strict=True):
        vector = weight.astype(np.float64) @ vector + bias
        vector = np.tanh(vector) if activation == "Tanh" else vector
    return vector / np.linalg.norm(vector) if tiny.normalize else vector


def _score(name: str, model: Any, path: Path, document: str) -> float:
    if name == "qwen3_reranker":
        text = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        ids = [token for part in (PREFIX, text, SUFFIX) for token in _ids(path, part)[0]]
        logits = _run(model, ids, []).logits[0, -1].numpy()
        return float(1 / (1 + np.exp(logits[NO] - logits[YES])))
    return float(1 / (1 + np.exp(-_run(model, *_ids(path, QUERY, document)).logits[0, 0].numpy())))
