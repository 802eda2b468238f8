"""The tokenizer of a model directory: tokenizer.json, and the other files of the directory with settings."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.chat import templates
from llmi.errors import TokenizerError
from llmi.models.input_file import MAX_VOCABULARY_BYTES, is_there, parse_json, read_json, read_text
from llmi.text import tokenizer_json, tokenizer_settings, vocabulary_files
from llmi.text.loaded_tokenizer import MAX_ADDED_CHARACTERS, ListedTokens, LoadedTokenizer, guarded, listed_some
from llmi.text.token_bytes import BYTE_TOKENS, byte_level_alphabet
from llmi.text.tokenizer_json import CheckedTokenizer, check_id
from llmi.text.tokenizer_settings import ADDED, CONFIG, SPECIALS, Settings

if TYPE_CHECKING:
    import tokenizers

MODEL_CONFIGS = ("generation_config.json", "config.json")  # in the order in which their ends count


def load(path: Path, overrides: Mapping[str, Any]) -> LoadedTokenizer:
    """Reads a directory, or the tokenizer.json in one with the files next to it; `overrides` change config.json. Raises TokenizerError."""
    directory = path if path.is_dir() else path.parent
    file = path / tokenizer_json.FILE if path.is_dir() else path
    if path.is_dir() and not is_there(file):
        file = vocabulary_files.find(directory) or file
    if not is_there(file):
        raise TokenizerError(f"{directory}: tokenizer.json is missing, and so are {', '.join(vocabulary_files.NAMES)}", path)
    files = {name: _object(directory / name) for name in (CONFIG, SPECIALS, ADDED) if is_there(directory / name)}
    configs = {name: _object(directory / name) for name in MODEL_CONFIGS if is_there(directory / name)}
    config = configs["config.json"] = {**configs.get("config.json", {}), **overrides}
    settings = tokenizer_settings.read(directory, files, config)
    text, data = _data(file, settings, files.get(CONFIG, {}), config)
    checked = tokenizer_json.check(data, file)
    tokenizer = tokenizer_json.build(text, checked, data)
    unused = [name for name in settings.unused if not _says_the_same(name, files.get(CONFIG, {}), data.get("normalizer"))]
    model_vocab = _vocab_size(config)
    unused += _add_tokens(tokenizer, settings, model_vocab, directory)
    unused += _set_prefix_space(tokenizer, settings, data)
    listed = _listed(tokenizer, checked)
    limit = max(len(listed.texts), model_vocab or 0)
    bos, eos = _named_ids(configs, directory, limit)
    settings_eos = tokenizer.token_to_id(settings.named["eos_token"]) if "eos_token" in settings.named else None
    if settings_eos is not None and settings_eos not in eos and ("eos_token" in settings.stated or not eos):
        eos.append(settings_eos)
    settings_bos = tokenizer.token_to_id(settings.named["bos_token"]) if "bos_token" in settings.named else None
    prefix, suffix = _wrapping(checked, settings, settings_bos, settings_eos, directory, unused)
    for token_id in prefix + suffix:
        check_id(token_id, "post_processor", file, limit)
    if settings_bos is None:
        settings_bos = bos if bos is not None else prefix[0] if prefix else None
    if unused:
        warnings.warn(f"{directory}: settings of the tokenizer that llmi does not use: {listed_some(unused)}", UserWarning, stacklevel=4)
    steps = {name: data.get(name) for name in ("normalizer", "pre_tokenizer")} | {"byte_fallback": data["model"].get("byte_fallback")}
    return LoadedTokenizer(
        build=lambda: tokenizer,
        bos_token_id=settings_bos,
        eos_token_ids=eos,
        main_eos_token_id=settings_eos if settings_eos is not None and "eos_token" in settings.stated else eos[0] if eos else None,
        prefix=prefix,
        suffix=suffix,
        chat_templates=templates.of_directory(directory, files.get(CONFIG, {})),
        template_tokens=settings.named,
        listed=listed,
        keeps_bytes=lambda: not checked.word_piece and _keeps_bytes(steps, listed, tokenizer),
        pair=checked.pair,
    )


def _data(file: Path, settings: Settings, stated: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tokenizer.json, or what another file would be as one: its text and its data. With another file, the flags of `stated` count in
    `settings`."""
    if not vocabulary_files.is_another(file):
        text = read_text(file, MAX_VOCABULARY_BYTES, TokenizerError)
        return text, parse_json(text, file, TokenizerError, unique_keys=True)
    data = vocabulary_files.read(file, settings.kind, stated, config)
    flags = [stated.get(name) for name in ("add_bos_token", "add_eos_token")]
    if settings.add_bos is None and flags != [None, None]:
        settings.add_bos, settings.add_eos = bool(flags[0]), bool(flags[1])
    if settings.add_bos is None and vocabulary_files.wraps_by_flags(file):
        raise TokenizerError(
            f"{file}: nothing says whether a text begins with <s>: for the class {settings.kind}, tokenizer_config.json must hold"
            " add_bos_token",
            file,
            "add_bos_token",
        )
    for name, text in vocabulary_files.named(data).items():
        if name not in settings.stated and settings.named.get(name) != text:  # not the token that the class has elsewhere
            settings.specials.pop(settings.named.get(name, ""), None)
            settings.named[name] = text
    return json.dumps(data), data


