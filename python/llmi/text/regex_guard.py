"""Regular expressions of tokenizer files, which a backtracking matcher runs on every text: those that may take exponential time are
refused."""

from __future__ import annotations

import dataclasses

MAX_LENGTH = 8192
MAX_DEPTH = 32
MAX_REPEAT = 4096
MAX_UNBOUNDED = 4
#: Nested repeats in published tokenizers, each with an expression of the same cost: every repeat begins with a letter or with the end of a
#: line, so a text has only one match.
KNOWN_LINEAR = {r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+": r"\p{L}+", r"(?:\r?\n)+": r"\n+", r"(?:\r\n|\n)+": r"\n+"}
EXPONENTIAL = "it repeats a group that itself has alternatives or repeats something: a match may take exponential time"


@dataclasses.dataclass
class _Part:
    """Properties of a group, or of the item before the current position."""

    ambiguous: bool = False  # it may match a text in several ways, or texts of several lengths
    repeat: int = 1  # how often its longest part is repeated, where that is bounded
    unbounded: int = 0  # repetitions without bound in the branch


def fault(pattern: str) -> str:
    """Why `pattern` is not run; "" if it may be.

    Refused: what is long or deep, repeats a group of alternatives or repetitions (`(a+)+`, `(a|a)*`, `(aa?)*`), refers to a group,
    repeats something more than 4,096 times, or has more than four repetitions without bound in a row.
    """
    if len(pattern) > MAX_LENGTH:
        return f"it has {len(pattern):,} characters (at most {MAX_LENGTH:,})"
    for known, equal in KNOWN_LINEAR.items():
        pattern = pattern.replace(known, equal)
    groups = [_Part()]
    last = _Part()
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "(":
            if pattern.startswith(("(?~", "(?(", "(?&", "(?P>", "(?R", "(*"), position):
                return f"it holds {pattern[position : position + 3]!r}, which is not known"
            groups.append(_Part())
            if len(groups) > MAX_DEPTH:
                return f"its groups are nested more than {MAX_DEPTH} deep"
            last = _Part()
            position += 2 if pattern.startswith("(?", position) else 1
        elif character == ")":
            if len(groups) == 1:
                return "its parentheses do not match"
            last = groups.pop()
            groups[-1].ambiguous |= last.ambiguous
            groups[-1].repeat = max(groups[-1].repeat, last.repeat)
            position += 1
        elif character == "|":
            groups[-1].ambiguous, groups[-1].unbounded, last = True, 0, _Part()
            position += 1
        elif (quantifier := _quantifier(pattern, position)) is not None:
            position, least, most = quantifier
            if reason := _repeat(last, groups[-1], least, most):
                return reason
        else:
            following = pattern[position + 1 : position + 2]
            if character == "\\" and (following in ("k", "g") or (following.isdigit() and following != "0")):
                return "it refers to a group"
            position = _item_end(pattern, position)
            last = _Part()
    return ""


def _repeat(item: _Part, group: _Part, least: int, most: int | None) -> str:
    """Repeats the last item of a group `least` to `most` times; says why it may not be, else ""."""
    if item.ambiguous and (most is None or most > 16):
        return EXPONENTIAL
    item.repeat *= most or 1
    if item.repeat > MAX_REPEAT:
        return f"it repeats something more than {MAX_REPEAT:,} times"
    group.repeat = max(group.repeat, item.repeat)
    group.unbounded += most is None
    if group.unbounded > MAX_UNBOUNDED:
        return f"it has more than {MAX_UNBOUNDED} repetitions without bound in a row"
    item.ambiguous |= least != most
    group.ambiguous |= item.ambiguous
    return ""


def _item_end(pattern: str, position: int) -> int:
    """Behind the character, escape or bracket expression at `position`."""
    if pattern[position] == "[":
        return _class_end(pattern, position)
    if pattern[position] != "\\":
        return position + 1
    named = pattern[position + 1 : position + 3] in ("p{", "P{", "x{")
    close = pattern.find("}", position)
    return close + 1 if named and close >= 0 else position + 2


def _class_end(pattern: str, position: int) -> int:
    """Behind the bracket expression that begins at `position`; they nest."""
    depth = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 2
            continue
        if pattern[position] == "[":
            depth += 1
            position += 2 if pattern.startswith("[^", position) else 1
            position += pattern.startswith("]", position)  # "]" right after "[" or "[^" is a character of the set
            continue
        depth -= pattern[position] == "]"
        position += 1
        if depth == 0:
            break
    return position


def _quantifier(pattern: str, position: int) -> tuple[int, int, int | None] | None:
    """(its end, least, most; None without bound) of a quantifier at `position`, with the mark behind it; None if there is none."""
    character = pattern[position]
    if character in "*+?":
        end, least, most = position + 1, int(character == "+"), 1 if character == "?" else None
    elif character == "{":
        close = pattern.find("}", position)
        low, comma, high = pattern[position + 1 : max(close, position + 1)].partition(",")
        if close < 0 or not (low + high).isdigit() or not (low.isascii() and high.isascii()):
            return None
        end, least = close + 1, int(low[:9] or 0)
        most = int(high[:9]) if high else None if comma else least
    else:
        return None
    while pattern[end : end + 1] in ("?", "+"):  # lazy and possessive: taken as the plain kind
        end += 1
    return end, least, most
