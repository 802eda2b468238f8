"""guidance_scale: the row's rule in NumPy and by transformers, the sequence API as oracle, every configuration, and what is refused."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import crowded_llm, enumerable_llm, one_by_one, own_sampler, stateful
from llmi import (
    LLM,
    AsyncLLM,
    InvalidParamsError,
    Outputs,
    PromptLookup,
    SamplingParams,
    SpeculativeConfig,
    UnsupportedCombinationError,
    _core,
    log_softmax,
)
from llmi.testing import assert_same_tokens
from llmi.testing.draws import chi_square_tail
from test_promise import DRAFTERS, VERIFICATIONS

needs_testing = pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
T = getattr(_core, "testing", None)
SIZES = [5, 257, 4100, 49152]


def guided(conditional: Any, unconditional: Any, scale: float, table: str) -> Any:
    """The row's rule in NumPy, in fp32."""
    c, u = (row - np.float32(T.log_sum_exp(table, row)) for row in (conditional, unconditional))
    return u + np.float32(scale) * (c - u)


@needs_testing
@pytest.mark.parametrize("size", SIZES)
def test_the_rows_rule(cpu_table: str, size: int) -> None:
    rng = np.random.default_rng(size)
    for scale in (1.5, 0.0, -2.0, 1e-3, 7.0):
        c, u = rng.normal(0, 4, (2, size)).astype(np.float32)
        expected = guided(c, u, scale, "reference")
        assert_same_bits(T.guide(cpu_table, c, u, scale), expected)
    c[size // 2] = np.nan
    assert np.isnan(T.guide(cpu_table, c, u, 2.0)).all()


@pytest.mark.parity
@needs_testing
@pytest.mark.parametrize("negative", [None, [7, 3, 9]])
def test_transformers_rule(negative: list[int] | None) -> None:
    """Its processor gives the same rows, and begins its second sequence as llmi does: with the prompt's last token if none is given."""
    import torch
    from transformers.generation import logits_process as process

    rows = np.random.default_rng(0).normal(0, 4, (2, 300)).astype(np.float32)
    seen: list[Any] = []

    def model(ids: Any, **_: Any) -> Any:
        seen.append(ids.tolist())
        logits = torch.from_numpy(rows[1])[None, None].expand(1, ids.shape[1], -1)
        return SimpleNamespace(logits=logits, past_key_values=None, get=lambda *_: None)

    ids = None if negative is None else torch.tensor([negative])
    processor = process.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.7, model, unconditional_ids=ids)
    got = processor(torch.tensor([[4, 5, 6]]), torch.from_numpy(rows[0])[None])
    assert seen == [[[6]] if negative is None else [negative]]
    assert np.abs(got[0].numpy() - T.guide("reference", rows[0], rows[1], 1.7)).max() < 1e-5


def oracle(llm: LLM, prompt: Any, negative: Any, params: SamplingParams) -> tuple[list[int], list[float], list[float]]:
    """(tokens, raw log-probabilities, those of the law) on the sequence API."""
    assert params.guidance_scale is not None
    plain = params.replace(guidance_scale=None, negative_prompt=None)
    tokens, raw, processed = [], [], []
    with llm.sequence(prompt, seed=params.seed) as seq, llm.sequence(negative) as other:
        for _ in range(params.max_tokens or 0):
            c, u = log_softmax(seq.logits), log_softmax(other.logits)
            row = u + np.float32(params.guidance_scale) * (c - u)
            token = seq.sample(plain, logits=row)
            tokens.append(token)
            raw.append(float(c[token]))
            processed.append(float(np.log(seq.probs(plain, logits=row)[token])) if params.temperature else 0.0)
            llm.extend({seq: [token], other: [token]})
    return tokens, raw, processed


@pytest.fixture(scope="module")
def roomy(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 24, max_model_len=160) as llm:
        yield llm


PARAMS = [
    SamplingParams(temperature=0, guidance_scale=2.5, negative_prompt=[9, 8, 7], max_tokens=12, ignore_eos=True, logprobs=0),
    SamplingParams(guidance_scale=1.5, seed=3, max_tokens=12, ignore_eos=True, logprobs=0),
    SamplingParams(
        guidance_scale=-1.0,
        negative_prompt=[5] * 40,
        top_k=20,
        temperature=0.7,
        repetition_penalty=1.3,
        seed=4,
        max_tokens=12,
        ignore_eos=True,
        logprobs=0,
    ),
    SamplingParams(guidance_scale=0, negative_prompt=[4, 4, 6], seed=5, min_p=0.02, max_tokens=12, ignore_eos=True, logprobs=0),
]