def _says_the_same(name: str, stated: Mapping[str, Any], normalizer: object) -> bool:
    """Whether a key of BertTokenizer says what tokenizer.json's normalizer does."""
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return False
    names = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars", "strip_accents": "strip_accents"}
    return (name in names and stated[name] is normalizer.get(names[name])) or (name == "do_basic_tokenize" and stated[name] is True)


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path, error=TokenizerError)
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: it is no JSON object", path)
    return value


def _vocab_size(config: dict[str, Any]) -> int | None:
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        value = source.get("vocab_size")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _add_tokens(tokenizer: tokenizers.Tokenizer, settings: Settings, model_vocab: int | None, directory: Path) -> list[str]:
    """Adds the tokens that are listed outside tokenizer.json, as transformers does. Returns what could not be added, in words."""
    from tokenizers import AddedToken

    present = tokenizer.get_added_tokens_decoder().values()
    shown = {repr(token) for token in present}
    known = {token.content for token in present} | {token.content for token in settings.added.values()}
    stated = [(number, token) for number, token in sorted(settings.added.items())]
    stated = [
        (number, token) for number, token in stated if repr(AddedToken(token.content, special=token.special, **token.flags)) not in shown
    ]
    adding = [AddedToken(token.content, special=token.special or token.content in settings.specials, **token.flags) for _, token in stated]
    names = {text: key for key, text in settings.named.items()}
    size = tokenizer.get_vocab_size(with_added_tokens=True) + sum(tokenizer.token_to_id(token.content) is None for token in adding)
    left_out = []
    for content, token in settings.specials.items():
        if content in known:
            continue
        if tokenizer.token_to_id(content) is None:
            name = names.get(content, "")
            if name and name not in settings.stated:
                continue  # a default of its class that this vocabulary does not have
            if model_vocab is not None and size >= model_vocab:
                left_out.append(f"{name or 'additional_special_tokens'} {content!r:.60} (no token of the vocabulary)")
                continue
            size += 1
        adding.append(AddedToken(content, special=True, **token.flags))
    if sum(len(token.content) for token in adding) > MAX_ADDED_CHARACTERS:
        raise TokenizerError(f"{directory}: the texts of added tokens have more than {MAX_ADDED_CHARACTERS:,} characters", directory)
    if adding:
        guarded(tokenizer.add_tokens, directory, adding)
    for number, token in stated:
        given = tokenizer.token_to_id(token.content)
        if given != number:
            raise TokenizerError(
                f"{directory}: the added token {token.content!r:.60} has id {number:,}, but the vocabulary leads to {given:,}",
                directory,
                "added_tokens_decoder",
            )
    return left_out


def _set_prefix_space(tokenizer: tokenizers.Tokenizer, settings: Settings, data: dict[str, Any]) -> list[str]:
    """Whether a text begins with a space that it does not have: the flag rules over a byte-level pre-tokenizer."""
    wanted = settings.add_prefix_space
    step = data.get("pre_tokenizer") or {}
    if settings.kind in tokenizer_settings.REBUILT_BY_PREFIX:
        if wanted is None or wanted == _begins_with_space(data):
            return []
        return [f"add_prefix_space {wanted} (tokenizer.json says {not wanted}, and it counts)"]
    if step.get("type") == "ByteLevel" and step.get("add_prefix_space", True) != bool(wanted):
        from tokenizers import pre_tokenizers

        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=bool(wanted), trim_offsets=step.get("trim_offsets", True), use_regex=step.get("use_regex", True)
        )
    return []


