"""What stands beside tokenizer.json: each key is used as transformers 4.57 uses it, changes nothing, or is named in one warning."""

from __future__ import annotations

import asyncio
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, AsyncLLM, LlmiError, PromptTooLongError, Tokenizer, TokenizerError, testing
from llmi.testing.tiny import byte_tokenizer
from llmi.text import tokenizer as tokenizer_module
from llmi.text import tokenizer_directory
from llmi.text.tokenizer_settings import DEFAULT_TOKENS, IDS, INERT, USED
from recorded_tokenizers import Answers, ask, calls, recorded

VOCAB = 320  # of the model
SPECIALS = ("<s>", "</s>", "<unk>", "<bos>", "<eos>", "<|endoftext|>")
TEXTS = [
    "",
    "hi",
    " hi  you",
    "a<s>b</s>",
    "<s>",
    "x <extra> y",
    "x<extra>y",
    "<extra> <extra>",
    "EXTRA extra",
    "né\n\tz",
    "<s> </s> end",
    "▁a b",
]


def token(content: str, token_id: int | None = None, **flags: Any) -> dict[str, Any]:
    entry = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return entry if token_id is None else {"id": token_id, **entry}


def byte_level(vocab_size: int = 257) -> dict[str, Any]:
    """A byte-level tokenizer.json with six special tokens behind its bytes."""
    data: dict[str, Any] = byte_tokenizer(vocab_size)
    for text in [text for text in SPECIALS if text not in data["model"]["vocab"]]:
        data["model"]["vocab"][text] = len(data["model"]["vocab"])
        data["added_tokens"].append(token(text, data["model"]["vocab"][text]))
    return data


def sentencepiece(*, metaspace: bool = False) -> dict[str, Any]:
    """One of SentencePiece's kind: with normalizers, or with the pre-tokenizer of newer files."""
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abehiouxyz<>/",
        "▁a",
        "hi",
        "▁hi",
        "<bos>",
        "<eos>",
        "<|endoftext|>",
    ]
    vocab = {text: index for index, text in enumerate(texts)}
    prefix = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
    }
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token(text, vocab[text]) for text in SPECIALS],
        "normalizer": None if metaspace else prefix,
        "pre_tokenizer": space if metaspace else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": ["▁ a", "h i", "▁ hi"],
        },
    }


def template(data: dict[str, Any], before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, Any]:
    """The post-processor that wraps a text in these tokens."""
    vocab = texts_of(data)
    single: list[Any] = [{"SpecialToken": {"id": text, "type_id": 0}} for text in before]
    single += [{"Sequence": {"id": "A", "type_id": 0}}, *({"SpecialToken": {"id": text, "type_id": 0}} for text in after)]
    special = {text: {"id": text, "ids": [vocab[text]], "tokens": [text]} for text in before + after}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


