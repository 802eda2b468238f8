"""What a person types into `llmi chat`: one message at a time, of one or several lines, with line editing and history."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from llmi.base.log import log
from llmi.base.whole_file import write_whole
from llmi.cli.console import is_terminal, typed_text
from llmi.errors import LlmiError
from llmi.models.catalogue import cache_dir

MAX_HISTORY = 1000
MAX_HISTORY_BYTES = 4 << 20
BLOCK = '"""'


def history_path() -> Path | None:
    """XDG_STATE_HOME/llmi/chat_history, else in the models' cache; None where there is neither."""
    if (state := os.environ.get("XDG_STATE_HOME")) and Path(state).is_absolute():
        return Path(state) / "llmi" / "chat_history"
    try:
        return cache_dir() / "chat_history"
    except LlmiError:
        return None


class History:
    """The lines of this chat and of those before it; kept in a file of one JSON string a line, as a message may have several lines."""

    def __init__(self, readline: ModuleType) -> None:
        self._readline = readline
        self._last = ""
        self._path = history_path()
        readline.clear_history()
        if hasattr(readline, "set_auto_history"):
            readline.set_auto_history(False)
        for entry in self._stored():
            readline.add_history(entry)

    def _stored(self) -> list[str]:
        """The newest entries of the file; none if it cannot be read."""
        if self._path is None:
            return []
        entries: list[Any] = []
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_HISTORY_BYTES))
                lines = file.read(MAX_HISTORY_BYTES).splitlines()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.info("the chat's history %s is not read: %s", self._path, error)
            return []
        for line in lines[-MAX_HISTORY:]:
            with contextlib.suppress(ValueError, RecursionError):
                entries.append(json.loads(line))
        return [entry for entry in entries if isinstance(entry, str) and entry and "\0" not in entry]

    def add(self, text: str) -> None:
        """A message that was typed; in the file at once, as nobody knows how the chat will end."""
        if not text.strip() or text == self._last:
            return
        self._last = text
        self._readline.add_history(text)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.fchmod(file, 0o600)
                os.write(file, f"{json.dumps(text)}\n".encode())
            finally:
                os.close(file)
        except OSError as error:
            log.info("the chat's history %s is not kept: %s", self._path, error)
            self._path = None

    def close(self) -> None:
        """Shortens the file to its newest entries."""
        if self._path is None or not self._last:
            return
        with contextlib.suppress(OSError):
            write_whole(self._path, "".join(f"{json.dumps(entry)}\n" for entry in self._stored()), private=True)


class Lines:
    """Reads messages from standard input.

    On a terminal with the module readline: editing, history, and pasted lines that stay one message. On a pipe: lines, no prompt.
    Prompts go to the terminal: to standard error if standard output is something else, so that it holds the answers alone.
    """

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self._history: History | None = None
        if self.interactive and is_terminal(sys.stdout):
            with contextlib.suppress(ImportError):
                import readline

                if "libedit" not in (readline.__doc__ or ""):
                    readline.parse_and_bind("set enable-bracketed-paste on")
                    readline.parse_and_bind("tab: tab-insert")
                self._history = History(readline)

    def close(self) -> None:
        """Ends the history."""
        if self._history is not None:
            self._history.close()

    def _line(self, prompt: str) -> str:
        """One line, or several pasted ones. Raises EOFError at the end, KeyboardInterrupt on Ctrl-C."""
        if self._history is not None:
            return input(prompt)
        if self.interactive:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")

    def read(self) -> str:
        """The next message. Raises EOFError after the last, KeyboardInterrupt on Ctrl-C, LlmiError for a line that is no text."""
        text = self._line("> ")
        if text.startswith(BLOCK):
            text = self._block(text.removeprefix(BLOCK))
        else:
            while _continues(text):
                text = text[:-1] + "\n"
                try:
                    text += self._line("... ")
                except EOFError:
                    break
            if text.endswith("\\\\"):
                text = text[:-1]
        text = typed_text(text, "standard input")
        if self._history is not None:
            self._history.add(text)
        return text

    def _block(self, text: str) -> str:
        while not text.rstrip().endswith(BLOCK):
            try:
                text += "\n" + self._line("... ")
            except EOFError:
                return text
        return text.rstrip().removesuffix(BLOCK).strip("\n")


def _continues(text: str) -> bool:
    """Whether the line ends in a backslash that stands for "more follows": two stand for one."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