def _begins_with_space(data: dict[str, Any]) -> bool:
    """Whether tokenizer.json puts a space in front of a text."""
    for value, children in ((data.get("normalizer"), "normalizers"), (data.get("pre_tokenizer"), "pretokenizers")):
        for step in value.get(children, [value]) if isinstance(value, dict) else []:
            if step.get("type") == "Prepend" or step.get("add_prefix_space") or step.get("prepend_scheme", "never") != "never":
                return True
    return False


def _listed(tokenizer: tokenizers.Tokenizer, checked: CheckedTokenizer) -> ListedTokens:
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    texts = [""] * (max(vocab.values(), default=-1) + 1)
    if not texts:
        raise checked.fail("model.vocab", "the vocabulary is empty")
    for text, token_id in vocab.items():
        texts[token_id] = text
    added = tokenizer.get_added_tokens_decoder()
    if checked.word_piece:  # as in SentencePiece's: a text that begins a word begins with a space
        mark = checked.word_piece
        for token_id, text in enumerate(texts):
            if text and token_id not in added:
                texts[token_id] = text.removeprefix(mark) if text.startswith(mark) else f"{tokenizer_json.SPACE}{text}"
    special = {token_id: token.content for token_id, token in added.items() if token.special}
    whole = {token_id: token.content for token_id, token in added.items() if not token.special}
    return ListedTokens(texts, special, whole, checked.byte_level, checked.adds_space)


def _keeps_bytes(data: dict[str, Any], listed: ListedTokens, tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether a text's tokens have all of its bytes; False also where nobody knows."""
    normalizer, pre_tokenizer = data["normalizer"] or {}, data["pre_tokenizer"] or {}
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    if listed.byte_level:
        steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
        cut = all(
            step.get("type") in ("ByteLevel", "Digits") or (step.get("type") == "Split" and step.get("behavior") != "Removed")
            for step in steps
        )
        return cut and not normalizer and byte_level_alphabet().keys() <= set(listed.texts)
    steps = normalizer.get("normalizers", [normalizer]) if normalizer else []
    written = all(step.get("type") == "Prepend" or step.get("pattern") == {"String": " "} for step in steps)
    return (
        written
        and pre_tokenizer.get("type", "Metaspace") == "Metaspace"
        and data["byte_fallback"] is True
        and BYTE_TOKENS.keys() <= set(listed.texts)
    )


def _named_ids(configs: dict[str, dict[str, Any]], directory: Path, limit: int) -> tuple[int | None, list[int]]:
    """The id of beginning-of-text, and all ids that end one, of config.json and generation_config.json."""
    bos: int | None = None
    eos: list[int] = []
    for name, config in configs.items():
        path = directory / name
        for key in ("bos_token_id", "pad_token_id"):
            value = config.get(key)
            if value is not None:
                number = check_id(value[0] if isinstance(value, list) and len(value) == 1 else value, key, path, limit)
                bos = number if key == "bos_token_id" and (bos is None or name == "config.json") else bos
        value = config.get("eos_token_id")
        for entry in value if isinstance(value, list) else [] if value is None else [value]:
            if check_id(entry, "eos_token_id", path, limit) not in eos:
                eos.append(entry)
    return bos, eos


def _wrapping(
    checked: CheckedTokenizer, settings: Settings, bos: int | None, eos: int | None, directory: Path, unused: list[str]
) -> tuple[list[int], list[int]]:
    """The ids before a text and after it: by the flags of the tokenizer's class if it has them, else by the post-processor."""
    if settings.add_bos is None:
        return checked.prefix, checked.suffix
    sides = []
    for flag, name, token_id, wanted in (
        ("add_bos_token", "bos_token", bos, settings.add_bos),
        ("add_eos_token", "eos_token", eos, settings.add_eos),
    ):
        if wanted and token_id is None:
            if name in settings.stated or name not in settings.named:
                raise TokenizerError(
                    f"{directory}: {flag} is true for {settings.kind}, but {name} is no token of the vocabulary", directory, name
                )
            unused.append(f"{flag} of {settings.kind} (the vocabulary has no {settings.named[name]!r})")
        sides.append([token_id] if wanted and token_id is not None else [])
    return sides[0], sides[1]
