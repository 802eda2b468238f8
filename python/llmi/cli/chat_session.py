"""`llmi chat`: a conversation at a terminal, or over a pipe. Answers go to standard output, all else to standard error."""

from __future__ import annotations

import contextlib
import json
import signal
import stat
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmi.base.whole_file import write_whole
from llmi.cli.chat_lines import Lines
from llmi.cli.console import note, show
from llmi.cli.sampling_flags import parse_text
from llmi.errors import EngineBusyError, EngineError, InvalidParamsError, LlmiError
from llmi.llm import LLM
from llmi.outputs.errors import GenerationInterrupted
from llmi.outputs.results import RequestOutput
from llmi.requests.stream import TextStream

FORMAT = "llmi-chat-1"
MAX_FILE_BYTES = 64 << 20
MAX_RESERVE = 512  # tokens kept free for an answer where max_tokens is not given: at most a quarter of the context
HELP = """\
/clear            forget the conversation; the system message stays
/system TEXT      set the system message; alone: show it
/set NAME VALUE   set a sampling parameter (default: back to the start); alone: show all
/save FILE        write the conversation and its parameters, as JSON
/load FILE        continue a saved conversation
/stats            tokens and times of the last answer
/help             this list
/bye              end (also /exit, /quit, Ctrl-D)
A line that begins with a space or // is text. A backslash at a line's end goes on in the next line; a message between \"\"\" and \"\"\" may
have several lines, and so may a pasted one. Ctrl-C ends an answer, of which what was said stays in the conversation; while you type it
clears the line. When the context is full, the oldest turns are left out, never the system message."""


class _Bye(Exception):
    """The person has said goodbye."""


