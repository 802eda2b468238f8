"""A client of a server in the same process, and the one tiny model that tests of the server use."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from llmi import LLM, AsyncLLM
from llmi.server.app import make_app
from llmi.server.settings import ServerSettings
from waiting import wait_until

#: A template with turns, tools and a date where it is asked for one.
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Client:
    """Asks an application in this process; each call has an event loop of its own."""

    def __init__(self, llm: LLM, settings: ServerSettings | None = None, name: str = "tiny") -> None:
        self.llm = llm
        self.app = make_app({name: AsyncLLM(llm=llm)}, settings)

    def send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(sent())

    def get(self, path: str) -> httpx.Response:
        return self.send("GET", path)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.send("POST", path, json=body)

    def ok(self, path: str, body: Any) -> dict[str, Any]:
        """The answer to a body that is right."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream; it must end with [DONE]."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def error(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of an answer that has this status."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"].isascii()
        return error


class Served:
    """A server in a thread, on a free port unless one is given."""

    def __init__(self, llm: LLM, settings: ServerSettings | None = None, port: int = 0) -> None:
        self.llm = llm
        self.app = make_app({"tiny": AsyncLLM(llm=llm)}, settings)
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", port))
        self.port = self.sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn.Server(uvicorn.Config(self.app, lifespan="off", log_level="error", ws="none"))
        self.thread = threading.Thread(target=asyncio.run, args=(self.server.serve(sockets=[self.sock]),))
        self.thread.start()
        wait_until(lambda: self.server.started)

    def cut(self) -> None:
        """Ends its connections, as the death of its process does; nobody listens any more. Returns when it is so."""
        done = threading.Event()

        def cut() -> None:
            for listener in self.server.servers:
                listener.close()
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()
            self.server.should_exit = self.server.force_exit = True
            done.set()

        self.server.servers[0].get_loop().call_soon_threadsafe(cut)
        done.wait()
        self.close()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.sock.close()


def tiny_llm(tiny_path: Callable[..., Path], **kwargs: Any) -> LLM:
    return LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, chat_template=TEMPLATE, **kwargs)
