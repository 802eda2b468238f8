"""Hostile inputs for tests/fuzz_surface.py: one generator for each area, from a seed alone.

A case is a function of (area, seed): it prepares files in a folder of its own and returns the calls to try on them.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import checkpoint_files
from fuzz_templates import template
from quantization import LAYOUTS, NUMBERS, block_bytes

Call = Callable[[], object]

#: Values that stand where others are expected.
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31,
    -(2**31),
    2**63,
    2**64,
    10**30,
    0.0,
    0.5,
    -1.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x",
    "yes",
    "0",
    "\x00",
    "\ud83d",
    "a" * 5000,
    "\U0001f600",
    [],
    [[]],
    [None],
    [0, 1],
    ["x"],
    [1.5],
    {},
    {"x": 1},
    {"": None},
    [[0] * 100] * 10,
]
WORDS = [
    "rope_scaling",
    "rope_parameters",
    "type",
    "factor",
    "layer_types",
    "num_hidden_layers",
    "vocab_size",
    "eos_token_id",
    "id",
    "content",
    "special",
    "vocab",
    "merges",
    "normalizer",
    "pre_tokenizer",
    "decoder",
    "post_processor",
    "model",
    "truncation",
    "padding",
    "dropout",
    "unk_token",
    "pattern",
    "Regex",
    "prepend_scheme",
    "behavior",
    "chat_template",
    "added_tokens_decoder",
    "bos_token",
    "quantization_config",
    "architectures",
    "head_dim",
]
REGEXES = [
    "(a+)+b",
    "(?:a|a)*c",
    "\\p{L}{1000}",
    "(",
    "[",
    "(?<=x)y",
    "(a|b|ab)*" * 20,
    "\\1",
    "(?i:x)" * 200,
    "x{0,100000}",
    ".*.*.*.*=.*",
]


def odd(rng: random.Random) -> Any:
    """A value of any kind; now and then deep or large."""
    roll = rng.random()
    if roll < 0.02:
        deep: Any = 0
        for _ in range(rng.choice([30, 60, 150])):
            deep = [deep]
        return deep
    if roll < 0.04:
        return [rng.randrange(-5, 300) for _ in range(rng.choice([1000, 50_000]))]
    if roll < 0.06:
        return {str(i): i for i in range(rng.choice([1000, 20_000]))}
    if roll < 0.1:
        return rng.choice(REGEXES)
    return copy.deepcopy(rng.choice(ODD))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree, vocabularies thinned."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys if len(keys) <= 60 else [*keys][::37]:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    return found


def mutate_json(rng: random.Random, tree: Any, times: int) -> None:
    """Changes `tree` in so many places: a value replaced, removed, doubled, renamed, or moved from elsewhere."""
    for _ in range(times):
        spots = places(tree)
        if not spots:
            return
        node, key = rng.choice(spots)
        action = rng.randrange(6)
        if action <= 2:
            node[key] = odd(rng)
        elif action == 3 and isinstance(node, dict):
            node[rng.choice(WORDS)] = odd(rng)
        elif action == 4:
            other, other_key = rng.choice(spots)
            node[key] = copy.deepcopy(other[other_key]) if len(repr(other[other_key])) < 100_000 else None
        elif isinstance(node, dict):
            node.pop(key)
        else:
            node.insert(int(key), odd(rng))


def mutate_bytes(rng: random.Random, data: bytes, times: int, limit: int | None = None) -> bytes:
    """Bytes flipped, cut, doubled, or overwritten by large numbers, within the first `limit`."""
    raw = bytearray(data)
    for _ in range(times):
        if not raw:
            break
        at = rng.randrange(min(len(raw), limit or len(raw)))
        action = rng.randrange(6)
        if action == 0:
            raw[at] = rng.randrange(256)
        elif action == 1:
            raw[at] ^= 1 << rng.randrange(8)
        elif action == 2:
            raw[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40, len(raw)]))
        elif action == 3:
            raw[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 2, 8, 9, 12, 13, 255, 2**31, 2**32 - 1]))
        elif action == 4:
            del raw[at : len(raw) if rng.random() < 0.2 else at + rng.randrange(1, 40)]
        else:
            raw[at:at] = raw[at : at + rng.randrange(1, 40)]
    return bytes(raw)


def write_json(rng: random.Random, path: Path, tree: Any) -> None:
    """The tree as text; now and then torn, doubled, in another encoding, or with a key twice."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    roll = rng.random()
    if roll < 0.08:
        data = mutate_bytes(rng, data, rng.randrange(1, 6))
    elif roll < 0.1:
        data = text.encode("utf-16", "surrogatepass")
    elif roll < 0.12:
        data = b"\xef\xbb\xbf" + data
    elif roll < 0.125:
        data = data.replace(b":", b":" + b"[" * 100_000, 1)
    elif roll < 0.14:
        data = data.replace(b"}", b', "id": 1, "id": 2}', 1)
    path.write_bytes(data)