@pytest.mark.parametrize("index", range(len(PARAMS)))
def test_two_sequences_give_the_same_tokens(roomy: LLM, index: int) -> None:
    params = PARAMS[index]
    for prompt in ([3, 1, 4, 1, 5, 9, 2, 6], [2] * 33, [11]):
        negative = prompt[-1:] if params.negative_prompt is None else params.negative_prompt
        tokens, raw, processed = oracle(roomy, prompt, negative, params)
        [completion] = roomy.generate([prompt], params)[0].outputs
        assert completion.token_ids == tokens
        assert completion.logprobs is not None
        found = [entries[token] for entries, token in zip(completion.logprobs, tokens, strict=True)]
        assert [entry.logprob for entry in found] == raw  # the prompt's own row
        assert np.allclose([entry.processed_logprob for entry in found], processed, atol=2e-6)


def test_texts_chats_and_empty_prompts(smollm: LLM) -> None:
    """A negative prompt is encoded as a prompt is; an empty one is beginning-of-text alone; in chat it may be messages."""
    params = SamplingParams(temperature=0, max_tokens=8, guidance_scale=5)
    prompt, text = "The capital of France is", "Germany's capital is"
    ids = smollm.tokenizer.encode(text)
    [by_text] = smollm.generate(prompt, params.replace(negative_prompt=text))
    assert by_text.outputs[0].token_ids == smollm.generate(prompt, params.replace(negative_prompt=np.array(ids)))[0].outputs[0].token_ids
    assert by_text.outputs[0].token_ids != smollm.generate(prompt, params.replace(guidance_scale=None))[0].outputs[0].token_ids
    begin = [smollm.tokenizer.bos_token_id]
    tokens = {
        name: smollm.generate(prompt, params.replace(negative_prompt=value))[0].outputs[0].token_ids
        for name, value in (("text", ""), ("ids", []), ("bos", begin))
    }
    assert tokens["text"] == tokens["ids"] == tokens["bos"]
    last = smollm.tokenizer.encode(prompt)[-1:]
    assert (
        smollm.generate(prompt, params)[0].outputs[0].token_ids
        == smollm.generate(prompt, params.replace(negative_prompt_ids=last))[0].outputs[0].token_ids
    )
    chat, negative = [{"role": "user", "content": "Name a colour."}], [{"role": "user", "content": "Name a town."}]
    rendered = smollm.tokenizer.apply_chat_template(negative, tokenize=True, add_generation_prompt=True)
    [answer] = smollm.chat(chat, params.replace(negative_prompt=negative))
    assert answer.outputs[0].token_ids == smollm.chat(chat, params.replace(negative_prompt=rendered))[0].outputs[0].token_ids
    with smollm.stream(chat, params.replace(negative_prompt=negative)) as stream:
        assert "".join(chunk.text for chunk in stream) == answer.outputs[0].text
    with pytest.raises(InvalidParamsError, match="give them to chat") as error:
        smollm.generate(prompt, params.replace(negative_prompt=negative))
    assert error.value.parameter == "negative_prompt"


# --- configurations