class ChatSession:
    """The conversation: its messages, the parameters of its answers, and what the last one took.

    Parameters
    ----------
    llm : LLM
    params : dict
        Sampling parameters by name, over the model's own defaults.
    system : str, optional
        A system message.
    """

    def __init__(self, llm: LLM, params: dict[str, Any], system: str | None) -> None:
        self.llm = llm
        self.params = dict(params)
        self.system = system
        self.turns: list[list[dict[str, str]]] = []  # a question, and its answer
        self.first_turn = 0  # those before it no longer fit the context
        self._first_params = dict(params)
        self._last: TextStream | None = None  # of /stats
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help, "clear": self._clear, "system": self._system, "set": self._set, "save": self._save, "load": self._load,
            "stats": self._show_stats, "bye": self._bye, "exit": self._bye, "quit": self._bye,
        }  # fmt: skip

    def run(self) -> int:
        """Reads messages and answers them until the end; the process's status."""
        lines = Lines()
        if lines.interactive:
            note(f"{self.llm!r}\n/help lists commands; Ctrl-C ends an answer, Ctrl-D the chat.")
        with _sane_terminal():
            try:
                while self._next(lines):
                    pass
            finally:
                lines.close()
        return 0

    def _next(self, lines: Lines) -> bool:
        try:
            text = lines.read()
            if text.startswith("/") and not text.startswith("//") and "\n" not in text:
                self._command(text)
            elif text.strip():
                self.ask(text)
        except (EOFError, _Bye):
            if lines.interactive:
                note("")
            return False
        except KeyboardInterrupt:
            note("")
        except LlmiError as error:
            if isinstance(error, EngineError) and not isinstance(error, EngineBusyError):
                raise  # the engine cannot go on
            note(f"llmi: {error}")
        return True

    def ask(self, text: str) -> None:
        """Answers one message. Raises LlmiError, and then the conversation is unchanged."""
        turn = [{"role": "user", "content": text}]
        ids, first, params = self._fit(turn)
        if first > self.first_turn:
            count = first - self.first_turn
            note(f"llmi: the context is full: the oldest {count} turn{'s are' if count > 1 else ' is'} left out from here on")
        self.first_turn = first
        said = ""
        stream = self.llm.stream({"prompt_token_ids": ids}, **params)
        interrupted = False
        try:
            for chunk in stream:
                said += chunk.text
                show(chunk.text, end="")
        except (GenerationInterrupted, KeyboardInterrupt):
            interrupted = True
            stream.close()
        except LlmiError:
            if said:
                show("")
            raise
        show("")
        self._last = stream
        if said or not interrupted:
            self.turns.append([*turn, {"role": "assistant", "content": said}])
        if interrupted:
            note("llmi: interrupted" + ("; what was said stays in the conversation" if said else "; the question is forgotten"))

    def messages(self, first_turn: int = 0) -> list[dict[str, str]]:
        """The conversation from one of its turns on, with the system message."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [message for turn in self.turns[first_turn:] for message in turn]

    def _fit(self, turn: list[dict[str, str]]) -> tuple[list[int], int, dict[str, Any]]:
        """The prompt's ids, the first turn in it, and the parameters: as many of the newest turns as leave room for an answer."""
        limit = self.llm.model_info.max_model_len
        wanted = self.params.get("max_tokens")
        room = wanted if wanted is not None else min(MAX_RESERVE, limit // 4)
        for first in range(self.first_turn, len(self.turns) + 1):
            chat = [*self.messages(first), *turn]
            ids = self.llm.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
            if len(ids) + room <= limit:
                return ids, first, self.params
        if len(ids) >= limit:
            raise InvalidParamsError(
                f"with the system message and the template's own, this message has {len(ids):,} tokens; the context holds {limit:,}, of"
                " which an answer needs one",
                "prompt",
            )
        left = limit - len(ids)
        if wanted is None:
            return ids, first, self.params
        note(f"llmi: the context of {limit:,} tokens leaves {left:,} for this answer, fewer than max_tokens = {wanted:,}")
        return ids, first, {**self.params, "max_tokens": left, **({"min_tokens": left} if self.params.get("min_tokens", 0) > left else {})}

    def _describe(self, output: RequestOutput) -> str:
        metrics, limit = output.metrics, self.llm.model_info.max_model_len
        num_prompt, num_tokens = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        first, gap = metrics.time_to_first_token_s, metrics.time_per_output_token_s
        times = [f"first token after {first * 1000:,.0f} ms"] if first is not None else []
        times += [f"then {1 / gap:,.1f} tokens/s"] if gap else []
        return (
            f"prompt {num_prompt:,} tokens ({output.num_cached_tokens:,} of them cached), answer {num_tokens:,};"
            f" {'; '.join(times) or 'no token'}; context {num_prompt + num_tokens:,} of {limit:,} tokens; seed {output.seed}"
        )

    # --- commands

    def _command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        command = self._commands.get(name)
        if command is None:
            known = " ".join(f"/{known}" for known in self._commands)
            raise InvalidParamsError(f"there is no command /{name} ({known}); to send the line as text, begin it with a space")
        command(rest.strip())

    def _help(self, rest: str) -> None:
        note(HELP)

    def _clear(self, rest: str) -> None:
        self.turns, self.first_turn = [], 0
        note("llmi: the conversation is forgotten")

    def _system(self, rest: str) -> None:
        if rest:
            self.system = rest
        note(f"llmi: system message: {self.system or 'none'}")

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        name = name.replace("-", "_")
        if not name:
            note("llmi: " + (", ".join(f"{key} = {value!r}" for key, value in self.params.items()) or "all parameters are the model's own"))
            return
        value = text.strip()
        if not value:
            raise InvalidParamsError(f"/set {name} needs a value (now {self.params.get(name, 'the default')!r})", name)
        if value == "default":
            changed = {key: old for key, old in self.params.items() if key != name}
            changed |= {name: self._first_params[name]} if name in self._first_params else {}
        else:
            changed = {**self.params, name: parse_text(name, value, name)}
        self.params = _checked(changed)
        note(f"llmi: {name} = {self.params.get(name, 'the default')!r}")

    def _save(self, rest: str) -> None:
        path = _path(rest, "/save")
        if path.exists() and not _is_saved_chat(path):
            raise InvalidParamsError(f"{path} exists and is no saved chat: it is not replaced")
        chat = {"format": FORMAT, "model": self.llm.model_info.path, "parameters": self.params, "messages": self.messages()}
        try:
            write_whole(path, json.dumps(chat, indent=1, ensure_ascii=False) + "\n", private=True)
        except OSError as error:
            raise InvalidParamsError(f"{path} cannot be written: {error.strerror}") from None
        note(f"llmi: saved {len(self.turns)} turns to {path}")

    def _load(self, rest: str) -> None:
        path = _path(rest, "/load")
        self.params, self.system, self.turns = parse_chat(path, _read(path))
        self.first_turn = 0
        note(f"llmi: {len(self.turns)} turns of {path}")

    def _show_stats(self, rest: str) -> None:
        note(f"llmi: {self._describe(self._last.outputs[0]) if self._last is not None else 'no answer yet'}")

    def _bye(self, rest: str) -> None:
        raise _Bye


def _checked(params: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters that a chat takes, in their plain form. Raises InvalidParamsError."""
    from llmi.cli.sampling_flags import offered
    from llmi.params.sampling import SamplingParams

    options = offered()
    for name in params:
        if name not in options:
            raise InvalidParamsError(f"{name} is no parameter of a chat; these are: {', '.join(options)}", name)
    params = {name: options[name].parse(value) for name, value in params.items()}
    SamplingParams(**params).validate()
    return params


def _path(text: str, command: str) -> Path:
    if not text:
        raise InvalidParamsError(f"{command} needs the name of a file")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidParamsError(f"{text}: {error}") from None


def _read(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidParamsError(f"{path} is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise InvalidParamsError(f"{path} has {status.st_size:,} bytes, a saved chat {MAX_FILE_BYTES:,} at most")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidParamsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidParamsError(f"{path} is not UTF-8 text") from None


def _is_saved_chat(path: Path) -> bool:
    try:
        parse_chat(path, _read(path))
    except LlmiError:
        return False
    return True


def parse_chat(path: Path, text: str) -> tuple[dict[str, Any], str | None, list[list[dict[str, str]]]]:
    """(parameters, system message, turns) of a saved chat. Raises InvalidParamsError."""

    def wrong(what: str) -> InvalidParamsError:
        return InvalidParamsError(f"{path} is no saved chat: {what}")

    try:
        chat = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"it is not JSON ({error})") from None
    if not isinstance(chat, dict) or chat.get("format") != FORMAT:
        raise wrong(f"its format is not {FORMAT!r}")
    if unknown := sorted(set(chat) - {"format", "model", "parameters", "messages"}):
        raise wrong(f"{unknown[0]!r} is unknown")
    messages, parameters = chat.get("messages"), chat.get("parameters")
    if not isinstance(messages, list) or not isinstance(parameters, dict):
        raise wrong("it lacks a list of messages and an object of parameters")
    system: str | None = None
    turns: list[list[dict[str, str]]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or set(message) != {"role", "content"} or not isinstance(message["content"], str):
            raise wrong(f"message {index} is not a role and a text")
        role = message["role"]
        if role == "system" and index == 0:
            system = message["content"]
        elif role == "user" and (not turns or len(turns[-1]) == 2):
            turns.append([message])
        elif role == "assistant" and turns and len(turns[-1]) == 1:
            turns[-1].append(message)
        else:
            raise wrong(
                f"message {index} is of {role!r}: after a system message, questions of 'user' and answers of 'assistant' take turns"
            )
    if turns and len(turns[-1]) == 1:
        raise wrong("its last question has no answer")
    return _checked(parameters), system, turns


@contextlib.contextmanager
def _sane_terminal() -> Iterator[None]:
    """However the chat ends, by SIGTERM or SIGHUP too, the terminal is as it was; the history is kept."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    settings = None
    with contextlib.suppress(OSError, ValueError, termios.error):
        settings = termios.tcgetattr(sys.stdin.fileno())
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored, and it stays so
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if settings is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, settings)
