"""Arguments of calls: other engines' names, what is refused with its reason, and that nothing of a call is dropped."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import (
    LLM,
    HookError,
    InvalidParamsError,
    NonFiniteLogitsError,
    PromptTooLongError,
    RequestErrors,
    SamplingParams,
    UnsupportedCombinationError,
)
from llmi.engine.options import ENGINE, NO_EFFECT
from llmi.params.foreign_options import CALL_FOREIGN, ENGINE_FOREIGN
from llmi.params.options import DefaultInt
from llmi.params.sampling import ALIASES, FIELDS, SAMPLING
from llmi.text.prompts import as_list, tokenize

GREEDY = SamplingParams(temperature=0, max_tokens=4)
SIZE = 301
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose vocabulary has a special token "<|x|>", id 300, that is no end of text."""
    path = llmi.testing.tiny_model(vocab_size=SIZE, num_layers=1, path=tmp_path_factory.mktemp("arguments"))
    data = json.loads((path / "tokenizer.json").read_text())
    data["model"]["vocab"]["<|x|>"] = len(data["model"]["vocab"])
    data["added_tokens"].append(data["added_tokens"][0] | {"id": data["model"]["vocab"]["<|x|>"], "content": "<|x|>"})
    (path / "tokenizer.json").write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        llm.tokenizer.chat_template = "{{ messages[0].content }}"
        yield llm


@pytest.fixture(scope="module")
def special(llm: LLM) -> int:
    return next(token for token, text in llm.tokenizer.special_tokens.items() if text == "<|x|>")


# --- the table


def test_the_table_is_the_dataclass() -> None:
    fields = {field.name: field for field in dataclasses.fields(SamplingParams)}
    assert list(fields) == list(FIELDS) and set(fields) == set(SAMPLING)
    for name, option in SAMPLING.items():
        assert fields[name].default == option.default and type(fields[name].default) is type(option.default), name
        assert option.parse(option.default) == option.default and option.doc.endswith(".")


def test_llm_has_the_tables_arguments() -> None:
    import inspect

    given = {
        name: entry.default
        for name, entry in inspect.signature(LLM.__init__).parameters.items()
        if name not in ("self", "no_effect") and not name.startswith("_")
    }
    assert given == {name: option.default for name, option in ENGINE.items()}


@pytest.mark.parametrize("name", CALL_FOREIGN)
def test_arguments_of_other_engines(name: str) -> None:
    """Without effect, or refused with what to do instead; None and neutral values change nothing."""
    foreign = CALL_FOREIGN[name]
    SamplingParams(**{name: None})
    for value in foreign.neutral:
        SamplingParams(**{name: value})
    if foreign.inert is None:
        with pytest.raises(UnsupportedCombinationError, match=name) as error:
            SamplingParams(**{name: "a value that nobody has"})
        assert foreign.why in str(error.value)


@pytest.mark.parametrize("name", ENGINE_FOREIGN)
def test_engine_arguments_of_other_engines(name: str) -> None:
    foreign = ENGINE_FOREIGN[name]
    for value in (None, *foreign.neutral):
        foreign.check(value, "LLM")
    if foreign.inert is None:
        with pytest.raises(UnsupportedCombinationError, match=name):
            LLM("no-such-model", **{name: "a value that nobody has"})


@pytest.mark.parity
def test_every_name_of_the_others_is_decided() -> None:
    """All fields of transformers' GenerationConfig and vLLM's SamplingParams are honoured, inert or refused by name."""
    known = {*FIELDS, *ALIASES, *CALL_FOREIGN, "do_sample", "streamer", "suppress_tokens", "sequence_bias"}
    vllm = (
        "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids "
        "flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval structured_outputs logit_bias allowed_token_ids extra_args "
        "bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection watermarking trace_decode_token_ids lora_request tokenization_kwargs mm_processor_kwargs best_of guided_decoding"
    )
    assert set(vllm.split()) <= known
    import transformers

    fields = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")} - {"transformers_version"}
    calls = {
        "generation_config",
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "assistant_model",
        "streamer",
        "negative_prompt_ids",
        "custom_generate",
    }
    assert fields | calls <= known
    neutral = {
        name: value for name, value in vars(transformers.GenerationConfig()).items() if name in CALL_FOREIGN and name != "max_length"
    }
    SamplingParams(**neutral)


