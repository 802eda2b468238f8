"""/llmi/generate and /llmi/engine, llmi's own API: a request as a receipt holds it, its answer as the engine gives it, and what an engine
is. `llmi route` asks them."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from llmi import errors
from llmi.base.kinds import TOKEN_IDS, Flag, Text
from llmi.base.travel import strict_json
from llmi.errors import EngineClosedError, InvalidParamsError, LlmiError, SlowReaderError
from llmi.params.options import PRIORITY, SEED, option
from llmi.replicas.asked import Asked
from llmi.replicas.identity import ALIKE
from llmi.replicas.records import end_as_json, error_as_json, event_as_json, moved
from llmi.replicas.wire import BrokenMessageError
from llmi.requests.call import Call
from llmi.requests.submission import Submission
from llmi.server.answer import event as as_event
from llmi.server.errors import api_error
from llmi.server.event_stream import Watched, unless_gone
from llmi.server.fields import GENERATE, Taken
from llmi.server.generation import GRACE_S, SEED_BITS
from llmi.server.limits import ENTRY_BYTES
from llmi.server.nested import wrong
from llmi.server.respond import json_response
from llmi.server.served import Served
from llmi.server.state import state_of, take

if TYPE_CHECKING:
    from llmi import _core


async def engine(request: Request) -> Response:
    """What each model's engine is, and its counters."""
    return json_response({"object": "list", "data": [_engine(model) for model in state_of(request).models]})


def _engine(model: Served) -> dict[str, Any]:
    llm, engines = model.llm, model.server._engines
    given = {name: llm._given[name] for name in ALIKE}
    return {
        "model": model.name,
        "instance": model.instance,
        "fingerprint": model.fingerprint,
        "arguments": {name: value for name, value in given.items() if isinstance(value, str | int | float | bool | dict | None)},
        "path": str(llm.model_info.path),
        "info": strict_json(llm._engine.info()),
        "stats": strict_json({**engines.latest_stats(), "stalled_s": engines.stalled_s}),
    }


async def generate(request: Request) -> Response:
    """Continues token ids. An error has OpenAI's form, and the field `llmi` with all of it."""
    try:
        taken, model = await take(request, GENERATE)
        answer = Answer(model, asked_of(taken), taken)
        if not taken.flag("stream"):
            return await unless_gone(request.receive, answer.whole())
        await answer.start()
        return answer
    except LlmiError as error:
        shown = api_error(error)
        own = {"llmi": error_as_json(error)} if type(error).__name__ in vars(errors) else {}
        return json_response({**shown.body(), **own}, shown.status, shown.headers)


def asked_of(taken: Taken) -> Asked:
    """The request of a body. Raises InvalidParamsError and ApiError."""
    own, caller = taken.own, taken.admission.caller
    ids = TOKEN_IDS.parse("prompt_token_ids", own.get("prompt_token_ids"))
    if not ids:
        raise wrong("prompt_token_ids", "is empty: a request has a token at least", "invalid_value")
    seed, priority = SEED.parse("seed", own.get("seed")), own.get("priority")
    message = {
        "kind": "generate",
        "id": 0,
        "prompt_token_ids": ids,
        "sampling_params": taken.mapping("sampling_params") or {},
        "seed": secrets.randbits(SEED_BITS) if seed is None else seed,
        "cache_salt": caller.salt(Text(4096, empty=True).parse("cache_salt", own.get("cache_salt") or "")),
        "priority": caller.priority if priority is None else max(caller.priority, PRIORITY.parse("priority", priority)),
        "tells": taken.flag("stream"),
        "speculates": Flag().parse("speculates", own.get("speculates", True)),
        "known": [TOKEN_IDS.parse("known", entry) for entry in taken.entries("known") or []],
    }
    try:
        return Asked.read(message)
    except BrokenMessageError as error:
        raise InvalidParamsError(str(error), "sampling_params") from None


