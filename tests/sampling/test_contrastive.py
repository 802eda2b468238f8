"""Contrastive search: the definition on the sequence API, what must not change a token, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import crowded_llm, has_bits_of_its_own, stateful, there
from llmi import LLM, Capture, InvalidParamsError, Outputs, PromptLookup, SamplingParams, UnsupportedCombinationError, log_softmax
from llmi.models import by_name
from llmi.testing import assert_same_tokens

FROZEN = Path(__file__).parents[1] / "data" / "contrastive.json"
PROMPT = np.random.default_rng(3).integers(1, 257, size=37).tolist()


def final_norm(path: Path) -> Callable[[Any], Any]:
    """The final norm of a tiny model, in float64."""
    data = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])["model.norm.weight"]
    begin, end = entry["data_offsets"]
    weight = np.frombuffer(data[8 + size + begin : 8 + size + end], {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(
        np.float64
    )
    config = json.loads((path / "config.json").read_text())
    weight = weight + (config["model_type"] == "gemma3_text")
    return lambda rows: rows / np.sqrt((rows.astype(np.float64) ** 2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def oracle(llm: LLM, norm: Callable[[Any], Any], prompt: list[int], top_k: int, alpha: float, count: int, bias: Any = 0.0) -> list[int]:
    """The definition: every candidate is tried on a fork."""
    last = llm.model_info.num_layers
    with llm.sequence(prompt[:1], capture=Capture(hidden_states=[-1])) as sequence:
        context = norm(sequence.hidden_states[last])
        if prompt[1:]:
            sequence.extend(prompt[1:])
            context = np.concatenate([context, norm(sequence.hidden_states[last])])
        for _ in range(count):
            row = sequence.logits + bias
            ids = np.argsort(-row, kind="stable")[:top_k]
            probs = np.exp(log_softmax(row)[ids].astype(np.float64))
            forks = [sequence.fork() for _ in ids]
            for fork, token in zip(forks, ids, strict=True):
                fork.extend([int(token)])
            hidden = np.concatenate([norm(fork.hidden_states[last]) for fork in forks])
            scores = (1 - alpha) * probs - alpha * (unit(hidden) @ unit(context).T).max(-1)
            best = int(np.argmax(scores))
            context = np.concatenate([context, hidden[best : best + 1]])
            sequence.extend([int(ids[best])])
            for fork in forks:
                fork.close()
        return sequence.token_ids.tolist()[len(prompt) :]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize(("top_k", "alpha"), [(2, 0.5), (4, 0.6), (9, 1.0), (64, 0.8)])
def test_definition(tiny_path: Callable[..., Path], architecture: str, top_k: int, alpha: float) -> None:
    path = tiny_path(architecture)
    bias = np.random.default_rng(1).normal(0, 3, 257).astype(np.float32)
    differ = 0
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        for length in (1, 2, 37):
            more = {"penalty_alpha": alpha, "top_k": top_k, "max_tokens": 12, "ignore_eos": True}
            got = llm.generate([PROMPT[:length]], logit_bias=dict(enumerate(bias.tolist())), **more)[0]
            assert got.token_ids == oracle(llm, final_norm(path), PROMPT[:length], top_k, alpha, 12, bias)
            plain = llm.generate(
                [PROMPT[:length]], logit_bias=dict(enumerate(bias.tolist())), temperature=0, max_tokens=12, ignore_eos=True
            )[0]
            differ += got.token_ids != plain.token_ids
    assert differ, "the hidden states decide nothing"


# --- peers


def test_transformers_had_the_same(tiny_path: Callable[..., Path]) -> None:
    """Tokens of transformers 4.52.4, the last version whose core has it, in float32 (`PYTHONPATH=tests/support python tests/sampling/test_contrastive.py` writes them)."""
    with LLM(tiny_path(), dtype="float32", kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        for run in json.loads(FROZEN.read_text()):
            more = {"penalty_alpha": run["alpha"], "top_k": run["top_k"], "repetition_penalty": run["penalty"], "max_tokens": 24}
            assert llm.generate([run["prompt"]], ignore_eos=True, use_tqdm=False, **more)[0].token_ids == run["tokens"], run


# --- what must not change a token


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(8)
    prompts = [rng.integers(1, 257, size=size).tolist() for size in (1, 15, 16, 33, 50, 64, 20, 40)]
    base = SamplingParams(penalty_alpha=0.6, top_k=4, max_tokens=24, ignore_eos=True, logprobs=2)
    plain = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=24, ignore_eos=True, logprobs=2)
    params = [
        base,
        base.replace(top_k=9, penalty_alpha=0.3, logits_processors=[stateful]),
        base.replace(top_k=2, repetition_penalty=1.3),
        plain,
    ]
    return prompts, params * 2


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tiny_path: Callable[..., Path]) -> Path:
    return tiny_path(request.param)


@pytest.fixture(scope="module")
def expected(path: Path) -> Outputs:
    """Each request alone."""
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        return Outputs(llm.generate([prompt], params, use_tqdm=False)[0] for prompt, params in zip(*requests(), strict=True))


ENGINES: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "steps of less than a tree": {"max_num_batched_tokens": 3, "block_size": 64},
    "no prefix cache, one thread": {"enable_prefix_caching": False, "num_threads": 1},
    "a static batch": {"scheduling_policy": "static"},
    "prefills first": {"scheduling_policy": "prefill_first", "max_num_batched_tokens": 32},
    "the fewest tokens first": {"scheduling_policy": "shortest_remaining", "max_num_seqs": 3},
}


@pytest.mark.parametrize("name", ENGINES)
def test_company_changes_no_bit(path: Path, expected: Outputs, name: str) -> None:
    prompts, params = requests()
    with LLM(path, **{"kv_cache_memory_bytes": 1 << 23, "max_model_len": 128, **ENGINES[name]}) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), expected)


def test_preemption_changes_no_bit(path: Path) -> None:
    """Sequences grow until the pool, which their hidden states fill, has no page left."""
    params = [SamplingParams(penalty_alpha=0.6, top_k=4 + i, max_tokens=48, ignore_eos=True, logprobs=2) for i in range(6)]
    prompts = [PROMPT[i : i + 9] for i in range(6)]
    num_pages = 56 if "gemma" in (path / "config.json").read_text() else 16
    with crowded_llm(path, num_pages, max_model_len=128, max_num_batched_tokens=40) as llm:
        together = llm.generate(prompts, params, use_tqdm=False)
        assert_same_tokens(together, Outputs(llm.generate([p], q, use_tqdm=False)[0] for p, q in zip(prompts, params, strict=True)))
        assert sum(output.metrics.num_preemptions for output in together) >= 3


def test_tables_and_devices_change_no_bit(path: Path, expected: Outputs, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, params = requests()
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128, **there(monkeypatch, table)) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), expected)


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_types_of_the_cache(path: Path, kv_cache_dtype: str, device: str) -> None:
    """Candidates move within caches of every type, on a device as on the host."""
    if has_bits_of_its_own(device, kv_cache_dtype):
        pytest.skip("the tensor cores' order of sums is another")
    prompts, params = requests()
    outputs = []
    for where in ("cpu", "cuda"):
        with LLM(path, device=where, kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
            outputs.append(llm.generate(prompts, params, use_tqdm=False))
    assert_same_tokens(*outputs)


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_models(name: str) -> None:
    """Their tokens alone, and next to other requests in small chunks."""
    prompts = ["DeepMind Company is", "The most important thing about a good breakfast is that", "A B C D E"]
    search = SamplingParams(penalty_alpha=0.6, top_k=4, max_tokens=24, logprobs=1)
    greedy = SamplingParams(temperature=0, max_tokens=24, logprobs=1)
    params = [search, search.replace(top_k=12), greedy]
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 27, "max_model_len": 256}
    with LLM(by_name.fetch(name), **options) as llm:
        alone = Outputs(llm.generate([prompt], given, use_tqdm=False)[0] for prompt, given in zip(prompts, params, strict=True))
        assert alone[0].token_ids != llm.generate([prompts[0]], greedy, use_tqdm=False)[0].token_ids
    with LLM(by_name.fetch(name), max_num_batched_tokens=6, num_threads=1, **options) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), alone)


# --- edges


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        yield llm


SEARCH: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4, "max_tokens": 16, "ignore_eos": True, "use_tqdm": False}


def test_alpha_0_is_greedy(path: Path) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        for top_k in (2, 64):
            more = {"max_tokens": 20, "ignore_eos": True, "repetition_penalty": 1.4}
            search = llm.generate([PROMPT], penalty_alpha=0.0, top_k=top_k, **more)[0]
            assert search.token_ids == llm.generate([PROMPT], temperature=0, **more)[0].token_ids


def test_log_probabilities(llm: LLM) -> None:
    """Of the model's row, and of the processed one, which the score reads."""
    bias = {token: float(value) for token, value in enumerate(np.random.default_rng(1).normal(0, 2, 257).astype(np.float32))}
    output = llm.generate([PROMPT], logprobs=3, logit_bias=bias, **SEARCH)[0].outputs[0]
    assert output.logprobs is not None
    for i, token in enumerate(output.token_ids):
        with llm.sequence([*PROMPT, *output.token_ids[:i]]) as sequence:
            raw = sequence.logits
        entry = output.logprobs[i][token]
        assert entry.logprob == log_softmax(raw)[token]
        assert abs(entry.processed_logprob - log_softmax(raw + np.array(list(bias.values()), np.float32))[token]) < 1e-5
    assert output.cumulative_logprob == sum(
        float(entry[token].logprob) for entry, token in zip(output.logprobs, output.token_ids, strict=True)
    )


