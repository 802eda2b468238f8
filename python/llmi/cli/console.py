"""The command line's standard streams: whatever they are (closed, full, a terminal without Unicode), no traceback comes of them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

from llmi.errors import InvalidParamsError, LlmiError


class OutputError(LlmiError):
    """Standard output takes no more. `quiet`: the reader has gone, as in `llmi generate | head`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.quiet = isinstance(error, BrokenPipeError)


def prepare_streams() -> None:
    """Gives the process three streams that can be used.

    A closed one becomes /dev/null: else the next file opened would take its number, and messages would be written into that file. What
    the terminal's encoding lacks is printed as \\u2026; input that is not of its encoding is kept and checked later.
    """
    with contextlib.suppress(OSError):
        for number in (0, 1, 2):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is not None and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")


def show(text: str, end: str = "\n") -> None:
    """Prints to standard output, at once. Raises OutputError."""
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        raise OutputError(error) from None


def note(text: str) -> None:
    """A line on standard error, dim on a terminal; lost if nothing can be written there."""
    dim = is_terminal(sys.stderr) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")
    with contextlib.suppress(OSError, ValueError):
        print(f"\x1b[2m{text}\x1b[0m" if dim else text, file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def check_output(path: Path, flag: str) -> None:
    """Raises InvalidParamsError, before any work, if a file cannot be written there. What is there stays as it is."""
    try:
        path = path.resolve()
        is_new = not path.exists()
        if not is_new and not path.is_file() and not path.is_dir():
            return  # a pipe or a device: opening it is seen at its other end
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InvalidParamsError(f"--{flag}: {path} cannot be written: {error.strerror}", flag) from None


def finish(status: int) -> int:
    """Writes what the streams still hold; the process's status. After this the interpreter's own last flush cannot fail."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _discard(1)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and status == 0:
            note(f"llmi: {OutputError(error)}")
        status = status or 1
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _discard(2)
    return status


def _discard(number: int) -> None:
    """Sends what is still written to a stream to /dev/null."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def typed_text(text: str, source: str) -> str:
    """Text from the command line or standard input, as characters: bytes that the locale does not know are read as UTF-8.

    Raises InvalidParamsError if they are not.
    """
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        pass
    encoding = (sys.stdin.encoding if sys.stdin is not None and source == "standard input" else None) or sys.getfilesystemencoding()
    try:
        return text.encode(encoding, "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParamsError(f"{source}: byte 0x{error.object[error.start]:02x} at {error.start:,} is not UTF-8", "prompt") from None
    except UnicodeEncodeError:
        raise InvalidParamsError(f"{source} is not UTF-8", "prompt") from None


def given_text(path: str, flag: str) -> str:
    """The text of a file that a flag names. Raises InvalidParamsError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamsError(f"--{flag}: {path} cannot be read: {error}", flag) from None


def check_folder_of(path: str, flag: str) -> None:
    """Raises InvalidParamsError if the file that a flag names has no folder to be written to."""
    if not Path(path).parent.is_dir():
        raise InvalidParamsError(f"--{flag}: there is no folder {Path(path).parent}", flag)


def read_input() -> str:
    """All of standard input, without the newline at its end. Raises InvalidParamsError."""
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidParamsError("standard input is closed: give the text by -p", "prompt")
    try:
        text = sys.stdin.read()
    except (OSError, ValueError) as error:
        raise InvalidParamsError(f"standard input cannot be read: {error}", "prompt") from None
    return typed_text(text.removesuffix("\n"), "standard input")