def write(
    directory: Path, data: Any, settings: Any = None, *, specials: Any = None, added: Any = None, generation: Any = None, **config: Any
) -> Path:
    """A model directory; None: the file is not there."""
    directory.mkdir(exist_ok=True)
    base = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
    files = {"tokenizer.json": data, "tokenizer_config.json": settings, "special_tokens_map.json": specials, "added_tokens.json": added,
             "generation_config.json": generation, "config.json": base | config}  # fmt: skip
    for name, value in files.items():
        if value is not None:
            (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return directory


def load(directory: Path) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what was said about it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return Tokenizer(directory), [str(warning.message) for warning in seen]


PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
ODD: list[Any] = [True, False, 0, 3, 2.5, "x", "left", [], ["x"], {}, {"a": 1}]


def test_each_key_is_used_inert_or_named(tmp_path: Path) -> None:
    plain, seen = load(write(tmp_path / "plain", byte_level(), PLAIN))
    assert not seen
    free = set(INERT) - set(IDS)
    for key in [*INERT, *(dict.fromkeys(free, value) for value in ODD)]:
        given = {key: 3} if isinstance(key, str) else key
        tokenizer, seen = load(write(tmp_path / "inert", byte_level(), PLAIN | given))
        assert not seen, key
        assert [tokenizer.encode(text, parse_special=True) for text in TEXTS] == [
            plain.encode(text, parse_special=True) for text in TEXTS
        ], key
        assert tokenizer.special_tokens == plain.special_tokens and tokenizer.eos_token_ids == plain.eos_token_ids
    strangers = {
        "do_lower_case": True,
        "auto_map": {"AutoTokenizer": ["x", None]},
        "unheard_of": 0,
        "fix_mistral_regex": True,
    }
    path = write(
        tmp_path / "strangers",
        byte_level(),
        PLAIN | strangers | {"nothing": None, "strip_accents": False},
        specials={"other_token": "x", "more": None},
    )
    _, seen = load(path)
    assert (
        len(seen) == 1
        and all(name in seen[0] for name in (*strangers, "other_token"))
        and "nothing" not in seen[0]
        and "accents" not in seen[0]
        and "more" not in seen[0]
    )
    _, seen = load(write(tmp_path / "class", byte_level(), PLAIN | {"tokenizer_class": "NobodysTokenizer"}))
    assert len(seen) == 1 and "NobodysTokenizer" in seen[0]
    for kind in DEFAULT_TOKENS:
        assert not load(write(tmp_path / "known", byte_level(), PLAIN | {"tokenizer_class": kind}))[1], kind


def test_values_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    flags = ("add_bos_token", "add_eos_token", "add_prefix_space")
    good: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(flags, (True, False)),
        **dict.fromkeys(USED, ("x",)),
        "added_tokens_decoder": ({},),
        "tokenizer_class": ("x", "left"),
        "additional_special_tokens": (["x"], []),
        "extra_special_tokens": (["x"], [], {}, {"a": "x"}),
    } | dict.fromkeys(flags, (True, False))
    for key, value in itertools.product(
        [key for key in USED if key != "chat_template"],
        [*ODD, {"content": 3}, {"content": ""}, "", {"content": "x", "lstrip": "no"}, "\ud800"],
    ):
        path = write(tmp_path / "model", byte_level(), PLAIN | {key: value})
        if any(value is entry or (value == entry and type(value) is type(entry)) for entry in good[key]) or (
            isinstance(value, str) and value and value.isascii() and good[key] == ("x",)
        ):
            load(path)
        elif not (key == "additional_special_tokens" and value == {}) and not (key == "tokenizer_class" and isinstance(value, str)):
            with pytest.raises(TokenizerError) as caught:
                load(path)
                pytest.fail(f"{key}: {value!r} is accepted")
            assert key in str(caught.value) and "tokenizer_config.json" in str(caught.value)
    for value in (3, [], {"x": "a"}, {"x": 1.5}, {"x": True}, {"": 300}, {"\ud800": 300}, {"x": 300, "y": 300}):
        with pytest.raises(TokenizerError, match=r"added_tokens\.json"):
            load(write(tmp_path / "model", byte_level(), PLAIN, added=value))


BAD_IDS: list[Any] = [-1, -300, 10**8, 2**31, 2**63, 10**30, 1.0, "5", True, [3, -1], [1.5], ["5"], {}, VOCAB]


def test_ids_of_every_file_are_checked(tmp_path: Path) -> None:
    """A negative, too large or fractional id is refused with the name of its key, wherever it stands."""
    new = len(byte_level()["model"]["vocab"])
    for key, value in itertools.product(("bos_token_id", "eos_token_id", "pad_token_id"), BAD_IDS):
        for place in ("config", "generation"):
            given = {"generation": {key: value}} if place == "generation" else {key: value}
            with pytest.raises(TokenizerError, match=key):
                load(write(tmp_path / f"{place}", byte_level(), PLAIN, **given))
                pytest.fail(f"{place} {key} {value!r} is accepted")
            (tmp_path / place / "generation_config.json").unlink(missing_ok=True)
    for key, value in itertools.product(IDS, [value for value in BAD_IDS if value != VOCAB]):
        with pytest.raises(TokenizerError, match=key):
            load(write(tmp_path / "settings", byte_level(), PLAIN | {key: value}))
    for value in ("-1", str(10**8), str(2**31), "1.5", "x", "", "\u0663", str(new + 5), "5"):
        with pytest.raises(TokenizerError, match=r"added_tokens_decoder|has id"):
            load(write(tmp_path / "decoder", byte_level(), PLAIN | {"added_tokens_decoder": {value: token("<extra>")}}))
    for value in (-1, 10**8, 2**31, new + 5, 5):
        with pytest.raises(TokenizerError, match="id"):
            load(write(tmp_path / "added", byte_level(), PLAIN, added={"<extra>": value}))
    with pytest.raises(TokenizerError, match="add_bos_token"):
        load(
            write(tmp_path / "flag", byte_level(), PLAIN | {"tokenizer_class": "LlamaTokenizer", "bos_token": None, "add_bos_token": True})
        )


