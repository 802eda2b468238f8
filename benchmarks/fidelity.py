"""How far each mode's laws are from fp32's: the KL divergence at every position, of every mode and of llama.cpp on the same file.

    python benchmarks/fidelity.py [--model FILE.gguf ..] [--llama-python PEERS/bin/python] [--output benchmarks/results/NAME.json]

fp32 is `dtype="float32"`: the file's weights, dequantised, in fp32 arithmetic with an fp32 cache. KL(fp32 || mode) is in nats, computed
in float64 over the whole vocabulary at each position of the same tokens:
- chat: fp32's greedy answers, of 32 tokens at most, to benchmarks/questions.txt by the model's chat template (a model without one reads
  "Question: .. Answer:"). An answer is as fp32's if each of its tokens is the mode's first choice after the tokens before it, so that
  the mode, asked alone, gives it too.
- running text: tests/data/text.txt in windows of 512; code: functions of llmi (benchmarks/code_edits.txt) likewise; other languages:
  benchmarks/other_languages.txt, whole; position 1,000: the last 33 positions of windows of 1,025 of running text.
llama.cpp runs with its defaults in PEERS (benchmarks/peer_logits.py), answers token by token. Without --model: SmolLM2-135M, Gemma 3 270M.
`--readme FILE.json SPEED.json` writes the table in docs from a result and one of benchmarks/precision_speed.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import report

from llmi import LLM, SamplingParams, Tokenizer, _core
from llmi.models import by_name

MODELS = ("smollm2-135m-instruct", "gemma-3-270m")
EXACT: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32"}
MODES: dict[str, dict[str, Any]] = {
    "8 bits": {"activation_bits": 8},
    "8 bits, fp32 KV": {"activation_bits": 8, "kv_cache_dtype": "float32"},
    "16 bits": {"activation_bits": 16},
    "16 bits, fp32 KV": {"activation_bits": 16, "kv_cache_dtype": "float32"},
}
LLAMA = "llama.cpp"
ANSWER_TOKENS = 32
FIRST_QUESTIONS = 40  # are counted apart as well
WINDOW = 512
WINDOWS = {"running text": 16, "code": 4, "position 1,000": 8}
FAR_CONTEXT, FAR_ROWS = 1025, 33
BUCKET = 64  # positions of a text that are averaged in "by_position"
CHUNK_BYTES = 1 << 26  # of logits held at a time, by one engine

Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclasses.dataclass(frozen=True)
class Passage:
    """Tokens, and which rows of logits are judged: those after the tokens from `first` on. Of an answer, `question` is its number."""

    kind: str
    token_ids: list[int]
    first: int = 0
    answer: tuple[int, ...] = ()
    question: int = -1

    def chunks(self, vocab_size: int) -> Iterator[tuple[int, int]]:
        """(begin, end) of the rows that are computed and held together; the same for every engine."""
        step = max(1, CHUNK_BYTES // (4 * vocab_size))
        for begin in range(self.first, len(self.token_ids), step):
            yield begin, min(begin + step, len(self.token_ids))


#: Gives a passage's rows of logits, chunk by chunk.
Source = Callable[[Passage], Iterator[Rows]]


def engine_rows(llm: LLM, passage: Passage) -> Iterator[Rows]:
    """Of one of llmi's engines."""
    with llm.sequence(passage.token_ids[: passage.first]) as sequence:
        for begin, end in passage.chunks(llm.model_info.vocab_size):
            yield sequence.extend(passage.token_ids[begin:end])


