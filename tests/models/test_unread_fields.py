"""What a model file says and nobody reads: named in a refusal, whichever reader it stands in; hf_overrides is the way past it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from bits import assert_same_bits
from decoders import Refusal, kind_of, logits_of
from llmi import LLM, DraftModel, InvalidParamsError, Receipt, RequestErrors, SelfDraft, UnsupportedModelError, _core, replay
from llmi.families import spec_of
from llmi.models.inspection import inspect_model
from llmi.testing import tiny_model

gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
T = _core.testing
Array = np.ndarray[Any, Any]
PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "gemma3": {"sliding_window": 4, "num_layers": 3}}


def logits(path: Path, overrides: dict[str, Any] | None = None) -> Array:
    rows: Array = logits_of(path, PROMPT, overrides)
    return rows


def refusal(path: Path, overrides: dict[str, Any] | None = None) -> tuple[str, str]:
    """(kind, message)."""
    with pytest.raises(Refusal) as error:
        logits(path, overrides)
    return kind_of(error.value), str(error.value)


def change_config(directory: Path, **changes: Any) -> None:
    """None takes a key away."""
    file = directory / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def add_tensors(directory: Path, tensors: dict[str, Array]) -> None:
    from safetensors.numpy import load_file, save_file

    file = directory / "model.safetensors"
    save_file(load_file(file) | tensors, file)


# --- one unknown name in each reader


def with_config_key(path: Path, architecture: str, name: str) -> Path:
    directory = tiny_model(architecture, path=path, vocab_size=257, **FAMILIES[architecture])
    change_config(directory, **{name: 0.125})
    return directory


def with_tensor(path: Path, architecture: str, name: str) -> Path:
    directory = tiny_model(architecture, path=path, vocab_size=257, **FAMILIES[architecture])
    add_tensors(directory, {name: np.ones(3, np.float32)})
    return directory


def with_gguf_key(path: Path, architecture: str, name: str) -> Path:
    return tiny_gguf.tiny_gguf(path, architecture, {name: 0.125}, **FAMILIES[architecture])[0]


def with_gguf_tensor(path: Path, architecture: str, name: str) -> Path:
    file, directory = tiny_gguf.tiny_gguf(path, architecture, **FAMILIES[architecture])
    return tiny_gguf.write(file, directory, tensors={name: np.ones(3, np.float32)})


READERS: dict[str, tuple[Callable[[Path, str, str], Path], tuple[str, ...]]] = {
    "config.json": (with_config_key, ("residual_multiplier", "logits_scaling", "Hidden_act", "attn_temperature_tuning")),
    "safetensors": (with_tensor, ("model.layers.0.self_attn.sinks", "model.layers.1.self_attn.q_proj.lora_A.weight", "lm_head.bias", "x")),
    "GGUF metadata": (with_gguf_key, ("{}.attention.scale", "{}.residual_scale", "qwen2.rope.freq_base", "my.note")),
    "GGUF tensors": (with_gguf_tensor, ("blk.0.attn_sinks.weight", "blk.1.attn_norm.bias", "rope_factors_long.weight", "x")),
}


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("reader", READERS)
def test_unknown_names_are_refused_and_may_be_left_out(reader: str, architecture: str, tmp_path: Path) -> None:
    make, names = READERS[reader]
    for index, pattern in enumerate(names):
        name = pattern.format(architecture)
        path = make(tmp_path / str(index), architecture, name)
        kind, message = refusal(path)
        assert kind == "unsupported_model" and f"'{name}'" in message and f'hf_overrides={{"{name}": None}}' in message
        plain = (
            path.parent / "directory"
            if path.suffix == ".gguf"
            else tiny_model(architecture, path=tmp_path / "plain", vocab_size=257, **FAMILIES[architecture])
        )
        assert_same_bits(logits(path, {name: None}), logits(plain))


def test_all_names_are_named_at_once(tmp_path: Path) -> None:
    directory = tiny_model(path=tmp_path, vocab_size=257)
    change_config(directory, first=1, second="x", rope_scaling={"rope_type": "linear", "factor": 2.0, "inner": [1]})
    with pytest.raises(UnsupportedModelError, match=r"'first' = 1, 'second' = \"x\", 'rope_scaling.inner' = \[1\]"):
        LLM(directory)
    change_config(directory, first=None, second=None, rope_scaling=None, **{f"key{i:02}": i for i in range(20)})
    assert "and 12 more" in refusal(directory)[1]
    change_config(directory, **{f"key{i:02}": None for i in range(20)})
    add_tensors(directory, {f"t.{i:02}": np.ones(1, np.float32) for i in range(20)})
    message = refusal(directory)[1]
    assert "20 tensors" in message and "and 12 more" in message
    logits(directory, {"t.*": None})
    assert "'t.00'" in refusal(directory, {"t.1*": None})[1]


# --- every key that GGUF has a name for

#: That stay unread although they have another value than here, with what they are.
UNREAD = {"rope.scaling.finetuned", "rope.scaling.original_context_length"}
#: Of the file's own keys: no number of the model. pooling_type: of what vectors are made, which llmi.pooling reads or refuses.
NO_NUMBER = {"context_length", "general.architecture", "pooling_type"}


def key_templates() -> list[str]:
    """All that the gguf package knows, without the family's name."""
    found = []
    for group in vars(gguf.Keys).values():
        for value in vars(group).values() if isinstance(group, type) else ():
            if isinstance(value, str) and value.startswith("{arch}."):
                found.append(value.removeprefix("{arch}."))
    return sorted(set(found))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_gguf_key(architecture: str, tmp_path: Path) -> None:
    """A key that the file has not: refused, or it moves the logits. One that it has, at another value: the same."""
    file, directory = tiny_gguf.tiny_gguf(tmp_path, architecture, **FAMILIES[architecture])
    own = logits(file)
    assert_same_bits(own, logits(directory))
    metadata = _core.GgufFile(str(file)).metadata()
    templates = key_templates()
    assert len(templates) > 80
    silent = []
    for name in templates:
        key = f"{architecture}.{name}"
        old = metadata.get(key)
        others = [7, 0.375, "other", True] if old is None else [old * 2] if isinstance(old, int | float) else [[not entry for entry in old]]
        for value in others:
            try:
                moved = logits(file, {key: value}).tobytes() != own.tobytes()
            except Refusal as error:
                assert kind_of(error) in ("model_file", "unsupported_model", "invalid_argument"), (key, value, error)
                continue
            if not moved and name not in UNREAD | NO_NUMBER:
                silent.append((key, value))
    assert not silent


