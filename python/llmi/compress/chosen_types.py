"""What becomes of a file's tensors when it is quantised: the settings of a caller or a receipt, and the type of each tensor."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from llmi.base.kinds import Choice, Flag, Text, Whole, parse, show
from llmi.compress.gguf_file import StoredTensor
from llmi.compress.grids import GRIDS
from llmi.compress.made_files import FLOATS, Source
from llmi.compress.mixtures import MIXTURES, of_mixture
from llmi.compress.preparing import OWN
from llmi.compress.rotation import SEED
from llmi.compress.rounding import METHODS
from llmi.compress.study import FORM, study_type
from llmi.errors import InvalidParamsError

#: What `llmi.compress.quantize` writes a tensor as.
TYPES = (*GRIDS, *FLOATS)
#: What a tensor becomes whose columns blocks of 256 do not divide, as llama.cpp chooses.
_INSTEAD = {"Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


class _TypeName:
    """A type of a file, or one for study."""

    def parse(self, name: str, value: object) -> str:
        if isinstance(value, str) and study_type(value) is not None:
            return value
        if value not in TYPES:
            raise InvalidParamsError(f"{name} must be one of {', '.join(TYPES)}, or for study {FORM}, not {show(value)}", name)
        return str(value)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a file is made by. tensors: patterns of names and their types, in the order in which they hold. type: None of a mixture, and
    where the patterns name all. budget_bytes: what chose the types."""

    type: str | None
    method: str
    tensors: list[tuple[str, str]]
    like: str | None = None
    rotate: int | None = None
    awq: bool = False
    budget_bytes: int | None = None

    @classmethod
    def of(
        cls,
        kind: object,
        method: object,
        tensors: Iterable[tuple[object, object]],
        like: object = None,
        rotate: object = None,
        awq: object = False,
        budget_bytes: object = None,
    ) -> Settings:
        """From a caller or a receipt. Raises InvalidParamsError."""
        rules = [(parse(Text(), "tensors", pattern), parse(_TypeName(), f"tensors[{pattern!r}]", wanted)) for pattern, wanted in tensors]
        if like is not None and kind is not None:
            raise InvalidParamsError(f"type={kind!r} and like={like!r}: a mixture has the types of all tensors, take one of both", "like")
        mixture = None if like is None else parse(Choice(tuple(MIXTURES)), "like", like)
        budget = None if budget_bytes is None else parse(Whole(1, 1 << 50), "budget_bytes", budget_bytes)
        left_open = budget is None and like is None and kind is None
        chosen = None if kind is None and not left_open else parse(_TypeName(), "type", "Q4_0" if left_open else kind)
        seed = None if rotate is None else parse(SEED, "rotate", rotate)
        return cls(chosen, parse(Choice(METHODS), "method", method), rules, mixture, seed, parse(Flag(), "awq", awq), budget)

    def told(self) -> dict[str, object]:
        """For the receipt."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value is not False}

    def check(self, given: object) -> None:
        """What a caller's settings are refused for before a file is read. Raises InvalidParamsError."""
        if self.budget_bytes is not None and (self.type is not None or self.like is not None):
            raise InvalidParamsError("budget_bytes chooses the types: leave type and like out", "budget_bytes")
        if self.budget_bytes is not None and self.method == "kl":
            raise InvalidParamsError('budget_bytes: method="kl" is for study, and its files are not smaller', "budget_bytes")
        if self.awq and given is None:
            raise InvalidParamsError('awq: it needs a calibration, such as calibration="own"', "calibration")
        if given == OWN and self.method in ("absmax", "kl") and not self.awq:  # before minutes pass
            raise InvalidParamsError(f'calibration: method="{self.method}" reads none; "search" weighs errors by it', "calibration")

    def types(self, source: Source, has_importance: bool) -> tuple[dict[str, str], dict[str, str]]:
        """({name: type}, {name: why it has another one or stays}). Raises InvalidParamsError for a pattern that matches nothing."""
        tensors = source.gguf.tensors
        if self.like is not None:
            chosen = of_mixture(self.like, tensors, source.spec, has_importance)
        elif self.type is None:
            chosen = {}
        else:
            names = [tensor.name for tensor in tensors if tensor.name.startswith("blk.") and tensor.name.endswith(".weight")]
            chosen = dict.fromkeys(names, str(self.type))
        return fitting(tensors, chosen, self.tensors)


def fitting(
    tensors: Iterable[StoredTensor], types: Mapping[str, str], rules: Sequence[tuple[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """({name: type}, {name: why it is another one}) of matrices that are to have these types, the last rule that matches before them."""
    wanted: dict[str, str] = {}
    unused = {pattern for pattern, _ in rules}
    fallbacks: dict[str, str] = {}
    for tensor in tensors:
        if len(tensor.shape) < 2:
            continue
        chosen = types.get(tensor.name)
        for pattern, named in rules:
            if fnmatch.fnmatchcase(tensor.name, pattern):
                chosen = named
                unused.discard(pattern)
        size = _columns(chosen)
        if chosen is not None and tensor.shape[0] % size:
            instead = _INSTEAD.get(chosen)
            fits = instead is not None and tensor.shape[0] % GRIDS[instead].columns == 0
            outcome = f"becomes {instead}" if fits else "stays as it is"
            why = f"{chosen} has blocks of {size} columns, which do not divide its {tensor.shape[0]}"
            fallbacks[tensor.name] = f"{outcome}: {why}"
            chosen = instead if fits else None
        if chosen is not None:
            wanted[tensor.name] = chosen
    if unused:
        raise InvalidParamsError(f"tensors: no matrix that can be quantised has a name like {sorted(unused)[0]!r}", "tensors")
    return wanted, fallbacks


def _columns(kind: str | None) -> int:
    """That must divide a matrix's."""
    study = None if kind is None else study_type(kind)
    return study.columns if study is not None else GRIDS[kind].columns if kind in GRIDS else 1
