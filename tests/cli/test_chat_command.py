"""`llmi chat` and `llmi generate` as a person uses them: at a terminal, over a pipe, with what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmi import LLM, InvalidParamsError, PromptTooLongError
from llmi.cli.chat_session import FORMAT, HELP, ChatSession, parse_chat
from llmi.cli.sampling_flags import offered
from waiting import HANG_S

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of bytes, with a chat template of 3 bytes a message."""
    from llmi.testing import tiny_model

    path = tiny_model(vocab_size=260, num_layers=2, max_position_embeddings=4096, path=tmp_path_factory.mktemp("chat"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, max_model_len=128) as made:
        yield made


def piped(model: Path, text: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmi", "chat", "-m", str(model), "--max-tokens", "4", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    return done


PROMPT = "\x1b[?2004h> "  # readline's, which reads keys from here on: a Ctrl-D before it would be the terminal's


class Terminal:
    """`llmi chat` at a pseudo-terminal."""

    def __init__(self, model: Path, state: Path, *arguments: str, start: str = "-m llmi", **environment: str) -> None:
        self.fd, terminal = pty.openpty()
        self.settings = termios.tcgetattr(terminal)
        self.pid = os.fork()
        if self.pid == 0:
            os.login_tty(terminal)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores it, and its children with it
            os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": str(state), "INPUTRC": "/dev/null", **environment})
            os.execv(sys.executable, [sys.executable, *start.split(" ", 1), "chat", "-m", str(model), *arguments])
        os.close(terminal)
        self.until("> ")

    def until(self, text: str) -> str:
        """What is shown up to `text`."""
        seen, end = b"", time.monotonic() + HANG_S
        while time.monotonic() < end and text.encode() not in seen:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    seen += os.read(self.fd, 1 << 16)
                except OSError:
                    break
        assert text.encode() in seen, seen
        return seen.decode(errors="replace")

    def type(self, text: str, until: str = PROMPT) -> str:
        os.write(self.fd, text.encode())
        return self.until(until)

    def type_long(self) -> None:
        """A question, and the first bytes of its long answer."""
        self.type("long\n", "\x1b[?2004l\r")
        seen, end = b"", time.monotonic() + HANG_S
        while time.monotonic() < end and len(seen) < 20:
            if select.select([self.fd], [], [], 0.05)[0]:
                seen += os.read(self.fd, 20)
        assert len(seen) >= 20, seen

    def interrupt(self, until: str = PROMPT) -> str:
        """Ctrl-C while the chat waits for a key: Python sees a signal that comes just before its wait only after the next key."""
        asleep, end = 0, time.monotonic() + HANG_S
        while asleep < 20 and time.monotonic() < end:
            time.sleep(0.01)
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if state == "S" else 0
        return self.type("\x03", until)

    def save(self, path: Path, until: str = PROMPT) -> list[str]:
        """The texts of the conversation."""
        assert "saved " in self.type(f"/save {path}\n", until)
        return [message["content"] for message in json.loads(path.read_text())["messages"] if message["role"] == "user"]

    def status(self) -> int:
        """The process's, once it has ended."""
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if select.select([self.fd], [], [], 0.02)[0]:
                    os.read(self.fd, 1 << 16)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("the chat does not end")


def test_editing_history_and_keys(model: Path, tmp_path: Path) -> None:
    terminal = Terminal(model, tmp_path, "--max-tokens", "2")
    terminal.type("first\n")
    terminal.type("\x1b[A\x1b[D\x1b[DX\n")  # Up, twice Left
    terminal.type("never sent", "sent")
    terminal.interrupt("\n")  # it clears the line
    terminal.type("\x1b[200~pasted\n  two\x1b[201~\n")  # a paste with a newline in it
    terminal.type("one\\\n", "... ")
    terminal.type("more\n")
    terminal.type('"""\n', "... ")
    terminal.type('a\n\nb"""\n')
    wanted = ["first", "firXst", "pasted\n  two", "one\nmore", "a\n\nb"]
    assert terminal.save(tmp_path / "chat.json") == wanted
    terminal.type("\x04", "")
    assert terminal.status() == 0
    history = tmp_path / "llmi" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600 and stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert [json.loads(line) for line in history.read_text().splitlines()] == [*wanted, f"/save {tmp_path}/chat.json"]
    again = Terminal(model, tmp_path, "--max-tokens", "2")
    shown = again.type("\x1b[A" * 4, "one")
    assert "one" in shown
    again.interrupt()
    again.type("/bye\n", "")
    assert again.status() == 0


def test_history_is_bounded_and_not_essential(model: Path, tmp_path: Path) -> None:
    history = tmp_path / "llmi" / "chat_history"
    history.parent.mkdir()
    history.write_text("".join(f'"{index}"\n' for index in range(3000)))
    terminal = Terminal(model, tmp_path, "--max-tokens", "2")
    terminal.type("new\n")
    terminal.type("/bye\n", "")
    assert terminal.status() == 0
    kept = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(kept) == 1000 and kept[-2:] == ["new", "/bye"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    for text in ("not JSON\n", "[" * 100_000, "\0", "x" * (5 << 20)):
        history.write_text(text)
        terminal = Terminal(model, tmp_path, "--max-tokens", "2")
        terminal.type("\x04", "")
        assert terminal.status() == 0
    terminal = Terminal(model, Path("/dev/null/x"), "--max-tokens", "2")
    terminal.type("new\n")
    terminal.type("\x04", "")
    assert terminal.status() == 0


def test_a_thread_of_its_own_imports_numpy(model: Path, tmp_path: Path) -> None:
    """Ctrl-C, which goes to the main thread, would leave it half imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numpy':\n"
        "            print('numpy by', threading.current_thread().name, file=sys.stderr)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "llmi", "chat", "-m", str(model), "--max-tokens", "4"],
        input="hi\nho\n",
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    assert run.stderr.count("numpy by") == run.stderr.count("numpy by llmi-numpy") == 1


def test_ctrl_c_ends_the_answer_only(model: Path, tmp_path: Path) -> None:
    terminal = Terminal(model, tmp_path, "--ignore-eos")
    terminal.type_long()
    assert "what was said stays" in terminal.type("\x03")
    terminal.type("/set max_tokens 2\n")
    terminal.type("next\n")
    assert terminal.save(tmp_path / "chat.json") == ["long", "next"]
    messages = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert len(messages[1]["content"]) > 2
    terminal.type("\x04", "")
    assert terminal.status() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("busy", [False, True])
def test_signals_leave_the_terminal_as_it_was(number: signal.Signals, busy: bool, model: Path, tmp_path: Path) -> None:
    terminal = Terminal(model, tmp_path, "--ignore-eos")
    assert termios.tcgetattr(terminal.fd) != terminal.settings  # readline has taken the line's keys
    if busy:
        terminal.type_long()
    else:
        time.sleep(0.5)
    os.kill(terminal.pid, number)
    shared = os.dup(terminal.fd)
    assert terminal.status() == 128 + number
    assert termios.tcgetattr(shared) == terminal.settings
    os.close(shared)


def test_without_readline(model: Path, tmp_path: Path) -> None:
    start = "-c import sys; sys.modules['readline'] = None; from llmi.cli.commands import main; sys.exit(main())"
    terminal = Terminal(model, tmp_path, "--max-tokens", "2", start=start)
    terminal.type("plain\n", "> ")
    terminal.interrupt("\n")
    assert terminal.save(tmp_path / "chat.json", "saved ") == ["plain"]
    terminal.type("\x04", "")
    assert terminal.status() == 0


def test_on_a_pipe_stdout_holds_the_answers_alone(model: Path, llm: LLM) -> None:
    done = piped(model, "one\n\n/stats\n//two\n /three\n", "--system", "S")
    messages: list[dict[str, str]] = [{"role": "system", "content": "S"}]
    wanted = ""
    for text in ("one", "//two", " /three"):
        messages.append({"role": "user", "content": text})
        answer = llm.chat(messages, temperature=0, max_tokens=4)[0].text
        messages.append({"role": "assistant", "content": answer})
        wanted += answer + "\n"
    assert done.stdout == wanted
    assert "tokens" in done.stderr and "context" in done.stderr and "\x1b" not in done.stderr


BAD_LINES = {
    "/nothing": "there is no command /nothing",
    "/": "there is no command /",
    "/set temperature -1": "temperature must be",
    "/set temperature": "needs a value",
    "/set top_k 1.5": "top_k must be",
    "/set seed x": "seed must be",
    "/set heat 1": "unknown sampling parameter",
    "/set n 2": "n cannot be given as text",
    "/set logits_processors x": "logits_processors cannot be given as text",
    "/set min_tokens 99": "min_tokens = 99 exceeds max_tokens = 4",
    "/save": "needs the name of a file",
    "/load": "needs the name of a file",
    "/load /nowhere/x": "No such file",
    "/load /dev/zero": "not a regular file",
    "/save CONFIG": "is no saved chat",
    "/save /nowhere/x": "cannot be written",
    "/save ~nobody-at-all/x": "~nobody-at-all/x",
    "x" * 200: "this message has 203 tokens; the context holds 128",
}


def test_a_bad_line_is_an_error_line(model: Path) -> None:
    """Each is one line on stderr; the next question is answered as if it had not been there."""
    lines = "".join(f"{line}\n" for line in BAD_LINES).replace("CONFIG", str(model / "config.json"))
    done = piped(model, f"{lines}one\n", "--max-model-len", "128")
    shown = done.stderr.splitlines()
    assert len(shown) == len(BAD_LINES)
    for line, message in zip(shown, BAD_LINES.values(), strict=True):
        assert line.startswith("llmi: ") and message in line
    assert done.stdout == piped(model, "one\n", "--max-model-len", "128").stdout


def test_bytes_that_are_no_text_are_an_error_line(model: Path) -> None:
    command = [sys.executable, "-m", "llmi", "chat", "-m", str(model), "--max-tokens", "4"]
    done = subprocess.run(command, input=b"a\xffb\none\r\n", capture_output=True, timeout=HANG_S, check=True)
    assert done.stderr.decode().splitlines() == ["llmi: standard input: byte 0xff at 1 is not UTF-8"]
    assert done.stdout.decode() == piped(model, "one\n").stdout


def session(llm: LLM, **params: object) -> ChatSession:
    return ChatSession(llm, {"temperature": 0.0, "ignore_eos": True, **params}, "S" * 10)


def test_a_full_context_leaves_out_the_oldest_turns(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt is the system message and the newest turns that leave room for the answer; all turns stay for /save."""
    chat = session(llm, max_tokens=16)
    for index in range(12):
        chat.ask(f"{index:02}" * 5)
        prompts = [llm.tokenizer.apply_chat_template(chat.messages(first)[:-1], add_generation_prompt=True) for first in range(index + 1)]
        assert chat.first_turn == next(first for first, prompt in enumerate(prompts) if len(prompt) + 16 <= 128)
    said = capsys.readouterr().err
    assert "the context is full: the oldest" in said and chat.first_turn > 0
    assert len(chat.turns) == 12 and chat.messages()[0]["content"] == "S" * 10


def test_a_message_that_leaves_little_room(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    chat = session(llm, max_tokens=50)
    chat.ask("a" * 100)  # 113 tokens with the system message
    assert "leaves 12 for this answer, fewer than max_tokens = 50" in capsys.readouterr().err
    with pytest.raises((InvalidParamsError, PromptTooLongError), match="128"):
        chat.ask("a" * 115)
    chat.ask("b")
    assert [turn[0]["content"][0] for turn in chat.turns] == ["a", "b"]


def test_save_and_load(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was saved goes on as if it had not been away."""
    chat, path = session(llm, max_tokens=4, seed=3, stop=["é"]), tmp_path / "my chat.json"
    chat.ask("héllo 😀")
    chat._command(f"/save {path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [entry.name for entry in tmp_path.iterdir()] == ["my chat.json"]
    other = ChatSession(llm, {}, None)
    other._command(f"/load {path}")
    assert (other.messages(), other.params) == (chat.messages(), chat.params)
    capsys.readouterr()
    chat.ask("next")
    first = capsys.readouterr().out
    other.ask("next")
    assert capsys.readouterr().out == first
    other._command(f"/save {path}")  # a saved chat may be replaced
    other._command("/clear")
    assert other.messages() == [{"role": "system", "content": "S" * 10}]
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InvalidParamsError, match="not replaced"):
        other._command(f"/save {tmp_path / 'notes'}")
    assert (tmp_path / "notes").read_text() == "mine"


def chat_file(**changes: object) -> dict[str, object]:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    return {"format": FORMAT, "model": "m", "parameters": {"temperature": 0.5}, "messages": turns, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"format": None},
        {"messages": None},
        {"messages": {}},
        {"messages": [1]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 1}]},
        {"messages": [{"role": "user", "content": "q"}]},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "user", "content": "q", "name": "n"}]},
        {"messages": [{"role": "tool", "content": "q"}]},
        {"parameters": []},
        {"parameters": {"temperature": "hot"}},
        {"parameters": {"heat": 1}},
        {"parameters": {"n": 2}},
        {"parameters": {"top_p": 2}},
        {"extra": 1},
    ],
)
def test_what_is_no_saved_chat(change: dict[str, object], llm: LLM, tmp_path: Path) -> None:
    assert parse_chat(tmp_path, json.dumps(chat_file()))[0] == {"temperature": 0.5}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat_file(**change)))
    chat = session(llm)
    with pytest.raises(InvalidParamsError):
        chat._command(f"/load {path}")
    assert chat.system == "S" * 10 and chat.params["temperature"] == 0.0


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "[" * 100_000, '{"format": "llmi-chat-1"}', "\ufeff{}", "NaN"])
def test_what_is_no_json(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParamsError, match="no saved chat"):
        parse_chat(tmp_path, text)


SETTINGS = {
    "temperature 0.5": 0.5,
    "top_p 1": 1.0,
    "top_k -1": -1,
    "seed 18446744073709551615": 2**64 - 1,
    "seed none": None,
    "max_tokens none": None,
    "max-tokens 5": 5,
    "ignore_eos true": True,
    "skip_special_tokens False": False,
    "stop none": ["none"],
    "stop 1.5": ["1.5"],
    "stop a b": ["a b"],
    "stop_token_ids 1,2": [1, 2],
    "bad_words x": ["x"],
    "min_p 1e-3": 0.001,
    "sampler_order hf": "hf",
    "sampler_order top_k,temperature": ["top_k", "temperature"],
}


@pytest.mark.parametrize("text", SETTINGS)
def test_set(text: str, llm: LLM) -> None:
    chat = session(llm)
    chat._command(f"/set {text}")
    name = text.split(" ")[0].replace("-", "_")
    assert chat.params[name] == SETTINGS[text] and type(chat.params[name]) is type(SETTINGS[text])
    chat._command(f"/set {name} default")
    assert chat.params == session(llm).params


def test_help_knows_every_command(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    chat = session(llm)
    assert all(f"/{name}" in HELP for name in chat._commands)
    for command in ("/help", "/set", "/system", "/stats", "/system T"):
        chat._command(command)
    assert "no answer yet" in capsys.readouterr().err and chat.system == "T"


def generate(model: Path, *arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmi", "generate", "-m", str(model), "--max-tokens", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, **kwargs)  # type: ignore[call-overload, no-any-return]


def test_generate_takes_a_prompt_from_anywhere(model: Path, tmp_path: Path) -> None:
    wanted = generate(model, "-p", "a\nb").stdout
    assert wanted.startswith("a\nb")
    assert generate(model, "-p", "-", input="a\nb\n").stdout == wanted
    assert generate(model, input="a\nb\n").stdout == wanted
    assert generate(model, input="a\nb\n\n").stdout == generate(model, "-p", "a\nb\n").stdout
    chat = [sys.executable, "-m", "llmi", "chat", "-m", str(model), "--max-tokens", "4", "-p"]
    answers = [
        subprocess.run([*chat, "a\nb"], capture_output=True, text=True, check=True),
        subprocess.run([*chat, "-"], input="a\nb\n", capture_output=True, text=True, check=True),
    ]
    assert answers[0].stdout == answers[1].stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "x" * 5000], "5,000 tokens"),
        (["-p", "x", "--top-p", "2"], "--top-p must be"),
        (["-p", "x", "--min-tokens", "9"], "exceeds max_tokens"),
        (["-p", "x", "--stop", ""], "--stop"),
        (["-p", "x", "--seed", "y"], "--seed must be"),
        (["-p", "x", "--stop-token-ids", "1,999"], "999"),
        (["-p", "x", "-m", "/nowhere"], "/nowhere"),
    ],
)
def test_generate_checks_before_it_prints(arguments: list[str], message: str, model: Path) -> None:
    done = generate(model, *arguments)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr
    assert len([line for line in done.stderr.splitlines() if "raw continuation" not in line]) == 1


def test_help_shows_defaults_of_all_flags(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("chat", "generate"):
        shown = subprocess.run([sys.executable, "-m", "llmi", command, "--help"], capture_output=True, text=True, check=True).stdout
        for name, option in offered().items():
            (line,) = [line for line in shown.splitlines() if line.strip().startswith(f"--{name.replace('_', '-')} ")] or [""]
            assert line or f"--{name.replace('_', '-')}" in shown, name
            if isinstance(option.default, float):
                assert f"--{name.replace('_', '-')}" in shown
    assert "to the end of the context" in shown or "256" in shown


def colours(model: Path, **environment: str) -> str:
    """What a chat shows on a terminal that is its stderr, but not its stdin."""
    master, slave = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "llmi", "chat", "-m", str(model), "--max-tokens", "2"],
        input=b"/stats\n",
        stderr=slave,
        stdout=subprocess.DEVNULL,
        check=True,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **environment},
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    return shown.decode()


def test_colour_is_for_terminals_that_want_it(model: Path) -> None:
    assert "\x1b[2m" in colours(model, TERM="xterm")
    assert "\x1b" not in colours(model, TERM="xterm", NO_COLOR="1") and "\x1b" not in colours(model, TERM="dumb")


def test_every_parser_spells_flags_out(tiny_path: Callable[..., Path]) -> None:
    import argparse

    from llmi.cli.commands import _parser

    pending = [_parser()]
    seen = 0
    while pending:
        parser = pending.pop()
        seen += 1
        assert not parser.allow_abbrev
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
    assert seen == 25