class Answer(Watched):
    """The events of one request, the last of which has `samples`, or `error`."""

    def __init__(self, model: Served, asked: Asked, taken: Taken) -> None:
        self._limits = taken.admission.limits
        super().__init__(self._limits.keep_alive_s)
        self._model, self._asked = model, asked
        self._submission: Submission | None = None
        self._lines: list[dict[str, Any]] = []  # that were not sent
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        name = option("request_id", taken.own.get("request_id"))
        caller = taken.admission.caller
        reader = model.server._told(self._make, self._tell, name, taken.limit_s)
        payer = None if caller.key is None else caller
        self._reader = reader.bounded(taken.admission.arrived_s, self._limits.unread_bytes // ENTRY_BYTES, payer)

    async def start(self) -> None:
        """Submits the request. Raises what is wrong with it."""
        await self._reader.start(self._wake)
        await asyncio.wait({self._news}, timeout=GRACE_S)  # an engine that refuses a request says so at once
        if len(self._lines) == 1 and self._lines[0].get("error"):
            self._reader.take()

    async def whole(self) -> Response:
        """The end alone. Raises what the request ended with."""
        try:
            await self._reader.start(self._wake)
            while not self._lines:
                await self._wait()
            self._reader.take()
            _check_end(self._lines[-1])
            return json_response(self._lines[-1])
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        ended = False
        while not ended:
            lines = self._take()
            ended = bool(lines) and "sample" not in lines[-1]
            await self._write(send, b"".join(map(as_event, lines)))
            if not lines:
                await self._wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _take(self) -> list[dict[str, Any]]:
        """What is new, with the end that the request has come to."""
        lines, self._lines = self._lines, []
        try:
            self._reader.take()  # its tokens are read
            if lines:
                _check_end(lines[-1])
        except LlmiError as error:
            if not lines or "samples" not in lines[-1] or isinstance(error, EngineClosedError | SlowReaderError):
                lines = [line for line in lines if "samples" not in line] + [{"error": error_as_json(error)}]
        return lines

    async def _wait(self) -> None:
        await self._news
        self._news = asyncio.get_running_loop().create_future()

    def _wake(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    async def _close(self) -> None:
        await self._reader.aclose()

    def _make(self, queued_s: float) -> Call:
        """The request, on a thread. Raises what is wrong with it, and InvalidParamsError for an answer that is too large."""
        try:
            call = self._asked.call(self._model.llm, queued_s)
        except BrokenMessageError as error:
            raise InvalidParamsError(str(error), "sampling_params") from None
        submission = self._submission = call.submissions[0]
        if submission.error is not None:
            raise submission.error
        params, beams = submission.params, submission.beams
        params.output_kind = "delta" if self._asked.tells else "final"
        num = (params.n, "n") if beams is None else (beams.beam_width, "beam_width")
        tokens = params.max_tokens or 0
        kept, scored = (self._num_entries(count) for count in (params.logprobs, params.prompt_logprobs))
        self._limits.check_answer(1, num, tokens, params.n * tokens * kept, len(submission.prompt_token_ids) * scored)
        return call

    def _num_entries(self, count: int | None) -> int:
        return 0 if count is None else 1 + (count if count >= 0 else self._model.llm.model_info.vocab_size)

    def _tell(self, event: _core.OutputEvent) -> None:
        submission = self._submission
        assert submission is not None
        arrival_s = event.request.arrival_time_s
        if event.finished:
            error = self._model.llm._results.error(submission)
            line = end_as_json(0, event.request, error, not self._asked.tells or submission.beams is not None)
            line |= {"seed": self._asked.seed, "system_fingerprint": self._model.fingerprint}
        else:
            line = event_as_json(0, event)
        del line["id"]
        self._lines.append(moved(line, -arrival_s))
        self._wake()


def _check_end(line: dict[str, Any]) -> None:
    """A request that the server has ended is no answer."""
    if any(sample["finish_reason"] == "abort" for sample in line.get("samples", ())):
        raise EngineClosedError("the request was ended before its answer was whole: the server is shutting down")
