"""The page in a real browser: python tests/page_browser.py MODEL [PICTURE] (needs Chromium: apt-get install chromium).

It starts `llmi serve` with the model, has 32 chats stream, loads the page in headless Chromium without a network, and looks at what the page shows: the
batch of 32 rows, and no error of a script. With a second argument it keeps the picture.
"""

from __future__ import annotations

import json
import re
import shutil
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
        data = json.dumps({**body, "temperature": 1.0, "seed": index, "stream": True}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            while answer.read(4096) and not end.is_set():
                pass


def browse(browser: str, url: str, *more: str) -> str:
    """What headless Chromium prints. Its profile is thrown away."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--window-size=1360,1100", "--hide-scrollbars",
                 "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--timeout=20000"]  # fmt: skip
        result = subprocess.run([browser, *flags, *more, f"{url}/"], capture_output=True, text=True, timeout=180, check=False)
        errors = re.findall(r"CONSOLE.*(?:Error|Refused|Uncaught).*", result.stderr)
        assert not errors, errors
        return result.stdout


def main(model: str, picture: str | None) -> int:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    process, url = serve(model)
    end = threading.Event()
    threads = [threading.Thread(target=stream, args=(url, index, end), daemon=True) for index in range(STREAMS)]
    try:
        for thread in threads:
            thread.start()
        time.sleep(3)
        page = browse(browser, url, "--dump-dom")
        rows = page.split("<tbody>")[1].split("</tbody>")[0].count("<tr>")
        numbers = dict(re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", page))
        print(f"{rows} rows in the batch; {numbers}")
        if picture is not None:
            browse(browser, url, f"--screenshot={Path(picture).resolve()}")
        return 0 if rows == STREAMS else 1
    finally:
        end.set()
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
