"""tokenizer_config.json and its companions: what each key does here, by the rules of transformers 4.57."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.errors import TokenizerError
from llmi.text.tokenizer_json import check_id

CONFIG, SPECIALS, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
#: Names of single special tokens.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: Lists of further ones: transformers 4 has the first name, and an object under the second; transformers 5 a list under the second.
LISTS = ("additional_special_tokens", "extra_special_tokens")
USED = (*NAMED, *LISTS, "tokenizer_class", "add_bos_token", "add_eos_token", "added_tokens_decoder", "add_prefix_space", "chat_template")
#: Ids that transformers writes when it converts a GGUF: they are read, but the texts count.
IDS = tuple(f"{name}_id" for name in NAMED)
#: Keys that have no effect where they are false.
ASKING = ("do_lower_case", "fix_mistral_regex", "remove_space", "keep_accents", "strip_accents", "add_dummy_prefix_space")
#: Keys that change no token, and why.
INERT = {
    **dict.fromkeys(IDS, "the text counts, as in transformers"),
    **dict.fromkeys(("model_type", "vocab_size"), "config.json's counts"),
    "trim_offsets": "where a token begins in the text is not used",
    **dict.fromkeys(("model_max_length", "max_len", "max_length"), "the model's own length rules; nothing is cut in silence"),
    **dict.fromkeys(("padding_side", "pad_to_multiple_of", "pad_token_type_id", "padding"), "nothing is padded"),
    **dict.fromkeys(("truncation_side", "truncation_strategy", "stride", "truncation"), "nothing is cut"),
    **dict.fromkeys(("model_input_names", "return_token_type_ids", "return_attention_mask", "return_tensors"), "names of tensors"),
    "clean_up_tokenization_spaces": "text is the bytes of its tokens: a clean-up would write what the model did not",
    "spaces_between_special_tokens": "text is the bytes of its tokens",
    "split_special_tokens": "text is split always; parse_special reads the tokens",
    "legacy": "a rule of SentencePiece files, which tokenizer.json has applied already",
    "sp_model_kwargs": "options of SentencePiece files, which are not read",
    "errors": "what is no UTF-8 becomes U+FFFD",
    "use_default_system_prompt": "the chat template says it",
    **dict.fromkeys(("tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file", "added_tokens_file", "spm_file"), "a path"),
    **dict.fromkeys(("name_or_path", "processor_class", "transformers_version", "_commit_hash", "_from_auto"), "where the files came from"),
    **dict.fromkeys(
        ("backend", "is_local", "local_files_only", "use_fast", "from_slow", "verbose", "init_inputs", "files_loaded"), "how it was loaded"
    ),
    **dict.fromkeys(
        ("image_token", "audio_token", "video_token", "boi_token", "eoi_token", "boa_token", "eoa_token"), "names of tokens for media"
    ),
    **dict.fromkeys(("prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"), "names of tokens for infilling"),
    **dict.fromkeys(("image_token_id", "image_seq_length", "vision_bos_token", "vision_eos_token"), "names of tokens for media"),
    "response_schema": "how a client reads an answer",
    "model_specific_special_tokens": "names of tokens that are listed elsewhere",
    "device": "where a tensor goes",
    "device_map": "where a tensor goes",
    "dtype": "the weights'",
    "torch_dtype": "the weights'",
    "trust_remote_code": "no code of a model runs",
}

#: Classes that wrap texts by add_bos_token and add_eos_token, whatever tokenizer.json says, with the defaults of both.
RULING_CLASSES = {
    "LlamaTokenizer": (True, False),
    "CodeLlamaTokenizer": (True, False),
    "GemmaTokenizer": (True, False),
    "CohereTokenizer": (True, False),
    "GPTNeoXTokenizer": (False, False),
}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ROBERTA = _LLAMA | {"sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}
_END = "<|endoftext|>"
#: The special tokens of a class that its files need not name.
DEFAULT_TOKENS: dict[str, dict[str, str]] = {
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "CohereTokenizer": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>"},
    "GPTNeoXTokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "BertTokenizer": {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    "XLMRobertaTokenizer": _ROBERTA,
    "RobertaTokenizer": _ROBERTA,
    "PreTrainedTokenizer": {},
    "TokenizersBackend": {},  # transformers 5's name of PreTrainedTokenizer
}
INFILLING = ("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>")  # CodeLlama's further special tokens
#: Where neither file names a class, the model's type does.
CLASS_OF_TYPE = {"llama": "LlamaTokenizer", "gemma3_text": "GemmaTokenizer", "gemma3": "GemmaTokenizer"}
#: Classes whose flag add_prefix_space means that the vocabulary is built again from a SentencePiece file, which llmi does not read.
REBUILT_BY_PREFIX = ("LlamaTokenizer",)


PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


@dataclasses.dataclass
class Token:
    """An added token as a file states it."""

    content: str
    special: bool
    flags: dict[str, bool]


@dataclasses.dataclass
class Settings:
    """The settings in the files next to tokenizer.json."""

    kind: str  # the class, without "Fast"
    named: dict[str, str]  # bos_token and its like, by text
    stated: set[str]  # which of them a file states; the others are its class's
    specials: dict[str, Token]  # all special tokens by text, in the order in which transformers adds them
    added: dict[int, Token]
    add_bos: bool | None  # None: tokenizer.json says it
    add_eos: bool | None
    add_prefix_space: bool | None
    unused: list[str]  # what is named in a warning


class _Reader:
    """Typed access to one file's object, with the file and the key in each error."""

    def __init__(self, path: Path, data: object) -> None:
        self.path = path
        if not isinstance(data, dict):
            raise TokenizerError(f"{path}: it is no JSON object", path)
        self.data: dict[str, Any] = data

    def fail(self, key: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {key}: {problem}", self.path, key)

    def flag(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(key, f"{value!r:.40} is neither true nor false")

    def text(self, key: str) -> str | None:
        value = self.data.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self.fail(key, f"{value!r:.40} is no string")

    def token(self, key: str, value: object) -> Token:
        """A token that is given as a string or an object."""
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str) or not content:
            raise self.fail(key, f"{value!r:.60} is no token: a string, or an object with content")
        if not content.isascii() and any("\ud800" <= character <= "\udfff" for character in content):
            raise self.fail(key, f"{content!r:.60} holds a lone surrogate, which is no character")
        entry = value if isinstance(value, dict) else {}
        flags = {name: entry.get(name, False) for name in (*PLAIN, "special")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise self.fail(key, f"{name} of {content!r:.60} is neither true nor false")
        special = flags.pop("special")
        if "normalized" not in entry:
            flags["normalized"] = not (special or key in NAMED or key in LISTS)
        return Token(content, special, flags)


def read(directory: Path, files: dict[str, Any], config: dict[str, Any]) -> Settings:
    """The settings of `files` (those that are there, by name) for the model that config.json describes."""
    reader = _Reader(directory / CONFIG, files.get(CONFIG, {}))
    for key in IDS:
        if reader.data.get(key) is not None:
            check_id(reader.data[key], key, reader.path)
    unused = [
        key
        for key, value in reader.data.items()
        if value is not None and key not in (*USED, *INERT) and not (key in ASKING and value is False)
    ]
    kind = reader.text("tokenizer_class") or _class_of(config)
    kind = kind.removesuffix("Fast")
    if kind not in DEFAULT_TOKENS:
        unused.append(f"tokenizer_class {kind!r} (taken as PreTrainedTokenizer: tokenizer.json alone counts)")
    sources = [reader]
    added: dict[int, Token] = {}
    has_decoder = "added_tokens_decoder" in reader.data
    if has_decoder:
        added = _decoder(reader)
    elif SPECIALS in files:  # transformers reads it only then
        sources.append(_Reader(directory / SPECIALS, files[SPECIALS]))
        unused += [f"{key} ({SPECIALS})" for key, value in sources[1].data.items() if value and key not in NAMED and key not in LISTS]
    tokens = {key: Token(text, True, PLAIN) for key, text in DEFAULT_TOKENS.get(kind, {}).items() if key not in reader.data}
    stated: set[str] = set()
    further: dict[str, Token] = {text: Token(text, True, PLAIN) for text in INFILLING} if kind == "CodeLlamaTokenizer" else {}
    for source in sources:
        for key in NAMED:
            if source.data.get(key) is not None:
                tokens[key] = source.token(key, source.data[key])
                stated.add(key)
        for key in LISTS:
            further |= {token.content: token for token in _listed(source, key)}
    named = {key: tokens[key].content for key in NAMED if key in tokens}
    specials = {tokens[key].content: tokens[key] for key in NAMED if key in tokens}
    specials |= {content: token for content, token in further.items() if content not in specials}
    if not has_decoder and ADDED in files:
        added = _added(_Reader(directory / ADDED, files[ADDED]), specials)
    add_bos, add_eos = _around(reader, kind)
    return Settings(kind, named, stated, specials, added, add_bos, add_eos, reader.flag("add_prefix_space"), unused)


def _added(reader: _Reader, specials: Mapping[str, Token]) -> dict[int, Token]:
    """The tokens of added_tokens.json, by id."""
    added: dict[int, Token] = {}
    for content, value in reader.data.items():
        content = reader.token(ADDED, content).content if content else content
        special = content in specials
        number = check_id(value, f"{content!r:.60}", reader.path)
        if number in added or not content:
            raise reader.fail(content, f"id {number} has two tokens" if content else "the text of a token is empty")
        added[number] = Token(content, special, PLAIN | {"normalized": not special})
    return added


def _around(reader: _Reader, kind: str) -> tuple[bool | None, bool | None]:
    """Whether a text begins with bos and ends with eos; None, None where the class of the tokenizer has no say in it."""
    add_bos, add_eos = reader.flag("add_bos_token"), reader.flag("add_eos_token")
    if kind not in RULING_CLASSES:
        return None, None
    first, last = RULING_CLASSES[kind][:2]
    return first if add_bos is None else add_bos, last if add_eos is None else add_eos


def _class_of(config: dict[str, Any]) -> str:
    name = config.get("tokenizer_class")
    if isinstance(name, str):
        return name
    kind = config.get("model_type")
    return CLASS_OF_TYPE.get(kind, "PreTrainedTokenizer") if isinstance(kind, str) else "PreTrainedTokenizer"


def _decoder(reader: _Reader) -> dict[int, Token]:
    entries = reader.data["added_tokens_decoder"]
    if not isinstance(entries, dict):
        raise reader.fail("added_tokens_decoder", "it is no object of ids and tokens")
    added = {}
    for key, value in entries.items():
        number = int(key) if key.isascii() and key.isdigit() and len(key) < 20 else key
        if not isinstance(value, dict):
            raise reader.fail("added_tokens_decoder", f"{value!r:.60} is no token")
        added[check_id(number, "added_tokens_decoder", reader.path)] = reader.token("added_tokens_decoder", value)
    return added


def _listed(reader: _Reader, key: str) -> list[Token]:
    value = reader.data.get(key)
    entries = list(value.values()) if isinstance(value, dict) and "content" not in value else [] if value is None else value
    if not isinstance(entries, list):
        raise reader.fail(key, f"{value!r:.60} is no list of tokens")
    return [reader.token(key, entry) for entry in entries]