class Llama:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, model: Path, vocab_size: int, context: int, threads: int) -> None:
        command = [python, str(report.ROOT / "benchmarks" / "peer_logits.py"), str(model), str(context), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        line = self.output.readline()
        if not line:
            raise RuntimeError(f"llama.cpp could not be loaded: try {' '.join(command)}")
        self.facts: dict[str, Any] = json.loads(line)
        if self.facts["vocab_size"] != vocab_size:
            self.close()
            raise RuntimeError(f"llama.cpp has {self.facts['vocab_size']} tokens where llmi has {vocab_size}")

    def rows(self, passage: Passage) -> Iterator[Rows]:
        """Of the passage."""
        request = {"token_ids": passage.token_ids, "first": passage.first, "one_by_one": passage.question >= 0}
        self.input.write(json.dumps(request).encode() + b"\n")
        self.input.flush()
        vocab_size = self.facts["vocab_size"]
        for begin, end in passage.chunks(vocab_size):
            wanted = 4 * vocab_size * (end - begin)
            data = self.output.read(wanted)
            if len(data) != wanted:
                raise RuntimeError("llama.cpp has ended early: its last words are above")
            yield np.frombuffer(data, np.float32).reshape(end - begin, vocab_size)

    def close(self) -> None:
        """Ends the process."""
        self.input.close()
        self.process.wait()
        self.output.close()


class Truth:
    """One law of fp32's at a time, and the KL divergence of others from it, in float64. Its arrays are kept: fresh pages cost more."""

    def __init__(self, vocab_size: int) -> None:
        self.log_probs, self.probs, self._values, self._powers = (np.empty(vocab_size) for _ in range(4))

    def _shift(self, row: Rows, out: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        """`out` is the row less its maximum; returns the logarithm of the sum of exp(out), whose terms are in _powers."""
        np.subtract(row, row.max(), out=out, dtype=np.float64)
        np.exp(out, out=self._powers)
        return float(np.log(self._powers.sum()))

    def take(self, row: Rows) -> None:
        """From the logits [vocab_size]."""
        log_sum = self._shift(row, self.log_probs)
        self.log_probs -= log_sum
        np.exp(self.log_probs, out=self.probs)

    def divergence(self, row: Rows) -> float:
        """KL(this law || that of the logits), in nats."""
        log_sum = self._shift(row, self._values)
        self._values -= log_sum
        np.subtract(self.log_probs, self._values, out=self._values)
        self._values *= self.probs
        return float(self._values.sum())


@dataclasses.dataclass
class Judged:
    """Of one mode on one passage: a value a row."""

    kl: list[float] = dataclasses.field(default_factory=list)
    top: list[int] = dataclasses.field(default_factory=list)
    same_top: list[bool] = dataclasses.field(default_factory=list)


def judge(exact: Source, modes: Mapping[str, Source], passage: Passage) -> dict[str, Judged]:
    """Every mode's rows against fp32's. An answer that is not fp32's own greedy one is refused."""
    judged = {name: Judged() for name in modes}
    tops: list[int] = []
    truth: Truth | None = None
    others = [source(passage) for source in modes.values()]
    for true_rows, *mode_rows in zip(exact(passage), *others, strict=True):
        for i, true_row in enumerate(true_rows):
            truth = truth or Truth(len(true_row))
            truth.take(true_row)
            top = int(true_row.argmax())
            tops.append(top)
            for entry, rows in zip(judged.values(), mode_rows, strict=True):
                entry.kl.append(truth.divergence(rows[i]))
                entry.top.append(int(rows[i].argmax()))
                entry.same_top.append(entry.top[-1] == top)
    if passage.answer and tops != list(passage.answer):
        raise RuntimeError(f"question {passage.question + 1}: the answer is not what the exact engine chooses")
    return judged


def windows(kind: str, tokenizer: Tokenizer, text: str, length: int, first: int = 0) -> list[Passage]:
    """The first windows of `length` tokens of a text. Each begins as a text does, with the beginning-of-text token if the model has one."""
    prefix, tokens = tokenizer.encode(""), tokenizer.encode(text, add_special_tokens=False)
    step = length - len(prefix)
    count = min(WINDOWS[kind], len(tokens) // step)
    return [Passage(kind, [*prefix, *tokens[i * step : (i + 1) * step]], first) for i in range(count)]


def texts(tokenizer: Tokenizer) -> list[Passage]:
    """All passages but answers, from committed files."""
    text = (report.ROOT / "tests" / "data" / "text.txt").read_text(encoding="utf-8")
    functions = (report.ROOT / "benchmarks" / "code_edits.txt").read_text(encoding="utf-8").split("=== ")[1:]
    languages = (report.ROOT / "benchmarks" / "other_languages.txt").read_text(encoding="utf-8").split("=== ")[1:]
    code = "\n\n".join(function.split("\n", 1)[1].strip() for function in functions)
    return [
        *windows("running text", tokenizer, text, WINDOW),
        *windows("code", tokenizer, code, WINDOW),
        *(Passage(f"other language, {name}", tokenizer.encode(body)) for name, body in (entry.split("\n", 1) for entry in languages)),
        *windows("position 1,000", tokenizer, text, FAR_CONTEXT, FAR_CONTEXT - FAR_ROWS),
    ]


def prompt_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    """A question as the model is asked it."""
    if not tokenizer.chat_template:
        return tokenizer.encode(f"Question: {question}\nAnswer:")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    assert isinstance(ids, list)
    return ids


def answers(exact: LLM, questions: list[str]) -> list[Passage]:
    """The exact engine's greedy answers: rows from the prompt's last token to the one before the answer's last."""
    prompts = [prompt_ids(exact.tokenizer, question) for question in questions]
    outputs = exact.generate(prompts, SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS), use_tqdm=False)
    passages = []
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        answer = tuple(output.outputs[0].token_ids)
        passages.append(Passage("chat", [*prompt, *answer[:-1]], len(prompt) - 1, answer, number))
    return passages


def spread(values: list[float]) -> dict[str, float]:
    """Mean, its standard error as if positions were independent, and the largest."""
    array = np.array(values)
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else 0.0
    return {"mean_kl": array.mean().item(), "standard_error": float(error), "largest": array.max().item(), "positions": len(array)}


def of_texts(entries: list[Judged]) -> dict[str, Any]:
    """Of all passages of one kind."""
    values = [kl for entry in entries for kl in entry.kl]
    same = [top for entry in entries for top in entry.same_top]
    buckets = range(0, max(len(entry.kl) for entry in entries), BUCKET)
    by_position = [float(np.mean([kl for entry in entries for kl in entry.kl[begin : begin + BUCKET]])) for begin in buckets]
    return {**spread(values), "same_top": float(np.mean(same)), f"by_position, {BUCKET} each": by_position}


def of_answers(passages: list[Passage], entries: list[Judged]) -> dict[str, Any]:
    """Of the answers: all, the first positions, by position, and how many are as fp32's."""
    as_exact = [tuple(entry.top) == passage.answer for passage, entry in zip(passages, entries, strict=True)]
    columns = [[entry.kl[i] for entry in entries if i < len(entry.kl)] for i in range(ANSWER_TOKENS)]
    first = entries[:FIRST_QUESTIONS]
    return {
        **spread([kl for entry in entries for kl in entry.kl]),
        "same_top": float(np.mean([top for entry in entries for top in entry.same_top])),
        "first_position": spread(columns[0]),
        "by_position": [float(np.mean(column)) for column in columns if column],
        "answers_that_long": [len(column) for column in columns if column],
        "answers": len(entries),
        "answers_as_fp32": sum(as_exact),
        f"first_{FIRST_QUESTIONS}": {
            **spread([kl for entry in first for kl in entry.kl]),
            "first_position": spread(columns[0][:FIRST_QUESTIONS]),
            "answers": len(first),
            "answers_as_fp32": sum(as_exact[:FIRST_QUESTIONS]),
        },
    }


def summary(passages: list[Passage], judged: list[dict[str, Judged]]) -> dict[str, dict[str, Any]]:
    """{mode: {kind: values}}."""
    result: dict[str, dict[str, Any]] = {}
    for mode in judged[0]:
        by_kind: dict[str, list[int]] = {}
        for i, passage in enumerate(passages):
            by_kind.setdefault(passage.kind, []).append(i)
        result[mode] = {
            kind: of_answers([passages[i] for i in places], [judged[i][mode] for i in places])
            if kind == "chat"
            else of_texts([judged[i][mode] for i in places])
            for kind, places in by_kind.items()
        }
        languages = [judged[i][mode] for i, passage in enumerate(passages) if passage.kind.startswith("other language")]
        result[mode]["other languages"] = of_texts(languages)
    return result


def of_model(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All modes on one file."""
    started = time.time()
    questions = (report.ROOT / "benchmarks" / "questions.txt").read_text(encoding="utf-8").splitlines()[: arguments.questions]

    def load(options: dict[str, Any]) -> LLM:
        return LLM(model, kv_cache_memory_bytes=1 << 28, max_model_len=2048, max_num_seqs=32, num_threads=arguments.threads, **options)

    def source(llm: LLM) -> Source:
        return lambda passage: engine_rows(llm, passage)

    exact = load(EXACT)
    engines = {name: load(MODES[name]) for name in arguments.modes}
    sources = {name: source(llm) for name, llm in engines.items()}
    ids = {"fp32": exact.model_info.numerics_id} | {name: llm.model_info.numerics_id for name, llm in engines.items()}
    facts: dict[str, Any] = {"chat_template": bool(exact.tokenizer.chat_template), "numerics_ids": ids}
    passages = [*answers(exact, questions), *texts(exact.tokenizer)]
    llama = None
    if arguments.llama_python:
        context = max(len(passage.token_ids) for passage in passages) + 1
        threads = arguments.threads or _core.system_info()["num_threads"]
        llama = Llama(arguments.llama_python, model, exact.model_info.vocab_size, context, threads)
        sources[LLAMA], facts[LLAMA] = llama.rows, llama.facts
    judged = []
    for number, passage in enumerate(passages):
        judged.append(judge(source(exact), sources, passage))
        print(f"\r{model.name}: {number + 1} of {len(passages)} passages, {time.time() - started:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    for llm in (exact, *engines.values()):
        llm.close()
    if llama:
        llama.close()
    return {**facts, "seconds": round(time.time() - started), "modes": summary(passages, judged)}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    models = arguments.model or [by_name.fetch(name) for name in MODELS]
    return {"questions": arguments.questions, "models": {model.name: of_model(model, arguments) for model in models}}


SPEEDS = {"decode 1": "decode 1", "decode 8": "decode 8", "decode 32": "decode 32", "prefill 512": "prompt of 512"}


def table(result: dict[str, Any]) -> str:
    """A row for each model and mode: mean KL to fp32, answers as fp32's; speeds, where a result of precision_speed.py was given as well."""
    speeds = result.get("speeds", {})
    kinds = ("running text", "code", "other languages", "position 1,000")
    heads = ["model", "mode", "KL: chat", "first position", "answers as fp32", *kinds, *(SPEEDS.values() if speeds else ())]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for model, entry in result["models"].items():
        for mode, values in entry["modes"].items():
            chat, first = values["chat"], values["chat"][f"first_{FIRST_QUESTIONS}"]
            same = f"{chat['answers_as_fp32']} of {chat['answers']} ({first['answers_as_fp32']} of {first['answers']})"
            cells = [
                model.split(".Q")[0].removesuffix(".gguf"),
                mode,
                f"{chat['mean_kl']:.1e}",
                f"{chat['first_position']['mean_kl']:.1e}",
                same,
            ]
            cells += [f"{values[kind]['mean_kl']:.1e}" for kind in kinds]
            measured = speeds.get(model, {}).get("results", {})
            cells += [f"{measured[f'{mode}: {work}']['median']:,.0f}" if f"{mode}: {work}" in measured else "" for work in SPEEDS if speeds]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, nargs="+", help=".gguf files")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--questions", type=int, default=200, help="how many of the file's, from the first on")
    parser.add_argument("--llama-python", help="the Python of an environment with llama-cpp-python")
    parser.add_argument("--threads", type=int, help="of each engine; no bit of llmi's depends on it")
    sys.exit(report.main(parser, run, table))
