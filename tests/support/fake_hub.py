"""A hub on this machine: repositories of bytes, and the ways in which a hub goes wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import unquote


@dataclasses.dataclass
class Repository:
    """What one repository holds, and how it answers."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    status: int = 200  # else: this, with the header that the hub sends with it
    error_code: str = ""
    revisions: tuple[str, ...] = ("main",)
    break_after: int = 0  # the next download of a file ends after so many bytes
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)  # as the hub states them, where they differ


@dataclasses.dataclass
class FakeHub:
    """`repositories` by name; `downloads` counts the bytes of files that were sent."""

    url: str
    message: str = "refused"  # with which it refuses
    repositories: dict[str, Repository] = dataclasses.field(default_factory=dict)
    downloads: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)  # (file, first byte, number of bytes)


def _handler(hub: FakeHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def refuse(self, status: int, code: str) -> None:
            self.answer(status, b'{"error": "refused"}', **({"X_Error_Code": code} if code else {}), X_Error_Message=hub.message)

        def do_GET(self) -> None:
            path = unquote(self.path.split("?")[0]).strip("/")
            parts = path.removeprefix("api/models/").split("/")
            repository = hub.repositories.get("/".join(parts[:2]))
            if repository is None:
                return self.refuse(401, "RepoNotFound")
            if repository.status != 200:
                return self.refuse(repository.status, repository.error_code)
            if path.startswith("api/models/"):
                revision = parts[3] if len(parts) > 3 else "main"
                if revision not in (*repository.revisions, repository.commit):
                    return self.refuse(404, "RevisionNotFound")
                sizes = {name: repository.sizes.get(name, len(data)) for name, data in repository.files.items()}
                if parts[2:3] == ["tree"]:
                    return self.answer(
                        200, json.dumps([{"type": "file", "path": n, "size": s, "oid": "0"} for n, s in sizes.items()]).encode()
                    )
                siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
                info = {"id": "/".join(parts[:2]), "modelId": "/".join(parts[:2]), "sha": repository.commit, "siblings": siblings}
                return self.answer(200, json.dumps(info | {"private": False, "tags": [], "downloads": 0, "likes": 0}).encode())
            name = "/".join(parts[4:])
            data = repository.files.get(name)
            if parts[2:3] != ["resolve"] or data is None:
                return self.refuse(404, "EntryNotFound")
            return self.send_file(repository, name, data)

        do_HEAD = do_GET

        def send_file(self, repository: Repository, name: str, data: bytes) -> None:
            first = 0
            if (asked := self.headers.get("Range", "")).startswith("bytes="):
                first = int(asked.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(data) - first))
            self.end_headers()
            if self.command != "GET":
                return
            body = data[first:]
            if repository.break_after:
                body, repository.break_after = body[: repository.break_after], 0
                self.close_connection = True
            hub.downloads.append((name, first, len(body)))
            self.wfile.write(body)

    return Handler


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub at `url` while the context is open."""
    hub = FakeHub("")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
