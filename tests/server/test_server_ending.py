"""Disconnects, deadlines, a full queue, the end of a server and its metrics, over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, AsyncLLM
from llmi.errors import InvalidParamsError
from llmi.server import drain, run, systemd
from llmi.server.drain import DrainingServer
from llmi.server.limits import Limits
from llmi.server.settings import ServerSettings
from waiting import HANG_S, wait_until

BODY = {"model": "tiny", "prompt": "ab", "ignore_eos": True, "temperature": 0}


class Running:
    """A server in a thread."""

    def __init__(self, llm: LLM, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch, max_queue: int | None = None) -> None:
        self.llm = llm
        self.engine = AsyncLLM(llm=llm, max_queue=max_queue)
        self.server: Any = None
        original = DrainingServer.run

        def keep(server: DrainingServer, sockets: Any = None) -> None:
            self.server = server
            original(server, sockets)

        monkeypatch.setattr(DrainingServer, "run", keep)
        sock = run.bind(settings)
        self.port = sock.getsockname()[1]
        ready = threading.Event()
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            if line.startswith("ready"):
                ready.set()

        self.thread = threading.Thread(target=run.serve, args=({"tiny": self.engine}, settings, sock, say))
        self.thread.start()
        assert ready.wait(HANG_S), lines
        self.door = self.server.config.app.state.llmi.door

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)

    def post(self, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return result

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join(HANG_S)
        assert not self.thread.is_alive()
        self.engine._pump.closed = True  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(max_position_embeddings=1 << 16), kv_cache_memory_bytes=1 << 26, max_model_len=1 << 16, max_num_seqs=2) as llm:
        yield llm


@contextmanager
def running(llm: LLM, monkeypatch: pytest.MonkeyPatch, max_queue: int | None = None, **settings: Any) -> Iterator[Running]:
    server = Running(llm, ServerSettings(port=0, **settings), monkeypatch, max_queue)
    try:
        yield server
    finally:
        server.end()
        wait_until(lambda: llm._engine.latest_stats()["num_running"] == 0)
        llm.reset_prefix_cache()
        stats = llm.get_metrics()
        assert stats["num_free_pages"] == stats["num_pages"] and stats["audit"] == ""


LONG = {**BODY, "max_tokens": 60_000}


@pytest.mark.parametrize("stream", [False, True], ids=["1 unstreamed", "2 streamed"])
def test_a_client_that_goes_frees_its_blocks(llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    with running(llm, monkeypatch) as server:
        for _ in range(3):
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": stream}), {"content-type": "application/json"})
            wait_until(lambda: llm._engine.latest_stats()["num_running"] == 1)
            assert connection.sock is not None
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
            wait_until(lambda: llm._engine.latest_stats()["num_running"] == 0)
        status, _, body = server.post({**BODY, "max_tokens": 4})
        assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_18_deadlines(llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    with running(llm, monkeypatch) as server:
        status, _, body = server.post({**LONG, "stream": stream, "timeout_s": 2.0})
        if stream:
            assert (
                status == 200 and b'"error"' in body and b"timeout_s = 2:" in body and b"deadline_s" not in body and b'"length"' not in body
            )
        else:
            assert status == 504 and json.loads(body)["error"]["type"] == "timeout_error"
        assert server.post({**LONG, "stream": stream, "timeout_s": 0.0})[0] == 504


def test_18_a_body_cannot_outlast_the_servers_deadline(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, monkeypatch, limits=Limits(deadline_s=0.3)) as server:
        for timeout_s, ends in ((100, "0.3"), (None, "0.3"), (0.1, "0.1")):
            status, _, body = server.post({**LONG, "timeout_s": timeout_s})
            assert status == 504 and f"timeout_s = {ends}:" in json.loads(body)["error"]["message"]


def test_15_a_full_queue(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, monkeypatch, max_queue=1) as server:
        connections = [server.connect() for _ in range(3)]
        for count, connection in enumerate(connections):
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}), {"content-type": "application/json"})
            wait_until(lambda count=count: len(server.engine.live().requests) == count + 1)  # type: ignore[misc]
        for stream in (False, True):
            status, headers, body = server.post({**BODY, "max_tokens": 1, "stream": stream})
            assert status == 429 and int(headers["retry-after"]) >= 1 and json.loads(body)["error"]["code"] == "queue_full"
        for connection in connections:
            connection.close()
        wait_until(lambda: server.engine.live().requests == [])
        assert server.post({**BODY, "max_tokens": 1})[0] == 200


@pytest.mark.parametrize("cycle", range(4))
def test_19_the_end_finishes_what_runs(llm: LLM, monkeypatch: pytest.MonkeyPatch, cycle: int) -> None:
    with running(llm, monkeypatch) as server:
        answers: list[Any] = []
        body = {**BODY, "max_tokens": 400, "stream": cycle % 2 == 1}
        threads = [threading.Thread(target=lambda: answers.append(server.post(body))) for _ in range(4)]
        for thread in threads:
            thread.start()
        # On a busy machine the first may have its answer before the last begins.
        wait_until(lambda: len(server.engine.live().requests) + len(answers) >= 4)
        server.server.should_exit = True
        for thread in threads:
            thread.join()
        assert [status for status, _, _ in answers] == [200] * 4 and not any(b'"error"' in data for _, _, data in answers)
        server.thread.join(HANG_S)
        with pytest.raises(OSError):
            server.post(body)


@pytest.mark.parametrize("stream", [False, True])
def test_19_what_does_not_finish_is_told(llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    with running(llm, monkeypatch, drain_s=0.3) as server:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(server.post({**LONG, "stream": stream})))
        thread.start()
        wait_until(lambda: llm._engine.latest_stats()["num_running"] == 1)
        server.server.should_exit = True
        thread.join()
        [(status, _, body)] = answers
        assert b"shutting down" in body and status == (200 if stream else 503)


def test_19_a_body_on_its_way_is_not_waited_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, monkeypatch, drain_s=0.3) as server, socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        wait_until(lambda: server.door.num_active == 1)
        server.server.should_exit = True
        answer = b""
        while part := sock.recv(65536):
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and json.loads(body)["error"]["code"] == "shutting_down"


def test_19_a_second_signal_ends_the_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, monkeypatch, drain_s=10 * HANG_S) as server:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(server.post({**LONG, "max_tokens": 65_000, "stream": True})))
        thread.start()
        wait_until(lambda: llm._engine.latest_stats()["num_running"] == 1)
        for _ in range(2):
            server.server.handle_exit(signal.SIGTERM, None)
        thread.join()
        [(status, _, body)] = answers
        assert status == 200 and b"shutting down" in body


def test_19_a_client_that_does_not_read_does_not_hold_up_the_end(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain, "_LAST_S", 0.3)
    with running(llm, monkeypatch, drain_s=0.1) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = json.dumps({**BODY, "max_tokens": 20_000, "stream": True, "logprobs": 20}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: any(connection.flow.write_paused for connection in server.server.server_state.connections))
        server.server.should_exit = True
        server.thread.join(HANG_S)
        assert not server.thread.is_alive()
    assert "1 connections were cut" in caplog.text and "Traceback" not in caplog.text and "Cancel" not in caplog.text


def test_19_sigterm_ends_with_0(tiny_path: Callable[..., Path]) -> None:
    command = [sys.executable, "-m", "llmi", "serve", "-m", f"tiny={tiny_path()}", "--port", "0", "--kv-cache-memory-bytes", str(1 << 22),
               "--no-access-log"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                break
        connection = http.client.HTTPConnection("127.0.0.1", int(line.rsplit(":", 1)[1]), timeout=HANG_S)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=HANG_S)
        assert (process.returncode, said) == (0, "")


#: `llmi serve`, where a chat's thread never comes back from its template.
STUCK = """
import sys, threading
from llmi.cli.commands import main
from llmi.server import chat

