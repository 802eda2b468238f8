"""mypy, strict, on user code against the shipped types; the core's types against the built module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import parameters_page
from llmi import _core
from llmi.families import spec_of
from llmi.testing import tiny_model

GOOD = """
from collections.abc import Generator
import numpy as np
import llmi
from llmi import LLM, Outputs, SamplingParams, TokenContext, Tokenizer, replay
from llmi.testing import assert_same_tokens, tiny_model

def stop(context: TokenContext) -> bool | str:
    return len(context.token_ids) > 5 and "long"

def double(context: TokenContext, logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    logits *= 2

llm = LLM(tiny_model(), max_model_len=64)
outs: Outputs = llm.generate(["a"], SamplingParams(temperature=0, stopping_criteria=[stop], logits_processors=[double]))
text: str = outs[0].text
rate: float = outs[0].metrics.time_to_first_token_s
for chunk in llm.stream("x", max_tokens=3):
    print(chunk.text)
assert_same_tokens(outs, outs)
ids: list[int] = Tokenizer("x").encode("y")
ok: bool = replay("r.json", llm)

class Bigram(llmi.Drafter):
    def propose(self, context: llmi.DraftContext) -> llmi.TokenTree | None:
        return llmi.TokenTree(context.token_ids[:2].tolist())

def strategy(seq: llmi.TokenSequence, steps: int) -> Generator[dict[llmi.TokenSequence, list[int]], object, str]:
    for _ in range(steps):
        yield {seq: [seq.sample()]}
    return seq.output_text

texts: list[str] = llm.run(strategy, ["a", "b"], steps=3)
outs = llm.generate("x", speculative_config=[Bigram()])
metrics = outs[0].outputs[0].spec_decode_metrics
assert metrics is not None and metrics.acceptance_rate < 2
"""
BAD = "from llmi import LLM\nLLM(max_model_len='x')\n"


def test_user_code(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="the extra `lint` brings mypy")
    for name, code, status in (("good.py", GOOD, 0), ("bad.py", BAD, 1)):
        (tmp_path / name).write_text(code)
        result = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == status, result.stdout


def test_typed_dicts_of_the_stub() -> None:
    """Each TypedDict of the stub has the keys of the dict that the core returns."""
    stub = ast.parse((Path(_core.__file__).parent / "_core" / "__init__.pyi").read_text())
    keys = {
        node.name: [line.target.id for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
        for node in stub.body
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["TypedDict"]
    }
    model = tiny_model()
    spec = spec_of(_core.ModelFiles(str(model))).to_json()
    returned = {
        "_SystemInfo": _core.system_info(),
        "_ModelConfig": _core.spec_numbers(spec, str(model)),
        "_EngineInfo": _core.Engine(_core.ModelFiles(str(model)), spec=spec, dropped=_core.DropFlag()).info(),
    }
    assert {name: list(value) for name, value in returned.items()} == keys


@pytest.mark.slow
def test_the_stub_is_that_of_the_core(tmp_path: Path) -> None:
    """Each class, function and attribute of the stubs is in the built module, and the other way round; what is read-only is so in both."""
    pytest.importorskip("mypy", reason="the extra `lint` brings mypy")
    allowed = tmp_path / "allowed"
    allowed.write_text("" if hasattr(_core, "testing") else "llmi._core.testing\n")
    command = [sys.executable, "-m", "mypy.stubtest", "llmi._core", "--concise", "--allowlist", str(allowed)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_stub_has_the_cores_parameters() -> None:
    """All fields of SamplingParams that the core has, with its types, and no other."""
    text = parameters_page.STUB.read_text(encoding="utf-8")
    assert parameters_page.stub(text) == text, "run `python tests/support/parameters_page.py`"


PACKAGE = Path(__file__).resolve().parents[2] / "python" / "llmi"
MOST_ANY = 9  # lines of the package with an annotation `: Any`


def test_each_any_has_a_reason() -> None:
    """`: Any` switches the checker off. Few lines have it, and each says why in a comment "# Any: ..." behind it or on the line above."""
    found, silent = [], []
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        if path.parent.name == "compat":
            continue  # signatures of other engines, whose untyped values go to calls of llmi that check them
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            code = line.split("#")[0]
            if ": Any" not in code:
                continue
            found.append(f"{path.relative_to(PACKAGE)}:{number}")
            if not any("# Any: " in text for text in lines[max(0, number - 2) : number]):
                silent.append(found[-1])
    assert not silent, f"no reason for Any: {silent}"
    assert len(found) <= MOST_ANY, f"{len(found)} lines with `: Any`, at most {MOST_ANY}: {found}"
