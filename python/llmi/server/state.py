"""What the routes of one server share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from llmi.server.admission import admission_of
from llmi.server.body import read_fields
from llmi.server.fields import Endpoint, Taken
from llmi.server.guard import Door
from llmi.server.preparing import Preparing
from llmi.server.receipts import Receipts
from llmi.server.served import Models, Served
from llmi.server.settings import ServerSettings

T = TypeVar("T")


@dataclasses.dataclass
class ServerState:
    """The models, the settings, the receipts' folder, who may pass, and the threads that prepare what comes."""

    models: Models
    settings: ServerSettings
    receipts: Receipts
    door: Door
    preparing: Preparing


async def take(request: Request, endpoint: Endpoint) -> tuple[Taken, Served]:
    """What an endpoint is asked for, and the model that is asked."""
    taken = endpoint.take(await read_fields(await request.body()), admission_of(request))
    return taken, state_of(request).models.find(taken.own.get("model"))


async def prepare(request: Request, taken: Taken, work: Callable[[], T], kind: str | None = None) -> T:
    """The result of `work`, on a thread for bodies of this kind (Preparing.run)."""
    return await state_of(request).preparing.run(request, taken, work, kind)


def state_of(request: Request) -> ServerState:
    """The state of the server that a request came to."""
    state: ServerState = request.app.state.llmi
    return state
