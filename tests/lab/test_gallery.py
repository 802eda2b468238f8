"""The gallery's programs run on a real model, as they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmi import LLM, CorpusDrafter, SamplingParams, SpeculativeConfig

GALLERY = Path(__file__).parents[2] / "docs" / "gallery.md"
#: Shorter runs of some programs: (number, what stands there, what is run).
SHORTER = (
    (5, "seed=1), reward", "seed=1, max_tokens=48), reward"),
    (17, "range(32)", "range(3)"),
    (17, "max_tokens=128", "max_tokens=24"),
    (21, "llm.run(power, prompts,", "llm.run(power, prompts, block=6, blocks=2, steps=2,"),
    (6, "max_tokens=256", "max_tokens=40"),
    (15, "max_tokens=500", "max_tokens=60"),
)


def programs() -> tuple[str, dict[tuple[int, int], str]]:
    """(the common beginning, blocks by the number of their program and their place in it)."""
    text = GALLERY.read_text(encoding="utf-8")
    setup = re.search(r"```python setup\n(.*?)```", text, re.DOTALL)
    assert setup is not None
    sections = re.split(r"^## (\d+)\. ", text, flags=re.MULTILINE)[1:]
    blocks = {
        (int(number), place): code
        for number, section in zip(sections[::2], sections[1::2], strict=True)
        for place, code in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    }
    assert text.count("```") == 2 * (1 + len(blocks)), "every block is Python, and is run"
    return setup.group(1), blocks


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, smollm_path: Path, gemma_path: Path, text: str) -> Any:
    """The names that the programs share; the models are those that they name, and are here already."""
    directory = tmp_path_factory.mktemp("gallery")
    (directory / "corpus.txt").write_text(text[:20_000])
    (directory / "wiki.txt").write_text(text[:5_000])
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(directory)
    namespace: dict[str, Any] = {}
    setup, _ = programs()
    # Pools that fit beside each other on a small machine.
    setup = setup.replace("LLM()", "LLM(kv_cache_memory_bytes=1 << 28)").replace(
        "q4_0", 'q4_0", kv_cache_memory_bytes=1 << 28, dtype="auto'
    )
    exec(compile(setup, "gallery setup", "exec"), namespace)
    yield namespace
    for value in namespace.values():
        if isinstance(value, LLM):
            value.close()
    monkeypatch.undo()


def test_there_are_24() -> None:
    _, found = programs()
    assert sorted({number for number, _ in found}) == list(range(1, 25)) and len(found) == 25
    for (number, _), code in found.items():
        assert len(code.strip().splitlines()) <= (17 if number <= 20 else 15), f"program {number} is too long"
    assert all(old in found[number, 0] for number, old, _ in SHORTER)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "place"), programs()[1])
def test_program(number: int, place: int, world: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    code = programs()[1][number, place]
    for wanted, old, new in SHORTER:
        code = code.replace(old, new) if number == wanted else code
    world.pop("outs", None)
    world.pop("texts", None)
    if number in (10, 19) and "Bigram" not in world:  # another process may have run the program that defines it
        exec(compile(programs()[1][7, 0], "program 7", "exec"), world)
    exec(compile(code, f"program {number}", "exec"), world)
    CHECKS.get((number, place), lambda world, out: None)(world, capsys.readouterr().out)


def mcts_runs(world: dict[str, Any], out: str) -> None:
    texts = world["llm"].run(world["mcts"], world["prompts"][:1], reward=lambda text: text.count("e"), simulations=4, width=2, seed=1)
    assert len(texts) == 1 and isinstance(texts[0], str)


def same_as_plain(world: dict[str, Any], out: str) -> None:
    params = world["params"]
    seeded = [params.replace(seed=o.seed) for o in world["outs"]]
    assert world["outs"] == world["llm"].generate(world["prompts"], seeded)


def drafted(world: dict[str, Any], drafter: Any, verification: Any) -> None:
    """At a fixed length: whether "auto" drafts is a question of this machine's timing, and the program's own seeds are drawn."""
    assert all(o.outputs[0].spec_decode_metrics is not None for o in world["outs"])
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    config = SpeculativeConfig(drafter, 14, verification=verification)
    for o in world["llm"].generate(world["prompts"], params, speculative_config=config):
        assert o.outputs[0].spec_decode_metrics.num_drafts > 0


def dates(world: dict[str, Any], out: str) -> None:
    fits = world["Dates"](world["llm"].tokenizer).fits  # any digit of Unicode's will do
    assert all(len(c.text) == 10 and fits(c.text) for o in world["outs"] for c in o.outputs)


def lossless(world: dict[str, Any], out: str) -> None:
    from llmi.testing import tiny_model

    with LLM(tiny_model(), kv_cache_memory_bytes=1 << 22) as tiny:
        world["test_bigram"](tiny)


def adapter(world: dict[str, Any], out: str) -> None:
    lm = world["LlmiLM"](kv_cache_memory_bytes=1 << 27)
    ask = lambda *args: SimpleNamespace(args=args)  # noqa: E731
    [(logprob, greedy)] = lm.loglikelihood([ask("The capital of France is", " Paris")])
    assert logprob < 0 and greedy
    assert lm.loglikelihood_rolling([ask("Hello there.")])[0] < 0
    assert lm.generate_until([ask("One, two, three,", {"until": ["\n"], "max_gen_toks": 8})])[0]
    lm.llm.close()


def texts(world: dict[str, Any], out: str) -> None:
    assert len(world["texts"]) == len(world["prompts"]) and all(isinstance(text, str) and text for text in world["texts"])


def mean_logprob(world: dict[str, Any], prompts: Sequence[Any], answers: Sequence[Any]) -> float:
    scores = world["llm"].loglikelihood(list(zip(prompts, answers, strict=True)))
    return sum(score.logprob for score in scores) / sum(len(score.token_logprobs) for score in scores)


def likelier_than_drawn(world: dict[str, Any], out: str) -> None:
    """p^4 prefers likelier texts than p does: than the mean of 16 draws, as a single draw may be a likely text by chance."""
    texts(world, out)
    outs = world["llm"].generate(world["prompts"], temperature=1, max_tokens=12, seed=1, n=16)
    drawn = [
        (prompt, completion.text)
        for prompt, output in zip(world["prompts"], outs, strict=True)
        for completion in output.outputs
        if completion.text
    ]
    assert mean_logprob(world, world["prompts"], world["texts"]) > mean_logprob(world, *zip(*drawn, strict=True))


def in_budget(world: dict[str, Any], out: str) -> None:
    line, wait = world["line"], world["wait"]
    thoughts = [o.token_ids[: o.token_ids.index(line)] for o in world["outs"]]
    assert all(12 <= len(thought) <= 24 + len(wait) for thought in thoughts)
    plain = world["llm"].generate(world["prompts"], temperature=0, max_tokens=40)
    ends = [o.token_ids.index(line) if line in o.token_ids else 99 for o in plain]
    assert any(end < 12 for end in ends) and any(end > 24 for end in ends), "both rules had work"
    assert any(wait[0] in thought for thought in thoughts)


def without_phrases(world: dict[str, Any], out: str) -> None:
    texts(world, out)
    assert not any(" the" in text or "a" in text for text in world["texts"])


def corpus_of_its_own(world: dict[str, Any], out: str) -> None:
    """The drafter is made of the answers, its file is read again, and it drafts."""
    again = CorpusDrafter.load("answers.safetensors")
    [output] = world["llm"].generate(world["prompts"][:1], temperature=0, max_tokens=24, speculative_config=SpeculativeConfig(again, 8))
    assert output.token_ids == world["llm"].generate(world["prompts"][:1], temperature=0, max_tokens=24)[0].token_ids
    assert len(world["outs"]) == 2 and output.outputs[0].spec_decode_metrics.num_drafts > 0


def two_models(world: dict[str, Any], out: str) -> None:
    assert out.strip() and world["smollm"].model_info.architecture != world["gemma"].model_info.architecture


CHECKS: dict[tuple[int, int], Any] = {
    **dict.fromkeys([(number, 0) for number in (1, 2, 3, 5, 24)], texts),
    (21, 0): likelier_than_drawn,
    (22, 0): in_budget,
    (23, 0): without_phrases,
    (4, 0): mcts_runs,
    (7, 0): same_as_plain,
    (8, 0): same_as_plain,
    (8, 1): corpus_of_its_own,
    (13, 0): dates,
    (16, 0): two_models,
    (19, 0): lossless,
    (20, 0): adapter,
    (9, 0): lambda world, out: drafted(world, world["TreeDrafter"](world["small"]), "rejection"),
    (10, 0): lambda world, out: drafted(world, world["Bigram"](), world["Lenient"]()),
    (18, 0): lambda world, out: (out.strip() and world["trace"].to_pandas().drafted.sum() >= 0) or pytest.fail("no trace"),
}
