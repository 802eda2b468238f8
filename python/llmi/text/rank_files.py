"""Files of byte strings with ranks, as the data of a tokenizer.json: Mistral's tekken.json, and tiktoken's lines of base64 and rank."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from llmi.errors import TokenizerError
from llmi.text.gguf_pre_tokenizers import KIMI_SPLIT, LLAMA3_SPLIT, QWEN2_SPLIT
from llmi.text.loaded_tokenizer import MAX_TOKEN_IDS
from llmi.text.score_merges import merges_from_scores
from llmi.text.token_bytes import byte_level_alphabet

#: Control tokens of tekken.json files that do not list their own.
TEKKEN_CONTROL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "<pad>", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
)  # fmt: skip
_LLAMA3_HEAD = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
#: By a model's type: how words are cut, which a tiktoken file does not say, and the control tokens behind the ranks where no other file
#: lists them.
TIKTOKEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama": (LLAMA3_SPLIT, (*_LLAMA3_HEAD, *(f"<|reserved_special_token_{number}|>" for number in range(3, 248)))),
    "qwen": (QWEN2_SPLIT, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))),
    "kimi_k2": (KIMI_SPLIT, ()),
    "kimi_linear": (KIMI_SPLIT, ()),
}


def _bytes(text: object, where: str, path: Path) -> bytes:
    try:
        value = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        value = b""
    if not value:
        raise TokenizerError(f"{path}: {where}: {text!r:.60} is no base64 of a token's bytes", path)
    return value


def of_tiktoken(text: str, path: Path, model_type: str, lists_tokens: bool) -> dict[str, Any]:
    """The tokenizer in a tiktoken file. lists_tokens: whether another file lists the control tokens."""
    if model_type not in TIKTOKEN:
        raise TokenizerError(
            f"{path}: a tiktoken file does not say how a text is cut into words, and for model_type {model_type!r} it is not known "
            f"({', '.join(TIKTOKEN)} are); use a tokenizer.json",
            path,
        )
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if len(parts) != 2 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10):
            if parts:
                raise TokenizerError(f"{path}: line {number}: {line!r:.60} is no base64 and rank", path)
            continue
        ranks[_bytes(parts[0], f"line {number}", path)] = int(parts[1])
    split, control = TIKTOKEN[model_type]
    special = {} if lists_tokens else {len(ranks) + i: name for i, name in enumerate(control)}
    data = _data(ranks, split, special, path)
    return data if model_type != "llama" or lists_tokens else data | {"post_processor": _begins_with(special, _LLAMA3_HEAD[0], path)}


def of_tekken(value: object, path: Path) -> dict[str, Any]:
    """The tokenizer in a tekken.json."""

    def fail(key: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{path}: {key}: {problem}", path, key)

    config = value.get("config") if isinstance(value, dict) else None
    vocab = value.get("vocab") if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or not isinstance(config, dict)
        or not isinstance(vocab, list)
        or not isinstance(config.get("pattern"), str)
    ):
        raise fail("config", "it has no config with a pattern, or no vocab")
    sizes = {name: config.get(name) for name in ("default_vocab_size", "default_num_special_tokens")}
    for key, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_TOKEN_IDS:
            raise fail(f"config.{key}", f"{size!r:.40} is no number of tokens")
    total, num_special = int(sizes["default_vocab_size"] or 0), int(sizes["default_num_special_tokens"] or 0)
    listed = value.get("special_tokens") or [{"rank": rank, "token_str": name} for rank, name in enumerate(TEKKEN_CONTROL)]
    special = {rank: f"<SPECIAL_{rank}>" for rank in range(min(num_special, total))}
    for entry in listed if isinstance(listed, list) else [None]:
        rank, name = (entry.get("rank"), entry.get("token_str")) if isinstance(entry, dict) else (None, None)
        if type(rank) is not int or rank not in special or not isinstance(name, str) or not name:
            raise fail("special_tokens", f"{entry!r:.80} is no token with a rank below {num_special:,}")
        special[rank] = name
    if len(set(special.values())) != len(special):
        raise fail("special_tokens", "two of them are one text")
    ranks: dict[bytes, int] = {}
    for index, entry in enumerate(vocab[: max(total - num_special, 0)]):
        if not isinstance(entry, dict) or entry.get("rank") != index:
            raise fail("vocab", f"entry {index} is no token of rank {index}")
        ranks[_bytes(entry.get("token_bytes"), f"vocab[{index}].token_bytes", path)] = num_special + index
    return _data(ranks, config["pattern"], special, path) | {"post_processor": _begins_with(special, "<s>", path)}


def _begins_with(special: dict[int, str], name: str, path: Path) -> dict[str, Any]:
    ids = [token_id for token_id, text in special.items() if text == name]
    if not ids:
        raise TokenizerError(f"{path}: special_tokens: {name!r} is missing, which begins a text", path)
    single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special_tokens = {name: {"id": name, "ids": ids, "tokens": [name]}}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special_tokens,
    }


def _data(ranks: dict[bytes, int], split: str, special: dict[int, str], path: Path) -> dict[str, Any]:
    alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
    texts = {rank: "".join([alphabet[byte] for byte in token]) for token, rank in ranks.items()}
    if len(texts) != len(ranks) or not texts:
        raise TokenizerError(f"{path}: two tokens have one rank, or there is none", path)
    lacking = sorted(set(range(256)) - {token[0] for token in ranks if len(token) == 1})
    if lacking:
        raise TokenizerError(f"{path}: the byte {lacking[0]} has no token ({256 - len(lacking)} of 256 have)", path)
    scores = [0.0] * (max(texts) + 1 if max(texts) < MAX_TOKEN_IDS else 0)
    if not scores:
        raise TokenizerError(f"{path}: rank {max(texts):,} is no token id (a whole number in [0, {MAX_TOKEN_IDS:,}))", path)
    for rank in texts:
        scores[rank] = -float(rank)
    merges = merges_from_scores(texts, scores, lambda problem: TokenizerError(f"{path}: {problem}", path))
    vocab = {text: rank for rank, text in texts.items()}
    clash = next((name for token_id, name in special.items() if vocab.get(name, token_id) != token_id), None)
    if clash is not None:
        raise TokenizerError(f"{path}: the control token {clash!r:.60} is also a token of the text", path)
    return {
        "model": {
            "type": "BPE",
            "vocab": vocab | {name: token_id for token_id, name in special.items()},
            "merges": [list(pair) for pair in merges],
            "ignore_merges": True,
        },
        "added_tokens": [
            {"id": token_id, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            for token_id, name in sorted(special.items())
        ],
        "normalizer": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
    }