_COMPANIONS = """num_beam_groups early_stopping length_penalty diversity_penalty constraints force_words_ids
negative_prompt_attention_mask tfs_z top_a smoothing_factor smoothing_curve samplers assistant_model num_assistant_tokens
num_assistant_tokens_schedule assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size watermarking_config max_time min_length max_length"""


@pytest.mark.parametrize("name", _COMPANIONS.split())
def test_what_belongs_to_a_refused_argument_is_refused(llm: LLM, name: str) -> None:
    for value in (7.25, "odd"):
        with pytest.raises(UnsupportedCombinationError, match=name):
            llm.generate([5], max_tokens=1, **{name: value})


def test_docs_name_every_parameter() -> None:
    text = (Path(__file__).parents[2] / "docs" / "parameters.md").read_text()
    inert = [name for table in (CALL_FOREIGN, ENGINE_FOREIGN) for name, foreign in table.items() if foreign.inert is not None]
    for name in (*FIELDS, *ALIASES, *ENGINE, *NO_EFFECT, *inert):
        assert name in text, name


def test_all_unknown_names_at_once(llm: LLM) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(TypeError, match=r"temprature.*temperature.*n_predict.*max_tokens.*repeat_penalty.*repetition_penalty"):
            call([5], temprature=1, n_predict=3, repeat_penalty=1.1)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"n_ctx.*max_model_len.*max_num_seq'.*max_num_seqs"):
        LLM("x", n_ctx=5, max_num_seq=3)


# --- Hugging Face's names


@pytest.mark.parametrize("how", ["generate", "chat", "stream", "enqueue", "SamplingParams", "replace"])
def test_hugging_face_names_everywhere(llm: LLM, how: str) -> None:
    names = {
        "max_new_tokens": 3,
        "do_sample": False,
        "temperature": None,
        "top_p": None,
        "eos_token_id": [7, 8],
        "suppress_tokens": [9],
        "pad_token_id": 0,
        "use_cache": True,
        "min_new_tokens": 1,
        "stop_strings": ["zz"],
    }
    ours = {"max_tokens": 3, "temperature": 0.0, "eos_token_id": [7, 8], "logit_bias": {9: -math.inf}, "min_tokens": 1, "stop": ["zz"]}
    if how == "generate":
        assert llm.generate("x", **names) == llm.generate("x", **ours)
    elif how == "chat":
        assert llm.chat(CHAT, **names) == llm.chat(CHAT, **ours)
    elif how == "stream":
        with llm.stream("x", **names) as stream:
            list(stream)
        assert stream.outputs == llm.generate("x", **ours)
    elif how == "enqueue":
        llm.enqueue("x", **names)
        assert llm.wait_for_completion() == llm.generate("x", **ours)
    else:
        params = SamplingParams(**names) if how == "SamplingParams" else SamplingParams().replace(**names)
        assert llm.generate("x", params) == llm.generate("x", **ours)
        assert params.replace(top_p=1.0) == SamplingParams(**ours), "values are in their plain form at submission"


@pytest.mark.parity
def test_a_generation_config_as_keywords(llm: LLM) -> None:
    import transformers

    config = transformers.GenerationConfig(max_new_tokens=2, do_sample=False, repetition_penalty=1.5, num_beams=1)
    ours = llm.generate([5], max_tokens=2, temperature=0, repetition_penalty=1.5)
    assert llm.generate([5], **config.to_dict()) == ours, "what the error for generation_config= advises"
    with pytest.raises(UnsupportedCombinationError, match="max_length"):
        llm.generate([5], **transformers.GenerationConfig(max_length=20).to_dict())
    with pytest.raises(UnsupportedCombinationError, match="to_dict"):
        llm.generate([5], generation_config=config)
    with pytest.raises(InvalidParamsError, match="max_length"):
        llm.generate([5], max_new_tokens=2, max_length="x")