def test_many_added_tokens_are_added_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each addition takes as long as there are tokens."""
    additions: list[int] = []
    plain = tokenizer_directory.guarded

    def counted(call: Any, path: Path, *args: Any, **kwargs: Any) -> Any:
        if call.__name__ in ("add_tokens", "add_special_tokens"):
            additions.append(len(args[0]))
        return plain(call, path, *args, **kwargs)

    monkeypatch.setattr(tokenizer_directory, "guarded", counted)
    new = len(byte_level()["model"]["vocab"])
    names = [f"<tok{number}>" for number in range(20_000)]
    for given in (
        {"settings": PLAIN | {"additional_special_tokens": names}, "vocab_size": 30_000},
        {"settings": PLAIN, "added": {name: new + number for number, name in enumerate(names)}},
        {"settings": PLAIN | {"added_tokens_decoder": {str(new + number): token(name) for number, name in enumerate(names)}}},
    ):
        tokenizer, _ = load(write(tmp_path / "model", byte_level(), **given))
        assert tokenizer.encode("<tok19999>", parse_special=True) == [new + 19_999]
        assert max(additions) >= 20_000 and len(additions) <= 2, additions
        additions.clear()
    _, seen = load(write(tmp_path / "full", byte_level(), PLAIN | {"additional_special_tokens": names}))
    assert len(seen) == 1 and "no token of the vocabulary" in seen[0] and len(seen[0]) < 5000
    with pytest.raises(TokenizerError, match="characters"):
        load(
            write(
                tmp_path / "long", byte_level(), PLAIN | {"additional_special_tokens": ["x" * 3_000_000, "y" * 3_000_000]}, vocab_size=400
            )
        )


def test_ends_are_gathered_from_all_files(tmp_path: Path) -> None:
    ids = byte_level()["model"]["vocab"]
    path = write(tmp_path / "model", byte_level(), PLAIN, generation={"eos_token_id": [5, 6]}, eos_token_id=7)
    tokenizer, _ = load(path)
    assert tokenizer.eos_token_ids == {5, 6, 7, ids["</s>"]}
    tokenizer, _ = load(
        write(
            tmp_path / "map", byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast"}, specials={"eos_token": "<eos>"}, eos_token_id=7
        )
    )
    assert tokenizer.eos_token_ids == {7, ids["<eos>"]}
    tokenizer, _ = load(write(tmp_path / "class", byte_level(), {"tokenizer_class": "LlamaTokenizer"}, eos_token_id=7))
    assert tokenizer.eos_token_ids == {7}, "a class's </s> is no end where the files name another"
    data = byte_level()
    data["post_processor"] = template(data, ("<bos>", "<s>"), ("</s>",))
    tokenizer, _ = load(write(tmp_path / "wrapped", data, {"tokenizer_class": "PreTrainedTokenizerFast"}, bos_token_id=5))
    assert tokenizer.encode("a") == [ids["<bos>"], ids["<s>"], ids["a"], ids["</s>"]] and tokenizer.bos_token_id == 5


def test_markup_in_a_prompt(tmp_path: Path) -> None:
    """generate, stream, enqueue and AsyncLLM: letters with one warning, the token with parse_special=True, letters with False; chat says
    nothing."""
    data = byte_level()
    data["post_processor"] = template(data, ("<s>",), ())
    path = testing.tiny_model(vocab_size=VOCAB, path=tmp_path / "model")
    write(path, data, PLAIN, **json.loads((path / "config.json").read_text()))
    llm = LLM(
        path, kv_cache_memory_bytes=1 << 22, chat_template="{{ bos_token }}{% for m in messages %}<|endoftext|>{{ m.content }}{% endfor %}"
    )
    chat = [{"role": "user", "content": "hi"}]
    text = str(llm.tokenizer.apply_chat_template(chat, tokenize=False))
    letters, whole = llm.tokenizer.encode(text), llm.tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    async def ask(prompt: Any, **kwargs: Any) -> list[int]:
        async with AsyncLLM(llm=llm) as server:
            return [output.prompt_token_ids async for output in server.generate(prompt, max_tokens=1, **kwargs)][-1]

    def enqueued(prompt: Any, **kwargs: Any) -> list[int]:
        llm.enqueue(prompt, max_tokens=1, **kwargs)
        return llm.wait_for_completion()[0].prompt_token_ids

    ways: list[Any] = [
        lambda prompt, **kwargs: llm.generate(prompt, max_tokens=1, **kwargs)[0].prompt_token_ids,
        lambda prompt, **kwargs: llm.stream(prompt, max_tokens=1, **kwargs).outputs[0].prompt_token_ids,
        enqueued,
        lambda prompt, **kwargs: asyncio.run(ask(prompt, **kwargs)),
    ]
    for way in ways:
        for prompt in (text, {"prompt": text}):
            with pytest.warns(UserWarning, match=r"'<s>'.*parse_special=True") as seen:
                assert way(prompt) == letters
            assert len(seen) == 1
            assert way(prompt, parse_special=True) == whole and way(prompt, parse_special=False) == letters
        assert way({"prompt": text, "parse_special": True}) == whole == way({"prompt": text, "parse_special": True}, parse_special=False)
        assert way({"prompt": text, "parse_special": False}) == letters
        with pytest.raises(LlmiError, match="parse_special"):
            assert way(text, parse_special="no") == []
    with pytest.warns(UserWarning) as seen:
        assert [out.prompt_token_ids for out in llm.generate([text, "a", text], max_tokens=1)] == [
            letters,
            llm.tokenizer.encode("a"),
            letters,
        ]
    assert len(seen) == 1
    assert llm.chat(chat, max_tokens=1)[0].prompt_token_ids == whole
    assert llm.chat([{"role": "user", "content": "<s>"}], max_tokens=1)[0].prompt_token_ids.count(whole[0]) == 1
    assert llm.tokenizer.markup_in("a </s> <s>") == "</s>" and llm.tokenizer.markup_in("a < s>" * 1000) is None
    lab: list[Any] = [
        lambda prompt, **kwargs: llm.loglikelihood([(prompt, "a")], **kwargs)[0].logprob,
        lambda prompt, **kwargs: llm.perplexity(prompt, **kwargs)[0].nll,
    ]
    for way, ids in zip(lab, (whole, whole[1:]), strict=True):
        with pytest.warns(UserWarning, match="parse_special"):
            plain = way(text)
        assert way(text, parse_special=False) == plain != way(text, parse_special=True) == way(ids)
    with pytest.warns(UserWarning, match="parse_special"):
        assert llm.sequence(text).token_ids.tolist() == letters
    assert llm.sequence({"prompt": text, "parse_special": True}).token_ids.tolist() == whole
    llm.close()


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB take minutes and gigabytes to encode; that more tokens come of them than the context holds, their length says."""
    path = testing.tiny_model(vocab_size=VOCAB, path=tmp_path / "model")
    write(path, byte_level(), PLAIN, **json.loads((path / "config.json").read_text()))
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        longest = len("<|endoftext|>")
        with monkeypatch.context() as patch:
            patch.setattr(tokenizer_module, "guarded", lambda *_, **__: pytest.fail("it was encoded"))
            for text in ("x" * (64 << 20), "é" * (1 << 20), "x" * (64 * longest + 1)):
                for prompt in (text, {"prompt": text}):
                    with pytest.raises(PromptTooLongError, match="at least"):
                        llm.generate(prompt, max_tokens=1)
            with pytest.raises(pytest.fail.Exception):
                llm.generate("x", max_tokens=1)
        with pytest.raises(PromptTooLongError, match="has 832 tokens"):
            llm.generate("x" * (64 * longest), max_tokens=1)
        assert len(llm.generate("<|endoftext|>" * 63, max_tokens=1, parse_special=True)[0].prompt_token_ids) == 63