def test_gguf_rope_scaling(tmp_path: Path) -> None:
    """As llama.cpp reads it: linear where no type is named, the old key, none, 0; and as config.json says the same."""
    file, directory = tiny_gguf.tiny_gguf(tmp_path)
    plain = logits(file).tobytes()
    linear = logits(directory, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}).tobytes()
    assert plain != linear
    scaling = "llama.rope.scaling."
    for overrides, wanted in (
        ({scaling + "type": "linear", scaling + "factor": 4.0}, linear),
        ({scaling + "factor": 4.0}, linear),
        ({"llama.rope.scale_linear": 4.0}, linear),
        ({scaling + "type": "none", scaling + "factor": 4.0}, plain),
        ({scaling + "type": "none"}, plain),
        ({scaling + "factor": 0.0}, plain),
    ):
        assert logits(file, overrides).tobytes() == wanted, overrides
    yarn = logits(directory, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).tobytes()
    assert logits(file, {scaling + "type": "yarn", scaling + "factor": 4.0}).tobytes() == yarn != linear
    assert "ntk" in refusal(file, {scaling + "type": "ntk", scaling + "factor": 4.0})[1]
    assert "different things" in refusal(file, {scaling + "factor": 4.0, "llama.rope.scale_linear": 2.0})[1]


