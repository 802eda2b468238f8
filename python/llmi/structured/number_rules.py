"""Rules for the numbers in a schema, which the library keeps in float64.

Three of its faults are met here. It reads decimals by a shortcut that is exact for up to 15 digits and may be off by one unit in the last
place for more: `maximum: 0.9999999999999999` is read as 1. And a bound that excludes a whole number does not exclude it if the other bound
is a fraction between it and the next whole number: `exclusiveMinimum: 0, maximum: 0.5` takes 0. And the number that the digits of a bound
begin with cannot be written: 0.9 under `maximum: 0.95`, though 0.90 can.
"""

from __future__ import annotations

import bisect
import decimal
import operator
from collections.abc import Callable
from typing import TypeGuard

from llmi.structured.schema_walk import Pointer, Walk, atoms

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_EXCLUSIVE = {"exclusiveMinimum": ("minimum", 1), "exclusiveMaximum": ("maximum", -1)}
_FITS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_LARGEST_EXACT = 1 << 53
_LARGEST_POWER = 22  # of ten that float64 holds exactly
_NO_SUCH_INTEGER = "the library keeps numbers in float64, which has no such integer"
_MISREAD = "the library reads this many digits as another number"


def exact_numbers(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Refuses the numbers that the library would not keep as they are."""
    for name in (*BOUNDS, "multipleOf", "const", "enum"):
        numbers = [atom for atom in atoms(node.get(name)) if _is_number(atom)]
        largest = 1 << 63 if name in ("const", "enum") else 1 << 1000
        if any(isinstance(number, int) and (abs(number) >= largest or not _is_float64(number)) for number in numbers):
            walk.refuse(pointer, node, name, _NO_SUCH_INTEGER)
        elif any(_as_read(repr(number)) != abs(number) for number in numbers):
            walk.refuse(pointer, node, name, _MISREAD)


def open_bounds(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Bounds that exclude a whole number, where the schema has a number between it and the next one: bounds of several places may meet.

    The bound moves by the least step that the library reads exactly, and is then inclusive: numbers closer to it are not written.
    """
    for name, (inclusive, sign) in _EXCLUSIVE.items():
        bound, given = node.get(name), node.get(inclusive, 0)
        if not _is_number(bound) or not _is_number(given) or not float(bound).is_integer() or node.get("type") == "integer":
            continue
        at = bisect.bisect_right(walk.fractions, bound if sign > 0 else bound - 1)
        if at == len(walk.fractions) or walk.fractions[at] >= (bound + 1 if sign > 0 else bound):
            continue
        closest = _next_to(int(bound), sign)
        if closest is None:
            walk.refuse(pointer, node, name, "the library reads no number next to it")
            continue
        del node[name]
        if inclusive not in node or sign * (closest - given) > 0:
            node[inclusive] = closest


def beginnings_of_bounds(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Numbers that the digits of a bound begin with are allowed by themselves, next to what the library makes of the bounds."""
    if node.get("type") == "integer":
        return
    bounds = {name: value for name in BOUNDS if _is_number(value := node.get(name))}
    listed = [number for name, bound in bounds.items() if (bound > 0) == name.lower().endswith("maximum") for number in _beginnings(bound)]
    fitting = [number for number in dict.fromkeys(listed) if all(_FITS[name](number, bound) for name, bound in bounds.items())]
    if not fitting:
        return
    for name in bounds:
        del node[name]
    walk.add(node, {"anyOf": [bounds, {"enum": fitting}]}, final=True)


def _beginnings(bound: float) -> list[float]:
    """A number with fewer places, cut and in its shortest form: 2.5 and 2.55 of 2.555."""
    digits = decimal.Decimal(repr(bound))
    places = -int(digits.as_tuple().exponent)
    cut = [digits.quantize(decimal.Decimal(1).scaleb(-kept), decimal.ROUND_DOWN) for kept in range(1, min(places, _LARGEST_POWER))]
    return [float(number) for number in cut if number.as_tuple().digits[-1] != 0]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_float64(number: int) -> bool:
    return abs(number) <= _LARGEST_EXACT or int(float(number)) == number


def _as_read(text: str) -> float:
    """What the library makes of a number's digits: a float64 of all of them that 64 bits hold, times or divided by powers of ten."""
    whole, _, power = text.partition("e")
    whole, _, fraction = whole.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0") or "0"
    size = 20 if int(digits[:20]) < 1 << 64 else 19
    exponent = int(power or 0) - len(fraction) + max(len(digits) - size, 0)
    value = float(int(digits[:size]))
    while exponent < -308:
        value, exponent = value / 1e308, exponent + 308
    return value * float(f"1e{exponent}") if exponent >= 0 else value / float(f"1e{-exponent}")


def _next_to(whole: int, sign: int) -> float | None:
    """The number next to a whole one whose digits float64 holds."""
    for places in range(_LARGEST_POWER, 0, -1):
        if abs(whole) * 10**places < _LARGEST_EXACT:
            return float(decimal.Decimal(whole) + sign * decimal.Decimal(1).scaleb(-places))
    return None
