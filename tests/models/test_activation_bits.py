"""activation_bits from Python and the command line: what is taken and refused, what a numerics id says, receipts and drafts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
import tiny_gguf
from llmi import LLM, Drafter, InvalidParamsError, SamplingParams, SelfDraft, SpeculativeConfig, UnsupportedCombinationError
from llmi.cli import commands
from llmi.cli.bench import bound_shares
from llmi.engine.numerics_id import where_it_runs
from llmi.models.inspection import inspect_model
from llmi.testing import assert_lossless, assert_same_tokens, random_drafter, tiny_model
from waiting import HANG_S

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 256}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
DRAWN = SamplingParams(temperature=0.9, max_tokens=40, seed=2, ignore_eos=True, logprobs=1)
PROMPTS = [[1, 2, 3, 1, 2], [4], [*range(5, 60)]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three layers whose weights are Q8_0, all but the norms."""
    folder = tmp_path_factory.mktemp("bits")
    return quantized_file(folder / "tiny.gguf", tiny_model(vocab_size=258, num_layers=3, path=folder / "directory"), lambda name: "Q8_0")


def quantized_file(path: Path, directory: Path, type_of: Callable[[str], str]) -> Path:
    """The directory's model as a GGUF, its matrices in the type that type_of says by their names, such as "Q8_0"."""
    import gguf

    whole = tiny_gguf.write(path.with_suffix(".f32"), directory)
    reader = gguf.GGUFReader(str(whole))
    writer = gguf.GGUFWriter(str(path), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        kind = gguf.GGMLQuantizationType[type_of(tensor.name) if len(tensor.shape) == 2 else "F32"]
        writer.add_tensor(tensor.name, gguf.quantize(tensor.data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def wide(path: Path) -> Iterator[LLM]:
    with LLM(path, activation_bits=16, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def narrow(path: Path) -> Iterator[LLM]:
    with LLM(path, activation_bits=8, **SMALL) as llm:
        yield llm


# --- what is taken, and what is refused


@pytest.mark.parametrize("value", [True, "16", 12, 16.0, 0, -8, 32, [16], np.float32(16), np.array([16])], ids=repr)
def test_other_values_are_refused(path: Path, value: Any) -> None:
    for call in (
        lambda: LLM(path, activation_bits=value, **SMALL),
        lambda: llmi.AsyncLLM(path, activation_bits=value, **SMALL),
        lambda: llmi.DraftModel(path, activation_bits=value, **SMALL),
        lambda: SelfDraft(exit_layer=1, activation_bits=value),
    ):
        with pytest.raises(InvalidParamsError, match="activation_bits must be one of the integers 8 and 16") as error:
            call()
        assert error.value.parameter == "activation_bits"


@pytest.mark.parametrize("value", [np.int64(16), np.uint8(16), np.array(16)], ids=repr)
def test_numpys_integers_are_taken(path: Path, value: Any) -> None:
    with LLM(path, activation_bits=value, **SMALL) as llm:
        assert "-a:i16-" in llm.model_info.numerics_id


def test_the_default_is_sixteen_where_layers_are_quantised(path: Path, tiny_path: Callable[..., Path]) -> None:
    for given, wanted in (
        ({}, "i16"),
        ({"activation_bits": None}, "i16"),
        ({"activation_bits": 8}, "i8b32b16"),
        ({"dtype": "float32"}, "f32"),
    ):
        with LLM(path, **SMALL, **given) as llm:
            assert f"-a:{wanted}-" in llm.model_info.numerics_id
    with LLM(tiny_path(), **SMALL) as llm:
        assert "-a:f32-" in llm.model_info.numerics_id
    with LLM(tiny_path(), quantization="q8_0", **SMALL) as llm:
        assert "-a:i16-" in llm.model_info.numerics_id


def test_it_is_refused_where_no_layer_is_quantised(tiny_path: Callable[..., Path], path: Path, tmp_path: Path) -> None:
    only_looked_up = quantized_file(
        tmp_path / "embedding.gguf",
        tiny_model(vocab_size=258, tie_word_embeddings=False, path=tmp_path / "d"),
        lambda name: "Q8_0" if name == "token_embd.weight" else "F32",
    )
    for file, arguments in (
        (tiny_path(), {}),
        (tiny_path(), {"dtype": "bfloat16"}),
        (path, {"dtype": "float32"}),
        (path, {"dtype": "float16"}),
        (only_looked_up, {}),
    ):
        with pytest.raises(UnsupportedCombinationError, match=r"activation_bits = 16 is for quantised layers.*dtype = ") as error:
            LLM(file, activation_bits=16, **SMALL, **arguments)
        assert {error.value.feature_a, error.value.feature_b} == {"activation_bits", "dtype"}
        LLM(file, activation_bits=8, **SMALL, **arguments).close()
    with LLM(tiny_path(), activation_bits=16, quantization="q4_0", **SMALL) as llm:
        assert "-a:i16-" in llm.model_info.numerics_id, "layers that are quantised as they are loaded"
    with pytest.raises(UnsupportedCombinationError, match="dtype = 'float32' makes floats of all weights"):
        LLM(tmp_path / "no-such-file", activation_bits=16, dtype="float32")


def test_a_file_of_quantised_and_of_float_layers(tmp_path: Path) -> None:
    """Float layers read the same in both modes; what differs are the quantised ones."""
    directory = tiny_model(vocab_size=258, num_layers=2, path=tmp_path / "directory")
    mixed = quantized_file(tmp_path / "mixed.gguf", directory, lambda name: "Q8_0" if "ffn" in name else "F32")
    logits = {}
    for bits in (8, 16):
        with LLM(mixed, activation_bits=bits, kv_cache_dtype="float32", **SMALL) as llm:
            assert f"-w:f32+q8-a:{ {8: 'i8b32b16', 16: 'i16'}[bits] }-" in llm.model_info.numerics_id
            logits[bits] = llm.sequence(PROMPTS[2]).logits.copy()
    with LLM(mixed, dtype="float32", **SMALL) as llm:
        exact = llm.sequence(PROMPTS[2]).logits.copy()
    error = {bits: np.abs(values - exact).max() for bits, values in logits.items()}
    assert 0 < 30 * error[16] < error[8], error


# --- bits


def test_sixteen_bits_are_nearer_to_floats(path: Path, wide: LLM, narrow: LLM) -> None:
    with LLM(path, dtype="float32", kv_cache_dtype="float16", **SMALL) as exact:
        for prompt in PROMPTS:
            wanted = exact.sequence(prompt).logits
            error = {llm: np.abs(llm.sequence(prompt).logits - wanted).max() for llm in (wide, narrow)}
            assert 0 < 20 * error[wide] < error[narrow], [*error.values()]


def test_ids(path: Path, wide: LLM, narrow: LLM) -> None:
    """Those of 8 bits are what they were; an id gives the mode back."""
    assert narrow.model_info.numerics_id == "llmi3-cpu-w:q8-a:i8b32b16-kv:f16-attn:f32"
    assert wide.model_info.numerics_id == "llmi3-cpu-w:q8-a:i16-kv:f16-attn:f32"
    for llm, bits in ((narrow, 8), (wide, 16)):
        assert where_it_runs(llm.model_info.numerics_id)["activation_bits"] == bits
    assert where_it_runs("llmi3-cpu-w:bf16+q8-a:i16+bf16dot-kv:i8-attn:f32-tp1") == {
        "device": "cpu",
        "activation_bits": 16,
        "linear_dtype": "bf16",
        "attention_dtype": "float32",
        "deterministic": True,
    }
    assert where_it_runs("llmi3-cpu-w:bf16-a:f32-kv:i8-attn:f32-tp1")["activation_bits"] == 8, "an int8 cache is no activation"


def test_layers_of_bf16_beside_quantised_ones(tmp_path: Path) -> None:
    """Each kind of layer rounds what it reads in its own way; the id says both, and an engine is built by it."""
    directory = tiny_model(vocab_size=258, num_layers=2, path=tmp_path / "directory")
    mixed = quantized_file(tmp_path / "mixed.gguf", directory, lambda name: "Q8_0" if "ffn" in name else "BF16")
    with LLM(mixed, activation_bits=16, linear_dtype="bf16", **SMALL) as llm:
        assert "-w:bf16+q8-a:i16+bf16dot-" in llm.model_info.numerics_id
        receipt = llm.generate([PROMPTS[2]], DRAWN)[0].receipt()
        plain = llm.generate(PROMPTS, DRAWN)
        assert_same_tokens(llm.generate(PROMPTS, DRAWN, speculative_config=SelfDraft(exit_layer=1)), plain)
    assert receipt._engine_arguments["activation_bits"] == 16 and receipt._engine_arguments["linear_dtype"] == "bf16"
    with LLM(mixed, **receipt._engine_arguments, **SMALL) as again:
        assert llmi.replay(receipt, again)


@pytest.mark.parametrize("device_name", ["cpu", "cuda"])
def test_llm_async_and_device_agree(path: Path, wide: LLM, device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")

    async def ask() -> Any:
        async with llmi.AsyncLLM(path, device=device_name, activation_bits=16, **SMALL) as engine:
            assert f"-{device_name}-" in engine.llm.model_info.numerics_id and "-a:i16-" in engine.llm.model_info.numerics_id
            async for output in engine.generate({"prompt_token_ids": PROMPTS[0]}, DRAWN):
                last = output
            return last

    assert_same_tokens([asyncio.run(ask())], wide.generate(PROMPTS[:1], DRAWN))


# --- receipts


def test_receipts_name_the_mode(path: Path, wide: LLM, narrow: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay builds an engine of the receipt's mode; an engine of the other one is refused by its id."""
    monkeypatch.chdir(path.parent)
    built: list[str] = []
    original = LLM._finish  # of a check, too

    def seen(self: LLM, *args: Any, **kwargs: Any) -> Any:
        built.append(self.model_info.numerics_id)
        return original(self, *args, **kwargs)

    for llm, other in ((wide, narrow), (narrow, wide)):
        receipt = llm.generate([PROMPTS[2]], DRAWN)[0].receipt()
        receipt.save(tmp_path / "receipt.json")
        assert receipt.fields["numerics_id"] == llm.model_info.numerics_id
        with pytest.raises(InvalidParamsError, match="numerics id"):
            llmi.replay(tmp_path / "receipt.json", other)
        with monkeypatch.context() as patch:
            patch.setattr(LLM, "_finish", seen)
            assert llmi.replay(tmp_path / "receipt.json", llm)
            assert llmi.replay(tmp_path / "receipt.json"), "the file in the working directory, in the receipt's mode"
            assert commands.main(["replay", str(tmp_path / "receipt.json"), "--model", str(path)]) == 0
        assert {*built} == {llm.model_info.numerics_id} and len(built) == 3
        built.clear()


# --- drafts


DRAFTERS: dict[str, Callable[[Path], Any]] = {
    "prompt lookup": lambda path: llmi.PromptLookup(),
    "exit layer": lambda path: SelfDraft(exit_layer=2),
    "all layers, 8 bits": lambda path: SelfDraft(skip_layers=[]),
    "all layers, 16 bits": lambda path: SelfDraft(skip_layers=[], activation_bits=16),
    "lower bits": lambda path: SelfDraft(quantization="q4_0"),
    "draft model": lambda path: llmi.DraftModel(path, **SMALL),
    "draft model, 16 bits": lambda path: llmi.DraftModel(path, activation_bits=16, **SMALL),
    "itself": lambda path: random_drafter(quality=0.7, seed=1),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("length", [3, "auto"])
def test_drafts_change_no_token(path: Path, wide: LLM, name: str, length: Any) -> None:
    drafter = DRAFTERS[name](path)
    config = SpeculativeConfig(drafter, length)
    assert_lossless(config, wide, num_tokens=200)
    for params in (GREEDY, DRAWN):
        plain = wide.generate(PROMPTS, params, speculative_config=None)
        assert_same_tokens(wide.generate(PROMPTS, params, speculative_config=config), plain)


def test_who_drafts_with_how_many_bits(path: Path, wide: LLM, narrow: LLM, tiny_path: Callable[..., Path]) -> None:
    def mode(llm: LLM) -> str:
        return llm.model_info.numerics_id.partition("-a:")[2].partition("-")[0]

    def attached(drafter: Any, target: LLM) -> str:
        target.generate([1, 2], max_tokens=3, seed=1, speculative_config=drafter)
        return mode(drafter.llm)

    for target in (wide, narrow):
        assert attached(SelfDraft(exit_layer=1), target) == "i8b32b16"
        assert attached(SelfDraft(exit_layer=1, activation_bits=16), target) == "i16"
        assert attached(SelfDraft(quantization="q4_0"), target) == "i8b32b16"
        assert mode(llmi.DraftModel(path, **SMALL).llm) == "i8b32b16"
        beside = random_drafter(quality=0.7, seed=1)
        beside._attach(target)
        assert mode(beside._model.llm) == mode(target), "the target once more"
    with LLM(tiny_path(), **SMALL) as floats:
        assert attached(SelfDraft(exit_layer=1), floats) == "f32"
        assert attached(SelfDraft(quantization="q8_0"), floats) == "i8b32b16"
        assert attached(SelfDraft(quantization="q8_0", activation_bits=16), floats) == "i16"
        with pytest.raises(UnsupportedCombinationError, match="activation_bits = 16 is for quantised layers"):
            attached(SelfDraft(exit_layer=1, activation_bits=16), floats)
        plain = floats.generate(PROMPTS, DRAWN)
        assert_same_tokens(floats.generate(PROMPTS, DRAWN, speculative_config=SelfDraft(quantization="q8_0", activation_bits=16)), plain)
    assert repr(SelfDraft(exit_layer=1, activation_bits=16)) == "SelfDraft(exit_layer=1, activation_bits=16)"
    assert SelfDraft(exit_layer=1) != SelfDraft(exit_layer=1, activation_bits=16)


# --- the command line


def command(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "llmi", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "LLMI_AUDIT": "0"},
    )
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    return done


def text_of(llm: LLM) -> str:
    return "ab" + llm.generate("ab", temperature=0, max_tokens=24, ignore_eos=True)[0].text + "\n"


def test_commands_take_sixteen_unless_told(path: Path, wide: LLM, narrow: LLM) -> None:
    arguments = ("generate", "-m", str(path), "-p", "ab", "--max-tokens", "24", "--ignore-eos", "-v", "--max-model-len", "256")
    for given, llm in (((), wide), (("--activation-bits", "16"), wide), (("--activation-bits", "8"), narrow)):
        done = command(*arguments, *given)
        assert llm.model_info.numerics_id in done.stderr and done.stdout == text_of(llm), given


def test_flags_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flag no command says anything, so that LLM's default holds for all; nothing is loaded twice."""
    given: list[dict[str, Any]] = []

    class Seen(Exception):
        pass

    def load(model: Any, **engine_args: Any) -> Any:
        given.append(engine_args)
        raise Seen

    monkeypatch.setattr(llmi, "LLM", load)
    monkeypatch.setattr("llmi.async_llm.LLM", load)
    (tmp_path / "lines.jsonl").write_text("")
    batch = ["batch", str(tmp_path / "lines.jsonl"), str(tmp_path / "answers.jsonl")]
    every = (["chat", "-p", "x"], ["chat"], ["generate", "-p", "x"], ["bench"], ["serve", "--port", "0"], batch)
    for arguments in every:
        for bits in (None, 8, 16):
            flag = [] if bits is None else ["--activation-bits", str(bits)]
            with pytest.raises(Seen):
                commands.main([*arguments, *flag])
            assert given[-1].get("activation_bits") == bits, arguments
    assert len(given) == 3 * len(every)


def test_floats_at_the_command_line(tiny_path: Callable[..., Path], path: Path) -> None:
    """The command's own default does nothing there, and gives the id and the text that LLM() does; a 16 that was given is refused."""
    for model, dtype in ((tiny_path(), "auto"), (path, "float32")):
        arguments = ("generate", "-m", str(model), "-p", "ab", "--max-tokens", "24", "--ignore-eos", "-v", "--dtype", dtype)
        done = command(*arguments)
        with LLM(model, dtype=dtype, **SMALL) as llm:
            assert llm.model_info.numerics_id in done.stderr and done.stdout == text_of(llm)
        refused = command(*arguments, "--activation-bits", "16", status=2).stderr
        assert "activation_bits = 16 is for quantised layers" in refused and "dtype" in refused and len(refused.splitlines()) <= 2


def test_flags_are_checked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("chat", "generate", "bench", "inspect"):
        for value in ("12", "True", "16.0", ""):
            assert commands.main([name, "--activation-bits", value]) == 2
            assert "--activation-bits" in capsys.readouterr().err
        commands.main([name, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "--activation-bits {8,16}" in shown
        assert "default: 16, with nearly the answers of fp32 arithmetic" in shown and "8 is the fast setting" in shown


def test_inspect_reckons_with_them(path: Path, tiny_path: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A byte more for each code, and two products of bytes for each weight."""
    narrow, wide = (inspect_model(path, activation_bits=bits) for bits in (8, 16))
    config = narrow.config
    per_row = max(config["hidden_size"], config["num_heads"] * config["head_dim"])
    assert wide.workspace_bytes - narrow.workspace_bytes >= 2048 * per_row
    assert "quantised layers read 16-bit ones" in str(wide) and "quantised layers read 8-bit ones" in str(narrow)
    assert "quantised layers read 16-bit ones" in str(inspect_model(path))
    assert "quantised layers" not in str(inspect_model(tiny_path()))
    with pytest.raises(UnsupportedCombinationError, match=r"activation_bits = 16 is for quantised layers.*dtype is F32"):
        inspect_model(tiny_path(), activation_bits=16)
    assert commands.main(["inspect", str(path), "--activation-bits", "16", "--machine"]) == 0
    assert "(int8 dots, two a weight)" in capsys.readouterr().out
    assert "activation_bits = 16 (the default) and 8" in llmi.doctor().facts["precision"]


def test_bench_bounds_each_mode_by_its_products(wide: LLM, narrow: LLM) -> None:
    values = {"prefill 512": [1e5], "decode 1, share of read bandwidth": [0.5], "int8 dot Gop/s": [100.0], "fp32 fma Gop/s": [1e6]}
    shares = [bound_shares(llm, values)["prefill 512"] for llm in (narrow, wide)]
    assert shares[1] == pytest.approx(2 * shares[0], rel=0.02), "two dots of bytes for each weight; attention's products are fp32 in both"


# --- lengths of judged drafts


class Unlikely(Drafter):
    """Promises one token in twelve, and proposes the same id each time."""

    expected_acceptance = 0.08

    def propose(self, context: Any) -> list[int]:
        return [0]


def num_drafted(llm: LLM) -> int:
    config = SpeculativeConfig(Unlikely(), "auto", verification="rejection")
    params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    metrics = llm.generate([[1, 2, 3]], params, speculative_config=config)[0].outputs[0].spec_decode_metrics
    assert metrics is not None
    return metrics.num_draft_tokens


def test_judged_lengths_have_a_table_for_each_mode(wide: LLM, narrow: LLM) -> None:
    """A draft that pays where two rows cost 1.05 of one does not where they cost more; the mode alone decides, no clock."""
    assert num_drafted(narrow) > 0 == num_drafted(wide)


def test_a_model_of_floats_has_one_table(tiny_path: Callable[..., Path]) -> None:
    """Its id is the same whether 8 was given or not: so are the lengths of judged drafts."""
    drafted = []
    for more in ({}, {"activation_bits": 8}):
        with LLM(tiny_path(), **SMALL, **more) as llm:
            assert "-a:f32-" in llm.model_info.numerics_id
            drafted.append(num_drafted(llm))
    assert drafted[0] == drafted[1] > 0
