"""train_heads on a tiny model: the same bytes again and after a break, the file's form, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, InvalidParamsError
from llmi.cli.commands import main
from llmi.models.safetensors_file import read_safetensors
from llmi.training import plan, run, text
from llmi.training.eagle import EagleModel
from llmi.training.layer import Roll, angles, grid_of, rotate
from llmi.training.report import HeadsReport

pytestmark = pytest.mark.slow


PROMPTS = ["The sea", "A cat sat", "One and one", "In the night", "She said", "Snow", "He ran to", "Why"]
Train = Callable[..., HeadsReport]


@pytest.fixture(scope="module")
def tiny(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path("llama", num_layers=2, vocab_size=200), kv_cache_memory_bytes=1 << 25) as llm:
        yield llm


@pytest.fixture
def train(tiny: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains into tmp_path / name, on little text."""
    monkeypatch.setattr(plan, "FEWEST_TURNS", 24)
    monkeypatch.setattr(text, "MAX_ANSWER", 24)
    monkeypatch.setattr(run, "CHECKPOINT_S", 0.0)

    def call(name: str, **arguments: Any) -> HeadsReport:
        return llmi.train_heads(tiny, tmp_path / name, **{"prompts": PROMPTS, "steps": 24, "seed": 3, **arguments})

    return call


def bytes_of(report: HeadsReport) -> bytes:
    return (report.path / "model.safetensors").read_bytes()


def test_equal_steps_and_seed_give_equal_bytes(train: Train) -> None:
    first, again = train("a"), train("b")
    assert bytes_of(first) == bytes_of(again) and first.receipt == again.receipt and first == again and first.losses == again.losses
    assert bytes_of(train("c", seed=4)) != bytes_of(first) != bytes_of(train("d", steps=23))
    assert not (first.path / "training").exists()


@pytest.mark.parametrize("after", [1, 13, 23])
def test_a_resumed_training_has_the_bytes_of_one_without_a_break(train: Train, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train("whole")
    original = run.AdamW.update

    def update(self: run.AdamW, *arguments: Any) -> float:
        if self.step == after:
            self.parameters += 1  # half an update
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run.AdamW, "update", update)
        with pytest.raises(KeyboardInterrupt):
            train("broken")
    resumed = train("broken", resume=True)
    assert bytes_of(resumed) == bytes_of(whole)
    assert resumed == whole and resumed.receipt == whole.receipt and resumed.losses == whole.losses


