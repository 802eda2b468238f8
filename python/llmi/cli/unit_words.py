"""The words of a command line with absolute paths, for a service: its working directory and its home are others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from llmi.cli.named_models import named_models


def _place(value: str) -> str:
    return str(Path(value).absolute())


def _model(entry: str) -> str:
    """[NAME=]MODEL under the same name; what is no path of this machine is a name and stays."""
    [(name, given)] = named_models([entry]).items()
    path = Path(given).expanduser()
    if not path.exists():
        return entry
    return str(path.absolute()) if "=" in name else f"{name}={path.absolute()}"


def _speculation(text: str) -> str:
    """A configuration whose `model` may be a path."""
    try:
        value = json.loads(text)
    except ValueError:  # a word, as in "auto"
        return text
    path = value.get("model") if isinstance(value, dict) else None
    if not isinstance(path, str) or not Path(path).expanduser().exists():
        return text
    return json.dumps({**value, "model": _place(str(Path(path).expanduser()))}, ensure_ascii=False)


_FLAGS: dict[str, Callable[[str], str]] = {
    "-m": _model, "--model": _model, "--keys": _place, "--receipts": _place, "--uds": _place, "--chat-template": _place,
    "--speculative-config": _speculation,
}  # fmt: skip


def absolute_words(words: Sequence[str]) -> list[str]:
    """The words, each path in them absolute.

    Examples
    --------
    >>> absolute_words(["serve", "--keys=/etc/../k", "--port", "81"])
    ['serve', '--keys', '/etc/../k', '--port', '81']
    """
    return list(_changed(iter(words)))


def _changed(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        flag, is_joined, value = word.partition("=")
        if flag not in _FLAGS and word.startswith("-m"):  # as in -mNAME=MODEL
            flag, is_joined, value = "-m", "=", word[2:]
        if flag not in _FLAGS:
            yield word
        else:
            yield flag
            yield _FLAGS[flag](value if is_joined else next(words))
