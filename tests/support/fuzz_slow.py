"""Texts that take long to read, against a running server: how long others wait meanwhile, and what memory is held.

Run by `python tests/fuzz_surface.py --slow`. Each text is made from its pass and seed alone, of about 64 kB, in one of the shapes that are
slow where a reader is more than linear. While they are sent, another client asks /health again and again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 64_000
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}\n{% endfor %}assistant: "
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
Body = tuple[str, Any]  # a route, and its body: JSON, or bytes as they are


def fill(make: Callable[[int], Any], size: int = SIZE) -> Any:
    """What `make` returns for the count that gives about this number of bytes as JSON."""
    each = max(1, (len(json.dumps(make(64))) - len(json.dumps(make(32)))) // 32)
    return make(max(1, (size - len(json.dumps(make(0)))) // each))


def spread(rng: random.Random, num_levels: int, end: Any, name: str) -> dict[str, Any]:
    """Definitions that refer to the next ones, each several times."""
    width = SIZE // 2 // num_levels // 26
    word = rng.choice(["anyOf", "allOf", "oneOf"])
    return {f"{name}{i}": {word: [{"$ref": f"#/$defs/{name}{i + 1}"}] * width} for i in range(num_levels)} | {f"{name}{num_levels}": end}


def schema(rng: random.Random) -> Any:
    """A schema in one of the slow shapes."""
    leaf = rng.choice(
        [{"type": "string"}, {"enum": ["a", "bc", 3]}, {"pattern": "^(a|b)*c$"}, {"minimum": 3, "maximum": 5.25}, {"format": "uri"}]
    )
    levels = rng.choice([1, 2, 3, 6, 12])
    word = rng.choice(["not", "if", "items", "contains", "propertyNames"])
    shapes: list[Callable[[], Any]] = [
        lambda: {word: {"$ref": "#/$defs/a0"}, "then": {}, "$defs": spread(rng, levels, leaf, "a")},
        lambda: {
            "oneOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}],
            "$defs": spread(rng, levels, leaf, "a") | spread(rng, levels, {"type": "null"}, "b"),
        },
        lambda: fill(lambda n: {"oneOf": [{"properties": {f"p{i}": leaf}, "required": [f"p{i}"], "type": "object"} for i in range(n)]}),
        lambda: fill(lambda n: {"oneOf": [{"minimum": 2 * i, "maximum": 2 * i + 0.5} for i in range(n)]}),
        lambda: fill(lambda n: {"not": {"enum": ["a" * rng.randrange(1, 400) + str(i) for i in range(n)]}}),
        lambda: fill(lambda n: {"allOf": [{"if": {"required": [f"p{i % 9}"]}, "then": leaf, "else": {"minimum": i}} for i in range(n)]}),
        lambda: fill(lambda n: {"properties": {"k" * 20_000: {"properties": {f"p{i}": {"uniqueItems": True} for i in range(n)}}}}),
        lambda: fill(lambda n: {"items": [{"exclusiveMinimum": i, "maximum": i + 0.75} for i in range(n)]}),
        lambda: fill(
            lambda n: {"type": "string", "pattern": rng.choice(["(", "{", "[", "a{1,9}", "(a|b)", "\\ud83d", "(?:a*)*", "[^a]*b"]) * n}
        ),
        lambda: fill(lambda n: {"enum": [[i, {"a": i}] for i in range(n)]}),
        lambda: fill(
            lambda n: {"properties": {f"p{i}": leaf for i in range(n)}, "required": [f"p{i}" for i in range(n)], "minProperties": 2}
        ),
        lambda: fill(lambda n: {"patternProperties": {f"^{'ab' * (i % 9)}{i}.*": leaf for i in range(n)}, "additionalProperties": False}),
        lambda: json.loads('{"items":' * (n := rng.choice([60, 400, 900])) + '{"oneOf":[{"type":"null"},{"type":"string"}]}' + "}" * n),
    ]
    return rng.choice(shapes)()


def schemas(rng: random.Random) -> Body:
    """JSON schemas as a constraint."""
    return COMPLETION, {"prompt": "x", "max_tokens": 1, "structured_outputs": {"json": schema(rng)}}


def grammars(rng: random.Random) -> Body:
    """GBNF, Lark, regular expressions, choices and structural tags."""
    item = rng.choice(["[a-z]", '"a"', "[^x]", ".", "( b )"])
    sign = rng.choice(["*", "+", "{16}", "{2,9}", "?", ""])
    n = SIZE // (len(item + sign) + 1)
    texts = [
        {"grammar": "#" * SIZE + rng.choice(['\nstart: "a"', '\nroot ::= "a"', ""])},
        {"grammar": "root ::= " + f"{item}{sign} " * n + '\nb ::= "y"'},
        {"grammar": "root ::= (" + "|".join([f"{item}{sign}"] * n) + ')*\nb ::= "y"'},
        {
            "grammar": "root ::= r0\n"
            + "".join(f"r{i} ::= r{i + 1} | {item}{sign}\n" for i in range(n // 4))
            + f'r{n // 4} ::= "z"\nb ::= "y"'
        },
        {"grammar": "root ::= " + "(" * n + '"a"' + ")" * n},
        {"grammar": "root ::= " + "[" + "".join(chr(0x3000 + 2 * i) for i in range(rng.choice([500, 9_000]))) + "]+ [a-z]*"},
        {"grammar": "start: /" + rng.choice(["[", "\\\\", "[a-z\\\\&]+", "(a|b)*", "a{1,99}", "[]"]) * (SIZE // 8) + "/"},
        {"grammar": "start: " + " ".join(f"T{i % 900}" for i in range(4_000)) + "\n" + "".join(f"T{i}: /[a-z]+{i}/\n" for i in range(900))},
        {"grammar": 'start: a\n%json ["' + "x" * SIZE},
        {"regex": rng.choice(["(a|b|ab)*", "(a*)*", "a{1,50}", "[^a]", "(", "(a+)+b", "\\w{9}", "(?i:é)"]) * (SIZE // 9)},
        {"choice": [f"{'ab' * (i % 50)}{i}" for i in range(1_200)]},
        {
            "structural_tag": {
                "type": "structural_tag",
                "triggers": [f"<{i}>" for i in range(1_000)],
                "structures": [{"begin": f"<{i}>", "schema": {"enum": [i]}, "end": "x"} for i in range(1_000)],
            }
        },
    ]
    return COMPLETION, {"prompt": "x", "max_tokens": 1, "structured_outputs": rng.choice(texts)}


def bodies(rng: random.Random) -> Body:
    """Bodies whose JSON, or one field of which, is large."""
    n = SIZE // 10
    names = [f'"a{i}":{i}' for i in range(n)]
    raw = [
        '{"prompt":"x","metadata":{' + ",".join([*names, names[-1]]) + "}}",
        '{"prompt":"x","metadata":' + "[" * n + "]" * n + "}",
        '{"prompt":"x","max_tokens":' + "9" * SIZE + "}",
        '{"prompt":"x","metadata":[' + "1e999," * n + "0]}",
        "{" + ",".join(f'"f{i}":1' for i in range(n)) + "}",
        '{"prompt":"' + "\\ud83d" * n + '"}',
    ]
    values = [
        {"stop": [f"s{i}" for i in range(n)]},
        {"logit_bias": {str(i % 300): 1 for i in range(n)}},
        {"logit_bias": {str(i): 1 for i in range(n)}},
        {"bad_words_ids": [[i % 300, 1] for i in range(n)]},
        {"allowed_token_ids": [i % 300 for i in range(n)]},
        {"sequence_bias": [[[i % 300, 2], 1.0] for i in range(n)]},
        {"prompt": rng.choice(["<", "e ", "é", "<s>", "a", "\u0301", "<|im_start|>"]) * n},
        {"prompt": [[i % 300 for i in range(20)] for _ in range(n // 20)]},
        {"prompt": [f"p{i}" for i in range(n)]},
        {"stop_token_ids": [*range(n)], "n": 128},
    ]
    if rng.random() < 0.4:
        return rng.choice([CHAT, COMPLETION, "/tokenize", "/v1/messages", "/v1/responses"]), rng.choice(raw).encode()
    return COMPLETION, {"prompt": "x", "max_tokens": 1, **rng.choice(values)}


def templates(rng: random.Random) -> Body:
    """Templates of a request, and messages that make the model's own work."""
    from fuzz_templates import template

    n = SIZE // 40
    texts = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + "x" * SIZE,
        "{{ 'a' * 500000000 }}" + "{{ messages }}" * n,
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}" + "y" * SIZE,
        "".join(f"{{% if messages[{i}] %}}" for i in range(n)),
        "{{ " + "(" * n + "1" + ")" * n + " }}",
        "[" + "func" * (SIZE // 4),
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}" + "z" * SIZE,
        template(rng) * 8,
    ]
    return CHAT, {"messages": HELLO, "max_tokens": 1, "timeout_s": rng.choice([0.5, 20]), "chat_template": rng.choice(texts)[:SIZE]}