def test_a_break_in_the_text_keeps_what_was_written(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GROUP", 8)
    whole, calls = train("whole"), []
    original = text.GivenPrompts.__call__

    def write(self: text.GivenPrompts, first: int, end: int) -> text.Text:
        calls.append(first)
        if calls == [0, 8]:
            raise KeyboardInterrupt
        return original(self, first, end)

    monkeypatch.setattr(text.GivenPrompts, "__call__", write)
    with pytest.raises(KeyboardInterrupt):
        train("broken")
    resumed = train("broken", resume=True)
    assert bytes_of(resumed) == bytes_of(whole) and calls == [0, 8, 8, 16]


def test_the_file_is_eagles(train: Train, tiny: LLM) -> None:
    report = train("heads")
    tensors, _ = read_safetensors(report.path / "model.safetensors")
    config = json.loads((report.path / "config.json").read_text())
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    num_ids = len(tensors["shortlist"])
    layer = "layers.0."
    assert shapes == {
        "fc.weight": (64, 128),
        f"{layer}self_attn.q_proj.weight": (64, 64),
        f"{layer}self_attn.k_proj.weight": (32, 64),
        f"{layer}self_attn.v_proj.weight": (32, 64),
        f"{layer}self_attn.o_proj.weight": (64, 64),
        f"{layer}mlp.gate_proj.weight": (128, 64),
        f"{layer}mlp.up_proj.weight": (128, 64),
        f"{layer}mlp.down_proj.weight": (64, 128),
        f"{layer}post_attention_layernorm.weight": (64,),
        "shortlist": (num_ids,),
    }
    assert (np.diff(tensors["shortlist"]) > 0).all() and tensors["shortlist"].max() < 200
    assert config["architectures"] == ["LlamaForCausalLMEagle"] and config["hidden_size"] == 64 and config["num_key_value_heads"] == 2
    own = config["llmi"]
    assert own["kind"] == "eagle" and own["target_digest"] == tiny._files.digest()() == own["receipt"]["model_digest"]
    assert own["receipt"] == report.receipt and report.receipt["steps_run"] == 24


def test_the_files_own_arithmetic_is_what_was_trained(train: Train, tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk with the file's tensors over a whole text gives the rows that the trainer's own layer gives, gain and names included."""
    models: list[EagleModel] = []
    original = EagleModel.tensors

    def tensors(self: EagleModel, dtype: type) -> Any:
        models.append(self)
        return original(self, np.float32 if dtype is np.float16 else dtype)

    monkeypatch.setattr(EagleModel, "tensors", tensors)
    report = train("heads")
    weights = read_safetensors(report.path / "model.safetensors")[0]
    ids = list(tiny.generate(["Tell me"], temperature=0, max_tokens=60, ignore_eos=True)[0].token_ids)
    rows = tiny.hidden_states([ids], normed=True)[0][-1]
    embeddings = tiny.weights["model.embed_tokens.weight"]
    x = np.concatenate([embeddings[ids[1:]], rows[:-1]], axis=1) @ weights["fc.weight"].T
    places = np.arange(len(x))
    cos, sin = angles(models[0].shape, places, np.float32)
    project = {name: x @ weights[f"layers.0.self_attn.{name}_proj.weight"].T for name in "qkv"}
    query, key = (rotate(project[name].reshape(len(x), -1, 16), cos, sin) for name in "qk")
    scores = np.einsum("ihd,jhd->hij", query, np.repeat(key, 2, axis=1)) / 4 + np.triu(np.full((len(x), len(x)), -np.inf), 1)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    value = np.repeat(project["v"].reshape(len(x), -1, 16), 2, axis=1)
    y = x + np.einsum("hij,jhd->ihd", probs, value).reshape(len(x), -1) @ weights["layers.0.self_attn.o_proj.weight"].T
    z = y / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + 1e-6) * weights["layers.0.post_attention_layernorm.weight"]
    gate, up = (z @ weights[f"layers.0.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    out = y + (gate / (1 + np.exp(-gate)) * up) @ weights["layers.0.mlp.down_proj.weight"].T
    grid = grid_of(np.zeros((1, len(x)), np.int64), places[None], np.float32)
    roll = Roll(models[0].shape, models[0].weights, grid, models[0].gain)
    np.testing.assert_allclose(out, roll.forward(rows[:-1], embeddings[ids[1:]], places, places), rtol=1e-3, atol=1e-4)


def test_medusa(train: Train) -> None:
    report, again = train("a", kind="medusa"), train("b", kind="medusa")
    tensors, _ = read_safetensors(report.path / "model.safetensors")
    config = json.loads((report.path / "config.json").read_text())
    heads = {f"{head}.0.linear.{part}": (64, 64)[: 2 if part == "weight" else 1] for head in range(4) for part in ("weight", "bias")}
    assert {name: tensor.shape for name, tensor in tensors.items() if name != "shortlist"} == heads
    assert config["medusa_num_heads"] == 4 and config["llmi"]["kind"] == "medusa" and bytes_of(report) == bytes_of(again)


def test_minutes_fix_text_and_steps_first(train: Train) -> None:
    report = train("heads", steps=None, minutes=0.05)
    assert report.receipt["steps"] >= 1
    again = train("again", steps=report.receipt["steps"])
    assert bytes_of(again) == bytes_of(report), "the steps name the text too"


def test_half_of_the_answers_are_greedy(train: Train, tiny: LLM) -> None:
    prompts = [list(tiny.tokenizer.encode(prompt)) for prompt in PROMPTS]
    written = text.GivenPrompts(tiny, prompts, 3)(0, 16)
    greedy = tiny.generate(prompts * 2, temperature=0, max_tokens=24)
    for index, output in enumerate(greedy):
        answer = written.sequence(index)[written.prompt_lens[index] :].tolist()
        assert (answer == list(output.token_ids)) == (not written.warm[index])
    assert written.warm[:8].sum() == 4 and (written.warm[:8] != written.warm[8:]).all(), "a prompt is answered greedily once"


def test_own_prompts(train: Train) -> None:
    report = train("heads", prompts=None, steps=2)
    assert report.receipt["prompts_digest"] is None and report.receipt["answer_tokens"] > 24 * 10


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"kind": "medusa9"}, "kind"),
        ({"steps": 0}, "steps"),
        ({"minutes": float("nan")}, "minutes"),
        ({"minutes": 0}, "minutes"),
        ({"seed": -1}, "seed"),
        ({"prompts": []}, "prompts"),
        ({"prompts": [[999]]}, "prompts"),
        ({"resume": True}, "resume"),
        ({"resume": 1}, "resume"),
    ],
)
def test_bad_arguments(train: Train, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParamsError) as info:
        train("heads", **arguments)
    assert info.value.parameter == name


@pytest.mark.parametrize(("change", "says"), [({"seed": 5}, "seed"), ({"prompts": ["x"]}, "prompts_digest"), ({"steps": 25}, "steps")])
def test_resume_goes_on_with_the_same_training_only(
    train: Train, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run.Training, "run", lambda self, show: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train("heads")
    with pytest.raises(InvalidParamsError, match=says):
        train("heads", resume=True, **change)


def test_command_line(tiny: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], train: Train) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    out = tmp_path / "by-command"
    command = ["train-heads", str(out), "--model", str(tiny.model_info.path), "--prompts", str(prompts), "--steps", "24", "--seed", "3"]
    assert main(command) == 0
    assert "T = 0" in capsys.readouterr().out
    assert (out / "model.safetensors").read_bytes() == bytes_of(train("by-call"))
    assert main([*command, "--resume"]) == 2 and "resume" in capsys.readouterr().err
    assert main([*command[:5], str(tmp_path / "none.txt")]) == 2
