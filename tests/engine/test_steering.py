"""Steering vectors: exactly the vector, at every position, whatever the batch does; and no cached block in common with other requests."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import has_bits_of_its_own, there
from llmi import LLM, BeamSearchParams, Capture, Drafter, DraftModel, PromptLookup, SamplingParams, SelfDraft, SpeculativeConfig
from llmi.params.steering import of_json
from llmi.server.fields import Taken
from llmi.server.parameters import sampling
from llmi.testing import assert_same_tokens, tiny_model

RNG = np.random.default_rng(11)
PROMPTS: list[list[int]] = [RNG.integers(1, 257, size=size).tolist() for size in (1, 37, 16, 60, 5)]
VECTORS = {1: (2 * RNG.standard_normal(64)).astype(np.float32), -1: RNG.standard_normal(64).astype(np.float32)}
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 160}


@pytest.fixture
def llm(tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path("gemma3"), **ENGINE) as llm:
        yield llm


def states(llm: LLM, steering: Any) -> dict[int, Any]:
    """Rows of a prompt by layer."""
    with llm.sequence([], capture=Capture(hidden_states=(0, 1, 2, 3)), steering=steering) as sequence:
        sequence.extend(PROMPTS[1])
        return sequence.hidden_states


EMBEDDINGS = "these are embeddings, and tokens come again"


@pytest.mark.parametrize("layer", [0, 2, -1])
def test_the_stream_after_its_layer_is_moved_by_the_vector(llm: LLM, layer: int) -> None:
    vector = (3 * RNG.standard_normal(64)).astype(np.float32)
    plain, steered = states(llm, None), states(llm, {layer: vector})
    at = 3 if layer == -1 else layer
    for other in range(4):
        if other < at:
            assert_same_bits(steered[other], plain[other], equal_rows=EMBEDDINGS if other == 0 else "")
        elif other == at:
            assert_same_bits(steered[other], plain[other] + vector, equal_rows=EMBEDDINGS if other == 0 else "")
        else:
            assert not np.isclose(steered[other], plain[other]).any(axis=1).all()


def test_each_layer_has_its_own_vector(llm: LLM) -> None:
    first, second = ((3 * RNG.standard_normal(64)).astype(np.float32) for _ in range(2))
    one, both = states(llm, {0: first}), states(llm, {0: first, 2: second})
    assert np.array_equal(both[1], one[1]) and np.array_equal(both[2], one[2] + second)


def moved(path: Path, to: Path, vector: Any) -> Path:
    """A copy of the model whose embedding has the vector added to each row, in fp32."""
    to.mkdir()
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    data = bytearray((path / "model.safetensors").read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])["model.embed_tokens.weight"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    data[begin:end] = (np.frombuffer(bytes(data[begin:end]), np.float32).reshape(entry["shape"]) + vector).tobytes()
    (to / "model.safetensors").write_bytes(bytes(data))
    return to


def test_a_model_with_the_vector_in_its_embedding(tmp_path: Path) -> None:
    """Every position is steered, those of the prompt, the output and the negative prompt: the tokens are those of another model."""
    path = tiny_model(vocab_size=257, num_layers=3, path=tmp_path / "plain", tie_word_embeddings=False)
    vector = (3 * RNG.standard_normal(64)).astype(np.float32)
    params = [
        SamplingParams(max_tokens=12, seed=1, ignore_eos=True, logprobs=2, prompt_logprobs=1, n=2),
        SamplingParams(max_tokens=12, seed=2, ignore_eos=True, guidance_scale=1.7, negative_prompt=[9, 8, 7], logprobs=1),
        SamplingParams(max_tokens=12, ignore_eos=True, penalty_alpha=0.5, top_k=4),
        SamplingParams(max_tokens=12, seed=4, ignore_eos=True, dola_layers="low"),
        BeamSearchParams(max_tokens=8, beam_width=3, logprobs=0),
    ]
    with LLM(path, **ENGINE) as llm, LLM(moved(path, tmp_path / "moved", vector), **ENGINE) as other:
        assert_same_tokens(llm.generate(PROMPTS, [one.replace(steering={0: vector}) for one in params]), other.generate(PROMPTS, params))
        with llm.sequence(PROMPTS[3], steering={0: vector}) as sequence, other.sequence(PROMPTS[3]) as same:
            assert_same_bits(sequence.logits, same.logits)
            for one in (sequence, same):
                one.extend([5, 6])
            assert_same_bits(sequence.fork().extend([7]), same.fork().extend([7]))
            assert sequence.cumulative_logprob == same.cumulative_logprob


class Watcher(Drafter):
    """Proposes, and keeps the rows that it is given."""

    capture = Capture(hidden_states=[1, -1])

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def propose(self, context: Any) -> list[int]:
        self.rows.append(np.concatenate([*context.hidden_rows.values()]))
        ids = context.token_ids.tolist()
        return [ids[-1], 3][: context.num_speculative_tokens]


def test_the_same_in_any_company(tiny_path: Callable[..., Path], table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every table and device: beside others that are steered otherwise or not, in chunks, drafted, and from the prefix cache."""
    options: dict[str, Any] = {**ENGINE, **there(monkeypatch, table)}
    assert not has_bits_of_its_own(table, "float16")
    base = SamplingParams(max_tokens=10, seed=3, ignore_eos=True, temperature=0.8, logprobs=1)
    params: list[Any] = [
        base.replace(steering=VECTORS),
        base,
        base.replace(steering=VECTORS, n=2),
        base.replace(steering={0: VECTORS[1]}),
        base,
    ]
    with LLM(tiny_path("gemma3"), **options) as llm:
        alone = [llm.generate([prompt], one)[0] for prompt, one in zip(PROMPTS, params, strict=True)]
        for drafts in (None, PromptLookup(), SpeculativeConfig(Watcher(), 2)):
            assert_same_tokens(llm.generate(PROMPTS, params, speculative_config=drafts), llmi.Outputs(alone))
        for watched in (None, VECTORS):
            watcher, expected = Watcher(), llm.sequence([], capture=Capture(hidden_states=[1, 3]), steering=watched)
            llm.reset_prefix_cache()
            out = llm.generate([PROMPTS[1]], base.replace(steering=watched), speculative_config=SpeculativeConfig(watcher, 2))[0]
            expected.extend([*PROMPTS[1], *out.token_ids])
            assert_same_bits(watcher.rows[0][:37], expected.hidden_states[1][:37], watched)
    with LLM(tiny_path("gemma3"), **options, max_num_batched_tokens=16) as llm:
        assert_same_tokens(llm.generate(PROMPTS, params), llmi.Outputs(alone))
    plain = alone[1].token_ids
    assert [out.token_ids == plain for out in alone].count(True) == 1


