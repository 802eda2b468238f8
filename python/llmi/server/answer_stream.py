"""An answer that goes out as it comes."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.types import Send

from llmi.outputs.results import RequestOutput
from llmi.server.errors import ApiError, api_error
from llmi.server.event_stream import Watched
from llmi.server.generation import Deltas, Job
from llmi.server.receipts import Receipts


class Form(Protocol):
    """An endpoint's form of an answer to one job."""

    @property
    def id(self) -> str:
        """The answer's id."""

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """The whole answer. receipt: what `llmi` says of it."""

    def begin(self) -> bytes:
        """The first events of a stream."""

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Events for what is new of the prompt at `index`; b"" for nothing."""

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The last events, when all have finished."""

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that failed."""


def check_end(output: RequestOutput) -> None:
    """An answer that the engine was told to end is none."""
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        raise ApiError(503, "the request was ended before its answer was whole: the server is shutting down", code="aborted")


class AnswerStream(Watched):
    """Sends the events that `form` makes of a job's deltas, and ends the job with the stream.

    While a client does not read, nothing is taken: what comes meanwhile is one larger event.
    """

    def __init__(self, job: Job, form: Form, receipts: Receipts, deltas: Deltas) -> None:
        super().__init__(job.admission.limits.keep_alive_s)
        self._job, self._form, self._receipts, self._deltas = job, form, receipts, deltas

    async def _send_all(self, send: Send) -> None:
        await self._write(send, self._form.begin())
        try:
            while news := await self._deltas.next():
                await self._write(send, self._events(news))
            wants = self._job.wants_receipt
            outputs = self._deltas.wholes() if self._receipts.wanted(wants) else []
            last = self._form.end(await self._receipts.of(self._form.id, outputs, wants))
        except Exception as error:
            last = self._form.failed(api_error(error))
        await self._write(send, last)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, news: list[tuple[int, RequestOutput]]) -> bytes:
        data = b""
        for index, output in news:
            if output.finished:
                check_end(output)
            data += self._form.news(index, output)
        return data

    async def _close(self) -> None:
        await self._deltas.close()
