"""A real Chromium, spoken to through two pipes: no driver, no port, no further package."""

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

# The protocol's pipes must be the descriptors 3 and 4; both are first moved out of the way.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
for end in ends:
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab: what it fetched, what it complained of, what its scripts say."""

    def __init__(self, into: int, out: int) -> None:
        self._into = os.fdopen(into, "wb", buffering=0)
        self._out = os.fdopen(out, "rb")
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._seen: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, note what happens meanwhile, return the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._into.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = self._out.read1(1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(parameters["entry"]))
            case "Page.loadEventFired" as event:
                self._seen.append(event)
        return message

    def open(self, address: Path | str) -> None:
        self._seen.clear()
        url = address if isinstance(address, str) else address.as_uri()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._seen:
            self._receive()
        self.settle()

    def settle(self) -> None:
        """Let the page draw what it has to."""
        self.run(WAIT)
        self.run(WAIT)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def look(self, width: int, height: int, dark: bool = False, calm: bool = False) -> None:
        """Set the size of the window and what the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        options: dict[str, Any] = {"captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = size | {"x": 0, "y": 0, "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", **options)
        path.write_bytes(b64decode(answer["data"]))


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Page]:
    """Start a browser without a window, with a profile of its own; end it afterwards."""
    to_browser, into = os.pipe()
    out, from_browser = os.pipe()
    words = [
        program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions",
        f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(to_browser), str(from_browser), *words],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(into, out)
    finally:
        process.terminate()
        process.wait(30)