def test_eos_token_id_replaces(llm: LLM) -> None:
    end = min(llm.tokenizer.eos_token_ids)
    plain = llm.generate([5, 6], temperature=0, max_tokens=6, ignore_eos=True)[0].token_ids
    own = llm.generate([5, 6], temperature=0, max_tokens=6, eos_token_id=np.int64(plain[2]))[0].outputs[0]
    assert own.finish_reason == "stop" and own.stop_reason == plain[2] and own.token_ids == plain[: plain.index(plain[2]) + 1]
    always = {"temperature": 0, "max_tokens": 3, "logit_bias": {end: 1000.0}}
    assert len(llm.generate([5], **always)[0].token_ids) == 1
    assert len(llm.generate([5], **always, eos_token_id=[])[0].token_ids) == 3, "an empty list: nothing ends a text"
    assert llm.generate([5], **always, eos_token_id=[])[0].receipt().fields["sampling_params"]["eos_token_id"] == []


def test_biases_add_up(llm: LLM) -> None:
    for form in ({(5,): 2.0, (6,): -1.0}, [[[5], 2.0], [[6], -1.0]], [((5,), 2.0), ((6,), -1.0)]):
        params = SamplingParams(sequence_bias=form, logit_bias={5: 1.0}, suppress_tokens=np.array([6]))
        assert params.logit_bias == {5: 3.0, 6: -math.inf}
    with pytest.raises(UnsupportedCombinationError, match=r"\[5, 6\].*2 tokens"):
        SamplingParams(sequence_bias={(5, 6): 1.0})


def test_bad_words_as_ids(llm: LLM) -> None:
    plain = llm.generate([5, 6], temperature=0, max_tokens=4, ignore_eos=True)[0].token_ids
    banned = llm.generate([5, 6], temperature=0, max_tokens=4, ignore_eos=True, bad_words_ids=[[plain[0]], plain[1:3]])[0].token_ids
    assert plain[0] not in banned
    end = min(llm.tokenizer.eos_token_ids)
    assert llm.generate([5], max_tokens=2, temperature=0, logit_bias={end: 1e3}, bad_words_ids=[[end]])[0].token_ids == [end], (
        "as in transformers"
    )
    with pytest.raises(UnsupportedCombinationError, match="the prompt ends"):
        llm.generate([5, 6], max_tokens=2, bad_words_ids=[[6, 7]])
    special = llm.generate([5], temperature=0, max_tokens=3, logit_bias={300: 1e3}, bad_words="<|x|>", ignore_eos=True)[0].token_ids
    assert next(token for token, text in llm.tokenizer.special_tokens.items() if text == "<|x|>") not in special


def test_sampling_params_stay_a_dataclass() -> None:
    params = SamplingParams(max_new_tokens=3, do_sample=False, num_return_sequences=2)
    assert (params.max_tokens, params.temperature, params.n) == (3, 0.0, 2)
    for other in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), dataclasses.replace(params), eval(repr(params))):
        assert other == params
    default = pickle.loads(pickle.dumps(copy.deepcopy(dataclasses.replace(SamplingParams()))))
    assert isinstance(default.max_tokens, DefaultInt) and "max_tokens=256" in repr(default) and json.dumps(default.max_tokens) == "256"
    with pytest.raises(InvalidParamsError, match=r"max_tokens.*max_new_tokens.*contradict"):
        SamplingParams(max_tokens=3, max_new_tokens=4)


# --- nothing is dropped