def render(*arguments):
    print("stuck", flush=True)
    threading.Event().wait()

chat.render = render
sys.exit(main(sys.argv[1:]))
"""


def test_19_sigterm_ends_it_whatever_its_threads_do(tiny_path: Callable[..., Path]) -> None:
    command = [
        sys.executable,
        "-c",
        STUCK,
        "serve",
        "-m",
        f"tiny={tiny_path()}",
        "--port",
        "0",
        "--drain-s",
        "0",
        "--kv-cache-memory-bytes",
        "4000000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            port = int(process.stdout.readline().rpartition(":")[2])
            body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                assert process.stdout.readline() == "stuck\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(HANG_S) == 0
        finally:
            process.kill()


def test_metrics(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, monkeypatch) as server:
        for _ in range(3):
            server.post({**BODY, "max_tokens": 7})
        server.post({**BODY, "prompt": ["a"] * 200})
        connection = server.connect()
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200 and answer.getheader("content-type", "").startswith("text/plain; version=0.0.4")
        connection.close()
    names = set(re.findall(r"^# TYPE llmi:(\w+) \w+$", text, re.MULTILINE))
    vllm = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total generation_tokens_total
              prefix_cache_queries_total prefix_cache_hits_total request_success_total time_to_first_token_seconds inter_token_latency_seconds
              request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
              request_decode_time_seconds request_inference_time_seconds request_prompt_tokens request_generation_tokens request_params_n
              request_params_max_tokens spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total"""
    assert set(vllm.split()) <= names
    values = dict(re.findall(r"^llmi:(\S+) (\S+)$", text, re.MULTILINE))
    assert values['request_success_total{model_name="tiny",finished_reason="length"}'] == "3"
    assert values['request_generation_tokens_sum{model_name="tiny"}'] == "21"
    assert values['inter_token_latency_seconds_count{model_name="tiny"}'] == "18"
    assert values['engine_up{model_name="tiny"}'] == "1"
    for name in {key.partition("{")[0] for key in values if key.partition("{")[0].endswith("_bucket")}:
        counts = [int(value) for key, value in values.items() if key.startswith(name + "{")]
        assert counts == sorted(counts) and counts[-1] == int(values[name.removesuffix("_bucket") + '_count{model_name="tiny"}'])
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) llmi:\w+ .+|llmi:\w+(\{[^}]*\})? -?[\d.e+-]+", line), line


