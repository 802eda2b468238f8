"""train_heads: a drafter for a model, trained on text that the model writes itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llmi.base.kinds import Choice, Flag, Maybe, Place, Real, Whole, parse
from llmi.base.progress import progress
from llmi.base.whole_file import write_whole
from llmi.errors import InvalidParamsError
from llmi.session import Session
from llmi.text.prompts import Prompt, as_list, tokenize
from llmi.training.acceptance import table
from llmi.training.data import hidden_rows
from llmi.training.fit import Fit
from llmi.training.plan import GROUP, Clock, TextProgress, steps_in, turns_for, write_turns
from llmi.training.report import HeadsReport
from llmi.training.text import MAX_ANSWER, MAX_SEQUENCE, GivenPrompts, OwnTurns, Text, Writer

_STEPS = Maybe(Whole(1, 10**7))
_MINUTES = Real(0.05, 10000.0)
_SEED = Whole(0, 2**31 - 1)


def train_heads(
    llm: Session,
    output: str | os.PathLike[str],
    *,
    prompts: Prompt | Iterable[Prompt] | None = None,
    kind: str = "eagle",
    steps: int | None = None,
    minutes: float = 10,
    seed: int = 0,
    resume: bool = False,
) -> HeadsReport:
    """Trains a drafter for a model on text that the model writes itself; no other package is needed.

    The model answers prompts, half of them greedily and half at T = 1. One Llama layer then learns to guess the model's next hidden rows by
    the divergence of the two distributions of the next token, first for one token ahead, then for two and three of its own in a row
    (Li et al., EAGLE, 2024; AdamW, cosine schedule). Matrix products run in NumPy's BLAS, in float32.

    Parameters
    ----------
    llm : LLM
    output : path
        A folder for config.json and model.safetensors, which `Eagle(output)` or `Medusa(output)` reads. Until the end it also holds the
        text and, once a minute, a checkpoint.
    prompts : prompts as in generate, optional
        What the model answers; many and varied ones. None: llmi's own chats, maths, code, summaries and French.
    kind : {"eagle", "medusa"}
        A layer that also reads the tokens drafted before, or heads that see the last hidden row alone, which are smaller and guess less.
        `Eagle` drafts with the layer, `Medusa` with the heads.
    steps : int, optional
        Updates; they fix the length of the text too. None: as many as fit in `minutes`.
    minutes : float
        Wall time of the whole call, text included, in [0.05, 10000]; text and steps are fixed before the first update. Unused with `steps`.
    seed : int
        Of the text and of the order in which it is read, in [0, 2**31 - 1]. Equal steps and seed give equal bytes on one instruction set,
        number of threads and build of BLAS.
    resume : bool
        Go on from the last checkpoint in `output`: the result has the bytes of a run without a break.

    Returns
    -------
    HeadsReport
        Acceptance by depth on text that was held out.

    Raises
    ------
    InvalidParamsError
        Nothing to resume, or with other prompts, another model or seed.

    Examples
    --------
    >>> report = train_heads(llm, "heads", prompts=["The sea is", "The sky is"], steps=2)  # many more, for heads that help
    >>> with LLM(llm.model_info.path, speculative_config=llmi.Eagle("heads"), kv_cache_memory_bytes=1 << 24) as quick:
    ...     texts = quick.generate("The sea is", max_tokens=8, seed=1).texts
    >>> texts == llm.generate("The sea is", max_tokens=8, seed=1).texts
    True
    """
    settings = _Settings(llm, output, prompts, kind, steps, minutes, seed)
    settings.begin(parse(Flag(), "resume", resume))
    return settings.run()


def _check_prompt(number: int, ids: list[int], llm: Session) -> None:
    vocab_size, room = llm.model_info.vocab_size, llm.model_info.max_model_len - MAX_ANSWER
    if not ids or max(ids) >= vocab_size:
        says = "has no token" if not ids else f"holds token id {max(ids)}, outside [0, {vocab_size})"
        raise InvalidParamsError(f"prompts: prompt {number} {says}", "prompts")
    if len(ids) > min(room, MAX_SEQUENCE - MAX_ANSWER):
        longest = min(room, MAX_SEQUENCE - MAX_ANSWER)
        raise InvalidParamsError(
            f"prompts: prompt {number} has {len(ids)} tokens; with an answer of {MAX_ANSWER} there is room for {longest}", "prompts"
        )


class _Settings:
    """One call of train_heads, its arguments checked."""

    def __init__(
        self,
        llm: Session,
        output: object,
        prompts: Prompt | Iterable[Prompt] | None,
        kind: str,
        steps: int | None,
        minutes: float,
        seed: int,
    ) -> None:
        self.llm = llm
        self.output = Path(parse(Place(), "output", output))
        self.kind: str = parse(Choice(("eagle", "medusa")), "kind", kind)
        self.steps: int | None = parse(_STEPS, "steps", steps)
        self.clock = Clock.of(parse(_MINUTES, "minutes", minutes))
        self.seed: int = parse(_SEED, "seed", seed)
        self.writer: Writer = OwnTurns(llm, self.seed)
        self.prompts_digest: str | None = None
        if prompts is not None:
            ids = [tokenize(prompt, llm.tokenizer, "prompts")[1] for prompt in as_list(prompts)]
            if not ids:
                raise InvalidParamsError("prompts is empty: None stands for llmi's own", "prompts")
            for number, prompt in enumerate(ids):
                _check_prompt(number, prompt, llm)
            self.prompts_digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
            self.writer = GivenPrompts(llm, ids, self.seed)
        self.folder = self.output / "training"

    def _identity(self) -> dict[str, Any]:
        info = self.llm.model_info
        return {
            "kind": self.kind,
            "seed": self.seed,
            "prompts_digest": self.prompts_digest,
            "model_digest": self.llm._files.digest()(),
            "numerics_id": info.numerics_id,
        }

    def begin(self, resume: bool) -> None:
        """Makes the folder, or checks that what is there can be continued."""
        file = self.folder / "plan.json"
        if resume:
            if not file.exists():
                raise InvalidParamsError(f"resume: {self.output} holds no training that was begun", "resume")
            plan = json.loads(file.read_text(encoding="utf-8"))
            for name, value in self._identity().items():
                if plan[name] != value:
                    raise InvalidParamsError(f"resume: {self.output} was begun with {name} {plan[name]!r}, not {value!r}", "resume")
            if self.steps is not None and plan["steps"] not in (None, self.steps):
                raise InvalidParamsError(f"resume: {self.output} was begun with {plan['steps']} steps, not {self.steps}", "steps")
            self.steps = plan["steps"]
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._keep_plan()

    def _keep_plan(self) -> None:
        write_whole(self.folder / "plan.json", json.dumps({**self._identity(), "steps": self.steps}, indent=1) + "\n")

    def _text(self) -> Text:
        """The text of all turns; fixes the steps."""
        file = self.folder / "text.npz"
        text, written = Text.of([]), 0
        if file.exists():
            text = Text.load(file)
            written = json.loads((self.folder / "turns.json").read_text(encoding="utf-8"))

        def keep(so_far: Text, count: int) -> None:
            so_far.save(file)
            write_whole(self.folder / "turns.json", json.dumps(count))

        with progress(100, "text", "%") as bar:
            shown = TextProgress(bar, self.clock, None if self.steps is None else turns_for(self.steps), written)
            self.writer.moved = shown.moved
            if self.steps is None:
                text, written = self._write_while_it_pays(text, written, keep, shown)
                assert self.steps is not None
                self._keep_plan()
            wanted = turns_for(self.steps)
            shown.expect(wanted)
            text = write_turns(self.writer, text, written, wanted, keep)
            shown.end()
        return text.of_turns(wanted)

    def _write_while_it_pays(self, text: Text, written: int, keep: Callable[[Text, int], None], shown: TextProgress) -> tuple[Text, int]:
        """Group after group, until the time that is left would not be enough to read more."""
        step_s: tuple[float, ...] | None = None
        while True:
            start = time.monotonic()
            text = write_turns(self.writer, text, written, written + GROUP, keep)
            written += GROUP
            group_s = time.monotonic() - start
            if step_s is None:
                step_s, row_s = self._measure(text)
            steps = steps_in(self.clock.left_s(), step_s, row_s)
            shown.expect(turns_for(steps))
            if turns_for(steps) <= written or self.clock.left_s() < group_s:
                step_s, row_s = self._measure(text)
                fit = steps_in(self.clock.left_s(), step_s, row_s)
                while fit > 1 and turns_for(fit) > written:
                    fit -= 1
                self.steps = max(1, fit)
                return text, written

    def _measure(self, text: Text) -> tuple[tuple[float, ...], float]:
        """(seconds of an update at each depth, seconds of a turn's hidden rows)."""
        part = text.first(min(len(text), 24))
        start = time.monotonic()
        hidden_rows(self.llm, part, lambda count: None)
        row_s = (time.monotonic() - start) / len(part) * 1.2
        training = Fit(self.llm, self.kind, self.seed).training(part, 1, self.folder)
        training.time_step(1)
        return tuple(training.time_step(depths) for depths in (1, 2, 3)), row_s

    def run(self) -> HeadsReport:
        """Text, updates, files."""
        text = self._text()
        assert self.steps is not None
        fit = Fit(self.llm, self.kind, self.seed)
        fit.run(text, self.steps, self.folder)
        receipt = {**self._identity(), "steps": self.steps, **fit.receipt(text)}
        fit.write(self.output, receipt)
        shutil.rmtree(self.folder, ignore_errors=True)
        return HeadsReport(table(fit.counts), self.output, receipt, fit.trained.losses)