def test_no_block_is_shared_with_other_steering(llm: LLM) -> None:
    prompt = PROMPTS[3]
    params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    near = {**VECTORS, 1: VECTORS[1] + np.eye(64, dtype=np.float32)[5] * np.float32(1e-3)}
    kinds: list[Any] = [None, VECTORS, near, {1: VECTORS[1]}, {0: VECTORS[1]}]
    for steering in kinds:
        assert llm.generate([prompt], params.replace(steering=steering))[0].num_cached_tokens == 0
    for steering in kinds:
        again = llm.generate([prompt], params.replace(steering=steering))[0]
        assert again.num_cached_tokens > 40
    llm.reset_prefix_cache()
    with llm.sequence(prompt, steering=VECTORS) as sequence:
        _ = sequence.logits
        assert llm.generate([prompt], params)[0].num_cached_tokens == 0
        assert llm.generate([prompt], params.replace(steering=VECTORS))[0].num_cached_tokens > 40
        llm.reset_prefix_cache()
        inherits = llm.generate(sequence, params)[0]
        assert inherits.num_cached_tokens == len(prompt) - 1 and bool(inherits.params_resolved["steering"][0] == VECTORS)
        assert llm.generate(sequence, params.replace(steering=near))[0].num_cached_tokens == 0
        assert_same_tokens(llmi.Outputs([inherits]), llm.generate([prompt], params.replace(steering=VECTORS)))
        assert bool(llm.sequence(sequence).steering == VECTORS)
    # A salt that a user gives cannot name another request's steering.
    digest = hashlib.sha256(np.asarray([1, 3], "<i8").tobytes() + np.stack([VECTORS[1], VECTORS[-1]]).astype("<f4").tobytes()).hexdigest()
    for salt in ("s" + digest, digest, "us" + digest):
        assert llm.generate([{"prompt_token_ids": prompt, "cache_salt": salt}], params)[0].num_cached_tokens == 0


def test_drafts_of_the_target_itself_are_steered(tiny_path: Callable[..., Path]) -> None:
    """SelfDraft at the target's own layers and bits is always right if it sees the steering; a draft model of the same weights does not."""
    path = tiny_path()
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, steering={1: 4 * VECTORS[1]})

    def accepted(drafter: Any, one: SamplingParams = params) -> float:
        out = llm.generate([PROMPTS[1]], one, speculative_config=SpeculativeConfig(drafter, 3))[0]
        assert out.token_ids == llm.generate([PROMPTS[1]], one)[0].token_ids
        return float(out.outputs[0].spec_decode_metrics.acceptance_rate)  # type: ignore[union-attr]

    with LLM(path, dtype="float32", **ENGINE) as llm, LLM(path, dtype="float32", **ENGINE) as twin:
        itself = SelfDraft(skip_layers=[2])
        itself._kept = lambda num_layers: [*range(num_layers)]  # type: ignore[method-assign]  # of all layers
        assert accepted(itself) == 1
        model = DraftModel(twin)
        assert accepted(model) < 0.5 and accepted(model, params.replace(steering=None)) == 1


