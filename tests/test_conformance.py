"""`llmi conformance`: llmi's server passes every case of what it offers, and each case fails against a server with the fault that it is there for."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance_form_faults import fault_of
from faulty_proxy import Fault, FaultyProxy
from llmi.cli.commands import main
from llmi.conformance.case import CASES, PROFILES, Case
from llmi.conformance.run import run_case, run_suite
from llmi.conformance.target import Target
from llmi.testing.tiny import tiny_model
from test_server_tools import TEMPLATE

#: What llmi's server offers.
OFFERED = ("core", "stream", "errors", "limits", "structured", "tools", "determinism", "anthropic", "responses")
# A reader that leaves, and half a request, are seen by time alone: with this bound a server that stands still is found quickly.
TIMEOUT_S = 2.0
LARGE = ("a body of 64 MiB", "a prompt that is longer than any context")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("served") / "tiny")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    command = [
        sys.executable,
        "-m",
        "llmi.cli.commands",
        "serve",
        "-m",
        f"tiny={folder}",
        "--port",
        "0",
        "--no-access-log",
        "--kv-cache-memory-bytes",
        str(1 << 24),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "ready: http" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            yield Target("127.0.0.1", int(said.split("ready: http://127.0.0.1:")[1].split()[0].rstrip("/;,")), "tiny", timeout_s=60)
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def proxy(target: Target) -> Iterator[FaultyProxy]:
    with FaultyProxy(target.host, target.port) as made:
        yield made


@pytest.mark.parametrize("profile", OFFERED)
def test_llmi_passes(target: Target, profile: str) -> None:
    broken = {outcome.case.name: outcome.broken for outcome in run_suite(target, [profile]) if outcome.broken is not None}
    assert broken == {}


def test_through_the_proxy_without_a_fault_as_well(target: Target, proxy: FaultyProxy) -> None:
    """So that what fails below fails by the fault. (The proxy reads what comes leniently, so limits of HTTP itself are not its.)"""
    proxy.fault = Fault()
    through = dataclasses.replace(target, port=proxy.server_address[1])
    assert [
        outcome for outcome in run_suite(through, ["core", "stream", "structured", "tools", "anthropic", "responses"]) if outcome.broken
    ] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.profile in OFFERED], ids=lambda case: f"{case.profile}: {case.name}")
def test_each_case_finds_its_fault(target: Target, proxy: FaultyProxy, case: Case) -> None:
    proxy.fault = fault_of(case.profile, case.name)
    slow = case.profile == "limits" and case.name not in LARGE
    outcome = run_case(case, dataclasses.replace(target, port=proxy.server_address[1], timeout_s=TIMEOUT_S if slow else 60))
    assert outcome.broken is not None, "the fault was not found"


def test_cases_have_names_of_their_own() -> None:
    assert len({(case.profile, case.name) for case in CASES}) == len(CASES) >= 150
    assert {case.profile for case in CASES} == set(PROFILES)


def test_command(target: Target, proxy: FaultyProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "out.xml"
    url = f"http://127.0.0.1:{target.port}"
    assert main(["conformance", url, "--profile", "core", "--junit", str(junit)]) == 0
    told = capsys.readouterr()
    count = sum(case.profile == "core" for case in CASES)
    assert f"{count} of {count} cases pass" in told.err and told.out.split()[:3] == ["profile", "cases", "passed"]
    suite = ET.parse(junit).getroot()[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("core", str(count), "0")
    proxy.fault = fault_of("core", "the sum of usage")
    assert main(["conformance", f"http://127.0.0.1:{proxy.server_address[1]}", "--profile", "core", "--junit", str(junit)]) == 1
    assert "FAILED core: the sum of usage: total_tokens is" in capsys.readouterr().out
    assert ET.parse(junit).getroot()[0].get("failures") == "1" and ET.parse(junit).getroot().find(".//failure") is not None
    assert main(["conformance", url, "--list"]) == 0 and len(capsys.readouterr().out.splitlines()) == len(CASES)
    assert main(["conformance", url, "--profile", "nothing"]) == 2
    assert main(["conformance", "https://x"]) == 2