def test_fewer_candidates_than_top_k(llm: LLM) -> None:
    for allowed in ([9], [9, 12, 200]):
        got = llm.generate([PROMPT], allowed_token_ids=allowed, **SEARCH)[0]
        assert set(got.token_ids) <= set(allowed) and len(got.token_ids) == 16
    assert set(llm.generate([PROMPT], allowed_token_ids=[9, 12, 200], **{**SEARCH, "penalty_alpha": 1.0})[0].token_ids) > {9}


def test_hooks_see_the_emitted_path_alone(llm: LLM) -> None:
    """A processor sees each position once, with the tokens that were emitted; a criterion sees the row that its token came from."""
    seen: list[list[int]] = []
    rows: list[tuple[list[int], Any]] = []

    def watch(context: llmi.TokenContext, logits: Any) -> None:
        seen.append(context.token_ids.tolist())

    def stop(context: llmi.TokenContext) -> bool:
        rows.append((context.token_ids.tolist(), context.logits.copy()))
        return len(rows) == 9

    output = llm.generate([PROMPT], logits_processors=[watch], stopping_criteria=[stop], **SEARCH)[0]
    assert len(output.token_ids) == 9 and output.token_ids == llm.generate([PROMPT], **SEARCH)[0].token_ids[:9]
    assert seen == [[*PROMPT, *output.token_ids[:i]] for i in range(9)]
    for i, (tokens, row) in enumerate(rows):
        assert tokens == [*PROMPT, *output.token_ids[: i + 1]]
        with llm.sequence(tokens[:-1]) as sequence:
            assert_same_bits(sequence.logits, row)


