"""The page in a real browser: python tests/support/page_browser.py MODEL [PICTURE] (needs Chromium: apt-get install chromium).

It starts `llmi serve` with the model, has 32 chats stream, opens the page in headless Chromium without a network, asks a question, and
counts what the page shows: the rows of the batch, those with drafts, the boxes of the prefix tree, and the coloured tokens of the answer.
With a second argument it keeps the picture.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from lm_eval_parity import serve

STREAMS = 32


def stream(url: str, index: int, end: threading.Event) -> None:
    """One chat after the other, until the end."""
    while not end.is_set():
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"Tell me story number {index}."}],
            "max_tokens": 400,
            "ignore_eos": True,
        }
        data = json.dumps({**body, "temperature": 0.3, "seed": index, "stream": True}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            while answer.read(4096) and not end.is_set():
                pass


class Browser:
    """Headless Chromium with one page, driven over its DevTools socket."""

    def __init__(self, program: str, url: str) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={self._folder.name}",
            "--window-size=1360,1640",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        self._process = subprocess.Popen([program, *flags, f"{url}/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        place = Path(self._folder.name) / "DevToolsActivePort"
        while not place.is_file() or not place.read_text().strip():
            time.sleep(0.2)
        port = int(place.read_text().split()[0])
        pages: list[dict[str, Any]] = []
        while not pages:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                pages = [entry for entry in json.loads(answer.read()) if entry["type"] == "page"]
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        path = "/" + pages[0]["webSocketDebuggerUrl"].split("/", 3)[3]
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._socket.sendall(
            f"{head}Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._reader = self._socket.makefile("rb")
        while self._reader.readline().strip():
            pass
        self._count = 0

    def ask(self, method: str, **params: Any) -> Any:
        """One call of the protocol."""
        self._count += 1
        data = json.dumps({"id": self._count, "method": method, "params": params}).encode()
        size_bytes = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self._socket.sendall(b"\x81" + size_bytes + b"\0\0\0\0" + data)  # a mask of zeros
        while True:
            size = self._reader.read(2)[1]
            size = (
                struct.unpack(">H", self._reader.read(2))[0]
                if size == 126
                else struct.unpack(">Q", self._reader.read(8))[0]
                if size == 127
                else size
            )
            answer = json.loads(self._reader.read(size))
            if answer.get("id") == self._count:
                return answer["result"]

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def close(self) -> None:
        """Ends the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(30)
        self._folder.cleanup()


def main(model: str, picture: str | None) -> int:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    process, url = serve(
        model, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', "--kv-cache-memory-bytes", "400000000"
    )
    end = threading.Event()
    threads = [threading.Thread(target=stream, args=(url, index, end), daemon=True) for index in range(STREAMS)]
    try:
        for thread in threads:
            thread.start()
        browser = Browser(program, url)
        most, until = 0, time.monotonic() + 60
        ask = "$('tokens').value = 40; $('text').value = 'What is rain?'; $('ask').requestSubmit()"
        rows, spans = "document.querySelectorAll('#rows tbody tr').length", "document.querySelectorAll('.turn.assistant span').length"
        drafts = "[...document.querySelectorAll('#rows tbody tr')].filter(row => row.cells[4].textContent).length"
        painted = "(canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.filter((value, at) => at % 4 == 3 && value).length)(document.getElementById('branches'))"
        coloured = drafted = 0
        while (most < STREAMS or coloured < 20 or not drafted) and time.monotonic() < until:
            time.sleep(0.5)
            most = max(most, browser.value(rows))
            if most and not browser.value("document.querySelectorAll('.turn').length"):
                browser.value(ask)
            coloured, drafted = browser.value(spans), max(drafted, browser.value(drafts))
        pixels = browser.value(painted)
        numbers = browser.value("document.getElementById('numbers').innerText")
        print(f"{most} rows in the batch, {drafted} with drafts; {pixels:,} pixels of the tree; {coloured} coloured tokens; {numbers!r}")
        if picture is not None:
            Path(picture).write_bytes(base64.b64decode(browser.ask("Page.captureScreenshot")["data"]))
        browser.close()
        return 0 if most >= STREAMS and coloured and drafted and pixels else 1
    finally:
        end.set()
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