@pytest.mark.parametrize(
    "overrides",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"attention_bias": True, "partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 0.5},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
def test_gguf_tensors_say_what_config_json_says(overrides: dict[str, Any], tmp_path: Path) -> None:
    """Biases are read where they are stored; rows of adjacent pairs are put in order, those of biases and of a part of the head too."""
    file, directory = tiny_gguf.tiny_gguf(tmp_path, **overrides)
    assert_same_bits(logits(file), logits(directory))
    biases = {name for name in tiny_gguf.tensors_of(directory) if name.endswith(".bias")}
    seen = {logits(file).tobytes()}
    for name in biases:  # each alone, as some files have it
        seen.add(logits(tiny_gguf.write(tmp_path / "alone.gguf", directory, without=biases - {name})).tobytes())
    assert len(seen) == 1 + len(biases)


def test_biases_of_a_family_without(tmp_path: Path) -> None:
    file, _ = tiny_gguf.tiny_gguf(tmp_path, "gemma3", attention_bias=True, **FAMILIES["gemma3"])
    kind, message = refusal(file)
    assert kind == "unsupported_model" and "12 tensors" in message and "blk.0.attn_k.bias" in message


# --- RoPE of transformers 5


def test_rope_parameters_say_what_the_old_keys_say(tmp_path: Path) -> None:
    llama = tiny_model(path=tmp_path / "llama", vocab_size=257)
    gemma = tiny_model("gemma3", path=tmp_path / "gemma", vocab_size=257, **FAMILIES["gemma3"])
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    linear = {"rope_type": "linear", "factor": 8.0}
    full, sliding = {"rope_theta": 500.0, "rope_type": "default"}, {"rope_theta": 50.0, "rope_type": "default"}
    gone = {"rope_theta": None, "rope_local_base_freq": None}
    pairs: list[tuple[Path, dict[str, Any], dict[str, Any]]] = [
        (llama, {"rope_theta": 500.0}, {"rope_parameters": full}),
        (llama, {"rope_theta": 500.0, "rope_scaling": llama3}, {"rope_parameters": full | llama3}),
        (llama, {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 8.0}}, {"rope_parameters": full | linear}),
        (llama, {"rope_theta": 500.0, "partial_rotary_factor": 0.5}, {"rope_parameters": full | {"partial_rotary_factor": 0.5}}),
        (llama, {"rope_theta": 10000.0}, {"rope_parameters": {"rope_type": "default"}}),
        (
            gemma,
            {"rope_theta": 500.0, "rope_local_base_freq": 50.0},
            {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}},
        ),
        (
            gemma,
            {"rope_theta": 500.0, "rope_local_base_freq": 50.0, "rope_scaling": linear},
            {"rope_parameters": {"full_attention": full | linear, "sliding_attention": sliding}},
        ),
    ]
    for directory, old, new in pairs:
        text = (directory / "config.json").read_text()
        base = logits(directory)
        change_config(directory, **{**{key: None for key in gone if key in json.loads(text)}, **new})
        ours = logits(directory).tobytes()
        (directory / "config.json").write_text(text)
        change_config(directory, **old)
        assert ours == logits(directory).tobytes(), new
        if "rope_theta" in str(new):
            assert ours != base.tobytes()
        change_config(directory, **old, **new)  # both forms, which agree
        assert ours == logits(directory).tobytes()
        (directory / "config.json").write_text(text)


@pytest.mark.parametrize(
    ("architecture", "parameters", "message"),
    [
        ("llama", {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}, "ntk"),
        ("llama", {"rope_type": "longrope", "rope_theta": 1e4}, "short_factor"),
        ("llama", {"rope_type": "default", "rope_theta": 500.0}, "different things"),  # beside rope_theta = 10,000
        ("llama", {"rope_type": "linear", "rope_theta": 1e4}, "rope_parameters.factor"),
        ("llama", {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}, "low_freq_factor"),
        ("llama", {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2]}, "rope_parameters.mrope_section"),
        ("llama", {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters.full_attention"),
        ("llama", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("llama", [], "rope_parameters"),
        ("gemma3", {"rope_type": "default", "rope_theta": 1e4}, "full_attention"),
        ("gemma3", {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}, "sliding_attention"),
        (
            "gemma3",
            {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}, "chunked_attention": {}},
            "chunked_attention",
        ),
        (
            "gemma3",
            {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4, "rope_type": "dynamic"}},
            "sliding_attention.factor",
        ),
    ],
    ids=str,
)
def test_rope_parameters_that_are_refused(tmp_path: Path, architecture: str, parameters: Any, message: str) -> None:
    directory = tiny_model(architecture, path=tmp_path, vocab_size=257, **FAMILIES[architecture])
    change_config(directory, rope_parameters=parameters)
    assert message in refusal(directory)[1]


