"""The updates of a training, from its first or from its last checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmi.base.progress import progress
from llmi.models.safetensors_file import read_safetensors, write_safetensors
from llmi.training.acceptance import Drafting
from llmi.training.data import Data
from llmi.training.eagle import depths_at
from llmi.training.optimizer import AdamW, rate
from llmi.training.packing import ROWS, batches, pack_in_order, parts_of

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
CHECKPOINT_S = 60.0
#: Measurements of the held-out loss in a training; _PATIENCE of them without a better one end it.
_LOOKS = 20
_PATIENCE = 5
_LOOKED_AT = 6  # batches


class Model(Drafting, Protocol):
    """A net under training: a vector of parameters, and the loss of a batch."""

    vector: F32
    highest_rate: float

    def loss(self, tokens: I64, parts: I64, data: Data, depths: int, gradient: F32 | None) -> list[float]:
        """Mean divergence at each depth; the gradient of what is to be smaller goes into `gradient`."""
        ...

    def tensors(self, dtype: type) -> dict[str, NDArray[Any]]:
        """As the file names them."""
        ...

    def config(self, vocab_size: int) -> dict[str, Any]:
        """config.json without llmi's own part."""
        ...


class Training:
    """One training; its state is a function of data, seed and steps alone.

    Parameters
    ----------
    folder : Path
        Where the checkpoint is kept.
    """

    def __init__(self, model: Model, data: Data, held: Data, seed: int, steps: int, folder: Path) -> None:
        self.model, self.data, self.held, self.seed, self.steps, self.folder = model, data, held, seed, steps, folder
        self.optimizer = AdamW(model.vector)
        self.visits = 0
        self.best_loss, self.best, self.looks_since = float("inf"), model.vector.copy(), 0
        self.losses: list[tuple[int, float, float]] = []  # step, mean first loss since the last look, held-out loss
        self._recent: list[float] = []

    @property
    def _file(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def save(self) -> None:
        """Keeps the state."""
        tensors = {
            "vector": self.model.vector, "first": self.optimizer.first, "second": self.optimizer.second, "best": self.best,
            "losses": np.array(self.losses, np.float32).reshape(-1, 3), "recent": np.array(self._recent, np.float32),
        }  # fmt: skip
        numbers = {
            "step": self.optimizer.step,
            "visits": self.visits,
            "best_loss": float(self.best_loss).hex(),
            "looks_since": self.looks_since,
        }
        write_safetensors(self._file, tensors, {name: str(value) for name, value in numbers.items()})

    def restore(self) -> None:
        """Goes on where the last checkpoint was, if there is one."""
        if not self._file.exists():
            return
        tensors, numbers = read_safetensors(self._file)
        self.model.vector[:] = tensors["vector"]
        self.optimizer.first[:], self.optimizer.second[:] = tensors["first"], tensors["second"]
        self.optimizer.step, self.visits, self.looks_since = (int(numbers[name]) for name in ("step", "visits", "looks_since"))
        self.best, self.best_loss = tensors["best"].copy(), float.fromhex(numbers["best_loss"])
        self.losses = [(int(step), float(loss), float(held)) for step, loss, held in tensors["losses"]]
        self._recent = tensors["recent"].tolist()

    def time_step(self, depths: int) -> float:
        """Seconds of an update of this many depths; changes nothing."""
        tokens, parts = next(batches(parts_of(self.data.text.offsets), self.seed))
        scratch = AdamW(self.model.vector.copy())
        start = time.monotonic()
        gradient = np.empty_like(self.model.vector)
        self.model.loss(tokens, parts, self.data, depths, gradient)
        scratch.update(gradient, 0.0)
        return time.monotonic() - start

    def _held_loss(self) -> float:
        total, count = 0.0, 0
        for (tokens, parts), _ in zip(pack_in_order(self.held.text.offsets), range(_LOOKED_AT), strict=False):
            total += sum(self.model.loss(tokens, parts, self.held, 2, None))
            count += 1
        return total / max(1, count)

    def _look(self) -> bool:
        """Measures the held-out loss; whether to go on."""
        held = float(np.float32(self._held_loss()))
        self.losses.append((self.optimizer.step, float(np.float32(np.mean(self._recent))), held))
        self._recent = []
        if held < self.best_loss:
            self.best_loss, self.best, self.looks_since = held, self.model.vector.copy(), 0
        else:
            self.looks_since += 1
        return self.looks_since < _PATIENCE

    def run(self, show: bool | None) -> None:
        """To the last update, or until the held-out loss grows no better; then the parameters are the best ones."""
        source = batches(parts_of(self.data.text.offsets), self.seed, ROWS)
        for _ in range(self.optimizer.step):
            next(source)
        gradient = np.empty_like(self.model.vector)
        every, kept = max(10, self.steps // _LOOKS), time.monotonic()
        with progress(self.steps, "train", "step", show) as bar:
            bar.update(self.optimizer.step)
            while self.optimizer.step < self.steps and self.looks_since < _PATIENCE:
                tokens, parts = next(source)
                step = self.optimizer.step
                losses = self.model.loss(tokens, parts, self.data, depths_at(step, self.steps), gradient)
                self.optimizer.update(gradient, rate(step, self.steps, self.model.highest_rate))
                self.visits += int(np.count_nonzero(tokens >= 0))
                self._recent.append(float(np.float32(losses[0])))
                bar.update(1)
                if (step + 1) % every == 0 or step + 1 == self.steps:
                    self._look()
                if time.monotonic() - kept > CHECKPOINT_S:
                    self.save()
                    kept = time.monotonic()
        self.model.vector[:] = self.best
