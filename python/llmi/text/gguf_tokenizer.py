"""GGUF vocabularies as Hugging Face tokenizers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from llmi import _core
from llmi.chat import templates
from llmi.errors import from_core
from llmi.text.end_markers import ends, is_markup
from llmi.text.gguf_byte_pairs import BytePairs, rule_of
from llmi.text.gguf_metadata import CONTROL, GGML, MERGES, NORMAL, TOKENS, UNKNOWN, USER_DEFINED, Metadata
from llmi.text.gguf_sentencepiece import SentencePiece
from llmi.text.gguf_unigram import Unigram
from llmi.text.gguf_wordpiece import WordPiece
from llmi.text.loaded_tokenizer import MAX_ADDED_CHARACTERS, MAX_TOKEN_IDS, ListedTokens, LoadedTokenizer, PairIds, listed_some

#: Kinds of vocabulary, by llama.cpp's names of models.
MODELS = ("gpt2", "gemma4", "llama", "bert", "t5")
#: The ids that llama.cpp takes where the file names none, and the types that such a token has.
DEFAULT_IDS: dict[str, tuple[tuple[str, int, tuple[int, ...]], ...]] = {
    "llama": (("bos", 1, (CONTROL,)), ("eos", 2, (CONTROL,)), ("unknown", 0, (UNKNOWN, CONTROL))),
    "t5": (("eos", 1, (CONTROL,)), ("unknown", 2, (UNKNOWN, CONTROL))),
    "bert": (("bos", 101, (CONTROL,)), ("seperator", 102, (CONTROL,)), ("unknown", 100, (UNKNOWN, CONTROL))),
}

USED = {
    GGML + name
    for name in (
        "model",
        "pre",
        "tokens",
        "token_type",
        "merges",
        "scores",
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "eos_token_ids",
    )
}
#: Ids that are checked; of them only BOS, the three ends, the unknown token and, in WordPiece, the separator change anything.
ID_KEYS = (
    "bos", "eos", "eot", "eom", "unknown", "seperator", "separator", "padding", "mask", "cls", "fim_pre", "fim_suf", "fim_mid", "fim_pad",
    "fim_rep", "fim_sep", "prefix", "suffix", "middle",
)  # fmt: skip
#: Keys that change no token of these kinds of vocabulary, and why.
INERT = {
    "token_type_count": "segments of encoders",
    "add_sep_token": "stands between the texts of a pair, and behind one in WordPiece",
    "huggingface.json": "the same vocabulary once more",
    "rwkv.world": "another kind of vocabulary",
    "chat_template": "read elsewhere",
    "chat_templates": "read elsewhere",
}
#: Keys that change texts in kinds that llmi does not read: named in a warning where they are set.
ASKING = ("remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")


def load(path: Path, file: _core.GgufFile) -> LoadedTokenizer:
    """Reads the vocabulary of a GGUF file. Raises TokenizerError or ModelFileError."""
    try:
        metadata = file.metadata(without={MERGES})
    except _core.CoreError as error:
        raise from_core(error, path) from None
    reader = Metadata(metadata, path)
    model = reader.text(GGML + "model")
    if model not in MODELS:
        raise reader.fail(GGML + "model", f"tokenizer model {model!r} is not known ({', '.join(MODELS)} are)")
    rule = rule_of(reader, model) if model in ("gpt2", "gemma4") else None
    listed, types = _listed(reader, file, rule is not None, rule is not None and rule.byte_level)
    tokens = listed.texts
    kind: BytePairs | SentencePiece | Unigram | WordPiece
    ids = {name: reader.token_id(f"{GGML}{name}_token_id", len(tokens)) for name in ID_KEYS}
    for name, default_id, types_of in DEFAULT_IDS.get(model, ()):
        if ids[name] is None and default_id < len(tokens) and types[default_id] in types_of:
            ids[name] = default_id
    if rule is not None:
        kind, add_bos = BytePairs(reader, file, listed, types, rule, ids["unknown"]), rule.add_bos
    elif model == "llama":
        sentence_piece = SentencePiece(reader, file, listed, types, ids["unknown"])
        kind, add_bos, listed.adds_space = sentence_piece, True, sentence_piece.prefix_space
    elif model == "t5":
        unigram = Unigram(reader, listed, types, ids["unknown"])
        kind, add_bos, listed.adds_space = unigram, False, unigram.prefix_space
    else:
        kind, add_bos, listed.adds_space = WordPiece(reader, listed, ids["unknown"]), True, True
    eos_ids = _ends(reader, ids, listed)
    prefix, suffix = _side(reader, "bos", ids["bos"], add_bos), _side(reader, "eos", ids["eos"], model == "t5")
    if model == "bert" and reader.flag(GGML + "add_sep_token") is not False:
        suffix += [token_id for token_id in (ids["seperator"], ids["separator"]) if token_id is not None][:1]
    notes = _notes(reader, model)
    if notes:
        warnings.warn(f"{path}: {'; '.join(notes)}", UserWarning, stacklevel=4)
    return LoadedTokenizer(
        build=kind.build,
        bos_token_id=ids["bos"],
        eos_token_ids=eos_ids,
        main_eos_token_id=eos_ids[0] if eos_ids else None,
        prefix=prefix,
        suffix=suffix,
        chat_templates=templates.of_gguf(metadata, path),
        template_tokens={},
        listed=listed,
        keeps_bytes=kind.keeps_bytes,
        pair=_pair(model, metadata.get("general.architecture"), prefix, suffix),
        build_for=kind.build_for,
    )


def _pair(model: str, architecture: object, prefix: list[int], suffix: list[int]) -> PairIds:
    """How two texts stand: BERT's and ModernBERT's, XLM-R's and RoBERTa's, and others' one after the other."""
    once, twice = model == "bert" or architecture == "modern-bert", (model == "t5" and prefix) or architecture == "bert"
    between = suffix if once else [*suffix, *suffix] if twice else []
    return PairIds((*prefix,), (*between,), (*suffix,), has_types=model == "bert")


