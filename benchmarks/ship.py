"""Makes what llmi ships for its default model: heads, and the table of a CorpusDrafter.

    python benchmarks/ship.py FOLDER [--answer-tokens 1000000] [--minutes 60 | --steps N]

The text is what the model answers to llmi.training.turns until it has written --answer-tokens; sequences that share eight tokens in a row
with a test prompt are left out. The updates then fill the rest of the minutes, or are as many as --steps says: receipt.json has their
number, and with it the same digests come out on one instruction set, number of threads and build of BLAS. A run that was broken off goes on
where it was. In FOLDER: heads/ as train_heads writes them, eagle.safetensors (4.5 bits a weight), corpus.safetensors, receipt.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import prompts
import report
from numpy.typing import NDArray

from llmi.base.whole_file import write_whole
from llmi.llm import LLM
from llmi.models.safetensors_file import read_safetensors, write_safetensors
from llmi.speculation.corpus import CorpusDrafter
from llmi.training.acceptance import table
from llmi.training.eagle import EagleModel
from llmi.training.fit import Fit
from llmi.training.layer import Shape
from llmi.training.plan import GROUP, Clock, training_s
from llmi.training.text import OwnTurns, Text

sys.path.insert(0, str(report.ROOT / "tests" / "support"))
from packed_heads import pack_all, unpack_all

#: Most bytes of the heads and the table together.
MOST_BYTES = 4_000_000
SEED = 0
#: One equal token in a row more would make a test prompt known.
MOST_COMMON = 7


class Overlap:
    """Runs of MOST_COMMON + 1 tokens of the test prompts, to look texts up in.

    Parameters
    ----------
    prompts : iterable of lists of token ids
    """

    def __init__(self, prompts: Iterable[list[int]]) -> None:
        self._runs = {run for ids in prompts for run in _runs(ids)}

    def found(self, ids: list[int]) -> bool:
        """Whether `ids` have MOST_COMMON + 1 tokens in a row that a prompt has too."""
        return not self._runs.isdisjoint(_runs(ids))


def _runs(ids: list[int]) -> Iterable[tuple[int, ...]]:
    length = MOST_COMMON + 1
    return (tuple(ids[start : start + length]) for start in range(len(ids) - length + 1))


def written(llm: LLM, folder: Path, answer_tokens: int) -> Text:
    """The text, kept in `folder` as it grows."""
    file, count = folder / "text.npz", folder / "turns.json"
    text, turns = Text.of([]), 0
    if file.exists() and count.exists():
        text, turns = Text.load(file), int(json.loads(count.read_text(encoding="utf-8")))
        text = text.of_turns(turns)
    writer = OwnTurns(llm, SEED)
    while text.num_answer_tokens < answer_tokens:
        text, turns = text + writer(turns, turns + GROUP), turns + GROUP
        text.save(file)
        write_whole(count, json.dumps(turns))
        print(f"{turns} turns, {text.num_answer_tokens} tokens of answers", flush=True)
    return text


def apart(text: Text, overlap: Overlap) -> Text:
    """The sequences without a run of tokens that a test prompt has."""
    kept = [index for index in range(len(text)) if not overlap.found(text.sequence(index).tolist())]

    def entries() -> Iterator[tuple[int, list[int], list[int], bool]]:
        for index in kept:
            ids, prompt_len = text.sequence(index).tolist(), int(text.prompt_lens[index])
            yield int(text.turns_of[index]), ids[:prompt_len], ids[prompt_len:], bool(text.warm[index])

    return Text.of(list(entries()))


def overlap_of_prompts(llm: LLM) -> Overlap:
    """The user's turns of the test prompts."""
    users = [prompt.user for kind in prompts.KINDS for prompt in prompts.prompts(kind)]
    return Overlap([list(llm.tokenizer.encode(user)) for user in users])


def steps_for(fit: Fit, text: Text, folder: Path, clock: Clock) -> int:
    """Updates that fit in the rest of the minutes, by the time of one at each depth."""
    trial = fit.training(text.first(min(len(text), 24)), 1, folder)
    trial.time_step(1)
    seconds = tuple(min(trial.time_step(depths) for _ in range(2)) for depths in (1, 2, 3))
    return max(1, int(clock.left_s() / (training_s(1000, seconds) / 1000)))


