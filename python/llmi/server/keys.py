"""Keys of a server: who may call, how often, and with what."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import logging
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmi.errors import InvalidParamsError
from llmi.params.options import PRIORITY

log = logging.getLogger("llmi.server")
_LONGEST_KEY = 512  # characters


class TooManyError(InvalidParamsError):
    """A key has used up what it may; `retry_after_s` is when there is some again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, "key")
        self.retry_after_s = retry_after_s


@dataclasses.dataclass(frozen=True)
class Key:
    """What the file says of one key. `sha256` is of the key's text, in hexadecimal: the file holds no key."""

    name: str
    sha256: str
    priority: int = 0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    max_context: int | None = None
    may_see_metrics: bool = False

    def __post_init__(self) -> None:
        if not self.name or not re.fullmatch(r"[\w.@-]{1,64}", self.name):
            raise InvalidParamsError(f"name must be 1 to 64 letters, digits or any of . _ @ -, not {self.name!r}", "name")
        if not isinstance(self.sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidParamsError(
                f"key {self.name!r}: sha256 must be 64 hexadecimal digits in lower case: printf %s KEY | sha256sum", "sha256"
            )
        PRIORITY.parse("priority", self.priority)
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_context"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidParamsError(f"key {self.name!r}: {name} must be an integer of 1 or more, not {value!r}", name)
        if type(self.may_see_metrics) is not bool:
            raise InvalidParamsError(f"key {self.name!r}: may_see_metrics must be true or false", "may_see_metrics")


class Bucket:
    """Something of which `per_minute` may be used a minute, all of it at once at most. It may fall below zero: what was used is counted at
    the end."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = time.monotonic()

    def level(self) -> float:
        """How much is left now."""
        now = time.monotonic()  # which no change of the clock turns back
        self._level = min(float(self.per_minute), self._level + (now - self._at_s) * self.per_minute / 60)
        self._at_s = now
        return self._level

    def take(self, amount: float) -> None:
        """Uses some of it."""
        self._level = self.level() - amount

    def seconds_until(self, amount: float) -> float:
        """When so much will be there."""
        return max(0.0, (amount - self.level()) * 60 / self.per_minute)


def _bucket(per_minute: int | None, before: Bucket | None = None) -> Bucket | None:
    """A bucket of which as much is used as of the one before; None without a bound."""
    if per_minute is None:
        return None
    bucket = Bucket(per_minute)
    if before is not None:
        bucket.take(before.per_minute - before.level())
    return bucket


class Caller:
    """Who a request is from: its key, and what that has used. Handlers find it as `scope["llmi.caller"]`."""

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.num_active = 0
        self._requests = None if key is None else _bucket(key.requests_per_minute)
        self._tokens = None if key is None else _bucket(key.tokens_per_minute)

    def change(self, key: Key) -> None:
        """Its entry in the file is another one now. What it has used stays used."""
        self.key = key
        self._requests = _bucket(key.requests_per_minute, self._requests)
        self._tokens = _bucket(key.tokens_per_minute, self._tokens)

    @property
    def name(self) -> str:
        """The key's name in the log; "-" without keys."""
        return "-" if self.key is None else self.key.name

    @property
    def priority(self) -> int:
        """The priority of its requests, smaller first."""
        return 0 if self.key is None else self.key.priority

    @property
    def may_see_metrics(self) -> bool:
        """Whether it may read what tells of other callers."""
        return self.key is None or self.key.may_see_metrics

    def salt(self, own: str = "") -> str:
        """The salt of its prefix cache. Requests of other keys share none of its blocks; `own` is the request's, which narrows it."""
        if self.key is None:
            return own
        return hashlib.sha256(f"llmi/{self.key.sha256}/{own}".encode()).hexdigest()

    def check_context(self, num_tokens: int) -> None:
        """Raises InvalidParamsError if prompt and answer together may be longer than the key's."""
        most = None if self.key is None else self.key.max_context
        if most is not None and num_tokens > most:
            raise InvalidParamsError(
                f"prompt, negative prompt and max_tokens are {num_tokens:,} tokens, more than the {most:,} of this key", "max_tokens"
            )

    def spend(self, num_tokens: int) -> None:
        """Tokens were read and written for it."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """While one of its requests runs. Raises TooManyError if it may have no more now."""
        key = self.key
        if key is not None and key.max_concurrent is not None and self.num_active >= key.max_concurrent:
            raise TooManyError(f"key {key.name!r} has {self.num_active} requests under way, as many as it may", 1.0)
        if self._requests is not None and (wait := self._requests.seconds_until(1)) > 0:
            raise TooManyError(f"key {self.name!r} has used its {self._requests.per_minute:,} requests a minute", wait)
        if self._tokens is not None and (wait := self._tokens.seconds_until(1)) > 0:
            raise TooManyError(f"key {self.name!r} has used its {self._tokens.per_minute:,} tokens a minute", wait)
        if self._requests is not None:
            self._requests.take(1)
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The rest of each limit, in OpenAI's headers."""
        found = []
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found += [
                    (f"x-ratelimit-limit-{name}".encode(), str(bucket.per_minute).encode()),
                    (f"x-ratelimit-remaining-{name}".encode(), str(max(0, int(bucket.level()))).encode()),
                    (f"x-ratelimit-reset-{name}".encode(), f"{bucket.seconds_until(bucket.per_minute):.3f}s".encode()),
                ]
        return found


class Keys:
    """The keys of a file. `reload` reads it again; what the key of a name has used is kept, and its requests go on counting."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._callers: list[Caller] = [Caller(key) for key in read_keys(path)]

    def reload(self) -> None:
        """Reads the file again. A file that is wrong changes nothing: the log says why."""
        try:
            keys = read_keys(self.path)
        except InvalidParamsError as error:
            log.error("the keys stay as they were: %s", error)
            return
        known = {caller.name: caller for caller in self._callers}
        self._callers = [known.get(key.name) or Caller(key) for key in keys]
        for caller, key in zip(self._callers, keys, strict=True):
            caller.change(key)
        log.warning("%d keys were read from %s", len(keys), self.path)

    def find(self, text: str) -> Caller | None:
        """The client with this key. Every key is compared, each in constant time.

        text: as a header has it, each character a byte. Clients write a key that is not ASCII in UTF-8 or in Latin-1; either is the same
        key.
        """
        if not 0 < len(text) <= _LONGEST_KEY:
            return None
        digests = [hashlib.sha256(data).hexdigest() for data in (text.encode("latin-1"), text.encode("utf-8"))]
        found = None
        for caller in self._callers:
            for digest in digests:
                if caller.key is not None and hmac.compare_digest(caller.key.sha256, digest):
                    found = caller
        return found


def read_keys(path: Path) -> list[Key]:
    """The keys of a TOML file: tables [[keys]] with the fields of Key. Raises InvalidParamsError with the file's name."""
    try:
        with path.open("rb") as file:
            content: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise InvalidParamsError(f"{path}: {error.strerror}", "keys") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParamsError(f"{path}: no TOML: {error}", "keys") from None
    entries = content.pop("keys", None)
    if content or not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        what = f"unknown {', '.join(map(repr, content))}" if content else "no table [[keys]]"
        raise InvalidParamsError(f"{path}: {what}: it holds tables [[keys]] with name and sha256, and nothing else", "keys")
    known = [field.name for field in dataclasses.fields(Key)]
    keys = []
    for index, entry in enumerate(entries):
        try:
            if unknown := [name for name in entry if name not in known]:
                raise InvalidParamsError(f"unknown {', '.join(map(repr, unknown))}; known are {', '.join(known)}", unknown[0])
            if missing := [name for name in ("name", "sha256") if name not in entry]:
                raise InvalidParamsError(f"{missing[0]} is missing", missing[0])
            keys.append(Key(**entry))
        except InvalidParamsError as error:
            raise InvalidParamsError(f"{path}: keys[{index}]: {error}", error.parameter) from None
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        if double := next((value for value in values if values.count(value) > 1), None):
            raise InvalidParamsError(f"{path}: two keys have the {field} {double!r}", field)
    return keys
