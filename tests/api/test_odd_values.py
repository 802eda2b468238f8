"""Odd values for every argument: taken as they are, or refused by an error of llmi that names the argument. Prints both counts of
failures."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, HookError, LlmiError
from llmi.engine.options import ENGINE as ENGINE_TABLE
from llmi.params.sampling import ALIASES, FIELDS, SAMPLING
from odd_values import ENGINE, ENGINES, FAMILIES, LOGITS, PARAMETERS, TARGETS, VALUES, Target, listed, plain, target

ENDLESS = {
    "generate.stop_token_ids",
    "generate.prompts",
    "generate.logits_processors",
    "decode.token_ids",
    "extend.tokens",
    "sync.token_ids",
    "LLM.batch_processors",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llmi.testing.tiny_model(vocab_size=260, num_layers=1, path=tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 20, max_model_len=32) as llm:
        llm.tokenizer.chat_template = "{{ messages[0].content }}"
        yield llm
        if (engine := ENGINES.pop(id(llm), None)) is not None:
            asyncio.run(engine.shutdown())


def meets(wanted: Target, llm: LLM, name: str) -> str:
    """ "" if the value was taken as it is or refused by name, else what happened."""
    make = VALUES[name]
    fits = wanted.name == "log_softmax.logits" and name in LOGITS
    if not fits:
        with contextlib.suppress(Exception):  # a value that cannot be looked at is not to be taken
            fits = name != "count()" and FAMILIES[wanted.family](make())
    try:
        result = wanted.call(llm, make())
    except LlmiError as error:
        own = isinstance(error, HookError) and "hook" in wanted.family  # a callable was taken, and is no such hook
        named = own or any(part in str(error) or part == getattr(error, "parameter", None) for part in wanted.names)
        return "" if named else f"unnamed: {wanted.name} = {name}: {error!s:.100}"
    except Exception as error:
        return f"raw: {wanted.name} = {name}: {type(error).__name__}: {error!s:.100}"
    if not fits:
        return f"taken: {wanted.name} = {name}"
    field = wanted.name.partition(".")[2]
    if wanted.name.startswith("generate.") and field in FIELDS and isinstance(result, llmi.Outputs):
        resolved = result[0].params_resolved[field][0]
        if not same(field, make(), resolved):
            return f"changed: {wanted.name} = {name} into {resolved!r:.60}"
    return ""


def same(field: str, given: Any, resolved: Any) -> bool:
    """Whether a value is what was given: of the same kind, and equal."""
    given = plain(given)
    if given is None:
        return bool(resolved == SAMPLING[field].default or field == "max_tokens" or field == "seed")
    if field == "seed" and given == -1:
        return type(resolved) is int
    if (field, given) in (("thinking_token_budget", -1), ("repetition_detection", {})):
        return resolved is None  # both are off
    if isinstance(resolved, list) and not isinstance(given, list):
        entries = listed(given)
        given = [given] if entries is None else sorted(entries) if isinstance(given, set) else entries
    if isinstance(resolved, tuple):
        given = (given,) if callable(given) else tuple(given)
    if isinstance(resolved, float):
        return float(given) == resolved and not isinstance(given, bool)
    return type(resolved) in (bool, int, str, list, dict, tuple, type(given)) and bool(resolved == given)


def failures(llm: LLM, targets: list[Target]) -> list[str]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for wanted in targets:
            for name in VALUES:
                if name == "count()" and wanted.name not in ENDLESS:  # each takes 0.1 s to refuse
                    continue
                what = meets(wanted, llm, name)
                if what:
                    found.append(what)
    return found


def report(found: list[str], num_tried: int) -> None:
    raw = [what for what in found if what.startswith(("raw", "unnamed"))]
    changed = [what for what in found if what not in raw]
    print(f"{num_tried} odd values: {len(raw)} raw or unnamed errors, {len(changed)} silently changed")
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_calls(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    found = failures(llm, TARGETS)
    with capsys.disabled():
        report(found, len(TARGETS) * len(VALUES))
    assert llm.generate([5, 6], max_tokens=2, temperature=0)[0].finished, "the engine stays usable"


@pytest.mark.slow
def test_arguments_of_llm(
    llm: LLM, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> Callable[[LLM, Any], Any]:
        arguments: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 32, "generation_config": "none"}
        return lambda _, value: LLM(path, **arguments | {name: value}).close()

    also = {"speculative_config": ("drafter",), "tokenizer": ("No such file",), "chat_template": ("No such file",)}
    targets = [target(f"LLM.{name}", family, load(name), name, *also.get(name, ())) for name, family in ENGINE.items()]
    targets.append(target("LLM.model", "objects", lambda _, value: value if value is None else LLM(value), "model", ""))
    makes = [target for target in targets if target.name == "LLM.prefix_cache_dir"]  # folders, where it stands
    found = failures(llm, [target for target in targets if target not in makes])
    monkeypatch.chdir(tmp_path)
    found += failures(llm, makes)
    with capsys.disabled():
        report(found, len(targets) * len(VALUES))


def test_every_option_is_tried() -> None:
    """What is in the product's table is in this one."""
    assert {*FIELDS, *ALIASES} - {*PARAMETERS} == {"logits_processor"}
    assert {*ENGINE_TABLE} - {*ENGINE} == {"model"}


def test_failures_are_seen(llm: LLM) -> None:
    """The oracle is none of the product's: a call that takes too much, or that raises something raw, is found out."""
    taken = target("generate.n", "integer", lambda llm, value: None)
    raw = target("generate.n", "integer", lambda llm, value: int(value))
    assert {what.partition(":")[0] for what in failures(llm, [taken, raw])} == {"taken", "raw"}
    assert not same("top_k", 5.0, 5) or not isinstance(5, float)
    assert not same("stop_token_ids", np.array([1.5]), [1]) and same("stop_token_ids", np.array([1]), [1])