def test_max_tokens_beyond_the_context(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    prompt = [5] * 40
    for given in (SamplingParams(max_tokens=256), {"max_tokens": 256}, {"max_new_tokens": 256}, {"max_tokens": 26}):
        with pytest.raises(InvalidParamsError, match=r"max_tokens = .*40 prompt tokens.*25.*max_model_len = 64"):
            llm.generate(prompt, given) if isinstance(given, SamplingParams) else llm.generate(prompt, **given)
    with caplog.at_level(logging.INFO, "llmi"):
        for params in (None, SamplingParams(temperature=0)):
            output = llm.generate(prompt, params)[0]
            assert output.params_resolved["max_tokens"] == (25, "default")
        assert "max_tokens = 256 (the default) is shortened to 25" in caplog.text
    assert llm.generate(prompt, max_tokens=None)[0].params_resolved["max_tokens"] == (25, "user")
    assert len(llm.generate(prompt, max_tokens=25, ignore_eos=True)[0].token_ids) == 25
    with pytest.raises(PromptTooLongError):
        llm.generate([5] * 65)


def test_a_stop_string_that_is_a_special_token(llm: LLM, special: int) -> None:
    says = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logit_bias": {special: 1000.0}}
    for stop in ("<|x|>", ["zz", "<|x|>"]):
        out = llm.generate([5, 6], **says, stop=stop)[0].outputs[0]
        assert out.finish_reason == "stop" and out.stop_reason == "<|x|>" and out.token_ids == [special] and out.text == ""
        with llm.stream([5, 6], **says, stop=stop) as stream:
            list(stream)
        assert stream.outputs[0].outputs[0].stop_reason == "<|x|>"
    assert llm.generate([5], **says, stop="<|x|>", skip_special_tokens=False)[0].outputs[0].stop_reason == "<|x|>"
    assert llm.generate([5], **says, stop="<|x|>", stop_token_ids=[special])[0].outputs[0].stop_reason == special
    end = llm.tokenizer.special_tokens[min(llm.tokenizer.eos_token_ids)]
    ended = llm.generate([5], temperature=0, max_tokens=3, logit_bias={min(llm.tokenizer.eos_token_ids): 1e3}, stop=end)[0].outputs[0]
    assert ended.stop_reason == end
    for stop in ("a<|x|>", "<|x|>\nUser:"):
        with pytest.raises(UnsupportedCombinationError, match="skip_special_tokens"):
            llm.generate([5], max_tokens=2, stop=stop)
    with pytest.raises(UnsupportedCombinationError, match="include_stop_str_in_output"):
        llm.generate([5], max_tokens=2, stop="<|x|>", include_stop_str_in_output=True)


def test_what_is_read_once_is_there_for_each_prompt(llm: LLM) -> None:
    seen: list[tuple[int, ...]] = []

    def note(context: llmi.TokenContext, logits: Any) -> None:
        seen.append(tuple(context.token_ids.tolist()))

    params = SamplingParams(max_tokens=1, logits_processors=(hook for hook in [note]), stop_token_ids=(i for i in [7]))
    for _ in range(2):
        llm.generate([[5], [6]], params)
    params.logits_processors = iter([note])
    llm.generate([[5], [6]], params)
    llm.generate([[5], [6]], max_tokens=1, logits_processors=(hook for hook in [note]))
    llm.generate([[5], [6]], max_tokens=1, logits_processors=note)
    assert sorted(seen) == [(5,)] * 5 + [(6,)] * 5


@pytest.mark.parity
def test_a_streamer_takes_one_prompt(llm: LLM) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put(self, value: Any) -> None:
            self.ids += value.flatten().tolist()

        def end(self) -> None:
            self.ids.append(-1)

    streamer = Streamer()
    output = llm.generate([5, 6], GREEDY.replace(streamer=streamer))[0]
    assert streamer.ids == [5, 6, *output.token_ids, -1]
    with pytest.raises(UnsupportedCombinationError, match="one prompt"):
        llm.generate([[5], [6]], max_tokens=2, streamer=streamer)


def test_a_sequence_of_a_sequence_has_its_seed(llm: LLM) -> None:
    with llm.sequence([5, 6]) as first, llm.sequence(first, seed=np.int64(9)) as second, llm.sequence(first, seed=-1) as third:
        assert second.seed == 9 and third.seed not in (9, first.seed)
        assert second.token_ids.tolist() == [5, 6] and second.sample() == llm.sequence([5, 6], seed=9).sample()


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ({"sampler": lambda c, law: 1.9}, "1.9"),
        ({"sampler": lambda c, law: None}, "None"),
        ({"sampler": lambda c, law: True}, "True"),
        ({"sampler": lambda c, law: 301}, "301"),
        ({"sampler": lambda c, law: -1}, "-1"),
        ({"sampler": lambda c, law: 10**30}, "integer"),
        ({"logits_processors": lambda c, x: x[:-1]}, r"\[300\]"),
        ({"logits_processors": lambda c, x: x > 0}, "array"),
        ({"logits_processors": lambda c, x: 0.5}, "shape"),
        ({"logits_processors": lambda c, x: x[None]}, "shape"),
        ({"logits_processors": lambda c, x: "no"}, "array"),
        ({"stopping_criteria": lambda c: 1}, "True, False or a string"),
        ({"stopping_criteria": lambda c: [True]}, "True, False"),
        ({"stopping_criteria": lambda c: np.array([True, False])}, "True, False"),
    ],
)
def test_hooks_that_return_something_else(llm: LLM, hook: dict[str, Any], says: str) -> None:
    with pytest.raises(HookError, match=says):
        llm.generate([5, 6], max_tokens=2, **hook)
    outputs = llm.generate([[5], [6]], [SamplingParams(max_tokens=2, **hook), GREEDY], on_error="return")
    assert isinstance(outputs[0].error, HookError) and outputs[1].error is None


