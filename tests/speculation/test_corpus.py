"""Tables of other texts: what they hold, their files, and drafts of them."""

from __future__ import annotations

import collections
import itertools
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, CorpusDrafter, SamplingParams, SpeculativeConfig, _core
from llmi.speculation.corpus_file import read_table
from llmi.testing import assert_same_tokens


def count(texts: list[list[int]], vocab_size: int, *, max_order: int = 4, max_bytes: int = 1 << 20) -> Any:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    joined = np.array([token for text in texts for token in text], np.int32)
    return _core.CorpusTable.count(joined, ends=ends, vocab_size=vocab_size, max_order=max_order, max_bytes=max_bytes)


class Counts:
    """The definition: counters of what followed each context, backing off."""

    def __init__(self, texts: list[list[int]], max_order: int) -> None:
        self.max_order = max_order
        self.tables: list[dict[tuple[int, ...], collections.Counter[int]]] = [
            collections.defaultdict(collections.Counter) for _ in range(max_order + 1)
        ]
        for text, order in itertools.product(texts, range(1, max_order + 1)):
            for i in range(order, len(text)):
                self.tables[order][tuple(text[i - order : i])][text[i]] += 1

    def own(self, context: tuple[int, ...]) -> int:
        """The likeliest after just this context: of equal counts what the shorter one says, then the smallest id."""
        counter = self.tables[len(context)][context]
        most = max(counter.values())
        ties = sorted(token for token, number in counter.items() if number == most)
        shorter = self.own(context[1:]) if len(context) > 1 else -1
        return shorter if shorter in ties else ties[0]

    def next(self, text: list[int]) -> int:
        for order in range(min(self.max_order, len(text)), 0, -1):
            context = tuple(text[-order:])
            if context in self.tables[order]:
                return self.own(context)
        return -1


@pytest.mark.parametrize("vocab_size", [7, 40, 70_000])
@pytest.mark.parametrize("max_order", [1, 3, 4])
def test_a_table_is_its_counts(vocab_size: int, max_order: int) -> None:
    rng = np.random.default_rng(vocab_size + max_order)
    ids = rng.choice(vocab_size, size=min(vocab_size, 12), replace=False)
    texts = [ids[rng.integers(0, len(ids), size=int(size))].tolist() for size in rng.integers(0, 30, size=25)]
    table, expected = count(texts, vocab_size, max_order=max_order), Counts(texts, max_order)
    assert (table.high_tokens.size > 0) == (vocab_size > 65_536)
    wrong = 0
    for _ in range(500):
        text = ids[rng.integers(0, len(ids), size=int(rng.integers(0, 6)))].tolist()
        token, rate, order = table.next(np.array(text, np.int32))
        wrong += token != expected.next(text)
        assert 0 <= rate <= 1 and (token < 0) == (order == 0)
    assert wrong <= 3, "16 bits tell contexts apart but for about one search in 3,000"


def test_rates_and_texts_that_end() -> None:
    table = count([[1, 2], [1, 2], [1, 2], [1, 3], [9, 9]], 10)
    token, rate, order = table.next(np.array([1], np.int32))
    assert (token, order) == (2, 1) and rate == pytest.approx((3 - 0.75) / 4, abs=0.003)
    assert table.next(np.array([2], np.int32))[0] == -1, "no n-gram crosses from one text to the next"
    assert table.next(np.array([9], np.int32))[0] == 9


def test_a_small_table_keeps_what_predicts_most() -> None:
    rng = np.random.default_rng(3)
    texts = [(np.minimum(rng.geometric(0.15, size=40), 30) - 1).tolist() for _ in range(200)]
    test = [(np.minimum(rng.geometric(0.15, size=40), 30) - 1).tolist() for _ in range(50)]

    def right(table: Any) -> int:
        return sum(table.next(np.array(text[max(0, i - 4) : i], np.int32))[0] == text[i] for text in texts for i in range(1, len(text)))

    whole, small, none = count(texts, 30), count(texts, 30, max_bytes=500), count(texts, 30, max_bytes=4)
    assert small.num_bytes <= 500 < whole.num_bytes and none.num_entries == none.num_bytes == 0
    assert small.num_entries <= 85 and right(none) == 0
    assert 0.05 * sum(map(len, texts)) < right(small) < right(whole)
    assert sum(small.next(np.array(text[:1], np.int32))[0] >= 0 for text in test) == 50, "short contexts come first where they predict most"
    again = count(texts, 30, max_bytes=500)
    assert all(np.array_equal(getattr(small, name), getattr(again, name)) for name in ("checks", "tokens", "rates"))


