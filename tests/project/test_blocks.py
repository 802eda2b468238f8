"""Every block of code in the documents is run by some test, or says in a comment before it why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmi import LLM

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))])
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the documents are not next to the tests")
BLOCK = re.compile(r"^([^\n]*)\n```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: .{4,} -->")

#: Pages whose blocks run, and the test that runs them. Where a page marks its blocks by `<!-- run -->`, these alone.
RUN_BY = {
    "docs/tour.md": "project/test_readme.py",
    "docs/parallel.md": "project/test_readme.py",
    "docs/tiers.md": "project/test_readme.py",
    "docs/simulator.md": "project/test_readme.py",
    "docs/gallery.md": "lab/test_gallery.py",
    "docs/compression.md": "compress/test_commands_of_docs.py",
    "docs/structured-output.md": "structured/test_structured_page.py",
    **{f"docs/from-{name}.md": "project/test_migration.py" for name in ("vllm", "transformers", "llama-cpp-python", "sglang")},
}
#: Pages whose blocks run here, one after the other.
HERE = ["first-answer", "first-drafter", "first-experiment", "how-to", "models"]


def blocks_of(page: Path) -> list[tuple[str, str, str]]:
    """(the line before, language, code) of each block."""
    return [match.groups() for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]  # type: ignore[misc]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_or_say_why_not(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    assert len(blocks_of(page)) == len(re.findall(r"^```[^`\n]*$", page.read_text(encoding="utf-8"), re.MULTILINE)) / 2, (
        "each fence is seen"
    )
    for before, language, code in blocks_of(page):
        run = language.startswith("python") and (name in RUN_BY or page.stem in HERE)
        run |= before == "<!-- run -->" or name == "README.md"  # .ci/run runs its commands, .ci/check_wheel those of the wheel
        run |= name == "docs/structured-output.md" and language in ("json", "sh")
        if not run and not language.startswith("{toctree}"):
            assert NOT_RUN.fullmatch(before), f"{name}: nothing runs this block: write <!-- not run: REASON --> before it\n{code}"


@pytest.mark.parametrize("name", sorted(set(RUN_BY)))
def test_what_runs_a_page_names_it(name: str) -> None:
    assert Path(name).stem in (ROOT / "tests" / RUN_BY[name]).read_text()


@pytest.mark.parametrize("page", HERE)
def test_blocks_of_this_page(page: str, smollm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"llm": smollm, "prompts": ["Once upon a time"], "messages": [{"role": "user", "content": "Hi"}]}
    blocks = [code for before, language, code in blocks_of(ROOT / f"docs/{page}.md") if language == "python" and not NOT_RUN.match(before)]
    assert blocks
    for block in blocks:
        exec(compile(block, f"docs/{page}.md", "exec"), names)