def test_ends(llm: LLM) -> None:
    """Stop ids among the candidates end it only when they are chosen, and not before min_tokens."""
    whole = llm.generate([PROMPT], **SEARCH)[0].token_ids
    stopped = llm.generate([PROMPT], stop_token_ids=[whole[5]], **SEARCH)[0]
    assert stopped.token_ids == whole[: whole.index(whole[5]) + 1]
    held = llm.generate([PROMPT], stop_token_ids=[whole[5]], min_tokens=12, **SEARCH)[0].token_ids
    assert len(held) >= 12 and whole[5] not in held[:11]


def test_streams_and_traces(llm: LLM) -> None:
    expected = llm.generate([PROMPT], **SEARCH)[0]
    options = {name: value for name, value in SEARCH.items() if name != "use_tqdm"}
    assert "".join(chunk.text for chunk in llm.stream(PROMPT, **options)) == expected.outputs[0].text
    traced = llm.generate([PROMPT], trace=True, **SEARCH)[0]
    assert traced.token_ids == expected.token_ids
    trace = traced.outputs[0].trace
    assert trace is not None and len(trace) == 16 * 4
    columns = trace.to_dict()
    chosen = columns["accepted"] == 1
    assert columns["token_id"][chosen].tolist() == expected.token_ids and (columns["depth"] == 1).all()
    assert (columns["num_kept"] == 4).all() and np.isfinite(columns["processed_logprob"]).all()


def test_serving(llm: LLM) -> None:
    """Side by side in an AsyncLLM, and one that is left."""
    params = SamplingParams(**{name: value for name, value in SEARCH.items() if name != "use_tqdm"})
    prompts = [PROMPT, PROMPT[:9], PROMPT[9:]]
    expected = llm.generate(prompts, params, use_tqdm=False)

    async def last(engine: llmi.AsyncLLM, prompt: list[int]) -> llmi.RequestOutput:
        return [output async for output in engine.generate(prompt, params)][-1]

    async def main() -> list[llmi.RequestOutput]:
        async with llmi.AsyncLLM(llm=llm) as engine:
            async for output in engine.generate(PROMPT, params):
                if output.token_ids:
                    break
            return list(await asyncio.gather(*(last(engine, prompt) for prompt in prompts)))

    assert [output.token_ids for output in asyncio.run(main())] == [output.token_ids for output in expected]


def test_a_receipt_repeats_it(llm: LLM) -> None:
    output = llm.generate([PROMPT], **SEARCH)[0]
    assert llmi.replay(output.receipt(), llm)


def test_prefix_hits_are_skipped(llm: LLM) -> None:
    plain = {"max_tokens": 2, "temperature": 0.0, "use_tqdm": False}
    llm.generate([PROMPT], **plain)
    assert llm.generate([PROMPT], **plain)[0].num_cached_tokens > 16
    search = llm.generate([PROMPT], **SEARCH)[0]
    assert search.num_cached_tokens == 0 and search.params_resolved["enable_prefix_caching"] == (True, "no effect")
    assert llm.generate([PROMPT], **plain)[0].num_cached_tokens > 16, "its own blocks serve others"
    with llm.sequence(PROMPT) as sequence:
        _ = sequence.logits
        again = llm.generate([sequence], **SEARCH)[0]
    assert again.token_ids == search.token_ids and again.num_cached_tokens == 0


