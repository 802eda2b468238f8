"""What a load test does, checked once."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from urllib.parse import urlsplit

from llmi.errors import InvalidParamsError

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
SLO_NAMES = ("ttft", "tpot", "e2el")
#: People read 6 to 8 tokens a second: between these times of a token a stream is as fast as its reader (ms).
READING_TPOT_MS = (125.0, 167.0)


def bad(message: str, parameter: str) -> InvalidParamsError:
    """An error that names the flag."""
    return InvalidParamsError(f"--{parameter.replace('_', '-')} {message}", parameter)


@dataclasses.dataclass(frozen=True)
class LoadSettings:
    """One load test.

    Parameters
    ----------
    url : str
        `http://host:port`, with or without `/v1`. A server behind TLS is measured in front of its proxy.
    model : str, optional
        None asks the server's /v1/models and takes the first.
    endpoint : {"chat", "completions"}
    num_prompts : int
        Requests in all, 1 to 1,000,000. A trace or a dataset gives at most as many as it has.
    request_rate : float
        Requests a second of the open loop. inf: the closed loop if `max_concurrency` is given, else all at once.
    burstiness : float
        Shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 is burstier, above 1 more even.
    burst : int
        Requests that arrive together; the rate stays `request_rate`.
    max_concurrency : int, optional
        Most requests in flight. With a rate, later ones wait in the client, and their waiting counts as latency.
    input_len, output_len, prefix_len : int
        Words of each prompt, most tokens of each answer, words that all prompts share (a part of `input_len`). One word is about one token.
    goodput : dict, optional
        Bounds in ms of "ttft", "tpot" and "e2el"; a request is good if it keeps all of them. Without `stream`, "e2el" alone. None: with
        `stream`, a tpot of READING_TPOT_MS[0], at which nobody waits for the next word; without, no bound.
    check : int
        The first `check` requests run alone before the load, and their answers are compared with those under load.
    timeout_s : float
        A request that is not answered this long after its intended time has failed.
    retries : int
        How often a 429 or 503 with Retry-After is sent again; the latency counts from the first intended time.
    """

    url: str
    model: str | None = None
    endpoint: str = "chat"
    num_prompts: int = 100
    request_rate: float = math.inf
    burstiness: float = 1.0
    burst: int = 1
    max_concurrency: int | None = None
    input_len: int = 128
    output_len: int = 64
    prefix_len: int = 0
    dataset: Path | None = None
    trace: Path | None = None
    temperature: float = 0.0
    ignore_eos: bool = False
    stream: bool = True
    seed: int = 0
    goodput: dict[str, float] | None = None
    check: int = 0
    timeout_s: float = 600.0
    retries: int = 0
    api_key: str | None = None

    def __post_init__(self) -> None:
        self._check_url()
        if self.endpoint not in ENDPOINTS:
            raise bad(f"must be one of {', '.join(ENDPOINTS)}, not {self.endpoint!r}", "endpoint")
        for name, low, high in (
            ("num_prompts", 1, 1_000_000),
            ("burst", 1, 100_000),
            ("input_len", 1, 1_000_000),
            ("output_len", 1, 1_000_000),
            ("prefix_len", 0, 1_000_000),
            ("check", 0, 1_000_000),
            ("retries", 0, 100),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise bad(f"must lie in [{low:,}, {high:,}], not {value!r}", name)
        if self.max_concurrency is not None and not 1 <= self.max_concurrency <= 100_000:
            raise bad(f"must lie in [1, 100,000], not {self.max_concurrency}", "max_concurrency")
        for name in ("request_rate", "burstiness", "timeout_s"):
            value = getattr(self, name)
            if not value > 0 or (math.isinf(value) and name != "request_rate"):
                raise bad(f"must be above 0{'' if name == 'request_rate' else ' and finite'}, not {value}", name)
        if not 0 <= self.temperature < math.inf:
            raise bad(f"must be 0 or more, not {self.temperature}", "temperature")
        for slo, bound in self.bounds.items():
            if slo not in SLO_NAMES or not 0 < bound < math.inf:
                raise bad(f"takes {', '.join(f'{known}:MS' for known in SLO_NAMES)} with MS above 0, not {slo}:{bound:g}", "goodput")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise bad("names a key with letters that no header may hold", "api_key_file")
        if not self.stream and (unseen := [slo for slo in ("ttft", "tpot") if slo in self.bounds]):
            raise bad(f"takes no {unseen[0]} with --no-stream: an answer in one has no times of tokens. Bound e2el", "goodput")
        self._check_prompts()
        self._check_arrivals()

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            (parts.hostname or "").encode("ascii").decode().encode("idna")  # checks the letters and the length of each part
        except ValueError as error:
            raise bad(f"must be http://HOST:PORT, not {self.url!r}: {error}", "url") from None
        if parts.scheme != "http" or not parts.hostname:
            more = "; TLS is the proxy's work: measure the server in front of it" if parts.scheme == "https" else ""
            raise bad(f"must be http://HOST:PORT, not {self.url!r}{more}", "url")
        try:
            parts.port  # noqa: B018 (reading it checks it)
        except ValueError:
            raise bad(f"has a port that is no number from 0 to 65,535: {self.url!r}", "url") from None
        if parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.fragment or parts.username:
            raise bad(f"must be http://HOST:PORT or that with /v1, not {self.url!r}", "url")

    def _check_prompts(self) -> None:
        if self.prefix_len > self.input_len:
            raise bad(f"{self.prefix_len:,} is more than --input-len {self.input_len:,}: it is a part of each prompt", "prefix_len")
        file = "trace" if self.trace is not None else "dataset" if self.dataset is not None else None
        lengths = ("input_len", "prefix_len", "output_len") if file == "trace" else ("input_len", "prefix_len")
        if file and (unused := next((name for name in lengths if getattr(self, name) != getattr(type(self), name)), None)):
            raise bad(f"changes nothing with --{file}, whose prompts have lengths of their own", unused)

    def _check_arrivals(self) -> None:
        if self.trace is not None and (self.dataset is not None or self.request_rate != math.inf or self.burst != 1):
            raise bad("gives times and lengths itself: leave out --dataset, --request-rate and --burst", "trace")
        if self.request_rate == math.inf and (self.burstiness != 1 or self.burst != 1):
            raise bad("is needed by --burstiness and --burst: without a rate there are no gaps", "request_rate")
        if self.burst > 1 and self.burstiness != 1:
            raise bad("and --burstiness cannot be given together: bursts come at Poisson times", "burst")

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds of goodput, in ms; {} for none."""
        if self.goodput is not None:
            return self.goodput
        return {"tpot": READING_TPOT_MS[0]} if self.stream else {}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    @property
    def is_closed(self) -> bool:
        """Whether a request is sent when another has ended, not at its own time."""
        return self.trace is None and self.request_rate == math.inf and self.max_concurrency is not None