# --- other fields that would be passed over


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"quantization_config": {"quant_method": "hqq", "bits": 4}}, "unsupported_model", "quantised by hqq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "unsupported_model", "'group_size' of gptq is missing"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}, "unsupported_model", "text_config"),
        ({"num_experts": 4}, "unsupported_model", "4 experts"),
        ({"n_routed_experts": 4}, "unsupported_model", "4 experts"),
        ({"sliding_window": 8}, "unsupported_model", "sliding_window"),
        ({"sliding_window": 8, "use_sliding_window": True}, "unsupported_model", "sliding_window"),
        ({"rope_interleaved": True}, "unsupported_model", "rope_interleaved"),
        ({"eos_token_id": -1}, "model_file", "eos_token_id"),
        ({"eos_token_id": [2, 257]}, "model_file", "257"),
        ({"bos_token_id": -1}, "model_file", "bos_token_id"),
        ({"pad_token_id": -2}, "model_file", "pad_token_id"),
        ({"eos_token_id": "2"}, "model_file", "eos_token_id"),
        ({"eos_token_id": 2.5}, "model_file", "eos_token_id"),
    ],
    ids=str,
)
def test_fields_of_config_json(tmp_path: Path, changes: dict[str, Any], kind: str, message: str) -> None:
    directory = tiny_model(path=tmp_path, vocab_size=257)
    logits(directory, {"use_sliding_window": False, "sliding_window": 8})  # switched off
    change_config(directory, **changes)
    assert refusal(directory)[0] == kind and message in refusal(directory)[1]


def test_a_tied_head_that_is_stored(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    directory = tiny_model(path=tmp_path, vocab_size=257)
    own = logits(directory).tobytes()
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    add_tensors(directory, {"lm_head.weight": embedding})
    assert logits(directory).tobytes() == own
    add_tensors(directory, {"lm_head.weight": embedding * 2})
    assert "differs from the embedding" in refusal(directory)[1]
    assert logits(directory, {"lm_head.weight": None}).tobytes() == own
    assert logits(directory, {"tie_word_embeddings": False}).tobytes() != own


def test_tensors_that_are_inert(tmp_path: Path) -> None:
    directory = tiny_model(path=tmp_path, vocab_size=257)
    own = logits(directory).tobytes()
    add_tensors(
        directory,
        {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32), "model.rotary_emb.inv_freq": np.ones(8, np.float32)},
    )
    assert logits(directory).tobytes() == own


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_])
def test_stored_masks(dtype: type, tmp_path: Path) -> None:
    """Older GPT-2 and Pythia store the causal mask in each layer. Of a tensor that is read, the type is refused."""
    directory = tiny_model(path=tmp_path, vocab_size=257)
    own = logits(directory).tobytes()
    mask = np.tril(np.ones((1, 1, 32, 32))).astype(dtype)
    add_tensors(directory, {"model.layers.0.attn.bias": mask})
    kind, message = refusal(directory)
    assert kind == "unsupported_model" and "'model.layers.0.attn.bias'" in message
    assert logits(directory, {"model.layers.0.attn.bias": None}).tobytes() == own
    if dtype is not np.float32:
        assert "has dtype U8, which llmi does not read in this place" in message
        add_tensors(directory, {"model.norm.weight": np.ones(64, dtype)})
        assert "'model.norm.weight' has dtype U8" in refusal(directory, {"model.layers.0.attn.bias": None})[1]


# --- hf_overrides


def open_llm(path: Path, **arguments: Any) -> LLM:
    return LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=256, **arguments)