def test_a_token_that_spans_the_join_is_scored_alone(tmp_path: Path) -> None:
    data = byte_level()
    vocab = data["model"]["vocab"]
    data["model"]["merges"] = [["h", "e"], ["l", "d"]]
    vocab |= {"he": len(vocab), "ld": len(vocab) + 1}
    path = testing.tiny_model(vocab_size=VOCAB, path=tmp_path / "model")
    write(path, data, PLAIN, **json.loads((path / "config.json").read_text()))
    with LLM(path, kv_cache_memory_bytes=1 << 22) as llm:
        encode = llm.tokenizer.encode
        for context, continuation in (("ah", "e"), ("a l", "d"), ("x", "he"), ("ab ", "c"), ([5], "e")):
            result = llm.loglikelihood([(context, continuation)])[0]
            spaces = context[len(context.rstrip()) :] if isinstance(context, str) else ""
            before = encode(context.rstrip()) if isinstance(context, str) else context
            alone = llm.loglikelihood([(before, encode(spaces + continuation))])[0]
            assert result.token_logprobs.tolist() == alone.token_logprobs.tolist() and len(result.token_logprobs) == len(
                encode(spaces + continuation)
            )
        with pytest.raises(LlmiError, match="has no token"):
            llm.loglikelihood([("a", "")])


