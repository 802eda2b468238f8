"""Beams compared with transformers 5.24's, by command: `python tests/support/beam_parity.py [--model gemma] [--prompts 20] [--out FILE]`.

Both compute in fp32 on the same dequantised weights. For each prompt and width, early_stopping False, True and "never" and length penalties
-1, 0, 1, 2: transformers' own `generate` and llmi's give the same sequences wherever the smallest gap at any choice of the search exceeds
1e-3. The gaps are those of tests/support/beam_oracle.py on transformers' rows, which must find transformers' sequences, too.

transformers computes each row once: a processor remembers them by their prefix, and further settings run its search over what is
remembered.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import beam_oracle
from beam_oracle import Rules
from llmi import LLM, BeamSearchParams
from llmi.models import by_name
from test_parity import load_hf

Array = np.ndarray[Any, Any]
MARGIN, NEW_TOKENS = 1e-3, 32
WIDTHS, STOPPING, PENALTIES = (2, 4, 8), (False, True, "never"), (-1.0, 0.0, 1.0, 2.0)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "To make bread, you need",
    "Water boils at",
    "The old bridge over the river",
    "Gravity is the force that",
    "My favourite colour is",
    "A haiku about rain:",
    "The first president of the United States was",
    "In 1969, two astronauts",
    "The recipe calls for two eggs and",
    "She opened the door and saw",
    "Photosynthesis is the process by which",
    "The three primary colours are",
    "If it rains tomorrow, we will",
    "The quick brown fox",
    "A prime number is",
    "Dear Sir or Madam,",
    "The train to London leaves at",
    "Question: What is two plus two? Answer:",
]


class Theirs:
    """A model of transformers, its rows by prefix, and its beam search."""

    def __init__(self, model: Any, ends: list[int]) -> None:
        self.model = model
        self.ends = ends
        self.rows: dict[tuple[int, ...], Array] = {}

    def row(self, tokens: list[int]) -> Array:
        """Logits after these tokens, computed at once where the search has not met them."""
        import torch

        key = tuple(tokens)
        if key not in self.rows:
            with torch.no_grad():
                self.rows[key] = self.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy().copy()
        return self.rows[key]

    def generate(self, prompt: list[int], **options: Any) -> tuple[list[list[int]], list[float]]:
        """(outputs, scores), best first."""
        import torch
        from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

        class Remember(LogitsProcessor):  # type: ignore[misc]
            def __call__(inner, ids: Any, scores: Any) -> Any:
                for key, row in zip(ids.tolist(), scores, strict=True):
                    self.rows.setdefault(tuple(key), row.numpy().copy())
                return scores

        config = GenerationConfig(
            do_sample=False,
            num_return_sequences=options["num_beams"],
            pad_token_id=self.ends[0] if self.ends else 0,
            eos_token_id=self.ends or None,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        ids = torch.tensor([prompt])
        with torch.no_grad():
            found = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, logits_processor=LogitsProcessorList([Remember()])
            )
        lengths = [int((entry >= 0).sum()) for entry in found.beam_indices]
        outputs = [sequence[len(prompt) :][:count].tolist() for sequence, count in zip(found.sequences, lengths, strict=True)]
        return outputs, found.sequences_scores.tolist()


def remembered(theirs: Theirs) -> Theirs:
    """The same search over the rows that are known, a model of transformers that looks them up."""
    import torch
    from transformers import GenerationMixin, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class Lookup(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        config_class = type(theirs.model.config)
        _is_stateful = False

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: Any = None, attention_mask: Any = None, **ignored: Any) -> Any:
            rows = np.stack([theirs.row(ids) for ids in input_ids.tolist()])
            return CausalLMOutputWithPast(logits=torch.from_numpy(rows)[:, None])

        def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

    lookup = Theirs(Lookup(theirs.model.config), theirs.ends)
    lookup.rows = theirs.rows
    return lookup


@dataclasses.dataclass
class Counts:
    """Of the runs that were compared."""

    runs: int = 0
    clear: int = 0  # whose smallest gap exceeds the margin
    equal: int = 0
    clear_and_other: list[str] = dataclasses.field(default_factory=list)
    oracle_and_other: list[str] = dataclasses.field(default_factory=list)


def settings() -> list[tuple[bool | str, float]]:
    return list(itertools.product(STOPPING, PENALTIES))


def compare(llm: LLM, theirs: Theirs, prompt: list[int], width: int, new_tokens: int, counts: Counts, chosen: Any = None) -> None:
    """All settings of one prompt and width."""
    theirs.generate(prompt, num_beams=width, max_new_tokens=new_tokens, early_stopping="never", length_penalty=2.0)  # meets most rows
    lookup = remembered(theirs)
    for stopping, penalty in chosen or settings():
        name = f"{prompt[:4]}... width {width}, early_stopping {stopping}, length_penalty {penalty:g}"
        outputs, scores = lookup.generate(
            prompt, num_beams=width, max_new_tokens=new_tokens, early_stopping=stopping, length_penalty=penalty, use_cache=False
        )
        rules = Rules(width, new_tokens, frozenset(theirs.ends), penalty, early_stopping=stopping)  # type: ignore[arg-type]
        found = beam_oracle.search(theirs.row, prompt, rules)
        params = BeamSearchParams(
            beam_width=width,
            max_tokens=new_tokens,
            early_stopping=stopping,
            length_penalty=penalty,
            eos_token_id=theirs.ends,  # type: ignore[arg-type]
        )
        own = [completion.token_ids for completion in llm.generate([prompt], params, use_tqdm=False)[0].outputs]
        clear = found.gap > MARGIN
        counts.runs, counts.clear, counts.equal = counts.runs + 1, counts.clear + clear, counts.equal + (own == outputs)
        if clear and own != outputs:
            counts.clear_and_other.append(name)
        if found.gap > 1e-5 and [beam.tokens for beam in found.hypotheses] != outputs:
            counts.oracle_and_other.append(f"{name}: {scores} {[beam.score for beam in found.hypotheses]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2-135m-instruct", "gemma-3-270m"), default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    path, begin = by_name.fetch(arguments.model), time.perf_counter()
    model, total = load_hf(path), Counts()
    with LLM(path, dtype="float32", max_model_len=256, kv_cache_memory_bytes=1 << 28) as llm:
        ends = sorted(llm.tokenizer.eos_token_ids)
        for width in arguments.widths:
            counts = Counts()
            for prompt in PROMPTS[: arguments.prompts]:
                compare(llm, Theirs(model, ends), llm.tokenizer.encode(prompt), width, arguments.new_tokens, counts)
                shown = dataclasses.asdict(counts) | {
                    "width": width,
                    "prompts": arguments.prompts,
                    "seconds": round(time.perf_counter() - begin),
                }
                print(json.dumps(shown), flush=True)
            total.clear_and_other += counts.clear_and_other + counts.oracle_and_other
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(shown | {"model": arguments.model}) + "\n")
    return 1 if total.clear_and_other else 0


if __name__ == "__main__":
    raise SystemExit(main())