def test_overrides_are_the_models(tmp_path: Path) -> None:
    """The same answers as of a file that says it; receipts, drafts and reports know of it."""
    directory = tiny_model(path=tmp_path / "plain", vocab_size=257)
    other = tiny_model(path=tmp_path / "other", vocab_size=257, rope_theta=100.0, eos_token_id=[7, 9])
    overrides = {"rope_theta": np.float64(100.0), "eos_token_id": [7, 9]}
    ask: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "logprobs": 1}
    with open_llm(directory, hf_overrides=overrides) as llm, open_llm(other) as same, open_llm(directory) as plain:
        out = llm.generate("abc", **ask)[0]
        assert out == same.generate("abc", **ask)[0] and out != plain.generate("abc", **ask)[0]
        assert llm.tokenizer.eos_token_ids >= {7, 9}
        receipt = out.receipt()
        assert receipt.fields["hf_overrides"] == {"rope_theta": 100.0, "eos_token_id": [7, 9]}
        receipt.save(tmp_path / "receipt.json")
        assert replay(tmp_path / "receipt.json", llm)
        receipt.fields["model"] = str(directory)
        assert replay(receipt)
        with pytest.raises(InvalidParamsError, match="hf_overrides"):
            replay(receipt, plain)
        older = Receipt({key: value for key, value in plain.generate("abc", **ask)[0].receipt().fields.items() if key != "hf_overrides"})
        assert replay(older, plain)
        for drafter in (
            SelfDraft(skip_layers=[0]),
            DraftModel(directory, hf_overrides=overrides, kv_cache_memory_bytes=1 << 22, max_model_len=256),
        ):
            drafted = llm.generate("abc", **ask, speculative_config=drafter)[0]
            assert drafted == out
            assert drafter.llm._results.receipt_source["hf_overrides"] == llm._results.receipt_source["hf_overrides"]
            drafter.llm.close()
    change_config(directory, unknown=1)
    with pytest.raises(UnsupportedModelError):
        inspect_model(directory)
    assert inspect_model(directory, hf_overrides={"unknown": None}).config["num_layers"] == 2


def test_an_object_is_replaced_as_a_whole(tmp_path: Path) -> None:
    directory = tiny_model(path=tmp_path, vocab_size=257, rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32})
    linear = logits(directory, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}).tobytes()
    change_config(directory, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert logits(directory).tobytes() == linear


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"no_such_key": 1}, "no_such_key"),
        ({"no_such_key": None}, "no_such_key"),
        ({"attention_dropout": 0.5}, "attention_dropout.*training"),
        ({"model.norm.weight": None}, "model.norm.weight"),
        ({"model.norm.weight": 1}, "model.norm.weight"),
        ({"text_config": {"rope_theta": 1.0}}, "text_config"),
        (["rope_theta"], "hf_overrides"),
        ("rope_theta", "hf_overrides"),
        (lambda config: config, "hf_overrides"),
        ({1: 2}, "hf_overrides"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": {1, 2}}, "rope_theta"),
        ({"rope_theta": 1j}, "rope_theta"),
    ],
    ids=lambda value: "a function" if callable(value) else str(value),
)
@pytest.mark.parametrize("is_gguf", [False, True])
def test_overrides_that_change_nothing_are_refused(overrides: Any, message: str, is_gguf: bool, tmp_path: Path) -> None:
    file, directory = tiny_gguf.tiny_gguf(tmp_path, vocab_size=258)
    if is_gguf and "training" in message:
        overrides, message = {"general.name": "x"}, "general.name.*describes"
    with pytest.raises(InvalidParamsError, match=message):
        open_llm(file if is_gguf else directory, hf_overrides=overrides)


def test_files_as_they_are(tmp_path: Path) -> None:
    """Nothing and an empty mapping are no overrides."""
    directory = tiny_model(path=tmp_path, vocab_size=257)
    with open_llm(directory, hf_overrides=None) as llm, open_llm(directory, hf_overrides={}) as same:
        out = llm.generate("abc", max_tokens=4, temperature=0)[0]
        assert out == same.generate("abc", max_tokens=4, temperature=0)[0]
        assert out.receipt().fields["hf_overrides"] == {}


# --- the core and token ids


