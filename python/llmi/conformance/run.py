"""Runs cases against a server; the results as a table and as JUnit's XML."""

from __future__ import annotations

import dataclasses
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path

from llmi.conformance import anthropic, core, determinism, errors, limits, responses, stream, structured, tools
from llmi.conformance.case import CASES, PROFILES, Case
from llmi.conformance.target import Broken, Target

#: The files whose import registers their cases.
SUBJECTS = (core, stream, errors, limits, structured, tools, determinism, anthropic, responses)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One case's result: `broken` says how the server differs, None that it does not."""

    case: Case
    broken: str | None
    seconds: float


def run_case(case: Case, target: Target) -> Outcome:
    """One case. An answer of another shape than the case can read is a difference too."""
    begun = time.perf_counter()
    broken = None
    try:
        case.check(target)
    except Broken as error:
        broken = str(error)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OSError) as error:
        broken = f"the answer has another form: {type(error).__name__}: {error}"
    return Outcome(case, broken, time.perf_counter() - begun)


def run_suite(target: Target, profiles: Iterable[str], say: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
    """All cases of these profiles, in order; `say` gets each outcome at once."""
    wanted = set(profiles)
    outcomes = []
    for case in CASES:
        if case.profile in wanted:
            outcomes.append(run_case(case, target))
            say(outcomes[-1])
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    """A line for each profile."""
    lines = [f"{'profile':<14}{'cases':>7}{'passed':>8}{'seconds':>10}"]
    for profile in PROFILES:
        mine = [outcome for outcome in outcomes if outcome.case.profile == profile]
        if mine:
            passed = sum(outcome.broken is None for outcome in mine)
            lines.append(f"{profile:<14}{len(mine):>7}{passed:>8}{sum(outcome.seconds for outcome in mine):>10.2f}")
    return "\n".join(lines)


def write_junit(outcomes: list[Outcome], path: Path) -> None:
    """JUnit's XML, one suite a profile."""
    root = ET.Element("testsuites", name="llmi conformance")
    for profile in dict.fromkeys(outcome.case.profile for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.case.profile == profile]
        failed = sum(outcome.broken is not None for outcome in mine)
        suite = ET.SubElement(root, "testsuite", name=profile, tests=str(len(mine)), failures=str(failed))
        for outcome in mine:
            entry = ET.SubElement(
                suite, "testcase", classname=f"conformance.{profile}", name=outcome.case.name, time=f"{outcome.seconds:.3f}"
            )
            if outcome.broken is not None:
                text = "".join(letter if letter.isprintable() else "\ufffd" for letter in outcome.broken)
                ET.SubElement(entry, "failure", message=text[:200]).text = text
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