def crowd(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Requests with and without guidance, some with n, with prompts that are shorter and longer than their negative ones."""
    rng = np.random.default_rng(7)
    prompts, params = [], []
    for i in range(count):
        prompts.append(rng.integers(1, 257, size=1 + (i * 13) % 40).tolist())
        negative = [None, rng.integers(1, 257, size=1 + (i * 7) % 37).tolist(), [5, 6, 7] * 8][i % 3]
        params.append(
            SamplingParams(
                temperature=[0.0, 0.8, 1.0][i % 3],
                max_tokens=8 + i % 9,
                seed=i,
                n=1 + (i % 4 == 0),
                ignore_eos=True,
                logprobs=1,
                top_p=[1.0, 0.9][i % 2],
                guidance_scale=None if i % 5 == 4 else 0.5 + i % 4,
                negative_prompt=negative,
                prompt_logprobs=1 if i % 6 == 0 else None,
                logits_processors=[stateful] if i % 7 == 2 else [],
                sampler=own_sampler if i % 11 == 3 else None,
            )
        )
    return prompts, params


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "together": {},
    "steps of 1": {"max_num_batched_tokens": 1},
    "steps of 7": {"max_num_batched_tokens": 7},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 160},
    "blocks of 64": {"block_size": 64},
    "no prefix cache, one thread": {"enable_prefix_caching": False, "num_threads": 1},
    "four sequences": {"max_num_seqs": 4},
    "static": {"scheduling_policy": "static", "max_num_seqs": 6},
    "shortest first": {"scheduling_policy": "shortest_remaining"},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "device": {"device": "cuda"},
    "device, steps of 5": {"device": "cuda", "max_num_batched_tokens": 5, "max_num_seqs": 5},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], roomy: LLM, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    prompts, params = crowd(24 if "device" not in name else 12)
    expected = one_by_one(roomy, prompts, params)
    with LLM(tiny_path("gemma3"), **{"kv_cache_memory_bytes": 1 << 24, "max_model_len": 160, **CONFIGURATIONS[name]}) as llm:
        assert_same_tokens(llm.generate(prompts, params), expected)
        if name == "together":
            assert len({tuple(output.outputs[0].token_ids) for output in expected}) == len(prompts)
            unguided = [one.replace(guidance_scale=None) for one in params]
            changed = sum(
                a.outputs[0].token_ids != b.outputs[0].token_ids
                for a, b in zip(expected, one_by_one(roomy, prompts, unguided), strict=True)
            )
            assert changed > len(prompts) // 2


def test_preemption_takes_both_caches(tiny_path: Callable[..., Path], roomy: LLM) -> None:
    prompts, params = crowd(40)
    with crowded_llm(tiny_path("gemma3"), 30, max_model_len=140, max_num_batched_tokens=48) as llm:
        assert_same_tokens(llm.generate(prompts, params), one_by_one(roomy, prompts, params))
        assert llm.get_metrics()["num_preemptions"] >= 5


def test_prefix_hits_of_each_prompt(tiny_path: Callable[..., Path]) -> None:
    rng = np.random.default_rng(1)
    prompt, negative = (rng.integers(1, 257, size=size).tolist() for size in (70, 90))
    params = SamplingParams(guidance_scale=2.0, negative_prompt=negative, max_tokens=4, seed=1, ignore_eos=True, logprobs=1)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, max_model_len=160, block_size=16) as llm:
        first = llm.generate([prompt], params)
        before = llm.get_metrics()["num_prefix_hit_tokens"]
        again = llm.generate([prompt], params)
        assert again[0].num_cached_tokens == 64  # the prompt's own
        assert llm.get_metrics()["num_prefix_hit_tokens"] - before == 64 + 80
        assert_same_tokens(again, first)


# --- drafts


@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_drafts_and_the_batch(tiny_path: Callable[..., Path], verification: str) -> None:
    """The tokens are those of the sequence alone, whatever the step; without noise they are those of plain decoding."""
    rng = np.random.default_rng(3)
    prompts = [(rng.integers(1, 16, size=2 + i % 5).tolist() * 6)[: 4 + i] for i in range(15)]
    params = [
        SamplingParams(
            temperature=[0.0, 0.7, 1.1][i % 3],
            max_tokens=10 + i % 4,
            seed=i,
            n=1 + (i % 6 == 1),
            ignore_eos=True,
            guidance_scale=[1.7, -0.5][i % 2],
            negative_prompt=[1, 2, 3][: i % 4],
        )
        for i in range(15)
    ]
    path = tiny_path("llama", vocab_size=16)
    with (
        LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm,
        LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128, max_num_batched_tokens=9, max_num_seqs=6) as small,
        crowded_llm(path, 12, max_model_len=128) as few,
    ):
        plain = one_by_one(llm, prompts, params)
        accepted = 0
        for drafter in ("lookup", "law") if verification == "block" else DRAFTERS:
            config = SpeculativeConfig(DRAFTERS[drafter](), 5, verification)
            expected = one_by_one(llm, prompts, params, speculative_config=config)
            accepted += sum(output.outputs[0].spec_decode_metrics.num_accepted_tokens for output in expected)
            for engine in (llm, small, few):
                assert_same_tokens(engine.generate(prompts, params, speculative_config=config), expected)
            for output, drafted, one in zip(plain, expected, params, strict=True):
                if verification == "coupled" or (one.temperature == 0 and verification != "typical"):
                    assert [c.token_ids for c in drafted.outputs] == [c.token_ids for c in output.outputs]
        assert accepted > 20


def test_rejection_keeps_the_law(tiny_path: Callable[..., Path]) -> None:
    """Two tokens of a model with 16, against their law by enumeration."""
    scale, negative, prompt = 1.6, [3, 5], [7, 2, 7, 2, 7]
    with enumerable_llm(tiny_path, num_layers=2) as llm:
        law: dict[tuple[int, ...], float] = {}

        def row(tokens: list[int]) -> Any:
            with llm.sequence([*prompt, *tokens]) as seq, llm.sequence([*negative, *tokens]) as other:
                c, u = log_softmax(seq.logits).astype(np.float64), log_softmax(other.logits).astype(np.float64)
            weights = np.exp(u + scale * (c - u))
            return weights / weights.sum()

        first = row([])
        for a in range(16):
            for b, probability in enumerate(row([a])):
                law[a, b] = first[a] * probability
        params = SamplingParams(n=100, max_tokens=2, ignore_eos=True, guidance_scale=scale, negative_prompt=negative)
        config = SpeculativeConfig(DRAFTERS["law"](), 2, "rejection")
        seen = Counter(
            tuple(completion.token_ids)
            for seed in range(30)
            for completion in llm.generate([prompt], params.replace(seed=seed), speculative_config=config)[0].outputs
        )
    total = seen.total()
    large = [pair for pair, probability in law.items() if probability * total >= 5]
    rest = 1 - sum(law[pair] for pair in large)
    pairs = [(seen[pair], law[pair] * total) for pair in large] + [(total - sum(seen[pair] for pair in large), rest * total)]
    statistic = sum((count - expected) ** 2 / expected for count, expected in pairs if expected > 0)
    assert chi_square_tail(statistic, len(large)) > 1e-4


def test_a_sampler_under_speculation_is_refused(tiny: LLM) -> None:
    params = SamplingParams(guidance_scale=2.0, sampler=own_sampler, max_tokens=3)
    tiny.generate([[1, 2]], params)
    with pytest.raises(UnsupportedCombinationError, match="sampler with guidance_scale") as error:
        tiny.generate([[1, 2]], params, speculative_config=PromptLookup())
    assert error.value.parameter == "sampler"


# --- ways to get results


def test_streams_async_receipts_and_traces(tiny: LLM) -> None:
    params = SamplingParams(guidance_scale=1.9, negative_prompt="no", max_tokens=9, seed=2, ignore_eos=True, logprobs=2, n=2)
    [output] = tiny.generate([[1, 2, 3]], params, trace=True)
    with tiny.stream([[1, 2, 3]], params) as stream:
        parts = [(chunk.index, chunk.text) for chunk in stream]
    for completion in output.outputs:
        assert "".join(text for index, text in parts if index == completion.index) == completion.text

    async def last() -> Any:
        async with AsyncLLM(llm=tiny) as server:
            return [step async for step in server.generate([1, 2, 3], params)][-1]

    assert_same_tokens(Outputs([asyncio.run(last())]), Outputs([output]))
    receipt = output.receipt()
    assert receipt.fields["sampling_params"]["negative_prompt"] == tiny.tokenizer.encode("no")
    assert llmi.replay(receipt, tiny)
    receipt.fields["sampling_params"]["negative_prompt"] = [9, 9]
    assert not llmi.replay(receipt, tiny)
    trace = output.outputs[0].trace
    assert trace is not None
    with tiny.sequence([1, 2, 3]) as seq:  # the trace's raw values are those of the prompt's own row
        assert np.float32(trace.to_dict()["raw_logprob"][0]) == log_softmax(seq.logits)[output.outputs[0].token_ids[0]]


def test_what_is_shown(tiny: LLM) -> None:
    shown = tiny.generate([[1]], max_tokens=1, negative_prompt=[4], guidance_scale=1)[0].params_resolved
    assert shown["negative_prompt"] == ([4], "no effect")
    shown = tiny.generate([[1]], max_tokens=1, negative_prompt=[4], guidance_scale=2)[0].params_resolved
    assert shown["negative_prompt"] == ([4], "user") and shown["guidance_scale"] == (2.0, "user")
    plain = tiny.generate([[1, 2]], max_tokens=6, seed=1, ignore_eos=True)
    assert_same_tokens(tiny.generate([[1, 2]], max_tokens=6, seed=1, ignore_eos=True, guidance_scale=1.0, negative_prompt=[3]), plain)


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"guidance_scale": float("nan")}, "guidance_scale", "finite"),
        ({"guidance_scale": "2"}, "guidance_scale", "finite"),
        ({"guidance_scale": True}, "guidance_scale", "finite"),
        ({"guidance_scale": 2, "negative_prompt": 5}, "negative_prompt", "a list of token ids"),
        ({"guidance_scale": 2, "negative_prompt": [-1]}, "negative_prompt", "a list of token ids"),
        ({"guidance_scale": 2, "negative_prompt": [1000]}, "negative_prompt", r"id 1000 is outside \[0, 257\)"),
        (
            {"guidance_scale": 2, "negative_prompt": [1] * 126, "max_tokens": 4},
            "negative_prompt",
            "126 tokens and max_tokens = 4 .* 128: room for 3",
        ),
        ({"guidance_scale": 2, "negative_prompt": [1] * 200}, "negative_prompt", "200 tokens .* 128: room for 0"),
        ({"guidance_scale": 2, "n": 3}, "guidance_scale", "3 samples are 6 sequences, two each, which exceeds max_num_seqs = 4"),
        ({"guidance_scale": 2, "dola_layers": "low"}, "guidance_scale", "cannot be set together"),
        ({"negative_prompt_attention_mask": [1]}, "negative_prompt_attention_mask", "without padding"),
    ],
)
def test_bad_input(tiny_path: Callable[..., Path], fields: dict[str, Any], parameter: str, message: str) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128, max_num_seqs=4) as llm:
        with pytest.raises(InvalidParamsError, match=message) as error:
            llm.generate([[1, 2, 3]], **{"max_tokens": 2, **fields})
        assert error.value.parameter == parameter
        assert llm.get_metrics()["num_steps"] == 0


@pytest.mark.parametrize(
    ("negative", "message"),
    [
        ([{"role": 5, "content": "x"}], r"negative_prompt\[0\]: its role is 5"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 5}], r"negative_prompt\[1\]: its content is of type int"),
        ([{"role": "user", "content": "bad"}], "negative_prompt: .*refused by the template"),
    ],
)
def test_bad_messages_name_the_negative_prompt(tiny_path: Callable[..., Path], negative: Any, message: str) -> None:
    template = "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('refused by the template') }}{% endif %}{{ m.content }}{% endfor %}"
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128, chat_template=template) as llm:
        with pytest.raises(InvalidParamsError, match=message) as error:
            llm.chat([{"role": "user", "content": "hi"}], guidance_scale=2, negative_prompt=negative, max_tokens=2)
        assert error.value.parameter == "negative_prompt"
        with pytest.raises(llmi.ChatTemplateError, match=r"messages\[0\]"):
            llm.chat([{"role": 5, "content": "x"}], guidance_scale=2, negative_prompt=negative, max_tokens=2)


def test_room_for_both(tiny_path: Callable[..., Path]) -> None:
    """max_tokens runs to the end of the longer sequence; the pool must hold both."""
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=96) as llm:
        [output] = llm.generate([[1, 2]], guidance_scale=1.5, negative_prompt=[3] * 90, max_tokens=None, ignore_eos=True)
        assert len(output.outputs[0].token_ids) == 7
        page = llm._page_bytes
    with LLM(tiny_path(), kv_cache_memory_bytes=page * 7, max_model_len=96) as llm:
        llm.generate([[1] * 80], max_tokens=4, ignore_eos=True)
        with pytest.raises(
            llmi.OutOfMemoryError,
            match="guidance_scale: a sequence of 83 tokens and one of 33 for the negative prompt need 9 KV pages, the cache has 7",
        ):
            llm.generate([[1] * 80], max_tokens=4, guidance_scale=2, negative_prompt=[2] * 30)
        [output] = llm.generate([[1] * 60], max_tokens=4, guidance_scale=2, negative_prompt=[2] * 30, ignore_eos=True)
        assert len(output.outputs[0].token_ids) == 4


def test_a_sequence_has_one_row(tiny: LLM) -> None:
    with tiny.sequence([1, 2]) as seq:
        for call in (seq.sample, seq.probs):
            with pytest.raises(UnsupportedCombinationError, match="a sequence has one row") as error:
                call(SamplingParams(guidance_scale=2))
            assert error.value.parameter == "guidance_scale"


def test_an_interrupt_keeps_what_there_is(tiny: LLM) -> None:
    """A criterion that raises ends its own request; guided batch mates go on, and no page is lost."""
    prompts = [[1, 2], [3, 4, 5]]
    free = tiny.get_metrics()["num_free_pages"]
    counter = itertools.count()

    def criterion(context: Any) -> bool:
        if next(counter) == 2:
            raise ValueError("enough")
        return False

    params = [
        SamplingParams(guidance_scale=2, max_tokens=6, ignore_eos=True, stopping_criteria=[criterion]),
        SamplingParams(guidance_scale=2, max_tokens=6, ignore_eos=True),
    ]
    outputs = tiny.generate(prompts, params, on_error="return")
    assert outputs[0].error is not None and outputs[1].error is None
    assert_same_tokens(Outputs([outputs[1]]), tiny.generate([prompts[1]], params[1].replace(seed=outputs[1].seed)))
    assert tiny.get_metrics()["num_free_pages"] == free
