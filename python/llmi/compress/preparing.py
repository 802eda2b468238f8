"""Before a file is quantised: a rotation, and the calibration of what is left."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.folders import source_of
from llmi.compress.made_files import Source, loaded
from llmi.compress.rewriting import write
from llmi.compress.rotation import Rotate
from llmi.errors import InvalidParamsError

OWN = "own"
OWN_TOKENS = 20_000


@contextlib.contextmanager
def rotated(source: Source, seed: int | None, origin: Mapping[str, object]) -> Iterator[Source]:
    """The file that `rotate` makes of the source, as long as it is read; without a seed the source itself."""
    if seed is None:
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / source.path.name
        write(source, path, Rotate.of({"seed": seed}), origin, None)
        yield source_of(path)


def calibrated(source: Source, given: Calibration | str | os.PathLike[str] | None, *, gram: bool, is_rotated: bool) -> Calibration | None:
    """The calibration that is given, or one on the model's own text. Raises InvalidParamsError: a rotated model needs its own."""
    if given == OWN:
        return calibrate(source.path, tokens=OWN_TOKENS, gram=gram)
    sums = loaded(given)
    if sums is not None and is_rotated and sums.made.get("model") != source.opened.digest()():
        raise InvalidParamsError(
            'calibration: with rotate it must be of the rotated model: calibration="own" makes one, or llmi.compress.rotate writes that'
            " model, under the same file name, for llmi calibrate",
            "calibration",
        )
    return sums