# --- GGUF


def gguf_text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: Any) -> bytes:
    """A typed value: ("u32", 5), a string, or a list of strings, ints or floats."""
    formats = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "f64": (12, "d"), "u8": (0, "B")}
    if isinstance(value, tuple):
        number, code = formats[value[0]]
        return struct.pack("<I" + code, number, value[1])
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(gguf_text(entry) for entry in value)
    number, code = (6, "f") if value and isinstance(value[0], float) else (5, "i")
    return struct.pack("<IIQ", 9, number, len(value)) + struct.pack(f"<{len(value)}{code}", *value)


def gguf_metadata(kind: str) -> dict[str, Any]:
    """A tiny Llama with a vocabulary of a kind: a model's name, or one of pre-tokenizers."""
    from llmi.text.token_bytes import byte_level_alphabet

    own: dict[str, Any]
    if kind == "bert":
        tokens = ["[UNK]", "[CLS]", "[SEP]", "▁he", "▁h", "he", "e", "l"]
        own = {
            "model": "bert",
            "token_type": [3, 3, 3, *[1] * 5],
            "unknown_token_id": ("u32", 0),
            "bos_token_id": ("u32", 1),
            "seperator_token_id": ("u32", 2),
        }
    elif kind == "gemma4":
        tokens = ["<eos>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "h", "e", "he", "\n", "\n\n"]
        own = {"model": "gemma4", "merges": ["h e", "\n \n"], "token_type": [3] + [6] * 256 + [1] * 6, "bos_token_id": ("u32", 0)}
    elif kind != "llama":
        tokens = ["<eos>", *byte_level_alphabet(), "he", "ll"]
        own = {"model": "gpt2", "pre": kind, "merges": ["h e", "l l"], "token_type": [3] + [1] * (len(tokens) - 1)}
    else:
        tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "h", "e", "he"]
        own = {
            "model": "llama",
            "scores": [-float(i) for i in range(len(tokens))],
            "token_type": [2, 3, 3] + [6] * 256 + [1] * 4,
            "unknown_token_id": ("u32", 0),
        }
    numbers = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "rope.dimension_count": 16,
    }
    return {
        "general.architecture": "llama",
        **{f"llama.{key}": ("u32", value) for key, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.eos_token_id": ("u32", 0),
        **{f"tokenizer.ggml.{key}": value for key, value in own.items()},
    }


def write_gguf(
    path: Path, metadata: dict[str, bytes], tensors: list[tuple[str, tuple[int, ...], int, int]], data: bytes, alignment: int = 32
) -> None:
    head = (
        b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(gguf_text(key) + value for key, value in metadata.items())
    )
    for name, shape, kind, offset in tensors:
        head += gguf_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", kind, offset)
    path.write_bytes(head + b"\0" * (-len(head) % alignment) + data)


def gguf_tensors(vocab_size: int, width: int = 32, dtypes: Sequence[str] = ()) -> tuple[list[tuple[str, tuple[int, ...], int, int]], bytes]:
    """Matrices are of one of the quantised `dtypes` each, if there are any, and then of random bytes."""
    square, half = (width, width), (width // 2, width)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocab_size, width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        "blk.0.attn_q": square,
        "blk.0.attn_k": half,
        "blk.0.attn_v": half,
        "blk.0.attn_output": square,
        "blk.0.ffn_gate": square,
        "blk.0.ffn_up": square,
        "blk.0.ffn_down": square,
    }
    tensors, data = [], b""
    for index, (name, shape) in enumerate(shapes.items()):
        dtype = dtypes[index % len(dtypes)] if dtypes and len(shape) == 2 else None
        tensors.append((f"{name}.weight", shape, NUMBERS[dtype] if dtype else 0, len(data)))
        if dtype:
            part = random.Random(index).randbytes(math.prod(shape) // LAYOUTS[dtype][0] * block_bytes(dtype))
        else:
            part = struct.pack("<f", 0.01) * math.prod(shape)
        data += part + b"\0" * (-len(part) % 32)
    return tensors, data


# --- templates


def _engine(path: Path) -> object:
    from llmi import LLM

    with LLM(path, kv_cache_memory_bytes=1 << 20, num_threads=1) as llm:
        llm.generate("hello", max_tokens=2, min_tokens=1, temperature=0.7, seed=1)
        return llm.generate([3, 4], max_tokens=2)


def _tokenizer(path: Path) -> object:
    from llmi import Tokenizer

    tokenizer = Tokenizer(path)
    ids = tokenizer.encode("hello <eos> wörld 123\n")
    tokenizer.encode("he" * 3000, parse_special=True)
    tokenizer.decode(ids)
    return tokenizer.vocab_bytes, tokenizer.special_tokens, tokenizer.eos_token_ids


def _chat(path: Path) -> object:
    from llmi import Tokenizer

    return Tokenizer(path).apply_chat_template([{"role": "user", "content": "hello"}])


def _inspect(path: Path) -> object:
    from llmi.models.inspection import inspect_model

    return str(inspect_model(path))


def _tiny(folder: Path, rng: random.Random) -> Path:
    from llmi.testing import tiny_model

    return tiny_model(rng.choice(["llama", "gemma3"]), vocab_size=260, num_layers=2, hidden_size=32, path=folder)


def config(rng: random.Random, folder: Path) -> list[Call]:
    """config.json and generation_config.json."""
    path = _tiny(folder, rng)
    tree = json.loads((path / "config.json").read_text())
    generation = {"eos_token_id": 0, "temperature": 0.7, "top_p": 0.9, "do_sample": True}
    if rng.random() < 0.3:
        tree["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    if rng.random() < 0.3:
        tree["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    mutate_json(rng, tree if rng.random() < 0.8 else generation, rng.randrange(1, 5))
    write_json(rng, path / "config.json", tree)
    if rng.random() < 0.4:
        write_json(rng, path / "generation_config.json", generation)
    return [lambda: _engine(path), lambda: _inspect(path)]


def tokenizer(rng: random.Random, folder: Path) -> list[Call]:
    """tokenizer.json and what lies beside it."""
    path = _tiny(folder, rng)
    trees = {
        "tokenizer.json": json.loads((path / "tokenizer.json").read_text()),
        "tokenizer_config.json": {
            "eos_token": "<eos>",
            "bos_token": {"content": "<eos>"},
            "add_bos_token": True,
            "tokenizer_class": "LlamaTokenizerFast",
            "added_tokens_decoder": {"259": {"content": "<x>", "special": True}},
            "chat_template": "{{ messages[0].content }}",
        },
        "special_tokens_map.json": {"eos_token": "<eos>"},
        "added_tokens.json": {"<y>": 258},
    }
    if rng.random() < 0.3:
        trees["tokenizer.json"]["normalizer"] = {"type": "Replace", "pattern": {"Regex": rng.choice(REGEXES)}, "content": "x"}
    if rng.random() < 0.3:
        trees["tokenizer.json"]["pre_tokenizer"] = {
            "type": "Split",
            "pattern": {"Regex": rng.choice(REGEXES)},
            "behavior": "Isolated",
            "invert": False,
        }
    chosen = rng.choice([*trees, "tokenizer.json", "tokenizer.json"])
    mutate_json(rng, trees[chosen], rng.randrange(1, 4))
    for name in {"tokenizer.json", "tokenizer_config.json", chosen}:
        write_json(rng, path / name, trees[name])
    return [lambda: _tokenizer(path), lambda: _chat(path)]


def vocabularies(rng: random.Random, folder: Path) -> list[Call]:
    """Vocabularies of directories without a tokenizer.json."""
    path = _tiny(folder, rng)
    (path / "tokenizer.json").unlink()
    data = Path(__file__).parents[1] / "data" / "sentencepiece.json"
    settings = {
        "tokenizer_class": rng.choice(["LlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer"]),
        "add_bos_token": rng.random() < 0.5,
        "legacy": rng.random() < 0.5,
    }
    files: dict[str, Any] = {"tokenizer_config.json": settings}
    tokens = [base64.b64encode(bytes([byte])).decode() for byte in range(256)] + [
        base64.b64encode(word).decode() for word in (b"he", b"ll", b"hell")
    ]
    chosen = rng.choice(["sentencepiece", "tekken.json", "vocab.json", "tokenizer.model"])
    raw = b""
    if chosen == "sentencepiece":
        raw = base64.b64decode(rng.choice(list(json.loads(data.read_text(encoding="utf-8")).values()))["model"])
        (path / "tokenizer.model").write_bytes(mutate_bytes(rng, raw, rng.randrange(1, 6), limit=rng.choice([200, len(raw)])))
    elif chosen == "tokenizer.model":
        raw = "".join(f"{token} {rank}\n" for rank, token in enumerate(tokens)).encode()
        (path / "tokenizer.model").write_bytes(mutate_bytes(rng, raw, rng.randrange(1, 4), limit=len(raw)))
    elif chosen == "tekken.json":
        config = {"pattern": rng.choice(["\\w+|\\s+", *REGEXES]), "default_vocab_size": 279, "default_num_special_tokens": 20}
        files["tekken.json"] = {"config": config, "vocab": [{"rank": rank, "token_bytes": token} for rank, token in enumerate(tokens)]}
    else:
        from llmi.text.token_bytes import byte_level_alphabet

        files["vocab.json"] = {text: i for i, text in enumerate([*byte_level_alphabet(), "he", "ll", "hell"])}
        (path / "merges.txt").write_bytes(mutate_bytes(rng, b"#version: 0.2\nh e\nl l\nhe ll\n", rng.randrange(3), limit=20))
    mutate_json(rng, files[rng.choice(list(files))], rng.randrange(3))
    for name, tree in files.items():
        write_json(rng, path / name, tree)
    return [lambda: _tokenizer(path), lambda: _chat(path)]


def templates(rng: random.Random, folder: Path) -> list[Call]:
    """Chat templates."""
    from llmi import Tokenizer

    loaded = Tokenizer(_tiny(folder, rng))
    text = template(rng) if rng.random() < 0.95 else "".join(chr(rng.randrange(32, 127)) for _ in range(200))
    chat = [{"role": "user", "content": "hello <eos>"}, {"role": "assistant", "content": "x" * rng.choice([1, 1000])}]
    return [lambda: loaded.apply_chat_template(chat, chat_template=text, tokenize=False)]


def gguf(rng: random.Random, folder: Path) -> list[Call]:
    """GGUF files: metadata of other types and values, torn headers, tensors elsewhere."""
    path = folder / "m.gguf"
    from llmi.text.gguf_pre_tokenizers import RULES

    values = gguf_metadata(
        rng.choice(["gpt-2", "llama", "gemma4", "bert", rng.choice([name for name, rule in RULES.items() if rule.byte_level])])
    )
    vocab_size = len(values["tokenizer.ggml.tokens"])
    dtypes: Sequence[str] = rng.choices([*LAYOUTS], k=3) if rng.random() < 0.3 else ()
    width = 256 if dtypes else 32
    for key in ("embedding_length", "feed_forward_length", "rope.dimension_count"):
        values[f"llama.{key}"] = ("u32", width if key.endswith("length") else width // 2)
    metadata = {key: gguf_value(value) for key, value in values.items()}
    tensors, data = gguf_tensors(vocab_size, width, dtypes)
    simple = [
        ("u32", 0),
        ("u32", 2**32 - 1),
        ("i32", -1),
        ("f32", math.nan),
        ("f64", 1e300),
        ("bool", True),
        ("u64", 2**63),
        ("u8", 7),
        "",
        "x",
        "\x00",
        ["a", ""],
        [1, 2],
        [0.5],
    ]
    for _ in range(rng.randrange(4)):
        key = rng.choice(
            [
                *metadata,
                "general.alignment",
                "tokenizer.chat_template",
                "tokenizer.ggml.bos_token_id",
                "tokenizer.ggml.add_bos_token",
                "llama.rope.scaling.type",
            ]
        )
        if rng.random() < 0.2:
            metadata.pop(key, None)
        else:
            metadata[key] = gguf_value(rng.choice(simple) if rng.random() < 0.8 else rng.choice(list(values.values())))
    if rng.random() < 0.3:
        at = rng.randrange(len(tensors))
        name, shape, kind, offset = tensors[at]
        tensors[at] = rng.choice(
            [
                (name + "x", shape, kind, offset),
                (name, shape[::-1], kind, offset),
                (name, (2**33, 2**33), kind, offset),
                (name, shape, rng.randrange(44), offset),
                (name, shape, kind, offset + 2**40),
                (name, (*shape, 0), kind, offset),
            ]
        )
    write_gguf(path, metadata, tensors, data)
    if rng.random() < 0.5:
        raw = path.read_bytes()
        path.write_bytes(mutate_bytes(rng, raw, rng.randrange(1, 5), limit=len(raw) - len(data)))
    return [lambda: _engine(path), lambda: _tokenizer(path), lambda: _inspect(path)]


def safetensors(rng: random.Random, folder: Path) -> list[Call]:
    """safetensors headers, and the index of shards."""
    path = _tiny(folder, rng)
    raw = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    if rng.random() < 0.2:
        index = {"metadata": {}, "weight_map": dict.fromkeys(header, "model.safetensors")}
        mutate_json(rng, index, rng.randrange(1, 4))
        write_json(rng, path / "model.safetensors.index.json", index)
        return [lambda: _engine(path), lambda: _inspect(path)]
    if rng.random() < 0.7:
        mutate_json(rng, header, rng.randrange(1, 4))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    whole = struct.pack("<Q", rng.choice([len(text)] * 8 + [0, 2**40, 2**64 - 1])) + text + data
    if rng.random() < 0.4:
        whole = mutate_bytes(rng, whole, rng.randrange(1, 4), limit=8 + len(text))
    (path / "model.safetensors").write_bytes(whole)
    return [lambda: _engine(path), lambda: _inspect(path)]


def checkpoints(rng: random.Random, folder: Path) -> list[Call]:
    """Quantised checkpoints: quantization_config, the tensors' types and shapes, and the bytes of small ones."""
    layouts = sorted(path.name for path in checkpoint_files.DATA.iterdir())
    path = checkpoint_files.build(rng.choice(layouts), folder / "m")
    if rng.random() < 0.6:
        tree = json.loads((path / "config.json").read_text())
        mutate_json(rng, tree["quantization_config"], rng.randrange(1, 4))
        write_json(rng, path / "config.json", tree)
    tensors = checkpoint_files.read_file(path / "model.safetensors")
    parts = [name for name in tensors if "layers.0.self_attn" in name or "down_proj" in name]
    for _ in range(rng.randrange(4)):
        name = rng.choice(parts)
        dtype, values = tensors.get(name, tensors["model.norm.weight"])
        action = rng.randrange(5)
        if action == 0:
            tensors.pop(name, None)
        elif action == 1:
            tensors[name] = checkpoint_files.Stored(
                dtype, values.reshape(rng.choice([(values.size,), (1, values.size), values.shape[::-1]]))
            )
        elif action == 2:
            raw = values.tobytes()
            changed = mutate_bytes(rng, raw, rng.randrange(1, 5))[: len(raw)].ljust(len(raw), b"\xff")
            tensors[name] = checkpoint_files.Stored(dtype, np.frombuffer(changed, values.dtype).reshape(values.shape))
        elif action == 3:
            tensors[name] = tensors.get(rng.choice(parts), tensors["model.norm.weight"])
        else:
            tensors[name + rng.choice(["", "x", "_scale", ".absmax"])] = checkpoint_files.Stored(
                dtype, np.atleast_1d(values)[: rng.choice([0, 1, 3])]
            )
    checkpoint_files.write_file(path / "model.safetensors", tensors)
    return [lambda: _engine(path), lambda: _inspect(path)]


_model: list[Any] = []


def arguments(rng: random.Random, folder: Path) -> list[Call]:
    """Arguments of calls: any value for any of them, several at once."""
    import dataclasses

    from llmi import LLM, SamplingParams

    if not _model:  # one engine for all cases of a process
        from llmi.testing import tiny_model

        _model.append(LLM(tiny_model(vocab_size=260, hidden_size=32), kv_cache_memory_bytes=1 << 20, num_threads=1))
        _model[0].tokenizer.chat_template = "{{ messages[0].content }}"
    llm: Any = _model[0]
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    others = [
        "max_new_tokens",
        "do_sample",
        "eos_token_id",
        "stop_strings",
        "sequence_bias",
        "suppress_tokens",
        "bad_words_ids",
        "priority",
        "trace",
        "use_tqdm",
        "on_error",
    ]
    given = {rng.choice([*names, *others]): odd(rng) for _ in range(rng.randrange(1, 4))}
    prompt = (
        "ab"
        if rng.random() < 0.6
        else rng.choice(
            [odd(rng), {"prompt": odd(rng)}, {"prompt_token_ids": odd(rng)}, [odd(rng)], {"prompt": "a", "cache_salt": odd(rng)}]
        )
    )
    given.setdefault("max_tokens", 2)
    chat = [{"role": "user", "content": "hi"}] if rng.random() < 0.6 else odd(rng)
    return [
        lambda: llm.generate(prompt, **given),
        lambda: llm.chat(chat, **given),
        lambda: list(llm.stream(prompt, **given)),
    ]


def _core_call(call: Call) -> Call:
    """The call, whose CoreError becomes the public error, as the package makes it."""

    def run() -> object:
        from llmi._core import CoreError
        from llmi.errors import from_core

        try:
            return call()
        except CoreError as error:
            raise from_core(error, None) from None

    return run


def spec(rng: random.Random, folder: Path) -> list[Call]:
    """The spec of a model, as a card of the user's may write it."""
    from llmi import _core
    from spec_models import MIXERS, TinyModel, mixture

    model = TinyModel(mixture(rng.randrange(1000)))
    if rng.random() < 0.4:
        model.mix(rng.randrange(2), rng.choice(MIXERS))
    path = str(model.save(folder / "model"))
    if rng.random() < 0.8:
        mutate_json(rng, model.spec, rng.randrange(1, 5))
    write_json(rng, folder / "spec.json", model.spec)
    text = (folder / "spec.json").read_bytes().decode("utf-8", "replace")
    text = text if rng.random() < 0.8 else mutate_bytes(rng, text.encode(), rng.randrange(1, 4)).decode("utf-8", "replace")

    def facts() -> object:
        return _core.spec_numbers(text, "model"), _core.expected_tensors(text, "model"), _core.workspace_bytes(text, "model", 2048, 16)

    def engine() -> object:
        opened = _core.Engine(_core.ModelFiles(path), spec=text, dropped=_core.DropFlag(), kv_cache_memory_bytes=1 << 20, num_threads=1)
        return opened.info()

    def forward() -> object:
        decoder = _core.testing.Decoder(_core.ModelFiles(path), spec=text, num_pages=8, num_threads=1)
        return decoder.forward([(decoder.new_sequence(), [1, 2, 3], None)])

    calls = [facts, engine, forward] if hasattr(_core, "testing") else [facts, engine]
    return [_core_call(call) for call in calls]


def prefixes(rng: random.Random, folder: Path) -> list[Call]:
    """A folder of saved prefixes, some of whose files were changed, cut, exchanged or made up."""
    from llmi import LLM
    from llmi.engine.saved_prefixes import remove_prefixes, saved_prefixes
    from llmi.testing import tiny_model

    model, place = tiny_model(path=folder / "model"), folder / "prefixes"
    prompt = [rng.randrange(3, 250) for _ in range(100)]
    engine: dict[str, Any] = {"prefix_cache_dir": place, "kv_cache_memory_bytes": 1 << 20, "max_model_len": 160, "num_threads": 1}
    with LLM(model, **engine) as llm:
        plain = llm.generate(prompt, max_tokens=4, temperature=0)[0].outputs[0].token_ids
    paths = sorted(place.iterdir())
    for _ in range(rng.randrange(1, 6)):
        path = rng.choice(paths)
        data = bytearray(path.read_bytes())
        kind = rng.randrange(4)
        if kind == 0 and data:
            at = rng.randrange(rng.choice([16, 120, 400, len(data)])) % len(data)
            data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, rng.randrange(2**64)]))
        elif kind == 1:
            data = data[: rng.randrange(len(data) + 1)]
        elif kind == 2:
            data = bytearray(rng.choice(paths).read_bytes())
        else:
            data = bytearray(rng.randbytes(rng.randrange(500)))
        path.write_bytes(data)

    def generate() -> None:
        with LLM(model, **engine) as llm:
            assert llm.generate(prompt, max_tokens=4, temperature=0)[0].outputs[0].token_ids == plain

    return [lambda: saved_prefixes(place), generate, lambda: remove_prefixes(place, "all")]


def prefills(rng: random.Random, folder: Path) -> list[Call]:
    """What a producer is asked, and what a consumer is told."""
    from unittest import mock

    from llmi import LLM
    from llmi.handover import peers, shared_folder
    from llmi.handover.nixl import Nixl
    from llmi.handover.settings import FRONT
    from llmi.testing import tiny_model

    model, place = tiny_model(path=folder / "model"), folder / "shared-memory"
    place.mkdir()
    prompt = [rng.randrange(3, 250) for _ in range(100)]
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 160, "num_threads": 1}
    producer = {"kv_connector": "local", "kv_role": "kv_producer"}
    consumer = {"kv_connector": "local", "kv_role": "kv_consumer", "kv_peers": [FRONT], "kv_min_tokens": 32}
    seeds = [rng.random() for _ in range(2)]
    part = {"offer": "a", "address": 1 << 40, "sizes": [4096] * 6, "metadata": base64.b64encode(b"abc").decode()}
    mutate_json(rng, told := {"nixl": part}, rng.randrange(1, 5))

    def question() -> None:
        with mock.patch.object(shared_folder, "_ROOT", place), LLM(model, **engine, kv_transfer_config=producer) as llm:
            assert llm._handover is not None
            body = {"identity": copy.deepcopy(llm._handover.identity), "engine": "a", "prompt_token_ids": [*prompt], "cache_salt": ""}
            mutate_json(random.Random(seeds[0]), body, 2)
            llm._handover.answer(llm, body)

    def answer() -> None:
        def front(body: dict[str, Any], _: float) -> Any:
            tree = {"identity": copy.deepcopy(body["identity"]), "engine": "b", "num_tokens": 96}
            mutate_json(random.Random(seeds[1]), tree, 2)
            return tree

        with (
            mock.patch.object(shared_folder, "_ROOT", place),
            mock.patch.object(peers, "front", front),
            LLM(model, **engine, kv_transfer_config=consumer) as llm,
        ):
            assert llm._handover is not None
            assert llm._handover._answer_of(prompt, "", math.inf) in ("there", "foreign", "failed")

    def offer() -> None:
        nixl: Any = mock.Mock(folder=mock.Mock(most_bytes=1 << 30))
        try:
            number, address, sizes, metadata = Nixl._checked(nixl, told.get("nixl"), 6)
        except ValueError:
            return
        assert isinstance(number, str) and isinstance(metadata, bytes) and 0 < address <= (1 << 64) - 1 - sum(sizes) and len(sizes) <= 6

    return [question, answer, offer]


def imatrix(rng: random.Random, folder: Path) -> list[Call]:
    """A calibration, of which some bytes were changed."""
    from llmi.compress import Calibration, calibrate
    from llmi.testing import tiny_model

    text = [rng.randrange(3, 250) for _ in range(20)]
    path = folder / "a.imatrix"
    calibrate(tiny_model(path=folder / "model"), texts=[text], gram=True, num_threads=1, kv_cache_memory_bytes=1 << 20).save(path)
    data = path.read_bytes()
    path.write_bytes(mutate_bytes(rng, data, rng.randrange(1, 8), rng.choice([40, 400, 4000, len(data)])))

    def read() -> None:
        calibration = Calibration.load(path)
        calibration.digest()
        for name in calibration._sums:
            calibration.norms(name)
            calibration.num_rows(name)
            if calibration.shares_gram(name) is not None:
                calibration.gram(name)

    return [read]


AREAS: dict[str, Callable[[random.Random, Path], list[Call]]] = {
    "config": config,
    "tokenizer": tokenizer,
    "vocabularies": vocabularies,
    "template": templates,
    "gguf": gguf,
    "safetensors": safetensors,
    "checkpoints": checkpoints,
    "arguments": arguments,
    "spec": spec,
    "prefixes": prefixes,
    "prefills": prefills,
    "imatrix": imatrix,
}
