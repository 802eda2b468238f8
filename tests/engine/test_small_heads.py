"""Masks that allow few tokens: only their logits are computed, with the bits of the whole head, unless something reads the whole row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from decoders import open_decoder
from features import ALL_FEATURES, BEAM_FEATURES, FEATURES, own_sampler
from llmi import LLM, BeamSearchParams, DraftModel, LlmiError, PromptLookup, SamplingParams, SelfDraft, SpeculativeConfig, _core
from llmi.testing import assert_same_tokens, random_drafter
from spec_models import TinyModel

pytestmark = pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
T = _core.testing
TABLES = _core.system_info()["tables"]
VOCAB = 4099  # 257 tiles, the last one cut; up to 64 make a small head
#: Heads: tied or not, of each form of weights and activations that has a kernel of its own.
HEADS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "q8_0": {"dtype": "q8_0"},
    "q4_0": {"dtype": "q4_0"},
    "q8_0, two bytes an activation": {"dtype": "q8_0", "activation_bits": 16},
    "q4_0, two bytes an activation": {"dtype": "q4_0", "activation_bits": 16},
}


def some_ids(count: int, seed: int = 0) -> list[int]:
    """Ids of a mask: up to 17 anywhere, more in runs, all if there are as many."""
    rng = np.random.default_rng(seed)
    if count >= VOCAB:
        return list(range(VOCAB))
    if count <= 17:
        return sorted(rng.choice(VOCAB, count, replace=False).tolist())
    starts = rng.choice(VOCAB // 12, -(-count // 8), replace=False) * 12
    return sorted(np.concatenate([np.arange(start, start + 8) for start in starts])[:count].tolist())


def masked(whole: Any, allowed: list[list[int]]) -> Any:
    expected = np.full_like(whole, -np.inf)
    for row, ids in enumerate(allowed):
        expected[row, ids] = whole[row, ids] if len(ids) > 1 else 0.0
    return expected


# --- the head itself


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_logits_are_those_of_the_whole(tiny_path: Callable[..., Path], cpu_table: str, head: str, tied: bool) -> None:
    """Rows of all sizes side by side; neighbours with the same tiles, with some of the same, with others."""
    path = tiny_path(vocab_size=VOCAB, num_layers=1, tie_word_embeddings=tied)
    tokens = [5, 7, 5, 900, 40, 4098, 17, 1, 2]
    same = some_ids(17, 1)
    allowed = [some_ids(size) for size in (1, 2, 16, 17, 256, VOCAB)] + [same, same, [*same, 4098]]
    for threads in (1, 2):
        decoder = open_decoder(path, table=cpu_table, num_threads=threads, **HEADS[head])
        whole = decoder.forward([(decoder.new_sequence(), tokens, None)])[0]
        small = decoder.forward_allowed([(decoder.new_sequence(), tokens, None)], allowed)
        assert_same_bits(small, masked(whole, allowed), masked="what is not allowed")
        for row in (3, 8):  # alone
            alone = decoder.forward_allowed([(decoder.new_sequence(), tokens[:1], None)], [allowed[row]])
            assert_same_bits(alone, masked(whole[:1], [allowed[row]]), masked="what is not allowed")


@pytest.mark.parametrize("choices", [{"logit_scale": 0.3}, {"logit_scale": 0.5, "logit_cap": 2.0, "tied": False, "biases": ("head",)}])
def test_scale_cap_and_bias(tmp_path: Path, cpu_table: str, choices: dict[str, Any]) -> None:
    model = TinyModel(choices, 0)
    files = _core.ModelFiles(str(model.save(tmp_path)))
    decoder = T.Decoder(files, spec=model.json(), table=cpu_table, dtype="float32", kv_dtype="float32", num_pages=64)
    tokens, allowed = [3, 4, 5], [[100], [0, 16, 100], list(range(50))]
    whole = decoder.forward([(decoder.new_sequence(), tokens, None)])[0]
    small = decoder.forward_allowed([(decoder.new_sequence(), tokens, None)], allowed)
    assert_same_bits(small, masked(whole, allowed), masked="what is not allowed")


# --- engines with and without small heads


class Pair:
    """An engine with small heads and one without."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **engine: Any) -> None:
        self.engines = {}
        for small in (True, False):
            monkeypatch.setenv("LLMI_SMALL_HEADS", "1" if small else "0")
            self.engines[small] = LLM(path, **{"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256, **engine})

    def run(self, prompts: Any, params: Any, *, fails: bool = False, **options: Any) -> tuple[int, int]:
        """Checks that both give the same tokens, or fail alike; returns how many heads were small, and how many of these were skipped."""
        outputs, counts = {}, {}
        for small, llm in self.engines.items():
            before = llm.get_metrics()
            try:
                outputs[small] = llm.generate(prompts, params, use_tqdm=False, **options)
            except LlmiError as error:
                outputs[small] = str(error)
            after = llm.get_metrics()
            counts[small] = tuple(int(after[name] - before[name]) for name in ("num_small_heads", "num_skipped_heads"))
        assert counts[False] == (0, 0)
        if fails:
            assert outputs[True] == outputs[False] and isinstance(outputs[True], str)
        else:
            assert not isinstance(outputs[True], str), outputs[True]
            assert_same_tokens(outputs[True], outputs[False])
        return counts[True]

    def close(self) -> None:
        for llm in self.engines.values():
            llm.close()


DRAFTERS: dict[str, Callable[[], SpeculativeConfig | None]] = {
    "none": lambda: None,
    "lookup": lambda: SpeculativeConfig(PromptLookup(), 3),
    "coupled": lambda: SpeculativeConfig(random_drafter(0.7), 3),
    "rejection": lambda: SpeculativeConfig(random_drafter(0.5), 2, verification="rejection"),
    "self": lambda: SpeculativeConfig(SelfDraft(exit_layer=1), 2),
}
PROMPTS = [[5, 6, 7, 8] * 6, [9, 4] * 10, [3, 200, 17], [1], [4000, 4001, 2], [77] * 30]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q8_0", "q4_0"])
def test_tokens_are_the_same(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, table: str, dtype: str) -> None:
    """Sizes of masks, alone and together, with each drafter; rows of one step have different masks, and some have none."""
    monkeypatch.setenv("LLMI_ISA", table)
    weights = {"quantization": dtype} if dtype.startswith("q") else {"dtype": dtype}
    pair = Pair(tiny_path(vocab_size=VOCAB), monkeypatch, **weights)
    sizes = (1, 2, 16, 17, 256, None)
    params = [
        SamplingParams(
            temperature=[1.0, 0.0][i % 2],
            top_p=0.9,
            seed=i,
            max_tokens=5,
            ignore_eos=True,
            allowed_token_ids=some_ids(size) if size else None,
        )
        for i, size in enumerate(sizes)
    ]
    reference = table == "reference"  # slow
    for name, make in DRAFTERS.items():
        if reference and name != "coupled":
            continue
        num_small, num_skipped = pair.run(PROMPTS, params, **options_of(make()))
        assert num_small >= 5 * 2 and num_skipped >= 2, name
    for prompt, one, size in zip(PROMPTS, params, sizes, strict=True):
        if reference and size != 16:
            continue
        assert pair.run([prompt], one) == (5 if size else 0, 5 if size == 1 else 0)
    pair.close()


def options_of(config: SpeculativeConfig | None) -> dict[str, Any]:
    return {} if config is None else {"speculative_config": config}


def test_masks_of_many_tiles(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth of the tiles is the most that is computed by itself."""
    pair = Pair(tiny_path(vocab_size=VOCAB), monkeypatch)
    for tiles, small in ((64, 5), (65, 0)):
        params = SamplingParams(
            temperature=1.0, seed=1, max_tokens=5, ignore_eos=True, allowed_token_ids=[16 * tile for tile in range(tiles)]
        )
        assert pair.run(PROMPTS[:1], params) == (small, 0)
    pair.close()


# --- who reads the whole row


class Pairs(llmi.Drafter):
    def propose(self, context: llmi.DraftContext) -> Any:
        return [40, 41][: context.num_speculative_tokens]


class Observer(Pairs):
    def observe(self, context: llmi.DraftContext, num_accepted: int, target_logprobs: Any) -> None:
        pass


class Half(llmi.Verification):
    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        return 0.5


class First(llmi.Verification):
    def verify(self, context: llmi.VerifyContext) -> tuple[list[int], int]:
        return [0], int(np.argmax(context.target_probs(0)))


def processor(context: llmi.TokenContext, logits: Any) -> None:
    logits[41] += 1.0


def drafting(verification: Any = "coupled", drafter: type[llmi.Drafter] = Pairs) -> dict[str, Any]:
    return {"speculative_config": SpeculativeConfig(drafter(), 2, verification=verification)}


#: Each reader of a whole row: parameters, and options of the call.
READERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log-probabilities": ({"logprobs": 2}, {}),
    "the drawn token's log-probability": ({"logprobs": 0}, {}),
    "trace": ({}, {"trace": True}),
    "processor": ({"logits_processors": [processor]}, {}),
    "criterion": ({"stopping_criteria": [lambda _: False]}, {}),
    "sampler": ({"sampler": own_sampler}, {}),
    "guidance": ({"guidance_scale": 1.5}, {}),
    "layer logits": ({"dola_layers": "high"}, {}),
    "contrastive search": ({"penalty_alpha": 0.5, "top_k": 4, "temperature": 0.0}, {}),
    "observer": ({}, drafting(drafter=Observer)),
    "block verification": ({}, drafting("block")),
    "judge": ({}, drafting(First())),
    "rule of the user": ({}, drafting(Half())),
    "typical": ({}, drafting("typical")),
}


@pytest.fixture(scope="module")
def pairs(tiny_path: Callable[..., Path]) -> Iterator[dict[bool, Pair]]:
    """By whether there are batch processors."""

    class Batch:
        def apply(self, contexts: list[llmi.TokenContext], logits: Any) -> None:
            logits[:, 41] += 1.0

    with pytest.MonkeyPatch.context() as patch:
        path = tiny_path()
        made = {batch: Pair(path, patch, batch_processors=[Batch()] if batch else []) for batch in (False, True)}
        yield made
        for pair in made.values():
            pair.close()


FEW = list(range(38, 52))  # two tiles of 17: `own_sampler` and the drafts above choose among them


def few_params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": 3, "max_tokens": 9, "ignore_eos": True, "allowed_token_ids": FEW, **fields})


@pytest.mark.parametrize("name", READERS)
def test_each_reader_gets_the_whole_row(pairs: dict[bool, Pair], name: str) -> None:
    fields, options = READERS[name]
    prompts = [[5, 6, 7, 8] * 4, [9, 4]]
    if "speculative_config" in options:  # rows without a draft have no reader
        num_small, _ = pairs[False].run(prompts, few_params(**fields), **options)
        whole_steps = pairs[False].run(prompts, few_params(**fields), **drafting())[0] - num_small
        assert whole_steps > 0
    else:
        assert pairs[False].run(prompts, few_params(**fields), fails="dola_layers" in fields, **options) == (0, 0)
    assert pairs[False].run(prompts, few_params()) == (18, 0)


@pytest.mark.parametrize("name", ["none", *READERS])
def test_plans_name_each_reader(pairs: dict[bool, Pair], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The predicate itself, at a row with a draft where there are drafts."""
    fields, options = READERS.get(name, ({}, drafting()))
    built: list[Any] = []
    make = _core.Request

    def record(**given: Any) -> Any:
        built.append(make(**given))
        return built[-1]

    monkeypatch.setattr(_core, "Request", record)
    pairs[False].run([[5, 6]], few_params(**fields), fails="dola_layers" in fields, **options)
    row = T.RowCase()
    row.position = 5
    if options:
        row.draft_token_ids, row.is_observed = [40, 41], name == "observer"
    assert T.plan_row(built[0], row).needs_whole_row == (name != "none")


def test_batch_processors_get_the_whole_row(pairs: dict[bool, Pair]) -> None:
    assert pairs[True].run([[5, 6], [9]], few_params()) == (0, 0)


def test_a_reader_is_its_rows_own(pairs: dict[bool, Pair]) -> None:
    """Beside rows with readers, the others stay small; a prompt's scores are read, and not the draws after it."""
    params = [
        few_params(),
        few_params(logprobs=1),
        few_params(prompt_logprobs=1),
        few_params(allowed_token_ids=None),
        few_params(n=3),
        few_params(guidance_scale=2.0),
    ]
    assert pairs[False].run([[5, 6], [9], [3] * 20, [1, 2], [4], [7, 8]], params) == (9 + 9 + 1 + 3 * 8, 0)


@pytest.mark.parametrize("name", ALL_FEATURES)
def test_every_feature(pairs: dict[bool, Pair], name: str) -> None:
    """Samplers and penalties see the law after the masks: they change nothing. What reads more takes the whole row."""
    fields = {**ALL_FEATURES[name], "allowed_token_ids": FEW, "max_tokens": 12}
    if "structured_outputs" in fields:
        fields["allowed_token_ids"] = None  # a grammar's masks are few tokens as well
    base = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
    params: Any = BeamSearchParams(**{**base, **fields}) if name in BEAM_FEATURES else SamplingParams(**{**base, **fields})
    num_small, _ = pairs[False].run([[5, 6, 7, 8] * 4, [9, 4]], params, fails="dola" in name)  # DoLa cuts all of these few
    reads = name in BEAM_FEATURES or any(
        key in FEATURES[name]
        for key in ("logprobs", "logits_processors", "sampler", "stopping_criteria", "guidance_scale", "dola_layers", "penalty_alpha")
    )
    assert (num_small == 0) == reads


# --- grammars

GRAMMAR = {"regex": "(one|two|three){2}[0-9]{3}([a-f]x){2}(end|enough)"}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_grammars(pairs: dict[bool, Pair], drafter: str) -> None:
    """Most places have one token or few; where a grammar has all bytes, the row is whole. Masks of both kinds together."""
    prompts = [[5, 6, 7, 8] * 4, [9, 4], [1], [200, 3]]
    base = few_params(allowed_token_ids=None, max_tokens=24, ignore_eos=False, structured_outputs=GRAMMAR)
    params = [
        base,
        base.replace(temperature=0.0, n=1, seed=4),
        base.replace(n=3, top_p=0.8, repetition_penalty=1.2),
        base.replace(structured_outputs={"regex": "[^a]{4}b(cd)+"}, allowed_token_ids=list(range(64, 128))),
    ]
    num_small, num_skipped = pairs[False].run(prompts, params, **options_of(DRAFTERS[drafter]()))
    assert num_small > 60 and num_skipped > 20
    assert pairs[False].run(prompts, [one.replace(logprobs=0) for one in params], **options_of(DRAFTERS[drafter]())) == (0, 0)


# --- one token, none


def test_one_token_needs_no_head(pairs: dict[bool, Pair]) -> None:
    """Whatever the parameters do to a lone token; where rules leave nothing, the error is that of the whole row."""
    for fields in (
        {},
        {"temperature": 0.0},
        {"mirostat": 2},
        {"adaptive_p": 0.3},
        {"top_n_sigma": 1.0},
        {"repetition_penalty": 1.7},
        {"min_p": 0.4, "dynatemp_range": 0.4},
    ):
        assert pairs[False].run([[5, 6]], few_params(allowed_token_ids=[44], **fields)) == (9, 9)
    for fields in ({"logit_bias": {44: -float("inf")}}, {"bad_words": ["+"]}, {"stop_token_ids": [44], "min_tokens": 3}):
        pairs[False].run([[5, 6]], few_params(allowed_token_ids=[44], **fields), fails=True)


@pytest.mark.parametrize("allowed", [[44], FEW])
def test_hidden_states_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: list[int]) -> None:
    """They are an error without a head, too."""
    from safetensors.numpy import load_file, save_file

    path = llmi.testing.tiny_model(vocab_size=257, path=tmp_path / "nan")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, path / "model.safetensors", json.loads("{}"))
    pair = Pair(path, monkeypatch, dtype="float32")
    assert pair.run([[5, 6]], few_params(allowed_token_ids=allowed), fails=True)[0] == 1
    with pytest.raises(LlmiError, match="NaN or infinity"):
        pair.engines[True].generate([[5, 6]], few_params(allowed_token_ids=allowed), use_tqdm=False)
    pair.close()


def test_draft_models_have_small_heads(pairs: dict[bool, Pair], tiny_path: Callable[..., Path]) -> None:
    """The target's rows; a draft model's sequences are the lab's."""
    with LLM(tiny_path(num_layers=1), kv_cache_memory_bytes=1 << 24, max_model_len=256) as weak:
        config = SpeculativeConfig(DraftModel(weak), 2)
        assert pairs[False].run([[5, 6], [9]], few_params(), speculative_config=config)[0] >= 18
