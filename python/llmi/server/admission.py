"""What the guard knows of a request, which goes with its body's fields to all that works for it."""

from __future__ import annotations

import dataclasses
import time

from starlette.requests import Request

from llmi.server.keys import Caller
from llmi.server.limits import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """Whose the request is, the limits of the server that it came to, and when its headers had come, by time.monotonic()."""

    caller: Caller = dataclasses.field(default_factory=lambda: Caller(None))
    limits: Limits = dataclasses.field(default_factory=Limits)
    arrived_s: float = dataclasses.field(default_factory=time.monotonic)


def admission_of(request: Request) -> Admission:
    """What the guard has put into the request's state."""
    admission: Admission = request.state.admission
    return admission