def histories(rng: random.Random) -> Body:
    """Messages, calls and results of tools."""
    arguments = rng.choice(
        [json.dumps({f"a{i}": i for i in range(2_000)}), "[" * 5_000, "{" * 5_000, '{"a":1,' * 3_000, "x" * 5_000, "9" * 5_000]
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[Callable[[int], Any]] = [
        lambda n: [{"role": "tool", "content": "x", "tool_call_id": str(i)} for i in range(n)],
        lambda n: [{"role": "assistant", "content": "", "tool_calls": [call]}] * (n // 64),
        lambda n: [{"role": "user", "content": [{"type": "text", "text": "x"}] * n}],
        lambda n: [{"role": "user", "content": "x", "k" * 30_000: [*range(n)]}],
        lambda n: [{"role": "user", "content": rng.choice(["<", "<s>", "</s>", "<|im_start|>", "{% x %}"]) * n}],
        lambda n: [{"role": rng.choice(["user", "assistant"]), "content": "a"} for _ in range(n)],
    ]
    made = fill(rng.choice(messages))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    return CHAT, {"messages": made, "max_tokens": 1, "max_completion_tokens": 1, **rng.choice([{}, {"tools": tools}])} | {
        "max_tokens": None
    }


def tools(rng: random.Random) -> Body:
    """Functions, whose parameters are schemas."""
    n = SIZE // 120
    few = {"type": "object", "properties": {"x": schema(rng)}}
    many = [{"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}] * 3}}, "title": str(i)} for i in range(n)]
    parameters = [few] if rng.random() < 0.7 else many
    listed = [{"type": "function", "function": {"name": f"f{i}", "parameters": entry}} for i, entry in enumerate(parameters)]
    return CHAT, {"messages": HELLO, "max_tokens": 1, "tools": listed, "tool_choice": rng.choice(["auto", "required"])}


PASSES: dict[str, Callable[[random.Random], Body]] = {
    "schemas": schemas, "grammars": grammars, "bodies": bodies, "templates": templates, "histories": histories, "tools": tools,
}  # fmt: skip


def text_of(name: str, seed: int) -> Body:
    """The text of a pass and a seed."""
    route, body = PASSES[name](random.Random(f"slow:{name}:{seed}"))
    return route, body if isinstance(body, bytes) else json.dumps(body).encode()


class Server:
    """`llmi serve` of a tiny model, for a block."""

    def __enter__(self) -> Server:
        from llmi.testing import tiny_model

        self._folder = tempfile.TemporaryDirectory(prefix="llmi-fuzz-")
        folder = Path(self._folder.name)
        model = tiny_model(vocab_size=300, path=folder / "m", max_position_embeddings=8192)
        (folder / "t.jinja").write_text(TEMPLATE)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [str(Path(sys.executable).with_name("llmi")), "serve", "-m", f"m={model}", "--port", str(self.port), "--chat-template",
                   str(folder / "t.jinja"), "--kv-cache-memory-bytes", str(1 << 24)]  # fmt: skip
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/ready", None, 5)[0] == 200:
                    return self
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def ask(self, method: str, path: str, data: bytes | None, timeout: float = 60) -> tuple[int, bytes]:
        """(status, body) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def reset_peaks(self) -> None:
        """The most memory held counts from here."""
        for pid in (self._process.pid, *self._children()):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peaks_mb(self) -> tuple[float, float]:
        """The most memory that the server has held, and the most of one of its processes for templates."""
        return _peak_mb(self._process.pid), max(map(_peak_mb, self._children()), default=0.0)

    def _children(self) -> list[int]:
        found: list[int] = []
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
        return found


def _peak_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0) / 1024
    return 0.0


def run(names: list[str], first_seed: int, num_cases: int, num_clients: int = 2) -> dict[str, Any]:
    """Sends the texts of each pass; what others waited, what was held, and answers that are none (5xx but 503 and 504, or no answer)."""
    report: dict[str, Any] = {"passes": {}, "findings": []}
    with Server() as server:
        for route, body in (
            (COMPLETION, {"prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": "a"}}),
            (CHAT, {"messages": HELLO, "max_tokens": 1}),
        ):
            server.ask("POST", route, json.dumps(body).encode())  # what is made at first use
        before, _ = server.peaks_mb()
        for name in names:
            report["passes"][name] = _run_pass(
                server, name, range(first_seed, first_seed + num_cases), num_clients, before, report["findings"]
            )
            print(name, json.dumps(report["passes"][name]), flush=True)
    return report


def _run_pass(
    server: Server, name: str, seeds: range, num_clients: int, before_mb: float, findings: list[dict[str, Any]]
) -> dict[str, Any]:
    waiting, lock = iter(seeds), threading.Lock()
    statuses: Counter[str] = Counter()
    slowest: list[tuple[float, str]] = []
    waits: list[float] = []
    over = threading.Event()

    def send() -> None:
        while True:
            with lock:
                seed = next(waiting, None)
            if seed is None:
                return
            begun = time.monotonic()
            try:
                status, answer = server.ask("POST", *text_of(name, seed))
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, repr(error).encode()
            with lock:
                statuses[str(status)] += 1
                slowest.append((time.monotonic() - begun, f"{name}:{seed}"))
                if status not in (503, 504) and not 200 <= status < 500:
                    findings.append({"case": f"slow:{name}:{seed}", "status": status, "answer": answer[:300].decode(errors="replace")})

    def probe() -> None:
        while not over.is_set():
            begun = time.monotonic()
            status, _ = server.ask("GET", "/health", None)
            waits.append(time.monotonic() - begun)
            if status != 200:
                findings.append({"case": f"slow:{name}", "status": status, "answer": "/health"})
            time.sleep(0.002)

    server.reset_peaks()
    clients = [threading.Thread(target=send) for _ in range(num_clients)]
    prober = threading.Thread(target=probe)
    for thread in (prober, *clients):
        thread.start()
    for thread in clients:
        thread.join()
    over.set()
    prober.join()
    held, of_templates = server.peaks_mb()
    waits.sort()
    return {
        "texts": len(seeds),
        "statuses": dict(statuses),
        "health_ms": {
            "median": round(1e3 * waits[len(waits) // 2], 1),
            "99 %": round(1e3 * waits[len(waits) * 99 // 100], 1),
            "longest": round(1e3 * waits[-1], 1),
        },
        "slowest": [f"{case} {taken:.2f} s" for taken, case in sorted(slowest, reverse=True)[:3]],
        "memory_mb": {"more": round(held - before_mb), "of templates": round(of_templates)},
    }