@pytest.mark.parametrize("hook", [lambda c, x: x * np.nan, lambda c, x: x.fill(np.inf)], ids=["NaN", "infinity"])
def test_logits_that_are_no_numbers(llm: LLM, hook: Any) -> None:
    with pytest.raises(NonFiniteLogitsError, match="a logits processor left NaN or infinity"):
        llm.generate([5, 6], max_tokens=2, logits_processors=hook)


@pytest.mark.parametrize(
    ("allowed", "final", "says"),
    [
        ([1.5], True, "1.5"),
        ([True, False], True, "True"),
        ("12", True, "12"),
        (np.array([1.0]), True, "1.0"),
        ([-1], True, "-1"),
        ([301], True, "outside"),
        (np.ones(SIZE, np.int8), True, "a mask is of bools"),
        (np.ones(SIZE + 1, np.bool_), True, "mask of shape"),
        ([5], "no", "is_final"),
        ([5], None, "is_final"),
        ([5], 1, "is_final"),
    ],
)
def test_constraints_that_say_something_else(llm: LLM, allowed: Any, final: Any, says: str) -> None:
    class Odd(llmi.Constraint[int]):
        def initial_state(self) -> int:
            return 0

        def allowed(self, state: int) -> Any:
            return allowed

        def advance(self, state: int, token_id: int) -> int:
            return state

        def is_final(self, state: int) -> Any:
            return final

    with pytest.raises(llmi.ConstraintError, match=says):
        llm.generate([5, 6], max_tokens=2, structured_outputs=Odd())


def test_drafters_that_say_something_else(llm: LLM) -> None:
    for name, value in (("expected_acceptance", "0.5"), ("expected_acceptance", True), ("capture", [1])):
        drafter = type("Odd", (llmi.Drafter,), {name: value, "propose": lambda self, context: None})()
        with pytest.raises(InvalidParamsError, match=f"Odd.{name}"):
            llm.generate([5, 6], max_tokens=4, speculative_config=drafter)
    for proposal in ([1.5], [True], "12", [[1]], 5):
        with pytest.raises(llmi.DraftError):
            # A number of tokens: by "auto" the measured times of earlier steps decide whether a drafter is asked.
            asked = llmi.SpeculativeConfig(lambda context, proposal=proposal: proposal, 2)
            llm.generate([5, 6], max_tokens=8, ignore_eos=True, speculative_config=asked)


def test_the_labs_hooks_say_it_too(llm: LLM) -> None:
    with llm.sequence([5, 6]) as sequence, pytest.raises(HookError, match=r"1\.9"):
        sequence.sample(SamplingParams(sampler=lambda context, law: 1.9))


def test_hooks_that_return_numpys_values(llm: LLM) -> None:
    assert (
        llm.generate([5], max_tokens=2, sampler=lambda c, law: law.argmax())[0].token_ids
        == llm.generate([5], GREEDY.replace(max_tokens=2))[0].token_ids
    )
    assert len(llm.generate([5], max_tokens=4, stopping_criteria=lambda c: np.bool_(True))[0].token_ids) == 1
    assert len(llm.generate([5], max_tokens=4, ignore_eos=True, stopping_criteria=lambda c: None)[0].token_ids) == 4
    assert llm.generate([5], GREEDY.replace(logits_processors=lambda c, x: x.astype(np.float64).tolist())) == llm.generate([5], GREEDY)


# --- prompts


