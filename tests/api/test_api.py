"""The public API by its rules: parameters, aliases, unknown arguments, defaults, outputs, streams, interrupts."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import (
    LLM,
    DeviceError,
    GenerationInterrupted,
    InvalidParamsError,
    Outputs,
    Receipt,
    SamplingParams,
    UnsupportedCombinationError,
)
from llmi.requests.scoring import windows
from llmi.text.prompts import is_single

GREEDY = SamplingParams(temperature=0, max_tokens=8)


# --- import and names


def test_import_is_light() -> None:
    """Nothing heavy is loaded by `import llmi`, nor by making a SamplingParams."""
    code = (
        "import sys; before = set(sys.modules); import llmi; llmi.SamplingParams; "
        "print(len(set(sys.modules) - before), {'torch', 'transformers', 'jinja2', 'tqdm', 'tokenizers', 'huggingface_hub', 'numpy'} & set(sys.modules))"
    )
    count, heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(" ", 1)
    assert heavy.strip() == "set()" and int(count) < 100, "74 modules with Python 3.11"


def test_a_first_token_needs_no_numpy(tiny_path: Callable[..., Path]) -> None:
    """It takes a quarter of the time from the start of `llmi generate` to the first token."""
    code = (
        "import sys; from llmi import LLM; llm = LLM(sys.argv[1], kv_cache_memory_bytes=1 << 25, max_model_len=2048); "
        "stream = llm.stream('ab', max_tokens=2000, ignore_eos=True); next(stream); print('numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tiny_path())], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_a_first_text_of_the_command_line_needs_no_numpy(tiny_path: Callable[..., Path]) -> None:
    # Of many tokens: the metrics of a request that has ended load numpy.
    code = (
        "import sys; from llmi.cli import commands; show, seen = commands.show, []\n"
        "def noted(text, end='\\n'): seen.append('numpy' in sys.modules); show(text, end)\n"
        "commands.show = noted; commands.main(['generate', '-m', sys.argv[1], '-p', 'ab', '--max-tokens', '200', '--ignore-eos']); print(seen[:2], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_path())], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[False, False]", "of the prompt and of the first text"


def test_every_public_name_exists() -> None:
    for name in llmi.__all__:
        assert getattr(llmi, name) is not None
    with pytest.raises(AttributeError):
        _ = llmi.nothing  # type: ignore[attr-defined]


# --- parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 1000),
        ("n", 1.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2.5),
        ("min_p", -0.1),
        ("seed", -2),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 500),
        ("repetition_penalty", 0),
        ("presence_penalty", math.inf),
        ("logprobs", -2),
        ("stop", [""]),
        ("stop", ["x"] * 100),
        ("allowed_token_ids", []),
        ("output_kind", "all"),
    ],
)
def test_values_out_of_range(tiny: LLM, field: str, value: Any) -> None:
    with pytest.raises(InvalidParamsError) as error:
        tiny.generate([1], **{field: value})
    assert (
        (error.value.parameter == field and repr(value)[:10] in str(error.value)) or field == "min_tokens" or "strings" in str(error.value)
    )


def test_unknown_arguments_name_the_nearest(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        tiny.generate([1], temprature=1)
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        LLM(tiny_path(), max_model_length=5)
    with pytest.raises(TypeError):
        SamplingParams(nonsense=1)  # type: ignore[call-arg]


def test_what_is_not_built_is_refused_by_name(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedCombinationError, match="tfs_z"):
        tiny.generate([1], tfs_z=0.9)
    with pytest.raises(UnsupportedCombinationError, match="expert_parallel"):
        LLM(tiny_path(), enable_expert_parallel=True)

    with pytest.raises(DeviceError, match="CUDA"):
        LLM(tiny_path(), device="cuda")
    tiny.generate([1], max_tokens=1, tfs_z=1.0, top_a=0)


def test_hugging_face_names(tiny: LLM) -> None:
    assert tiny.generate([1, 2], max_new_tokens=5, do_sample=False) == tiny.generate([1, 2], max_tokens=5, temperature=0)
    assert len(tiny.generate([1], num_return_sequences=2, max_tokens=2, seed=1)[0].outputs) == 2
    stop = tiny.generate([1, 2], max_tokens=8, temperature=0)[0].token_ids[3]
    assert tiny.generate([1, 2], max_tokens=8, temperature=0, eos_token_id=stop)[0].outputs[0].stop_reason == stop
    with pytest.raises(InvalidParamsError, match=r"max_new_tokens.*max_tokens|max_tokens.*max_new_tokens"):
        tiny.generate([1], max_tokens=3, max_new_tokens=4)
    greedy = tiny.generate([1, 2], do_sample=False, temperature=0.7, max_tokens=3)
    assert greedy == tiny.generate([1, 2], temperature=0, max_tokens=3), "as in transformers, which warns of it"
    with pytest.raises(InvalidParamsError, match="do_sample"):
        tiny.generate([1], do_sample=True, temperature=0)


def test_sources_of_values(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    for file in tiny_path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 5, "eos_token_id": [0, 7]}))
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 20, max_model_len=64, enforce_eager=True) as llm:
        resolved = llm.generate([1], top_k=9, max_tokens=2)[0].params_resolved
        assert resolved["temperature"] == (0.6, "model") and resolved["top_k"] == (9, "user") and resolved["top_p"] == (1.0, "default")
        assert resolved["enforce_eager"] == (True, "no effect")
        explicit = llm.generate([1], SamplingParams(max_tokens=2))[0].params_resolved
        assert explicit["temperature"] == (1.0, "default")
        assert llm.get_default_sampling_params().temperature == 0.6
        assert llm.tokenizer.eos_token_ids == {0, 7}
        assert llm.generate([1])[0].params_resolved["max_tokens"] == (64, "default")
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 20, max_model_len=64, generation_config="none") as llm:
        assert llm.get_default_sampling_params().temperature == 1.0


def test_seeds(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    first, second = tiny.generate([1, 2], max_tokens=8, temperature=2.0), tiny.generate([1, 2], max_tokens=8, temperature=2.0)
    assert first[0].seed != second[0].seed
    assert tiny.generate([1, 2], max_tokens=8, temperature=2.0, seed=first[0].seed) == first
    with LLM(tiny_path(), seed=5, kv_cache_memory_bytes=1 << 20, max_model_len=64) as llm:
        outputs = llm.generate([[1], [1]], max_tokens=8, temperature=2.0)
        assert outputs[0].seed != outputs[1].seed
        assert outputs == llm.generate([[1], [1]], max_tokens=8, temperature=2.0)
        same = llm.generate([[1], [1]], max_tokens=8, temperature=2.0, seed=3)
        assert same[0].token_ids == same[1].token_ids


# --- prompts and outputs


def test_kinds_of_prompts(tiny: LLM) -> None:
    assert is_single("x") and is_single([1, 2]) and is_single(np.array([1, 2])) and is_single({"prompt": "x"})
    assert not is_single(["x"]) and not is_single([[1], [2]]) and not is_single([])
    ids = tiny.tokenizer.encode("abc")
    outputs = [
        tiny.generate(prompt, GREEDY)[0] for prompt in ("abc", ids, np.array(ids, np.int32), {"prompt": "abc"}, {"prompt_token_ids": ids})
    ]
    assert all(output == outputs[0] for output in outputs)
    assert len(tiny.generate(["a", ids, {"prompt": "b"}], GREEDY)) == 3
    assert tiny.generate([], GREEDY) == []
    with pytest.raises(InvalidParamsError):
        tiny.generate({"text": "x"}, GREEDY)
    with pytest.raises(InvalidParamsError, match="2 sampling_params for 1"):
        tiny.generate("a", [GREEDY, GREEDY])


def test_outputs(tiny: LLM) -> None:
    outputs = tiny.generate(["ab", "<b>&"], GREEDY.replace(n=2, logprobs=3, prompt_logprobs=1))
    assert isinstance(outputs, Outputs) and outputs.texts == [output.text for output in outputs]
    for output in outputs:
        assert len(repr(output).splitlines()) <= 5
        for completion in output.outputs:
            assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
            for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
                assert entries[token].rank == 1 and entries[token].processed_logprob == 0.0
                assert len(entries) == 3 and sum(math.exp(entry.logprob) for entry in entries.values()) <= 1 + 1e-6
            assert completion.cumulative_logprob == pytest.approx(
                sum(e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True))
            )
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    page = outputs._repr_html_()
    assert "&lt;b&gt;&amp;" in page and "<b>&</b>" not in page.replace("<b>ab</b>", "")


def test_raw_and_processed_logprobs(tiny: LLM) -> None:
    output = tiny.generate([1, 2], temperature=0.5, top_k=2, max_tokens=5, seed=1, logprobs=-1)[0].outputs[0]
    assert output.logprobs is not None
    for token, entries in zip(output.token_ids, output.logprobs, strict=True):
        assert len(entries) == 257
        raw = np.array([entries[i].logprob for i in range(257)], np.float64)
        processed = np.array([entries[i].processed_logprob for i in range(257)], np.float64)
        assert np.exp(raw).sum() == pytest.approx(1, abs=1e-5) and np.exp(processed).sum() == pytest.approx(1, abs=1e-5)
        kept = np.isfinite(processed)
        assert kept.sum() == 2 and kept[token]
        best = raw[kept] / 0.5
        assert processed[kept] == pytest.approx(best - np.log(np.exp(best).sum()), abs=1e-5)


def test_stopping(tiny: LLM) -> None:
    base = tiny.generate([1, 2, 3], temperature=0.9, seed=4, max_tokens=30, ignore_eos=True)[0].outputs[0]
    assert base.finish_reason == "length" and base.stop_reason is None and len(base.token_ids) == 30
    text = base.text
    middle = text[6:8]
    cut = tiny.generate([1, 2, 3], temperature=0.9, seed=4, max_tokens=30, ignore_eos=True, stop=["never-there", middle])[0].outputs[0]
    assert cut.finish_reason == "stop" and cut.stop_reason == middle and cut.text == text[: text.index(middle)]
    kept = tiny.generate([1, 2, 3], temperature=0.9, seed=4, max_tokens=30, ignore_eos=True, stop=middle, include_stop_str_in_output=True)[
        0
    ]
    assert kept.text == text[: text.index(middle)] + middle
    token = base.token_ids[10]
    ended = tiny.generate([1, 2, 3], temperature=0.9, seed=4, max_tokens=30, ignore_eos=True, stop_token_ids=[token])[0].outputs[0]
    assert ended.stop_reason == token and ended.token_ids == base.token_ids[: base.token_ids.index(token) + 1]
    late = tiny.generate([1, 2, 3], temperature=0.9, seed=4, max_tokens=30, ignore_eos=True, stop_token_ids=[token], min_tokens=20)[
        0
    ].outputs[0]
    assert token not in late.token_ids[:20]
    eos = tiny.generate([1, 2, 3], temperature=0, max_tokens=5, logit_bias={0: 100.0})[0].outputs[0]
    assert eos.finish_reason == "stop" and eos.stop_reason is None and eos.text == "" and eos.token_ids == [0]
    shown = tiny.generate([1, 2, 3], temperature=0, max_tokens=2, logit_bias={0: 100.0}, ignore_eos=True, skip_special_tokens=False)[0]
    assert shown.text == "<eos><eos>"


# --- hooks


def test_hooks_see_plain_decoding(tiny: LLM) -> None:
    seen: list[tuple[int, int, str]] = []

    def count(context: llmi.TokenContext, logits: Any) -> None:
        context.state["calls"] = context.state.get("calls", 0) + 1
        assert context.prompt_len == 3 and context.token_ids.dtype == np.int32
        assert context.state["calls"] == len(context.token_ids) - 2
        seen.append((context.index, len(context.token_ids), context.output_text))

    plain = tiny.generate([1, 2, 3], temperature=0.8, seed=2, n=3, max_tokens=6, ignore_eos=True)
    hooked = tiny.generate([1, 2, 3], temperature=0.8, seed=2, n=3, max_tokens=6, ignore_eos=True, logits_processors=[count])
    assert plain == hooked and len(seen) == 18
    for output in plain[0].outputs:
        texts = [text for index, _, text in seen if index == output.index]
        assert all(output.text.startswith(text.rstrip("\ufffd")) for text in texts)


def test_processors_change_the_law(tiny: LLM) -> None:
    def only_seven(context: llmi.TokenContext, logits: Any) -> Any:
        return np.where(np.arange(len(logits)) == 7, 0.0, -np.inf)

    def boost(context: llmi.TokenContext, logits: Any) -> None:
        logits[9] += 1000

    assert tiny.generate([1], max_tokens=4, seed=0, logits_processors=[only_seven])[0].token_ids == [7] * 4
    assert tiny.generate([1], max_tokens=4, seed=0, logits_processors=[boost])[0].token_ids == [9] * 4
    assert tiny.generate([1], max_tokens=3, sampler=lambda context, law: len(context.token_ids))[0].token_ids == [1, 2, 3]


def test_stopping_criteria(tiny: LLM) -> None:
    def five(context: llmi.TokenContext) -> bool | str:
        return len(context.token_ids) - context.prompt_len >= 5 and "five tokens"

    output = tiny.generate([1, 2], max_tokens=20, seed=1, ignore_eos=True, stopping_criteria=[five])[0].outputs[0]
    assert len(output.token_ids) == 5 and output.stop_reason == "five tokens" and output.finish_reason == "stop"
    assert len(tiny.generate([1, 2], max_tokens=20, ignore_eos=True, stopping_criteria=[lambda c: len(c.token_ids) == 4])[0].token_ids) == 2


# --- streams and interrupts


def test_stream_equals_generate(tiny: LLM) -> None:
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=20, n=2, stop=["zzz"])
    expected = tiny.generate([[1], [2, 3]], params)
    with tiny.stream([[1], [2, 3]], params) as stream:
        texts: dict[tuple[int, int], str] = {}
        tokens: dict[tuple[int, int], list[int]] = {}
        for chunk in stream:
            key = (chunk.request_index, chunk.index)
            texts[key] = texts.get(key, "") + chunk.text
            tokens.setdefault(key, []).extend(chunk.token_ids)
    assert stream.outputs == expected
    for i, request in enumerate(expected):
        for completion in request.outputs:
            assert texts[i, completion.index] == completion.text and tokens[i, completion.index] == completion.token_ids


def test_stream_from_asyncio(tiny: LLM) -> None:
    async def collect(prompt: list[int]) -> str:
        return "".join([chunk.text async for chunk in tiny.stream(prompt, GREEDY)])

    async def both() -> list[str]:
        return list(await asyncio.gather(collect([1, 2]), collect([3])))

    assert asyncio.run(both()) == [tiny.generate([1, 2], GREEDY)[0].text, tiny.generate([3], GREEDY)[0].text]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also in a process that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", ["generate", "stream"])
def test_interrupt_keeps_partial_results(tiny: LLM, how: str) -> None:
    expected = tiny.generate([5], GREEDY)
    begun: set[str] = set()
    main = threading.main_thread().ident or 0

    def interrupts(context: Any) -> bool:
        """Once both requests have a token."""
        if context.request_id not in begun:
            begun.add(context.request_id)
            if len(begun) == 2:
                signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.005)
        return False

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=2000, stopping_criteria=[interrupts])
    with pytest.raises(GenerationInterrupted) as caught:
        if how == "generate":
            tiny.generate([[1], [2]], params)
        else:
            for _ in tiny.stream([[1], [2]], params):
                pass
    partial = caught.value.outputs
    assert all(0 < len(output.token_ids) < 2000 and output.outputs[0].finish_reason == "abort" for output in partial)
    assert isinstance(caught.value, KeyboardInterrupt)
    if how == "generate":
        assert tiny.last_outputs is partial
    assert tiny.generate([5], GREEDY) == expected, "the engine stays usable"


# --- scoring


def test_loglikelihood_is_the_sum_of_prompt_logprobs(tiny: LLM) -> None:
    result = tiny.loglikelihood([("abc", "def"), ("", "xy"), ("ab ", "c")])
    whole = tiny.generate("abcdef", max_tokens=1, prompt_logprobs=0)[0]
    assert whole.prompt_logprobs is not None
    ids = whole.prompt_token_ids
    wanted = [whole.prompt_logprobs[i][ids[i]].logprob for i in range(3, 6)]  # type: ignore[index]
    assert result[0].token_logprobs.tolist() == pytest.approx(wanted, abs=0) and result[0].logprob == pytest.approx(sum(wanted))
    assert len(result[1].token_logprobs) == 2 and len(result[2].token_logprobs) == 2, "the context's last space moves over"
    greedy = tiny.generate("abc", temperature=0, max_tokens=3)[0].token_ids
    assert tiny.loglikelihood([(tiny.tokenizer.encode("abc"), greedy)])[0].is_greedy


def test_perplexity_of_a_text_and_of_its_ids(tmp_path: Path) -> None:
    """encode() puts the beginning-of-text token in front, where perplexity has it already."""
    directory = llmi.testing.tiny_model(path=tmp_path, vocab_size=300, bos_token_id=1)
    data = json.loads((directory / "tokenizer.json").read_text())
    first = next(text for text, number in data["model"]["vocab"].items() if number == 1)
    step = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {first: {"id": first, "ids": [1], "tokens": [first]}},
    }
    (directory / "tokenizer.json").write_text(json.dumps(data | {"post_processor": step}))
    with LLM(directory, kv_cache_memory_bytes=1 << 22) as llm:
        ids = llm.tokenizer.encode("a few words")
        text, of_ids, without = llm.perplexity(["a few words", ids, ids[1:]])
        assert ids[0] == 1 and text.num_tokens == len(ids) - 1
        assert np.array_equal(text.token_logprobs, of_ids.token_logprobs) and np.array_equal(text.token_logprobs, without.token_logprobs)
        assert llm.perplexity([[1]])[0].num_tokens == 1


def test_perplexity_scores_each_token_once(tiny: LLM) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    whole = tiny.perplexity(text)[0]
    assert whole.num_tokens == len(text) and whole.perplexity == pytest.approx(math.exp(whole.nll / len(text)))
    assert whole.bits_per_byte == pytest.approx(whole.nll / math.log(2) / len(text))
    for stride in (None, 1, 7):
        part = tiny.perplexity(text, max_length=16, stride=stride)[0]
        assert part.num_tokens == len(text)
    assert_same_bits(tiny.perplexity(text, max_length=2048)[0].token_logprobs, whole.token_logprobs)


@pytest.mark.parametrize("stride", [None, 1, 3, 7])
@pytest.mark.parametrize("num_tokens", [2, 8, 9, 15, 16, 40])
def test_windows_cover_every_token_once(num_tokens: int, stride: int | None) -> None:
    scored = []
    for begin, end, first in windows(num_tokens, 8, stride):
        assert end - begin <= 9 and begin < first < end + 1
        scored += list(range(first, end))
    assert scored == list(range(1, num_tokens))


def test_log_softmax_is_the_engines_own(tiny: LLM) -> None:
    row = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum(-1, keepdims=True))
    assert np.abs(llmi.log_softmax(row) - exact).max() < 1e-6 and llmi.log_softmax(row).shape == (2, 300)


# --- receipts and reports


def test_receipts(tiny: LLM, tmp_path: Path) -> None:
    output = tiny.generate([1, 2], temperature=0.9, n=2, max_tokens=6, logprobs=1, logit_bias={3: 1.5}, stop=["q"])[0]
    path = tmp_path / "receipt.json"
    output.receipt().save(path)
    assert llmi.replay(path, tiny)
    for change in (
        {"seed": output.seed ^ 1},
        {"logprob_digest": "0"},
        {"sampling_params": {"temperature": 0.8, "max_tokens": 6, "n": 2, "logprobs": 1}},
    ):
        assert not llmi.replay(Receipt({**Receipt.load(path).fields, **change}), tiny)
    with pytest.raises(InvalidParamsError, match="SHA-256"):
        llmi.replay(Receipt({**Receipt.load(path).fields, "model_sha256": "0"}), tiny)
    with pytest.raises(InvalidParamsError, match="numerics id"):
        llmi.replay(Receipt({**Receipt.load(path).fields, "numerics_id": "0"}), tiny)
    path.write_text("{}")
    with pytest.raises(InvalidParamsError, match="not a receipt"):
        llmi.replay(path, tiny)
    with pytest.raises(UnsupportedCombinationError):
        tiny.generate([1], max_tokens=1, logits_processors=[lambda c, x: None])[0].receipt()


def test_reports(tiny: LLM) -> None:
    report = tiny.memory_report()
    assert report.num_free_blocks == report.num_blocks and "blocks in use" in report._repr_html_()
    assert tiny.model_info.architecture == "llama" and len(tiny.model_info.sha256) == 64
    assert "cpu" in tiny.model_info.numerics_id and "LLM(" in repr(tiny)
    facts = llmi.doctor().facts
    assert facts["kernels"] and str(llmi.doctor()).count("\n") >= 7


def test_memory_picture(tiny_path: Callable[..., Path]) -> None:
    """Block tables of requests and sequences: what is shared, what is given back behind a window."""
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 22, max_model_len=256, enable_prefix_caching=False) as llm:
        sequence = llm.sequence(list(range(1, 101)))
        _ = sequence.logits
        fork = sequence.fork()
        fork.extend([5])
        llm.enqueue([[7] * 40], max_tokens=20, n=2, seed=1, ignore_eos=True)
        for _ in range(3):
            llm.step()
        report = llm.memory_report()
        names = [entry.name.split()[0] for entry in report.sequences]
        assert names == ["request", "request", "sequence", "sequence"]
        request, _, first, second = report.sequences
        assert first.num_tokens == 100 and second.num_tokens == 101 and request.num_tokens == 42
        tables = np.concatenate(first.tables), np.concatenate(second.tables)
        references = np.concatenate(first.references)
        assert set(references[tables[0] < 0]) == {0}, "what is behind a window is held by nobody"
        common = np.isin(tables[0], tables[1]) & (tables[0] >= 0)
        assert common.any() and set(references[common]) == {2}
        held = np.concatenate([page[page >= 0] for entry in report.sequences for page in entry.tables])
        assert len(set(held)) == report.num_blocks - report.num_free_blocks
        text, page = repr(report), report._repr_html_()
        assert "=" in text and "#" in text and "." in text.splitlines()[3].split("tokens")[1] and page.count("<tr>") == 5
        llm.wait_for_completion()
        sequence.close()
        fork.close()
    assert llm.memory_report().sequences == []


def test_isa_that_the_machine_lacks(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_ISA", "neon")
    with pytest.raises(InvalidParamsError, match="neon"):
        LLM(tiny_path())
    for isa in ("avx2", "avx_vnni", "avx512", "avx512_bf16"):
        if isa not in llmi._core.system_info()["tables"]:  # type: ignore[attr-defined]
            monkeypatch.setenv("LLMI_ISA", isa)
            with pytest.raises(DeviceError, match=isa):
                LLM(tiny_path())


def test_two_engines_at_once(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 20, max_model_len=64) as other:
        assert other.generate([1], GREEDY)[0].token_ids != [] and tiny.generate([1], GREEDY)[0].token_ids != []