def test_what_no_table_is_made_of() -> None:
    for texts, message in (([[1, 2, 7]], "token 7, outside the vocabulary of 7"), ([[-1]], "token -1")):
        with pytest.raises(_core.CoreError, match=message):
            count(texts, 7)
    checks = np.array([5, 0, 9], np.uint16)
    good: dict[str, Any] = {
        "checks": checks,
        "tokens": np.array([1, 99, 6], np.uint16),
        "high_tokens": np.empty(0, np.uint8),
        "rates": np.zeros(3, np.uint8),
    }
    assert _core.CorpusTable(7, max_order=2, **good).num_entries == 2
    bad: list[tuple[int, dict[str, Any], str]] = [
        (6, {}, "slot 2 holds token 6, outside the vocabulary of 6"),
        (7, {"rates": np.zeros(2, np.uint8)}, "one element a slot"),
        (7, {"high_tokens": np.zeros(2, np.uint8)}, "one element a slot"),
        (7, {"max_order": 9}, "max_order"),
        (0, {}, "vocab_size"),
    ]
    for vocab_size, changes, message in bad:
        with pytest.raises(_core.CoreError, match=message):
            _core.CorpusTable(vocab_size, **{"max_order": 2, **good, **changes})
    full = {name: np.ones(3, array.dtype) for name, array in good.items() if name != "high_tokens"} | {"high_tokens": np.empty(0, np.uint8)}
    assert _core.CorpusTable(7, max_order=2, **full).next(np.array([3, 4], np.int32))[0] in (-1, 1), "a search in a full table ends"


def test_arguments() -> None:
    for texts in ("one text", 7, None, [7], [[1.5]], [["a", "b"]], [[[1]]], [[-1]], [[1 << 31]]):
        with pytest.raises(llmi.InvalidParamsError, match="texts"):
            CorpusDrafter(texts)  # type: ignore[arg-type]
    for arguments in ({"max_order": 0}, {"max_order": 9}, {"max_bytes": -1}, {"max_bytes": 1.5}):
        with pytest.raises(llmi.InvalidParamsError, match=next(iter(arguments))):
            CorpusDrafter([[1]], **arguments)  # type: ignore[arg-type]
    with pytest.raises(llmi.InvalidParamsError, match="give CorpusDrafter a tokenizer"):
        CorpusDrafter(["text"]).save("nowhere")


def test_texts_are_counted_with_the_first_tokenizer(tiny: LLM, tmp_path: Path) -> None:
    texts = ["the cat sat on the mat", "the cat ate"]
    now = CorpusDrafter(texts, tokenizer=tiny.tokenizer)
    later = CorpusDrafter([texts[0], tiny.tokenizer.encode(texts[1])])
    assert "not counted yet" in repr(later) and "n-grams" in repr(now)
    tiny.generate([[1]], max_tokens=2, speculative_config=later)
    assert later.num_entries == now.num_entries > 10 and later.num_bytes == now.num_bytes
    ids = tiny.tokenizer.encode("the cat sat")
    (drafted,) = tiny.generate([ids], max_tokens=2, seed=0, speculative_config=SpeculativeConfig(lambda context: now.propose(context)))
    assert_same_tokens(llmi.Outputs([drafted]), tiny.generate([ids], max_tokens=2, seed=0))


@pytest.fixture
def saved(tiny: LLM, tmp_path: Path) -> tuple[CorpusDrafter, Path]:
    rng = np.random.default_rng(0)
    drafter = CorpusDrafter([rng.integers(0, 257, size=300).tolist() for _ in range(4)])
    tiny.generate([[1]], max_tokens=2, speculative_config=drafter)
    path = tmp_path / "table.safetensors"
    drafter.save(path)
    return drafter, path


