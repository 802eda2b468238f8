"""Names of the parts of a split GGUF file: model-00001-of-00003.gguf."""

from __future__ import annotations

import dataclasses
import re

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Part:
    """What a part's name says: `number` of `count`, from 1 on; `stem` is what stands before."""

    stem: str
    number: int
    count: int
    ending: str

    def all_names(self) -> list[str]:
        """Names of all parts, in order."""
        return [f"{self.stem}-{number:05}-of-{self.count:05}{self.ending}" for number in range(1, self.count + 1)]


def part_of(name: str) -> Part | None:
    """None for a name that is no part's. A path is a name, too: its folders belong to the stem."""
    match = _PART.fullmatch(name)
    return None if match is None else Part(match["stem"], int(match["number"]), int(match["count"]), match["ending"])