def printed_unit(folder: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "llmi", "serve", "--systemd", *flags]
    text = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True).stdout
    if program := shutil.which("systemd-analyze"):
        (folder / "llmi.service").write_text(text)
        said = subprocess.run([program, "verify", folder / "llmi.service"], capture_output=True, text=True, check=False).stderr
        assert "llmi.service" not in said, said
    return text


def test_a_unit_for_systemd(tmp_path: Path) -> None:
    text = printed_unit(tmp_path, "--port", "81", "--drain-s", "7")
    assert "-m llmi serve --port 81 --drain-s 7\n" in text and "Type=notify" in text and "TimeoutStopSec=22" in text
    assert "DynamicUser=yes\n" in text and "ReadWritePaths" not in text and "ProtectHome=read-only\n" in text


def test_a_unit_has_absolute_paths(tmp_path: Path) -> None:
    for name in ("tiny", "in $1%"):
        (tmp_path / name).mkdir()
    (tmp_path / "a.gguf").touch()
    (tmp_path / "keys.toml").write_text(f"[[keys]]\nname = 'a'\nsha256 = '{'0' * 64}'\n")
    draft = json.dumps({"method": "eagle", "model": "tiny"})
    flags = [
        "-m",
        "tiny",
        "-mb=a.gguf",
        "--model=in $1%",
        "-m",
        "user/repo",
        "--keys",
        "keys.toml",
        "--uds=/run/llmi/x.sock",
        "--receipts",
        "/var/lib/llmi",
    ]
    text = printed_unit(tmp_path, *flags, "--speculative-config", draft)
    drafted = draft.replace("tiny", f"{tmp_path}/tiny").replace('"', r"\"")
    started = f"""-m tiny={tmp_path}/tiny -m b={tmp_path}/a.gguf --model "in $$1%%={tmp_path}/in $$1%%" -m user/repo --keys {tmp_path}/keys.toml"""
    assert f'{started} --uds /run/llmi/x.sock --receipts /var/lib/llmi --speculative-config "{drafted}"\n' in text
    lines = text.splitlines()
    assert {"DynamicUser=yes", "RuntimeDirectory=llmi", "StateDirectory=llmi"} <= set(lines)
    seen = [line for line in lines if line.startswith("BindReadOnlyPaths=")]
    if tmp_path.is_relative_to("/tmp"):  # of which the service has its own
        assert [line.rpartition("/")[2] for line in seen[-4:]] == ["tiny", "a.gguf", 'in $1%%"', "keys.toml"]


def test_a_unit_writes_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(receipts=tmp_path, uds=tmp_path / "x.sock")
    where = {"owner": tmp_path.stat().st_uid}
    monkeypatch.setattr(systemd, "_is_temporary", lambda _: False)
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda path, **more: os.stat_result((*real(path, **more)[:4], where["owner"], *real(path, **more)[5:]))
    )
    where["owner"] = 1234567
    lines = systemd.unit(["llmi"], settings).splitlines()
    assert "User=1234567" in lines and lines.count(f"ReadWritePaths={tmp_path}") == 1 and not any("DynamicUser" in line for line in lines)
    where["owner"] = 0
    with pytest.raises(InvalidParamsError, match=r"the owner of \S+ \(user 0\): give folders of one user who is not root"):
        systemd.unit(["llmi"], settings)
    with pytest.raises(InvalidParamsError, match="there is no folder"):
        systemd.unit(["llmi"], ServerSettings(uds=tmp_path / "none" / "x.sock"))


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("a-b=/c.d", "a-b=/c.d"),
        ("a b", '"a b"'),
        ("100%", "100%%"),
        ('{"a": "b\\n"}', r'"{\"a\": \"b\\n\"}"'),
        ("it's", '"it\'s"'),
        ("a\nb", r'"a\nb"'),
        ("", '""'),
    ],
)
def test_words_of_a_unit(word: str, shown: str) -> None:
    assert systemd.quoted(word) == shown