def test_parameters_resolved(llm: LLM) -> None:
    resolved = llm.generate([PROMPT], top_p=0.9, **SEARCH)[0].params_resolved
    assert resolved["temperature"] == (0.0, "default") and resolved["top_k"] == (4, "user") and resolved["penalty_alpha"] == (0.6, "user")
    assert resolved["top_p"] == (0.9, "no effect")
    assert SamplingParams(penalty_alpha=0.6, top_k=4).temperature == 0


# --- refusals


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1}, "top_k"),
        ({"top_k": 65}, "top_k"),
        ({"n": 2}, "n = 2"),
        ({"temperature": 0.7}, r"temperature = 0\.7"),
        ({"do_sample": True}, "do_sample"),
        ({"sampler": lambda context, law: 0}, "sampler"),
        ({"penalty_alpha": -0.1}, "penalty_alpha"),
        ({"penalty_alpha": 1.5}, "penalty_alpha"),
        ({"penalty_alpha": float("nan")}, "penalty_alpha"),
        ({"penalty_alpha": "x"}, "penalty_alpha"),
        ({"speculative_config": PromptLookup()}, "speculative_config"),
        ({"mirostat": 2}, "mirostat"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refusals(llm: LLM, more: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParamsError, match=named) as error:
        llm.generate([PROMPT], **{**SEARCH, **more})
    assert "penalty_alpha" in str(error.value) or "mirostat" in str(error.value)


def test_a_sequence_has_no_candidates(llm: LLM) -> None:
    with llm.sequence(PROMPT) as sequence, pytest.raises(UnsupportedCombinationError, match="penalty_alpha"):
        sequence.probs(SamplingParams(penalty_alpha=0.6, top_k=4))


def test_the_engines_drafter_is_left_out(tiny_path: Callable[..., Path], llm: LLM) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=256, speculative_config=PromptLookup()) as drafting:
        prompts = [PROMPT, [5, 6] * 20]
        got = drafting.generate(
            prompts,
            [
                SamplingParams(**{k: v for k, v in SEARCH.items() if k != "use_tqdm"}),
                SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
            ],
        )
        assert got[0].token_ids == llm.generate([PROMPT], **SEARCH)[0].token_ids and got[0].outputs[0].spec_decode_metrics is None
        assert got[0].params_resolved["speculative_config"] == ("engine", "no effect")
        assert "speculative_config" not in got[1].params_resolved and got[1].outputs[0].spec_decode_metrics is not None


def test_memory_is_reckoned_with(tiny_path: Callable[..., Path]) -> None:
    """Hidden states are counted as pages, and a request that could never run is refused with the sum."""
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 17, max_model_len=256) as llm:
        with pytest.raises(
            llmi.OutOfMemoryError,
            match=r"200 tokens and 4 candidates need \d+ KV pages, and the hidden states of penalty_alpha \d+ more \(204 x 264 bytes\)",
        ):
            llm.generate([[5] * 190], **{**SEARCH, "max_tokens": 11})
        llm.generate([[5] * 190], temperature=0, max_tokens=11)
        fits = llm.generate([[5] * 60], **SEARCH)[0]
        assert len(fits.token_ids) == 16
        assert llm.get_metrics()["audit"] == ""


# --- the frozen reference


def freeze() -> None:
    """Needs transformers 4.52.4, whose contrastive search takes no cache of sliding windows: the tiny Llama alone."""
    import tempfile

    import torch
    import transformers

    assert transformers.__version__ == "4.52.4"
    rng = np.random.default_rng(5)
    path = llmi.testing.tiny_model("llama", path=tempfile.mkdtemp(), vocab_size=257, num_layers=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32)
    runs = []
    for top_k, alpha, penalty in ((2, 0.5, 1.0), (4, 0.6, 1.0), (4, 0.6, 1.3), (8, 1.0, 1.0), (16, 0.9, 1.0), (64, 0.2, 1.1)):
        prompt = rng.integers(1, 257, size=int(rng.integers(1, 50))).tolist()
        options = {"do_sample": False, "top_k": top_k, "penalty_alpha": alpha, "repetition_penalty": penalty, "eos_token_id": None}
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=24, **options)[0].tolist()
        runs.append({"prompt": prompt, "top_k": top_k, "alpha": alpha, "penalty": penalty, "tokens": ids[len(prompt) :]})
    FROZEN.write_text(json.dumps(runs) + "\n")


if __name__ == "__main__":
    freeze()
