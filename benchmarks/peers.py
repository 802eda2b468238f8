"""Peers of llmi, each in the Python environment that has it: prepared from the same GGUF file, then measured work by work.

    PEERS/bin/python benchmarks/peers.py prepare FILE.gguf DIR    # transformers, and what CTranslate2 and OpenVINO make of it
    PEERS/bin/python benchmarks/peers.py serve NAME DIR THREADS   # reads a work a line, answers tokens/s or steps/s

Works: "prefill 512", "decode 128", and "beams-8 64", a beam of 4 over 64 new tokens for each of 8 prompts.
`benchmarks/compare.py --peers-python PEERS/bin/python --peers-dir DIR` drives it. PEERS needs what the peers need: torch,
transformers, gguf, accelerate; ctranslate2; openvino-genai and optimum-intel. A peer that `prepare` left out, by name, is not measured.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def prepare(gguf_file: Path, target: Path) -> None:
    """The weights as fp32 safetensors; as CTranslate2's int8; as OpenVINO's int4 in groups of 32, head and embedding int8."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = target / "transformers"
    if not source.exists():
        loaded = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
        config = type(loaded.config)(**{name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"})
        plain = AutoModelForCausalLM.from_config(config)  # transformers 5 writes none that it has read from GGUF
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(source)
        AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name).save_pretrained(source)
    try:
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(source)).convert(str(target / "ctranslate2"), quantization="int8", force=True)
    except ImportError as error:
        print(f"without CTranslate2: {error}")
    exporter = Path(sys.executable).parent / "optimum-cli"
    if exporter.exists():
        subprocess.run(
            [
                str(exporter),
                "export",
                "openvino",
                "-m",
                str(source),
                "--task",
                "text-generation-with-past",
                "--weight-format",
                "int4",
                "--group-size",
                "32",
                "--ratio",
                "1.0",
                str(target / "openvino"),
            ],
            check=True,
        )
    else:
        print("without OpenVINO: optimum-cli is not there")


class Transformers:
    """torch in bf16, the faster of its types."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder / "transformers", dtype=torch.bfloat16).eval()

    def generate(self, ids: list[int], num_tokens: int) -> None:
        inputs = self.torch.tensor([ids])
        with self.torch.inference_mode():
            self.model.generate(
                inputs, attention_mask=self.torch.ones_like(inputs), do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens
            )

    def beams(self, prompts: list[list[int]], num_tokens: int) -> None:
        inputs = self.torch.tensor(prompts)
        options = {"num_beams": 4, "do_sample": False, "min_new_tokens": num_tokens, "max_new_tokens": num_tokens}
        with self.torch.inference_mode():
            self.model.generate(inputs, attention_mask=self.torch.ones_like(inputs), **options)


class CTranslate2:
    """Its int8 weights: it has no fewer bits on a CPU."""

    def __init__(self, folder: Path, threads: int) -> None:
        import ctranslate2
        from transformers import AutoTokenizer

        self.generator = ctranslate2.Generator(str(folder / "ctranslate2"), device="cpu", compute_type="int8", intra_threads=threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "transformers")

    def generate(self, ids: list[int], num_tokens: int) -> None:
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        self.generator.generate_batch(
            [tokens], max_length=num_tokens, min_length=num_tokens, sampling_topk=1, include_prompt_in_result=False, end_token=[]
        )

    def beams(self, prompts: list[list[int]], num_tokens: int) -> None:
        tokens = [self.tokenizer.convert_ids_to_tokens(ids) for ids in prompts]
        self.generator.generate_batch(
            tokens, beam_size=4, max_length=num_tokens, min_length=num_tokens, include_prompt_in_result=False, end_token=[]
        )


class OpenVino:
    """OpenVINO GenAI, int4 weights, its own choice of the rest."""

    def __init__(self, folder: Path, threads: int) -> None:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        self.np, self.ov, self.genai = np, ov, genai
        self.pipe = genai.LLMPipeline(str(folder / "openvino"), "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(self, ids: list[int], num_tokens: int) -> None:
        inputs = self.ov.Tensor(self.np.array([ids], self.np.int64))
        mask = self.ov.Tensor(self.np.ones((1, len(ids)), self.np.int64))
        config = self.genai.GenerationConfig(max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, ignore_eos=True)
        self.pipe.generate(self.genai.TokenizedInputs(inputs, mask), config)


PEERS = {"transformers": Transformers, "ctranslate2": CTranslate2, "openvino": OpenVino}


def seconds(peer: Any, ids: list[int], num_tokens: int) -> float:
    start = time.perf_counter()
    peer.generate(ids, num_tokens)
    return time.perf_counter() - start


def beam_steps_per_s(peer: Any, count: int, num_tokens: int) -> float:
    """Over prompts of 16 tokens, which are computed in that time too."""
    prompts = [[100 + (i * 31 + j * 7919) % 40_000 for j in range(16)] for i in range(count)]
    start = time.perf_counter()
    peer.beams(prompts, num_tokens)
    return num_tokens / (time.perf_counter() - start)


def serve(name: str, folder: Path, threads: int) -> None:
    """Answers until its input ends. The first line says that the model is loaded."""
    peer = PEERS[name](folder, threads)
    peer.generate([100, 101], 2)
    print("ready", flush=True)
    for line in sys.stdin:
        work, size = line.split()
        if work == "prefill":
            ids = [100 + i * 7919 % 40_000 for i in range(int(size))]
            print(int(size) / seconds(peer, ids, 1), flush=True)
        elif work.startswith("beams-"):
            print(beam_steps_per_s(peer, int(work.removeprefix("beams-")), int(size)), flush=True)
        else:
            first = seconds(peer, [100], 1)
            print((int(size) - 1) / (seconds(peer, [100], int(size)) - first), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