def test_files(tiny: LLM, saved: tuple[CorpusDrafter, Path]) -> None:
    drafter, path = saved
    loaded = CorpusDrafter.load(path)
    assert loaded.num_entries == drafter.num_entries and loaded.max_order == 4
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing else is left"
    loaded.save(path.with_name("again"))
    assert path.with_name("again").read_bytes() == path.read_bytes()
    for protocol in (2, 5):
        assert pickle.loads(pickle.dumps(loaded, protocol)) == loaded
    tiny.generate([[1]], max_tokens=2, speculative_config=loaded)  # warns of nothing
    assert CorpusDrafter([[1, 2]]) == CorpusDrafter([[1, 2]]) != CorpusDrafter([[1, 3]])


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def test_files_that_are_refused(saved: tuple[CorpusDrafter, Path]) -> None:
    path = saved[1]
    data = path.read_bytes()

    def refused(changed: bytes, message: str) -> None:
        path.write_bytes(changed)
        with pytest.raises(llmi.ModelFileError, match=message) as caught:
            CorpusDrafter.load(path)
        assert str(path) in str(caught.value) and caught.value.path == path

    for size in (0, 5, 8, 40, 200, len(data) // 2, len(data) - 1):
        refused(data[:size], "truncated|too few|no corpus table")
    refused(data + b"\0", "1 bytes follow the last tensor")
    refused(pickle.dumps({"checks": [1]}), "serialized Python objects")
    refused(b"\x93NUMPY" + data, "a NumPy array")

    def metadata(**changes: Any) -> bytes:
        return with_header(data, lambda header: header["__metadata__"].update(changes))

    refused(metadata(format="pt"), "lacks format")
    refused(metadata(version="2"), "version '2' of corpus tables; this llmi reads version 1")
    refused(metadata(vocab_size="100"), "outside the vocabulary of 100")
    refused(metadata(vocab_size="-1"), "vocab_size = '-1' is no whole number")
    refused(metadata(vocab_size="٣"), "no whole number")
    refused(metadata(max_order="9"), r"max_order must lie in \[1, 8\]")
    refused(metadata(more="x"), "the metadata must be")
    refused(with_header(data, lambda header: header.pop("__metadata__")), "lacks format")
    refused(with_header(data, lambda header: header.pop("rates")), "has the tensors")
    refused(with_header(data, lambda header: header.update(more={})), "has the tensors")
    refused(with_header(data, lambda header: header["tokens"].update(dtype="F32")), "'tokens' must be U16")
    refused(with_header(data, lambda header: header["tokens"].update(shape=[3])), "'tokens' must be U16")
    refused(with_header(data, lambda header: header["tokens"].update(data_offsets=[0, 4])), "'tokens' must be U16")
    refused(with_header(data, lambda header: header["checks"].update(shape=[True])), "'checks' must be U16")
    refused(with_header(data, lambda header: header["checks"].update(shape=[1 << 40])), "'checks' must be U16")
    refused(struct.pack("<Q", 9) + b'{"a":1,"a' + data, "not valid JSON")
    refused(struct.pack("<Q", 2) + b"[]" + data, "no JSON object")
    refused(struct.pack("<Q", 2) + b"\xff\xff" + data, "no UTF-8")
    with pytest.raises(llmi.ModelFileError, match="a directory"):
        CorpusDrafter.load(path.parent)
    with pytest.raises(llmi.ModelFileError, match="No such file"):
        read_table(path.with_name("absent"))


def test_another_vocabulary(tiny: LLM, tiny_path: Callable[..., Path], saved: tuple[CorpusDrafter, Path]) -> None:
    path = saved[1]
    with (
        LLM(tiny_path(vocab_size=100), kv_cache_memory_bytes=1 << 22, max_model_len=64) as other,
        pytest.raises(llmi.UnsupportedCombinationError, match="a vocabulary of 257, the model 100"),
    ):
        other.generate([[1]], max_tokens=2, speculative_config=CorpusDrafter.load(path))
    digest = read_table(path).tokenizer_digest
    path.write_bytes(with_header(path.read_bytes(), lambda header: header["__metadata__"].update(tokenizer_digest="0" * 64)))
    foreign = CorpusDrafter.load(path)
    with pytest.warns(UserWarning, match=f"the tokenizer of digest {'0' * 64}, the model's has {digest}"):
        tiny.generate([[1]], max_tokens=2, speculative_config=foreign)
    tiny.generate([[1]], max_tokens=2, speculative_config=foreign)  # once is enough


def test_memory_report(tiny_path: Callable[..., Path]) -> None:
    drafter = CorpusDrafter([list(range(200))])
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        assert llm.memory_report().drafter_bytes == 0 and "drafters" not in repr(llm.memory_report())
        for _ in range(3):
            llm.generate([[1]], max_tokens=2, speculative_config=SpeculativeConfig([llmi.PromptLookup(), drafter]))
        assert llm.memory_report().drafter_bytes == drafter.num_bytes > 0 and "drafters 0.0 MB" in repr(llm.memory_report())


def test_a_good_table_is_accepted(tiny: LLM) -> None:
    """The model's own greedy answers as texts: nearly all is drafted, and kinds of drafts tell good from bad."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, seed=0)
    prompts = [[i + 1, 2 * i + 3] for i in range(6)]
    plain = tiny.generate(prompts, params)
    drafter = CorpusDrafter([[*out.prompt_token_ids, *out.token_ids] for out in plain])
    for config in (SpeculativeConfig(drafter, 4), SpeculativeConfig(drafter, 4, "rejection"), SpeculativeConfig(drafter, 4, "block")):
        drafted = tiny.generate(prompts, params, speculative_config=config)
        assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]
        metrics = [out.outputs[0].spec_decode_metrics for out in drafted]
        assert all(m is not None and m.drafter == "CorpusDrafter" and m.acceptance_rate > 0.5 for m in metrics)
