"""Programs in the shapes of the peers' own examples run with the package's name changed, and the model's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from llmi import LLM
from llmi.compat import llama_cpp, vllm

SCRIPTS = Path(__file__).parents[1] / "data/peer_scripts"
#: What does not run, with what it says.
REFUSED = {
    "vllm/metrics": "No module named 'llmi.compat.vllm.v1.metrics'",
    "vllm/multilora": "No module named 'llmi.compat.vllm.lora'",
    "llama_cpp/embedding": "embedding = True is not available",
}
NAMES = sorted(str(path.relative_to(SCRIPTS).with_suffix("")) for path in SCRIPTS.rglob("*.py"))


def run(name: str, model: Path) -> None:
    text = re.sub(r"^from (vllm|llama_cpp)\b", r"from llmi.compat.\1", (SCRIPTS / f"{name}.py").read_text(), flags=re.MULTILINE)
    text = re.sub(r'"(facebook/opt-125m|\.\./models/7B/ggml-model\.bin)"', repr(str(model)), text)
    exec(compile(text, f"{name}.py", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", NAMES)
def test_scripts_of_peers(name: str, smollm_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    if name in REFUSED:
        with pytest.raises(Exception, match=re.escape(REFUSED[name])):
            run(name, smollm_path)
    else:
        run(name, smollm_path)


def test_how_many_run() -> None:
    counts = [sum(name.startswith(peer) for name in NAMES) for peer in ("vllm/", "llama_cpp/")]
    assert counts == [14, 6] and len(NAMES) - len(REFUSED) >= 15


def test_modules_are_thin() -> None:
    files = (Path(module.__file__ or "") for module in (vllm, llama_cpp))
    assert sum(len(path.read_text().splitlines()) for path in files) <= 400


def test_seeds_are_drawn_from_the_engines_own(smollm_path: Path) -> None:
    """LLM(seed=0) starts one generator: two calls differ, two engines do not."""
    params = vllm.SamplingParams(max_tokens=8)
    with vllm.LLM(smollm_path) as first, vllm.LLM(smollm_path, seed=0) as second:
        answers = [[llm.generate("The sun", params, use_tqdm=False)[0] for _ in range(2)] for llm in (first, second)]
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1]


def test_llama_samples_as_llama_cpp_does(smollm: LLM, smollm_path: Path) -> None:
    """Its defaults, in its order of steps; the same tokens as llmi's own call that says so."""
    llama = llama_cpp.Llama(str(smollm_path), seed=5)
    ours = smollm.generate(
        "The sun", temperature=0.8, top_p=0.95, min_p=0.05, top_k=40, max_tokens=16, seed=9, sampler_order="llama.cpp", penalty_last_n=64
    )
    assert llama("The sun", seed=9)["choices"][0]["text"] == ours[0].text
    assert llama("The sun")["choices"] == llama("The sun")["choices"]
    with pytest.raises(Exception, match="chat_format = 'llama-2' is not available"):
        llama_cpp.Llama(str(smollm_path), chat_format="llama-2")
    llama.close()
