"""Runs a batch file through the application that `llmi serve` runs, without a socket: answers are the server's own."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.types import Message

from llmi.async_llm import AsyncLLM
from llmi.server.app import make_app
from llmi.server.batch_lines import Answered, BatchLine, BatchReader, answer_line, error_line
from llmi.server.served import Models
from llmi.server.settings import ServerSettings


@dataclasses.dataclass
class BatchReport:
    """The outcome of a run. num_answered: in this run; num_failed: those of them that are errors; num_resumed: answers that were there
    already."""

    num_answered: int = 0
    num_failed: int = 0
    num_resumed: int = 0


async def call(app: Starlette, path: str, body: bytes) -> tuple[int, bytes]:
    """(status, body) of the application's answer to a POST."""
    sent: list[Message] = []
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # nobody hangs up
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


class Batch:
    """One run: `concurrency` requests at a time, each answer written when it is there.

    Raises InvalidParamsError, before anything is computed, if the output is not of this input and these models.
    """

    def __init__(self, models: Mapping[str, AsyncLLM], settings: ServerSettings, source: Path, output: Path, concurrency: int) -> None:
        self._app = make_app(models, settings)
        self._served: Models = self._app.state.llmi.models
        self._reader = BatchReader(source, self._fingerprint)
        self._answered = Answered(output)
        self._output = output
        self._concurrency = concurrency
        self.report = BatchReport()
        for line in self._reader:
            self.report.num_resumed += self._answered.has(line)
        self._reader = BatchReader(source, self._fingerprint)

    @property
    def num_left(self) -> int:
        """Lines that have no answer yet."""
        return self._reader.count() - self.report.num_resumed

    def _fingerprint(self, name: object) -> str:
        model = self._served.find(name)
        return model.fingerprint or f"{model.name}: no fingerprint"

    async def run(self, on_line: Callable[[], object]) -> BatchReport:
        """Answers the lines that have no answer. on_line is called after each. A cancel ends what still runs; what was answered stays."""
        lines = (line for line in self._reader if not self._answered.has(line))
        with self._output.open("ab") as file:
            workers = [asyncio.create_task(self._work(lines, file, on_line)) for _ in range(self._concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return self.report

    async def _work(self, lines: Iterator[BatchLine], file: BinaryIO, on_line: Callable[[], object]) -> None:
        for line in lines:  # one iterator for all workers: each takes the next line
            data = await self._answer(line)
            file.write(data)
            file.flush()
            on_line()

    async def _answer(self, line: BatchLine) -> bytes:
        if line.error is not None:
            self.report.num_answered += 1
            self.report.num_failed += 1
            return error_line(line, line.error)
        status, body = await call(self._app, line.path, line.body)
        self.report.num_answered += 1
        self.report.num_failed += status != 200
        return answer_line(line, status, body, f"line-{line.number}")


def run_until_signal(batch: Batch, on_line: Callable[[], object]) -> bool:
    """Runs it; whether it came to its end, and not SIGINT or SIGTERM before it."""

    async def run() -> bool:
        work = asyncio.ensure_future(batch.run(on_line))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
            return True
        except asyncio.CancelledError:
            return False

    return asyncio.run(run())