def test_prompts_of_many_kinds(llm: LLM) -> None:
    import array
    import collections

    ids = llm.tokenizer.encode("abc")
    for one in (
        tuple(ids),
        np.array(ids),
        np.array(ids, np.uint8),
        array.array("i", ids),
        collections.deque(ids),
        (i for i in ids),
        [np.int64(i) for i in ids],
        {"prompt": "abc", "prompt_token_ids": ids},
    ):
        assert [tokenize(prompt, llm.tokenizer)[1] for prompt in as_list(one)] == [ids]
    for several in (
        ["abc", "abc"],
        ("abc", "abc"),
        np.array(["abc", "abc"]),
        (text for text in ["abc", "abc"]),
        np.array([ids, ids]),
        [np.array(ids), tuple(ids)],
        {1: "abc", 2: "abc"}.values(),
    ):
        assert [tokenize(prompt, llm.tokenizer)[1] for prompt in as_list(several)] == [ids, ids]


@pytest.mark.parity
def test_prompts_of_torch(llm: LLM) -> None:
    import torch

    ids = llm.tokenizer.encode("abc")
    assert [tokenize(prompt, llm.tokenizer)[1] for prompt in as_list(torch.tensor([ids, ids]))] == [ids, ids]
    assert as_list(torch.tensor(ids)) == [pytest.approx(ids)] or tokenize(as_list(torch.tensor(ids))[0], llm.tokenizer)[1] == ids


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ({"prompt": "abc", "prompt_token_ids": [5]}, "contradict"),
        ({"prompt": "a", "text": "b"}, "text"),
        ({"input_ids": [5]}, "prompt_token_ids"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"prompt_embeds": [[0.5]]}, "prompt_embeds"),
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ("a\ud83d", "surrogate"),
        (b"ab", "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        ([[5]], "prompt"),
        ([5, 2**31], "2147483648"),
        ([5, -1], "-1"),
        ([5.0], "5.0"),
        ([True], "True"),
        ([], "empty"),
        ("", "empty"),
        ({"prompt_token_ids": {5, "a"}}, "prompt"),
    ],
)
def test_prompts_that_are_none(llm: LLM, prompt: Any, says: str) -> None:
    outputs = llm.generate([[5], prompt, "a"], GREEDY, on_error="return")
    assert [output.error is None for output in outputs] == [True, False, True]
    assert isinstance(outputs[1].error, InvalidParamsError) and says in str(outputs[1].error)
    assert outputs[1].outputs[0].finish_reason == "error"
    with pytest.raises(RequestErrors) as caught:
        llm.generate([[5], prompt, "a"], GREEDY)
    assert list(caught.value.errors) == [1] and "prompt 1: " in str(caught.value)
    assert caught.value.outputs == outputs


def test_what_is_wrong_with_one_prompt_ends_it_alone(llm: LLM) -> None:
    good = GREEDY
    bad = [
        SamplingParams(temperature=-1),
        SamplingParams(max_tokens=1000),
        SamplingParams(stop="a<|x|>"),
        SamplingParams(min_tokens=9, max_tokens=3),
        {"n": 1},
        SamplingParams(allowed_token_ids="12"),
    ]
    outputs = llm.generate([[5]] * 7, [*bad, good], on_error="return")
    names = ["temperature", "max_tokens", "skip_special_tokens", "min_tokens", "sampling_params", "allowed_token_ids"]
    for index, (output, name) in enumerate(zip(outputs, names, strict=False)):
        assert f"prompt {index}: " in str(output.error) and name in str(output.error)
    assert outputs[6] == llm.generate([5], good)[0]
    for wrong in ({"priority": [0, 1.5]}, {"speculative_config": [None, 5]}):
        outputs = llm.generate([[5], [6]], good, on_error="return", **wrong)
        assert (outputs[0].error is None and next(iter(wrong)) in str(outputs[1].error)) or "drafter" in str(outputs[1].error)
    with pytest.raises(InvalidParamsError, match="temperature"):
        llm.generate([[5], [6]], temperature=-1, on_error="return")  # all prompts share it


def test_no_effect_is_shown(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "llmi"), LLM(path, kv_cache_memory_bytes=1 << 20, gpu_memory_utilization=0.5, swap_space=4) as llm:
        resolved = llm.generate([5], max_tokens=1, use_cache=False, pad_token_id=0)[0].params_resolved
    assert resolved["gpu_memory_utilization"] == (0.5, "no effect") and resolved["swap_space"] == (4, "no effect")
    assert resolved["use_cache"] == (False, "no effect") and "gpu_memory_utilization = 0.5 does nothing" in caplog.text