@pytest.mark.parametrize("token_id", [-1, -100000, 257, 2**31 - 1])
def test_the_core_checks_ids_that_end_a_text(token_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_llm(tiny_model(path=tmp_path, vocab_size=257)) as llm:
        monkeypatch.setattr(llm._builder, "eos_token_ids", lambda: [token_id])
        with pytest.raises((InvalidParamsError, RequestErrors), match=f"eos_token_ids holds token id {token_id}"):
            llm.generate("abc", max_tokens=4, min_tokens=3)
        with pytest.raises(_core.CoreError, match="token id"):  # what a drafter may ask: a law after these tokens
            _core.law(
                llm._engine,
                _core.SamplingParams(),
                np.zeros(257, np.float32),
                token_ids=[1, token_id],
                prompt_len=1,
                sample_index=0,
                output_text="",
                hooks=None,
                sampler_state=_core.SamplerState(),
                allowed=None,
            )
        sequence = _core.LabSequence(llm._engine, [1, token_id], [], [], [], None, _core.SparseView())
        with pytest.raises(_core.CoreError, match="token id"):
            _core.lab_extend(llm._engine, [_core.LabExtension(sequence=sequence, token_ids=[], parents=[], is_tree=False, wants_last=True)])


# --- files in use load


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "use_cache": True,
    "vocab_size": 262144,
}
SCALING = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
KINDS = ["sliding_attention"] * 5 + ["full_attention"]
IN_USE: dict[str, dict[str, Any]] = {
    "Llama 3.2": LLAMA | {"head_dim": 64, "rope_scaling": SCALING, "torch_dtype": "bfloat16"},
    "Llama 2": LLAMA
    | {
        "_name_or_path": "x",
        "max_length": 4096,
        "pad_token_id": -1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": 32000,
        "head_dim": None,
    },
    "SmolLM2": LLAMA
    | {
        "is_llama_config": True,
        "rope_interleaved": False,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "pad_token_id": 2,
    },
    "Falcon 3": LLAMA | {"activation": "swiglu", "head_dim": 256, "rope_theta": 1000042},
    "a fine-tuned one": LLAMA
    | {"unsloth_fixed": True, "unsloth_version": "2024.9", "pad_token_id": 128004, "auto_map": {}, "_attn_implementation_autoset": True},
    "transformers 5": {key: value for key, value in LLAMA.items() if "rope" not in key}
    | {"dtype": "bfloat16", "rope_parameters": SCALING | {"rope_theta": 500000.0}},
    "Gemma 3 1B": GEMMA3 | {"sliding_window_pattern": 6, "cache_implementation": "hybrid", "torch_dtype": "bfloat16"},
    "Gemma 3 270M": GEMMA3
    | {"_sliding_window_pattern": 6, "layer_types": (KINDS * 5)[:26], "use_bidirectional_attention": False, "dtype": "bfloat16"},
    "Gemma 3, transformers 5": {key: value for key, value in GEMMA3.items() if "rope" not in key}
    | {
        "layer_types": (KINDS * 5)[:26],
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    },
}


@pytest.mark.parametrize("name", IN_USE)
def test_configs_in_use(name: str, tmp_path: Path) -> None:
    """Nothing in them is refused: each is written as its publisher or library writes it."""
    (tmp_path / "config.json").write_text(json.dumps(IN_USE[name]))
    files = _core.ModelFiles(str(tmp_path), [], _core.InputFile(str(tmp_path / "config.json")), None)
    assert spec_of(files).hidden_size == IN_USE[name]["hidden_size"]


GGUF_IN_USE: dict[str, dict[str, Any]] = {
    "with an importance matrix": {
        "quantize.imatrix.file": "x.dat",
        "quantize.imatrix.entries_count": 196,
        "general.quantization_version": 2,
        "general.file_type": 15,
    },
    "an older converter": {
        "llama.tensor_data_layout": "Meta AI original pth",
        "general.source.hugginface.repository": "x",
        "llama.rope.scale_linear": 1.0,
    },
    "a publisher's notes": {
        "mradermacher.quantize_version": "2",
        "mradermacher.quantized_by": "x",
        "general.tags": ["a", "b"],
        "general.base_model.count": 1,
    },
    "scaling switched off": {
        "llama.rope.scaling.type": "none",
        "llama.rope.scaling.original_context_length": 2048,
        "llama.rope.scaling.finetuned": True,
    },
    "no experts": {"llama.expert_count": 0, "llama.expert_used_count": 0, "llama.vocab_size": 257, "general.type": "model"},
}


@pytest.mark.parametrize("name", GGUF_IN_USE)
def test_gguf_in_use(name: str, tmp_path: Path) -> None:
    file, directory = tiny_gguf.tiny_gguf(tmp_path, metadata=GGUF_IN_USE[name])
    assert_same_bits(logits(file), logits(directory))
