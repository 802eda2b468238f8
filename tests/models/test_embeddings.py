"""Vectors and scores of texts: nine tiny models against float64, alone, in a batch and on a device; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError, ModelFileError, PromptTooLongError, UnsupportedModelError
from llmi.models.inspection import inspect_model
from llmi.ranks import workers
from rank_threads import RankThreads
from tiny_encoders import MODELS, QUERY, TEXTS, Array, make

pytestmark = pytest.mark.parity
BY_TOKENS = {"classifier_from_token": ["no", "yes"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Array]]]:
    """A model's folder, and what transformers computes with it."""
    known: dict[str, tuple[Path, dict[str, Array]]] = {}

    def find(name: str) -> tuple[Path, dict[str, Array]]:
        if name not in known:
            path = tmp_path_factory.mktemp(name) / "model"
            known[name] = path, make(name, path)
        return known[name]

    return find


def opened(name: str, path: Path, **options: Any) -> LLM:
    if name == "qwen3_reranker":
        options["hf_overrides"] = BY_TOKENS
    return LLM(path, **{"dtype": "float32", "kv_cache_memory_bytes": 1 << 24, **options})


def results(llm: LLM, name: str, texts: list[str]) -> Array:
    """Vectors [texts, width] or scores [texts]."""
    if MODELS[name].pooling is None:
        return np.array([output.outputs.score for output in llm.score(QUERY, texts)], np.float32)
    return np.stack([output.outputs.embedding for output in llm.embed(texts)])


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_float64_alone_and_together(
    name: str, made: Callable[[str], tuple[Path, dict[str, Array]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = made(name)
    [wanted] = expected.values()
    with opened(name, path) as llm:
        together = results(llm, name, TEXTS)
        error = float(np.abs(together - wanted).max())
        print(name, f"{error:.1e}")
        assert together.dtype == np.float32 and error < 1e-5
        for index, text in enumerate(TEXTS):
            assert np.array_equal(results(llm, name, [text])[0], together[index])
        assert np.array_equal(results(llm, name, TEXTS[::-1])[::-1], together)
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    with opened(name, path, device="cuda") as llm:
        assert np.array_equal(results(llm, name, TEXTS[:3]), together[:3])
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    with opened(name, path, tensor_parallel_size=3) as llm:
        assert np.array_equal(results(llm, name, TEXTS), together)


def test_old_names_of_norms(made: Callable[[str], tuple[Path, dict[str, Array]]], copy: Callable[[str], Path]) -> None:
    from safetensors.numpy import load_file, save_file

    path = copy("bert")
    tensors = load_file(path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensors[name] for name in tensors
    }
    assert len(set(old) - set(tensors)) == 2 * (1 + 2 * 3)
    save_file(old, path / "model.safetensors")
    with opened("bert", path) as llm, opened("bert", made("bert")[0]) as other:
        assert np.array_equal(results(llm, "bert", TEXTS), results(other, "bert", TEXTS))


def edit(path: Path, name: str, **changes: Any) -> None:
    """Changes keys of a file of JSON."""
    file = path / name
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | changes))


@pytest.fixture
def copy(made: Callable[[str], tuple[Path, dict[str, Array]]], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a model, to be changed."""
    import shutil

    return lambda name: Path(shutil.copytree(made(name)[0], tmp_path / name))


@pytest.mark.parametrize(
    ("file", "changes", "problem"),
    [
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False, "pooling_mode_median": True}, "'median' is no pooling that is known"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "is not one kind of pooling"),
        (
            "1_Pooling/config.json",
            {"word_embedding_dimension": 65},
            "word_embedding_dimension: it is 65, the model's hidden states have 64",
        ),
        ("2_Dense/config.json", {"in_features": 65}, r"\[out_features, in_features\] = \[96, 65\], and the weight is \[96, 64\]"),
        ("2_Dense/config.json", {"bias": False}, "bias: it is False, and the file has a bias"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Mish"}, "'torch.nn.Mish' is not run"),
    ],
)
def test_modules_are_refused_by_file_and_key(copy: Callable[[str], Path], file: str, changes: dict[str, Any], problem: str) -> None:
    path = copy("embedding_gemma")
    edit(path, file, **changes)
    with opened("embedding_gemma", path) as llm, pytest.raises(ModelFileError, match=problem) as caught:
        llm.embed("a")
    assert file in str(caught.value)


@pytest.mark.parametrize(
    "kinds", [["Transformer", "Transformer"], ["Transformer", "Pooling", "LSTM"], ["Transformer", "Pooling", "Pooling"], []]
)
def test_modules_in_another_order_are_refused(copy: Callable[[str], Path], kinds: list[str]) -> None:
    path = copy("bert")
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    (path / "modules.json").write_text(json.dumps([{"type": f"x.{kind}", "path": places.get(kind, "2_X")} for kind in kinds] or [{}]))
    with opened("bert", path) as llm, pytest.raises(UnsupportedModelError, match=r"modules\.json: type"):
        llm.embed("a")


def test_a_dense_layer_of_another_width_is_refused(copy: Callable[[str], Path]) -> None:
    path = copy("embedding_gemma")
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps(modules[:2] + modules[3:]))  # without the first dense layer
    with opened("embedding_gemma", path) as llm, pytest.raises(ModelFileError, match="takes 96 values, and 64 come to it"):
        llm.embed("a")


def test_an_encoder_does_not_generate_and_takes_no_long_text(made: Callable[[str], tuple[Path, dict[str, Array]]]) -> None:
    with opened("bert", made("bert")[0], max_num_batched_tokens=100) as llm:
        for call in (
            lambda: llm.generate("a"),
            lambda: llm.sequence("a").logits,
            lambda: llm.perplexity("abc"),
            lambda: llm.head(np.zeros((1, 64), np.float32)),
        ):
            with pytest.raises(InvalidParamsError, match="this bert model has no head for tokens"):
                call()
        for wrong in ("", ["a", ""], []):
            if wrong == []:
                assert llm.embed(wrong) == []
                continue
            with pytest.raises(InvalidParamsError, match="is empty"):
                llm.embed(wrong)
        text = "b" * 99
        with pytest.raises(PromptTooLongError, match="101"):
            llm.embed(text)
        cut = llm.embed(text, truncate_prompt_tokens=-1)[0]
        assert cut == type(cut)(cut.request_id, llm.embed("b" * 98)[0].outputs, [257, *cut.prompt_token_ids[1:-1], 258])
        assert len(llm.embed(text, truncate_prompt_tokens=7)[0].prompt_token_ids) == 7
        for value in (0, 101, -2):
            with pytest.raises(InvalidParamsError, match="truncate_prompt_tokens"):
                llm.embed(text, truncate_prompt_tokens=value)
        with pytest.raises(InvalidParamsError, match="max_num_batched_tokens = 100"):
            llm.hidden_states([list(range(3, 104))])


def test_dimensions_prompts_and_ids(copy: Callable[[str], Path]) -> None:
    path = copy("bert")
    settings = {"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 50, "do_lower_case": True}))
    with opened("bert", path) as llm:
        whole = llm.embed("ask: Sea")[0]
        named = llm.embed("Sea", prompt_name="query")[0]
        assert np.array_equal(named.outputs.embedding, whole.outputs.embedding) and named.prompt_token_ids == llm.tokenizer.encode(
            "ask: sea"
        )
        assert np.array_equal(llm.embed(whole.prompt_token_ids)[0].outputs.embedding, whole.outputs.embedding)
        short = llm.embed("ask: Sea", dimensions=8)[0].outputs.embedding
        first = whole.outputs.embedding[:8].astype(np.float64)
        assert np.abs(short - first / np.linalg.norm(first)).max() < 1e-6
        assert llm.score("Sea", "Sea")[0].outputs.score == pytest.approx(
            float(named.outputs.embedding @ llm.embed("Sea")[0].outputs.embedding), abs=1e-6
        )
        for wrong in ({"prompt_name": "q"}, {"dimensions": 65}, {"dimensions": 0}):
            with pytest.raises(InvalidParamsError):
                llm.embed("a", **wrong)
        with pytest.raises(PromptTooLongError):
            llm.embed("b" * 49)


def test_the_prompt_may_not_be_pooled(copy: Callable[[str], Path]) -> None:
    path = copy("bert")
    edit(path, "1_Pooling/config.json", include_prompt=False)
    (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "ask: "}}))
    with opened("bert", path) as llm:
        rows = llm.hidden_states([llm.tokenizer.encode("ask: sea")], normed=True)[0][-1].astype(np.float64)
        mean = rows[6:].mean(axis=0)  # [CLS] and five bytes
        got = llm.embed("sea", prompt_name="query")[0].outputs.embedding
        assert np.abs(got - mean / np.linalg.norm(mean)).max() < 1e-6


def test_scores_are_of_one_label_and_of_models_that_have_them(
    made: Callable[[str], tuple[Path, dict[str, Array]]], copy: Callable[[str], Path]
) -> None:
    from safetensors.numpy import load_file, save_file

    path = copy("bert_scores")
    tensors = load_file(path / "model.safetensors")
    tensors["classifier.weight"] = np.repeat(tensors["classifier.weight"], 3, axis=0)
    tensors["classifier.bias"] = np.repeat(tensors["classifier.bias"], 3)
    save_file(tensors, path / "model.safetensors")
    with opened("bert_scores", path) as llm:
        with pytest.raises(UnsupportedModelError, match="its head has 3 labels, and a score is of one"):
            llm.score("a", "b")
        with pytest.raises(InvalidParamsError, match="it scores pairs of texts"):
            llm.embed("a")
    with LLM(made("qwen3_reranker")[0], dtype="float32") as llm:
        with pytest.raises(UnsupportedModelError, match="classifier_from_token"):
            llm.score("a", "b")
        by_class = llm.embed("a")[0].outputs.embedding  # a decoder without modules.json: the last token, normalised
        assert np.linalg.norm(by_class.astype(np.float64)) == pytest.approx(1, abs=1e-6)
    with opened("bert_scores", made("bert_scores")[0]) as llm:
        for queries, documents in (("", "a"), ("a", ""), (["a", "b"], ["c", "d", "e"]), ([], "a"), (1, "a")):
            with pytest.raises(InvalidParamsError):
                llm.score(queries, documents)  # type: ignore[arg-type]
        with pytest.raises(PromptTooLongError):
            llm.score("a" * 700, "b")
        cut = llm.score("a" * 700, "bc", truncate_prompt_tokens=9)[0].prompt_token_ids
        assert len(cut) == 9 and cut[-4:] == [258, *llm.tokenizer.encode("bc", add_special_tokens=False), 258]


def test_rerankers_score_without_a_sigmoid_where_they_say_so(
    copy: Callable[[str], Path], made: Callable[[str], tuple[Path, dict[str, Array]]]
) -> None:
    path = copy("bert_scores")
    edit(path, "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"})
    with opened("bert_scores", path) as llm, opened("bert_scores", made("bert_scores")[0]) as other:
        raw, score = (model.score(QUERY, TEXTS[0])[0].outputs.score for model in (llm, other))
        assert 1 / (1 + np.exp(-raw)) == pytest.approx(score, abs=1e-6)


def test_qwen3_rerankers_layout_of_sentence_transformers(copy: Callable[[str], Path]) -> None:
    path = copy("qwen3_reranker")
    (path / "1_LogitScore").mkdir()
    (path / "1_LogitScore/config.json").write_text(json.dumps({"true_token_id": 261, "false_token_id": 259}))
    (path / "modules.json").write_text(
        json.dumps([{"type": "a.Transformer", "path": ""}, {"type": "b.LogitScore", "path": "1_LogitScore"}])
    )
    with LLM(path, dtype="float32") as llm, opened("qwen3_reranker", path) as by_name:
        assert llm.score(QUERY, TEXTS) == by_name.score(QUERY, TEXTS)
        assert llm.score(QUERY, TEXTS[0], instruction="Find the sea")[0].outputs != llm.score(QUERY, TEXTS[0])[0].outputs
    edit(path, "1_LogitScore/config.json", false_token_id=None)
    with LLM(path, dtype="float32") as llm, pytest.raises(UnsupportedModelError, match="are not Qwen3-Reranker's tokens"):
        llm.score("a", "b")


def test_an_encoders_report(made: Callable[[str], tuple[Path, dict[str, Array]]]) -> None:
    path = made("bert")[0]
    text = str(inspect_model(path))
    assert "no head for tokens" in text and "4 KV heads x 16 x 4 bytes = 1,536 bytes a token" in text
    assert "= 768 bytes a token, 0.00 MB (float16)" in str(inspect_model(path, "float16"))


def test_the_command(made: Callable[[str], tuple[Path, dict[str, Array]]], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from llmi.cli.commands import main

    path, expected = made("bert")
    assert main(["embed", "-m", str(path), "-p", TEXTS[0], "--dtype", "float32"]) == 0
    line = json.loads(capfd.readouterr().out)
    assert np.abs(np.array(line["embedding"]) - expected["vectors"][0]).max() < 1e-5
    assert main(["embed", "-m", str(path), "-p", TEXTS[0], "--dtype", "float32", "--output", str(tmp_path / "v.npy")]) == 0
    assert np.load(tmp_path / "v.npy").shape == (1, 64)
    assert main(["embed", "-m", str(path), "-p", TEXTS[0], "--query", TEXTS[0]]) == 0
    assert json.loads(capfd.readouterr().out)["score"] == pytest.approx(1, abs=1e-6)
    assert main(["embed", "-m", str(path), "-p", "a", "--query", "b", "--output", "v.npy"]) == 2
    assert "--query prints scores" in capfd.readouterr().err
