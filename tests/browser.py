"""Chromium without a window, driven through its own pipe: nothing to install beside the browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `console` and `requests` hold what it said and what it asked for."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --hide-scrollbars"
        command = (
            f'exec "$0" {flags} --disable-background-networking --remote-debugging-pipe --user-data-dir="$1" '
            f"about:blank 3<&{theirs_in} 4>&{theirs_out}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, self._profile.name], pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer, self._number, self._session = ours_in, ours_out, b"", 0, None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close", at_page=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, at_page: bool = True, **parameters: object) -> dict:
        """A command of the DevTools protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and at_page:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60
        while True:
            answer = self._next(until, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, until: float, waiting_for: str) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the browser does not answer: {waiting_for}")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has gone")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, said: dict) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(part.get("value", part)) for part in said["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(said["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            self.console.append(said["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def scheme(self, name: str) -> None:
        """'light' or 'dark', as the system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + 60
        while not self._loaded:
            self._next(until, "load")

    def run(self, script: str) -> object:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def mouse(self, x: float, y: float, click: bool = False) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self, path: Path) -> None:
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        path.write_bytes(base64.b64decode(data))
