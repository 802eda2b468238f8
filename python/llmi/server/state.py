"""What the routes of one server share."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request

from llmi.server.guard import Door
from llmi.server.receipts import Receipts
from llmi.server.served import Models
from llmi.server.settings import ServerSettings


@dataclasses.dataclass
class ServerState:
    """The models, the settings, the receipts' folder, and who may pass."""

    models: Models
    settings: ServerSettings
    receipts: Receipts
    door: Door


def state_of(request: Request) -> ServerState:
    """The state of the server that a request came to."""
    state: ServerState = request.app.state.llmi
    return state
