"""From a text to heads: data, updates, acceptance on what was held out, files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmi.base.progress import progress
from llmi.base.whole_file import write_whole
from llmi.models.safetensors_file import write_safetensors
from llmi.session import Session
from llmi.training.acceptance import Counts, acceptance
from llmi.training.data import Data, data_of
from llmi.training.eagle import EagleModel
from llmi.training.medusa import MedusaModel
from llmi.training.run import Model, Training
from llmi.training.target import Target
from llmi.training.text import Text

#: Share of the sequences that are held out, and no fewer than these.
_HELD = 0.04
_FEWEST_HELD = 6
#: No more sequences than this are held out: 20,000 positions tell acceptance to 0.004.
_MOST_HELD = 200


class Fit:
    """One model fitted to one text.

    Attributes
    ----------
    trained : Training
        After `run`.
    counts : (Counts, Counts)
        Acceptance on the held-out text at T = 0 and 1, after `run`.
    """

    trained: Training
    counts: tuple[Counts, Counts]

    def __init__(self, llm: Session, kind: str, seed: int) -> None:
        self.llm, self.kind, self.seed = llm, kind, seed
        self.target = Target(llm)

    def _model(self, data: Data) -> Model:
        if self.kind == "medusa":
            return MedusaModel(self.llm.model_info.hidden_size)
        start = self.target.start(data.rows[:4096].astype(np.float32), data.row_size, self.seed)
        return EagleModel(self.target.shape(), start, data.gain)

    def training(self, text: Text, steps: int, folder: Path, show: bool | None = False) -> Training:
        """A training that has not begun; the last sequences are held out."""
        held = min(max(_FEWEST_HELD, int(len(text) * _HELD)), _MOST_HELD, len(text) - 1)
        with progress(len(text.token_ids), "hidden rows", "tok", show) as bar:
            data = data_of(self.llm, self.target, text.first(len(text) - held), bar.update)
            held_data = data_of(self.llm, self.target, text.last(held), bar.update, data.shortlist)
        return Training(self._model(data), data, held_data, self.seed, steps, folder)

    def run(self, text: Text, steps: int, folder: Path) -> None:
        """All updates, from the last checkpoint in `folder` on; then acceptance."""
        self.trained = self.training(text, steps, folder, None)
        self.trained.restore()
        with np.errstate(over="ignore"):
            self.trained.run(None)
        self.counts = self.accepted(self.trained.model)

    def accepted(self, model: Model) -> tuple[Counts, Counts]:
        """Acceptance of a model on the held-out text."""
        held = self.trained.held
        with np.errstate(over="ignore"):
            return acceptance(model, held, held.text.warm, self.target.embeddings(held.shortlist.astype(np.int64)))

    def receipt(self, text: Text) -> dict[str, Any]:
        """What the heads are made of, as far as this class knows."""
        return {
            "steps_run": self.trained.optimizer.step,
            "visits": self.trained.visits,
            "text_digest": text.digest(),
            "text_tokens": len(text.token_ids),
            "answer_tokens": text.num_answer_tokens,
        }

    def write(self, folder: Path, receipt: dict[str, Any]) -> None:
        """model.safetensors and config.json; the file's digest goes into the receipt."""
        model, data = self.trained.model, self.trained.data
        tensors: dict[str, NDArray[Any]] = {**model.tensors(np.float16), "shortlist": data.shortlist}
        write_safetensors(folder / "model.safetensors", tensors)
        receipt["file_digest"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        own = {"kind": self.kind, "target_digest": self.llm._files.digest()(), "receipt": receipt}
        config = model.config(self.llm.model_info.vocab_size)
        write_whole(folder / "config.json", json.dumps({**config, "llmi": own}, indent=1) + "\n")
