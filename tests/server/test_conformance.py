"""`llmi conformance`: llmi's server passes every case of what it offers, and each case fails against a server with the fault that it is
there for."""

from __future__ import annotations

import contextlib
import dataclasses
import socketserver
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance_form_faults import fault_of
from faulty_proxy import Fault, FaultyProxy
from llmi.cli.commands import main
from llmi.cli.console import check_output
from llmi.conformance import target as target_module
from llmi.conformance.case import CASES, PROFILES, Case
from llmi.conformance.run import run_case, run_suite
from llmi.conformance.target import Broken, Target
from llmi.loadtest import fetch as fetch_module
from llmi.testing.tiny import tiny_model
from test_server_tools import TEMPLATE
from waiting import HANG_S

pytestmark = pytest.mark.slow


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
            yield Target("127.0.0.1", int(said.split("ready: http://127.0.0.1:")[1].split()[0].rstrip("/;,")), "tiny", timeout_s=HANG_S)
        finally:
            process.terminate()
            process.wait(HANG_S)


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
    outcome = run_case(case, dataclasses.replace(target, port=proxy.server_address[1], timeout_s=TIMEOUT_S if slow else HANG_S))
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
    capsys.readouterr()
    for place in (tmp_path, tmp_path / "none" / "x.xml", junit / "x"):
        assert main(["conformance", "http://127.0.0.1:9", "--junit", str(place)]) == 2, "before the server is asked"
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"llmi: --junit: {place} cannot be written: ")
    check_output(tmp_path / "new.xml", "junit")
    check_output(junit, "junit")
    assert not (tmp_path / "new.xml").exists() and junit.stat().st_size > 0
    assert main(["conformance", url, "--profile", "anthropic", "--junit", "/dev/full"]) == 2
    assert "llmi: --junit: /dev/full cannot be written: No space left on device" in capsys.readouterr().err


class _Endless(socketserver.BaseRequestHandler):
    """Sends its part again and again, until the client has gone."""

    server: Endless

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.sendall(self.server.head)
            while not self.server.ended.wait(self.server.pause_s):
                self.request.sendall(self.server.part)


class Endless(socketserver.ThreadingTCPServer):
    """A server whose answer begins with `head` and never ends."""

    daemon_threads = True

    def __init__(self, head: bytes, part: bytes, pause_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Endless)
        self.head, self.part, self.pause_s = head, part, pause_s
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.server_address[1], "m", timeout_s=0.2)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "a body that ends with the connection": (HEAD + b"\r\n", b" "),
    "a body of a known length": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "headers": (HEAD, b"X: y\r\n"),
    "one header": (HEAD + b"X: ", b"y"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_that_comes_byte_by_byte_has_a_deadline(name: str) -> None:
    with Endless(*ENDLESS[name], pause_s=0.02) as server:
        with pytest.raises(Broken, match=r"GET /x: the answer was not whole after 0\.2 s"):
            server.target.send("GET", "/x")
        with pytest.raises(Broken, match=r"bytes came within 0\.2 s, and no end"):
            server.target.raw(b"GET /x HTTP/1.1\r\n\r\n")
        assert main(["conformance", f"http://127.0.0.1:{server.server_address[1]}", "--timeout-s", "0.2"]) == 2, "/v1/models does not end"


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch_module, target_module):
        monkeypatch.setattr(module, "MOST_BYTES", 1 << 16)
    with Endless(HEAD + b"\r\n", b" " * 4096, pause_s=0) as server:
        target = dataclasses.replace(server.target, timeout_s=60)
        with pytest.raises(Broken, match="more than 65,536 bytes"):
            target.send("GET", "/x")
        with pytest.raises(Broken, match="no end of them"):
            target.raw(b"GET /x HTTP/1.1\r\n\r\n")


def test_a_body_that_is_cut_is_no_answer() -> None:
    class Cut(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(HEAD + b"Content-Length: 5\r\n\r\n{}")

    with socketserver.TCPServer(("127.0.0.1", 0), Cut) as server, pytest.raises(Broken, match="no whole answer came: IncompleteRead"):
        threading.Thread(target=server.handle_request, daemon=True).start()
        Target("127.0.0.1", server.server_address[1], "m", timeout_s=20).send("GET", "/x")