def test_where_a_vector_goes_if_layers_are_left_out(tiny_path: Callable[..., Path]) -> None:
    class Context:
        def __init__(self, llm: LLM, steering: Any) -> None:
            self._llm, self.sampling_params = llm, SamplingParams(steering=steering)

    with LLM(tiny_path(), **ENGINE) as llm:
        given = {0: np.full(64, 1.0), 1: np.full(64, 2.0), 2: np.full(64, 4.0), -1: np.full(64, 8.0)}
        for draft, expected in (
            (SelfDraft(skip_layers=[1]), {0: 1, 1: 6, 2: 8}),
            (SelfDraft(exit_layer=1), {0: 1, 1: 14}),
            (SelfDraft(skip_layers=[0]), {0: 3, 1: 4, 2: 8}),
        ):
            places = draft._steering_of(Context(llm, given))  # type: ignore[arg-type]
            assert {place: float(vector[0]) for place, vector in (places or {}).items()} == expected


def test_receipts_and_copies(llm: LLM, tmp_path: Path) -> None:
    out = llm.generate([PROMPTS[1]], SamplingParams(max_tokens=6, seed=1, steering=VECTORS, logprobs=1))[0]
    receipt = out.receipt()
    receipt.save(tmp_path / "receipt.json")
    assert receipt.fields["sampling_params"]["steering"]["1"] == VECTORS[1].astype(np.float32).tolist()
    assert llmi.replay(tmp_path / "receipt.json", llm)
    beams = llm.generate([PROMPTS[1]], BeamSearchParams(max_tokens=6, beam_width=2, steering=VECTORS))[0]
    assert llmi.replay(beams.receipt(), llm)
    receipt.fields["sampling_params"]["steering"]["1"][3] += 1.0
    assert not llmi.replay(receipt, llm)
    params = SamplingParams(steering=VECTORS)
    assert params == SamplingParams(steering={-1: VECTORS[-1].copy(), 1: VECTORS[1].copy()}) != SamplingParams()
    assert params != SamplingParams(steering={**VECTORS, 1: VECTORS[1] + 1}) and SamplingParams(steering={}).replace() is not None


def test_over_http(llm: LLM) -> None:
    """JSON has layers as texts."""
    taken = Taken({}, json.loads(json.dumps({"steering": {"1": VECTORS[1].tolist(), "-1": VECTORS[-1].tolist()}})), [])
    params = sampling(taken)
    assert_same_tokens(
        llm.generate([PROMPTS[1]], max_tokens=6, seed=1, **params), llm.generate([PROMPTS[1]], max_tokens=6, seed=1, steering=VECTORS)
    )
    for wrong, message in (({"a": [1.0]}, "a key must be a layer"), ({"1": [1.0], "01": [1.0]}, "names layer 1 twice")):
        with pytest.raises(llmi.InvalidParamsError, match=message):
            of_json(wrong)
    assert of_json(None) is None


@pytest.mark.parametrize(
    ("steering", "message"),
    [
        ({1: np.zeros(63)}, r"steering\[1\] has 63 values, the model's hidden_size is 64"),
        ({1: np.full(64, np.nan)}, r"steering\[1\]\[0\] is nan: a finite float32 number"),
        ({1: [0.0] * 63 + [1e39]}, r"steering\[1\]\[63\] is 1e\+39"),
        ({4: np.zeros(64)}, r"layer 4 is neither -1 nor in \[0, 3\]"),
        ({-2: np.zeros(64)}, "a key of steering must be a layer"),
        ({"1": np.zeros(64)}, "a key of steering must be a layer"),
        ({3: np.zeros(64), -1: np.zeros(64)}, "names layer 3 twice"),
        ({1: np.zeros((1, 64))}, r"must be a vector of numbers \[hidden_size\]"),
        ({1: ["a"] * 64}, "must be a vector of numbers"),
        ([1.0], "must be None or a mapping of layers to vectors"),
    ],
)
def test_what_is_refused(tiny: LLM, steering: Any, message: str) -> None:
    for call in (lambda: tiny.generate("a", steering=steering, max_tokens=2), lambda: tiny.sequence("a", steering=steering)):
        with pytest.raises(llmi.InvalidParamsError, match=message) as info:
            call()
        assert info.value.parameter == "steering"


def test_what_runs_the_plain_model_says_so(tiny: LLM) -> None:
    steered = tiny.sequence("ab", steering={1: np.ones(64)})
    for call in (lambda: tiny.hidden_states(steered), lambda: tiny.perplexity([steered]), lambda: tiny.loglikelihood([(steered, "c")])):
        with pytest.raises(llmi.UnsupportedCombinationError, match="the TokenSequence is steered"):
            call()
    with pytest.raises(llmi.UnsupportedCombinationError, match=r"give it to llm.sequence\(\)"):
        steered.probs(SamplingParams(steering={1: np.zeros(64)}))
    assert steered.probs(SamplingParams(steering={1: np.ones(64)})).shape == (257,)