def rounded(model: EagleModel) -> EagleModel:
    """The model as its packed file has it."""
    return of_tensors(model.shape, unpack_all(pack_all(model.tensors(np.float32))))


def of_tensors(shape: Shape, tensors: Mapping[str, NDArray[Any]]) -> EagleModel:
    """From what EagleModel.tensors gives."""

    def joined(*names: str) -> NDArray[np.float32]:
        return np.concatenate([tensors[f"layers.0.{name}.weight"] for name in names]).astype(np.float32)

    weights = {
        "fc": tensors["fc.weight"].astype(np.float32),
        "q": joined("self_attn.q_proj"),
        "kv": joined("self_attn.k_proj", "self_attn.v_proj"),
        "o": joined("self_attn.o_proj"),
        "norm": joined("post_attention_layernorm"),
        "gate_up": joined("mlp.gate_proj", "mlp.up_proj"),
        "down": joined("mlp.down_proj"),
    }
    return EagleModel(shape, weights, 1.0)


def load(path: Path) -> tuple[EagleModel, NDArray[np.int32]]:
    """(model, shortlist): of a folder that train_heads wrote, or of a packed file."""
    tensors, metadata = read_safetensors(path / "model.safetensors" if path.is_dir() else path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8") if path.is_dir() else metadata["config"])
    shape = Shape(**{field.name: config[field.name] for field in dataclasses.fields(Shape)})
    return of_tensors(shape, unpack_all(tensors)), tensors["shortlist"]


def make(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All files; returns the receipt."""
    clock = Clock.of(arguments.minutes)
    folder.mkdir(parents=True, exist_ok=True)
    with LLM(arguments.model, activation_bits=8) as llm:  # as the files that llmi ships were made
        text = apart(written(llm, folder, arguments.answer_tokens), overlap_of_prompts(llm))
        fit = Fit(llm, "eagle", SEED)
        plan = folder / "steps.json"
        steps = arguments.steps or (json.loads(plan.read_text()) if plan.exists() else steps_for(fit, text, folder, clock))
        write_whole(plan, json.dumps(steps))
        fit.run(text, steps, folder)
        receipt = {"seed": SEED, "steps": steps, "model_digest": llm._files.digest()(), **fit.receipt(text)}
        (folder / "heads").mkdir(exist_ok=True)
        fit.write(folder / "heads", receipt)
        model = fit.trained.model
        assert isinstance(model, EagleModel)
        packed = {**pack_all(model.tensors(np.float32)), "shortlist": fit.trained.data.shortlist}
        config = json.dumps(
            {**model.config(llm.model_info.vocab_size), "llmi": {"kind": "eagle", "target_digest": receipt["model_digest"]}}
        )
        write_safetensors(folder / "eagle.safetensors", packed, {"config": config})
        receipt["acceptance"] = table(fit.counts)
        receipt["acceptance_packed"] = table(fit.accepted(rounded(model)))
        receipt["losses"] = fit.trained.losses
        files = ["eagle.safetensors", *corpus(llm, text, folder)]
    receipt["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    receipt["bytes"] = sum((folder / name).stat().st_size for name in files)
    write_whole(folder / "receipt.json", json.dumps(receipt, indent=1) + "\n")
    return receipt


def corpus(llm: LLM, text: Text, folder: Path) -> list[str]:
    """The table over the answers, as large as the heads leave room; the names of its files."""
    room = MOST_BYTES - (folder / "eagle.safetensors").stat().st_size - 4096
    answers = [text.sequence(index)[text.prompt_lens[index] :].tolist() for index in range(len(text))]
    CorpusDrafter(answers, tokenizer=llm.tokenizer, max_bytes=room).save(folder / "corpus.safetensors")
    return ["corpus.safetensors"]


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default=None, help="a path or name; by default the default model")
    parser.add_argument("--answer-tokens", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this run, text included")
    parser.add_argument("--steps", type=int, help="updates, instead of what fits in the minutes")
    arguments = parser.parse_args(argv)
    receipt = make(arguments.folder, arguments)
    print(json.dumps({name: value for name, value in receipt.items() if name != "losses"}, indent=1))
    return 0 if receipt["bytes"] <= MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