def _ends(reader: Metadata, ids: Mapping[str, int | None], listed: ListedTokens) -> list[int]:
    """The ids that end a text, the main one first; they become special tokens of `listed`."""
    named = [ids["eos"], ids["eot"], ids["eom"], *reader.token_ids(GGML + "eos_token_ids", len(listed.texts))]
    ids_of_ends = [token_id for token_id in named if token_id is not None]
    for token_id in ids_of_ends:
        if token_id in listed.whole:
            listed.special[token_id] = listed.whole.pop(token_id)
    # Chat models whose file lists only one end: the turn's end is an end too.
    return list(dict.fromkeys([*ids_of_ends, *ends(listed.special)]))


def _side(reader: Metadata, name: str, token_id: int | None, default: bool) -> list[int]:
    """The ids that stand at one side of a text: bos before it, eos behind it. default: for files that do not say."""
    wanted = reader.flag(f"{GGML}add_{name}_token")
    if wanted and token_id is None:
        raise reader.fail(f"{GGML}add_{name}_token", f"it is true, but the file names no {name}_token_id")
    return [token_id] if token_id is not None and (default if wanted is None else wanted) else []


def _listed(reader: Metadata, file: _core.GgufFile, with_merges: bool, byte_level: bool) -> tuple[ListedTokens, list[int]]:
    """The tokens and their types."""
    tokens = reader.strings(TOKENS)
    if not tokens:
        raise reader.fail(TOKENS, "the vocabulary is empty")
    if len(tokens) > MAX_TOKEN_IDS:
        raise reader.fail(TOKENS, f"{len(tokens):,} tokens (at most {MAX_TOKEN_IDS:,})")
    try:
        fault = file.vocabulary_fault(with_merges=with_merges)
    except _core.CoreError as error:
        raise from_core(error, reader.path) from None
    if fault is not None:
        raise reader.fail(fault.key, fault.problem)
    types = reader.numbers(GGML + "token_type", int)
    if types is None:
        types = [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise reader.fail(GGML + "token_type", f"{len(types):,} token types for {len(tokens):,} tokens")
    unknown = set(types) - set(range(7))
    if unknown:
        raise reader.fail(GGML + "token_type", f"type {min(unknown)} is not known (0 to 6 are)")
    special = {i: tokens[i] for i, kind in enumerate(types) if kind == CONTROL and tokens[i]}
    whole = {i: tokens[i] for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i]}
    for i in [i for i, text in whole.items() if is_markup(text)]:
        special[i] = whole.pop(i)
    if sum(map(len, special.values())) + sum(map(len, whole.values())) > MAX_ADDED_CHARACTERS:
        raise reader.fail(GGML + "token_type", f"control and user-defined tokens have more than {MAX_ADDED_CHARACTERS:,} characters")
    return ListedTokens(tokens, special, whole, byte_level=byte_level), types


def _notes(reader: Metadata, model: str) -> list[str]:
    """The warnings for a user: keys that llmi does not apply, and a missing rule."""
    known = (
        USED | {f"{GGML}{name}_token_id" for name in ID_KEYS} | {f"tokenizer.{name}" for name in INERT} | {GGML + name for name in INERT}
    )
    for name in ("add_space_prefix", "add_sep_token"):  # without effect in one of the two kinds, but not of another type
        reader.flag(GGML + name)
    unused = [
        GGML + name
        for name in ASKING
        if reader.flag(GGML + name) and not (model == "bert" and name.startswith("normalizer.")) and model != "t5"
    ]
    if model == "llama" and reader.metadata.get(GGML + "precompiled_charsmap"):
        unused.append(GGML + "precompiled_charsmap")
    known |= {GGML + name for name in (*ASKING, "precompiled_charsmap")}
    unused += [
        key
        for key in reader.metadata
        if key.startswith("tokenizer.") and key not in known and not key.startswith("tokenizer.chat_template.")
    ]
    notes = [f"settings of the tokenizer that llmi does not use: {listed_some(unused)}"] if unused else []
    if model == "gpt2" and not reader.text(GGML + "pre", ""):
        notes.append(
            f"{GGML}pre is missing: texts are cut by llama.cpp's default rule, which may not be the model's; convert the model again to"
            " name it"
        )
    return notes
