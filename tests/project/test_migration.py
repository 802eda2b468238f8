"""The pages for users of other engines: their programs run, and what they name is there; each error of the page of errors is raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmi import LLM, _core
from llmi.errors import LlmiError
from llmi.testing import tiny_model

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documents are not next to the tests")


@pytest.mark.parametrize("page", ["from-vllm", "from-transformers", "from-llama-cpp-python", "from-sglang"])
def test_programs_run(page: str, smollm_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), namespace)


def test_frameworks_page_names_what_is_there() -> None:
    text = (DOCS / "frameworks.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(?:csrc|python/llmi|notebooks)/[\w./-]*\w", text)
    assert len(named) > 20
    assert [name for name in named if not (DOCS.parent / name).exists()] == []
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| framework"))]
    names = "Orca FasterTransformer TGI vLLM SGLang DeepSpeed-FastGen Sarathi LMDeploy LightLLM MLC OpenPPL llama.cpp DistServe Splitwise Mooncake"
    assert [row[0].removeprefix("| ").split(",")[0] for row in rows] == [*names.split(), "Medusa", "EAGLE"]
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)


def broken(context: object, logits: object) -> None:
    raise KeyError("mine")


#: What raises the error of each numbered row of docs/errors.md.
CAUSES = {
    1: lambda llm: llm.generate([1], temprature=1),
    2: lambda llm: llm.generate([1], lora_request=object()),
    3: lambda llm: LLM(n_contexts=1),
    4: lambda llm: llm.generate([1], temperature=-1),
    5: lambda llm: llm.generate([1], max_tokens=1, max_new_tokens=2),
    6: lambda llm: llm.generate([1] * 100, max_tokens=100),
    7: lambda llm: LLM("no/such/place.gguf"),
    8: lambda llm: llm.close() or llm.generate([1]),
    9: lambda llm: LLM(tiny_model(), device="cuda"),
    10: lambda llm: llm.generate([1], logits_processors=[broken]),
}


@pytest.mark.parametrize("number", CAUSES)
def test_errors_page(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "0")
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| \d+ \|", page, re.MULTILINE)) == len(CAUSES)
    [text] = re.findall(rf"^\| {number} \| `([^`]+)`", page, re.MULTILINE)
    if number == 9 and not _core.system_info()["why_no_cuda"]:
        pytest.skip("CUDA is ready here")
    with LLM(tiny_model(), max_model_len=64, kv_cache_memory_bytes=1 << 24) as llm, pytest.raises((LlmiError, TypeError)) as raised:
        CAUSES[number](llm)
    assert text in str(raised.value)