# --- against transformers: 4.57's recorded answers, and the installed version's for what it saves


def compare(directory: Path, name: str, answers: Answers) -> None:
    tokenizer, _ = load(directory)
    for (text, around, special), expected in zip(calls(TEXTS), answers.ids, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=around, parse_special=special)
        assert ids == expected, (name, text, around, special)
    if answers.bos is not None:
        assert tokenizer.bos_token_id == answers.bos, name
    if answers.eos is not None:
        assert answers.eos in tokenizer.eos_token_ids, name
    for token_id, is_special in answers.added.items():
        assert (token_id in tokenizer.special_tokens) == is_special, (name, token_id)


def unigram() -> dict[str, Any]:
    data = sentencepiece(metaspace=True)
    vocab = [[text, -float(index) / 10] for text, index in data["model"]["vocab"].items()]
    return data | {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True}}


def texts_of(data: dict[str, Any]) -> dict[str, int]:
    vocab = data["model"]["vocab"]
    return vocab if isinstance(vocab, dict) else {text: index for index, (text, _) in enumerate(vocab)}


BASES = {"byte-level": byte_level, "unigram": unigram, "sentencepiece": sentencepiece, "metaspace": lambda: sentencepiece(metaspace=True)}


@pytest.mark.parametrize("base", BASES)
def test_wrapping_equals_transformers(base: str, tmp_path: Path) -> None:
    """Each class x each pair of flags x each post-processor."""
    wrappings: list[tuple[tuple[str, ...], tuple[str, ...]] | None] = [
        None,
        ((), ()),
        (("<s>",), ()),
        (("<s>", "<bos>"), ("</s>",)),
        ((), ("</s>",)),
    ]
    classes = [
        None,
        "PreTrainedTokenizerFast",
        "LlamaTokenizerFast",
        "LlamaTokenizer",
        "GemmaTokenizerFast",
        "GPT2TokenizerFast",
        "Qwen2Tokenizer",
        "GPTNeoXTokenizerFast",
    ]
    number = 0
    if base != "byte-level":
        del classes[4:], wrappings[2]
    for kind, wrapping in itertools.product(classes, wrappings):
        for bos, eos in ((None, None), (True, False), (False, True), (False, False), (True, True)):
            if (bos, eos) != (None, None) and kind not in ("LlamaTokenizerFast", "PreTrainedTokenizerFast", "GemmaTokenizerFast"):
                continue
            data = BASES[base]()
            if wrapping is not None:
                data["post_processor"] = template(data, *wrapping)
            settings = {
                "tokenizer_class": kind,
                "add_bos_token": bos,
                "add_eos_token": eos,
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
            }
            given = {key: value for key, value in settings.items() if value is not None}
            if kind == "GemmaTokenizerFast":
                given |= {"pad_token": "<eos>"}
                del given["bos_token"]
            number += 1
            directory = write(tmp_path / str(number), data, given)
            compare(directory, f"{kind} {wrapping} {given}", recorded(directory, TEXTS))


FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@pytest.mark.parametrize("base", BASES)
def test_added_tokens_equal_transformers(base: str, tmp_path: Path) -> None:
    """Tokens that stand beside tokenizer.json, with each of their flags, and those that its own settings change."""
    new = len(BASES[base]()["model"]["vocab"])
    plain = PLAIN
    variants: list[dict[str, Any]] = []
    for flag in (*FLAGS, None):
        flags = dict.fromkeys(FLAGS, False) | ({flag: True} if flag else {})
        variants.append({"settings": plain | {"added_tokens_decoder": {str(new): token("<extra>", **flags)}}})
        variants.append(
            {
                "settings": plain
                | {
                    "added_tokens_decoder": {
                        str(new): token("<extra>", **flags),
                        "1": token(next(iter(t for t, i in texts_of(BASES[base]()).items() if i == 1)), **flags),
                    }
                }
            }
        )
        variants.append({"settings": plain, "specials": {"pad_token": token("<extra>", **flags)}})
    variants += [
        {"settings": plain, "added": {"<extra>": new}},
        {"settings": plain, "added": {"<extra>": new, "EXTRA": new + 1}},
        {"settings": plain, "added": {"<extra>": new}, "specials": {"additional_special_tokens": ["<extra>"]}},
        {"settings": plain | {"additional_special_tokens": ["<extra>", "extra"]}},
        {"settings": plain | {"extra_special_tokens": {"image_token": "<extra>"}}},
        {"settings": plain | {"pad_token": "<extra>"}},
        {"settings": plain | {"unk_token": "a"}},
        {
            "settings": plain,
            "specials": {
                "bos_token": "<bos>",
                "eos_token": {"content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
            },
        },
        {"settings": plain | {"added_tokens_decoder": {}}, "specials": {"bos_token": "<bos>"}},
        {"settings": plain | {"bos_token": {"__type": "AddedToken", **token("<bos>")}}},
        {"settings": plain | {"add_prefix_space": True}},
        {"settings": plain | {"add_prefix_space": False}},
        {"settings": plain | {"add_prefix_space": True}, "change": True},
        {"settings": plain, "change": True},
        {"settings": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
        {"settings": {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, "change": True},
        {
            "settings": plain
            | {
                "clean_up_tokenization_spaces": True,
                "legacy": True,
                "model_max_length": 4,
                "padding_side": "left",
                "truncation_side": "left",
            }
        },
        {"settings": None},
        {"settings": {}},
    ]
    for number, variant in enumerate(variants):
        data = BASES[base]()
        if variant.pop("change", False) and base == "byte-level":
            data["pre_tokenizer"]["add_prefix_space"] = True
        directory = write(tmp_path / str(number), data, **variant)
        compare(directory, str(variant), recorded(directory, TEXTS))


@pytest.mark.parity
@pytest.mark.parametrize("base", ["byte-level", "sentencepiece"])
def test_what_transformers_saves_is_read_without_a_word(base: str, tmp_path: Path) -> None:
    """A tokenizer that transformers has saved gives the same ids, and every key that it writes is known."""
    from transformers import AutoTokenizer

    for number, kind in enumerate(
        ("LlamaTokenizerFast", "GemmaTokenizerFast", "GPT2TokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast")
    ):
        data = BASES[base]()
        data["post_processor"] = template(data, ("<s>",), ())
        extra = {
            "additional_special_tokens": ["<bos>", "<new>"],
            "chat_template": "x",
            "pad_token": "<eos>",
            "clean_up_tokenization_spaces": True,
        }
        original = write(
            tmp_path / f"{number}", data, {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | extra
        )
        reference = AutoTokenizer.from_pretrained(original)
        reference.add_tokens(["<extra>", "extra"])
        saved = tmp_path / f"{number}-saved"
        reference.save_pretrained(saved)
        (saved / "config.json").write_text((original / "config.json").read_text())
        assert load(saved)[1] == [], kind
        compare(saved, kind, ask(saved, TEXTS))
