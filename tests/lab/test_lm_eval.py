"""The model "llmi" of lm-evaluation-harness. Without the package its base class is a stand-in; tests/support/lm_eval_parity.py runs the real
one."""

from __future__ import annotations

import importlib.util
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lm_eval_stand_in
from llmi import LLM, SamplingParams
from llmi.errors import InvalidParamsError, LlmiError
from llmi.testing.tiny import tiny_model

DATA = Path(__file__).parents[1] / "data" / "lm_eval"


def asked(*args: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(args=args)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("lm_eval") / "tiny")


@pytest.fixture(scope="module")
def adapter() -> Iterator[Any]:
    remove = lm_eval_stand_in.install() if importlib.util.find_spec("lm_eval") is None else lambda: None
    from llmi.integrations.lm_eval import LlmiLM

    yield LlmiLM
    remove()


@pytest.fixture(scope="module")
def lm(adapter: Any, model_path: Path) -> Iterator[Any]:
    made = adapter(str(model_path), max_length=160, batch_size=4, device="cpu")
    yield made
    made.llm.close()


def token_sum(llm: LLM, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """What local-completions makes of echoed log-probabilities: one request of its own, summed in order, greedy if each is the greatest."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1, temperature=0)
    entries = llm.generate(context + continuation, params, use_tqdm=False)[0].prompt_logprobs
    told = list(zip(context + continuation, entries, strict=True))[len(context) :]
    sums = sum(entry[token].logprob for token, entry in told)
    return sums, all(entry[token].logprob == max(other.logprob for other in entry.values()) for token, entry in told)


def test_loglikelihood(lm: Any) -> None:
    requests = [asked(line["question"], f" {choice}") for line in lines("choice") for choice in line["choices"]]
    requests += [asked("", "abc"), asked("ends in a space ", "here"), asked("x" * 300, "yz")]
    answers = lm.loglikelihood(requests)
    for request, answer in zip(requests, answers, strict=True):
        context, continuation = request.args
        ids = lm.tok_encode(context)[-(159 - len(continuation.encode())) :] if context else [lm.prefix_token_id]
        if context.endswith(" "):
            ids, continuation = lm.tok_encode(context[:-1]), " " + continuation
        assert answer == token_sum(lm.llm, ids, lm.tok_encode(continuation)), request
    assert len({answer[0] for answer in answers}) == len(answers)


def test_loglikelihood_rolling(lm: Any) -> None:
    """Windows of 158 tokens, each after the last one's last token; the last window is filled up from before."""
    texts = [line["text"] for line in lines("rolling")]
    for text, answer in zip(texts, lm.loglikelihood_rolling([asked(text) for text in texts]), strict=True):
        ids = [lm.prefix_token_id, *lm.tok_encode(text)]
        size, parts, start = 158, [], 1
        while start < len(ids):
            end = min(len(ids), start + size)
            parts.append(token_sum(lm.llm, ids[max(0, end - size - 1) : start], ids[start:end])[0])
            start = end
        assert answer == sum(parts), text


def test_generate_until(lm: Any) -> None:
    kwargs = {"until": ["\n", ". "], "max_gen_toks": 24, "do_sample": False, "temperature": 0.0}
    requests = [asked(line["prompt"], kwargs) for line in lines("until")] + [
        asked("y" * 400, kwargs),
        asked("z", {"until": "q", "max_gen_toks": 100}),
    ]
    answers = lm.generate_until(requests)
    for request, answer in zip(requests, answers, strict=True):
        context, given = request.args
        most = given["max_gen_toks"]
        ids = lm.tok_encode(context)[-(159 - most) :]
        stop = [given["until"]] if isinstance(given["until"], str) else given["until"]
        params = SamplingParams(temperature=0, max_tokens=most, stop=[*stop, "<eos>"], seed=1234)
        assert answer == lm.llm.generate(ids, params, use_tqdm=False)[0].outputs[0].text
        assert not any(text in answer for text in stop)
    assert kwargs["max_gen_toks"] == 24, "the harness' own dict is unchanged"


def test_sampled_generations_have_the_seed(lm: Any) -> None:
    request = asked("abc", {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0, "top_p": 0.9})
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=8, seed=1234, stop=["<eos>"])
    assert lm.generate_until([request, request]) == [lm.llm.generate("abc", params, use_tqdm=False)[0].outputs[0].text] * 2


def test_a_generation_needs_room(lm: Any) -> None:
    """The harness would cut away the whole context, or the wrong end of it."""
    for kwargs in ({"until": "q"}, {"until": "q", "max_gen_toks": 159}):
        with pytest.raises(InvalidParamsError, match="leaves no room for a context: max_length = 160"):
            lm.generate_until([asked("z" * 9, kwargs)])


def test_unknown_arguments_are_refused(lm: Any, adapter: Any, model_path: Path) -> None:
    with pytest.raises((LlmiError, TypeError), match="no_such"):
        lm.generate_until([asked("a", {"no_such": 1})])
    with pytest.raises((LlmiError, TypeError), match="no_such"):
        adapter(str(model_path), no_such=1)


def test_beginning_of_text(adapter: Any, model_path: Path, lm: Any) -> None:
    with_begin = adapter(model=str(model_path), add_bos_token=True)
    try:
        assert with_begin.max_length == with_begin.llm.model_info.max_model_len - 1
        assert with_begin.tok_encode("ab") == [lm.prefix_token_id, *lm.tok_encode("ab")]
        assert with_begin.tok_encode("ab", add_special_tokens=False) == lm.tok_encode("ab")
    finally:
        with_begin.llm.close()


def test_chats_are_rendered_and_their_markup_is_read(adapter: Any, model_path: Path) -> None:
    chat = adapter(str(model_path))
    try:
        chat.tokenizer.use_chat_template(
            "{% for m in messages %}{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
        )
        assert len(chat.tok_encode("<eos>")) == 5, "in a plain text it is five letters"
        text = chat.apply_chat_template([{"role": "user", "content": "hi"}])
        assert text == "hi<eos>>" and chat.tok_encode(text)[2] == 0
        assert chat.chat_template(True) and chat.chat_template(False) is None
    finally:
        chat.llm.close()


def test_the_cache_hears_of_all(lm: Any) -> None:
    hook = lm.cache_hook = lm_eval_stand_in.CacheHook()
    answers = [lm.loglikelihood([asked("a", "b")])[0], lm.loglikelihood_rolling([asked("c")])[0]]
    kwargs = {"until": [], "max_gen_toks": 2}
    answers.append(lm.generate_until([asked("d", kwargs)])[0])
    told = [("loglikelihood", ("a", "b")), ("loglikelihood_rolling", ("c",)), ("generate_until", ("d", kwargs))]
    assert hook.entries == [(*entry, answer) for entry, answer in zip(told, answers, strict=True)]
