"""A page on this machine: click points in a frame of a video, and see where they go.

The server is Python's own, bound to this machine alone. T frames, N points, H x W pixels.
"""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.errors import DataError, OvertError

HERE = "127.0.0.1"
NAMES = (HERE, "localhost")  # of this machine, in the address bar of a browser
PAGE = Path(__file__).parent / "assets" / "click.html"
LARGEST_BODY = 2**20  # bytes of a request
MOST_POINTS = 10_000
KINDS = {".npz": "application/octet-stream", ".csv": "text/csv", ".mp4": "video/mp4",
         ".webp": "image/webp", ".gif": "image/gif"}  # fmt: skip


class Shown(NamedTuple):
    """Where points are, as the page takes it."""

    tracks_xy: NDArray[np.float32]  # (T, N, 2)
    visible: NDArray[np.bool_]  # (T, N)
    files: dict[str, Path]  # to download, by name


Follow = Callable[[NDArray[np.float32]], Shown]  # of queries (N, 3): frame, x, y


class ClickServer(ThreadingHTTPServer):
    """Serves one video and follows the points that are clicked in it."""

    daemon_threads = True

    def __init__(
        self,
        frames: NDArray[np.uint8],  # (T, 3, H, W)
        fps: float,
        name: str,
        follow: Follow,
        port: int = 0,  # 0: one that is free
    ) -> None:
        self.frames, self.fps, self.name, self.follow = frames, fps, name, follow
        self.files: dict[str, Path] = {}  # of the points followed last
        self.busy = threading.Lock()  # a model follows one set of points at a time
        super().__init__((HERE, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self.server_address[1]}/"

    def describe(self) -> dict[str, Any]:
        count, _, height, width = self.frames.shape
        return {
            "name": self.name, "frames": count, "width": width, "height": height, "fps": self.fps
        }  # fmt: skip

    def track(self, body: bytes) -> dict[str, Any]:
        """Return the tracks of the points in a request."""
        queries = read_points(body, self.frames.shape)
        with self.busy:
            shown = self.follow(queries)
            self.files = shown.files
        return {
            "tracks": shown.tracks_xy.round(2).tolist(),
            "visible": shown.visible.tolist(),
            "files": sorted(shown.files),
        }


def read_points(body: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the queries (N, 3) of a request, refused where they are not points of the video."""
    frames, _, height, width = shape
    try:
        points = json.loads(body)["points"]
        rows = [[float(value) for value in point] for point in points]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError('expected {"points": [[frame, x, y], ...]}') from None
    if not 1 <= len(rows) <= MOST_POINTS:
        raise DataError(f"{len(rows)} points; expected 1 to {MOST_POINTS}")
    for index, row in enumerate(rows):
        inside = len(row) == 3 and all(map(math.isfinite, row)) and row[0] % 1 == 0
        limits = (frames, width, height)
        if not inside or not all(0 <= v < limit for v, limit in zip(row, limits, strict=True)):
            raise DataError(
                f"point {index} is {row}; expected [frame, x, y] with frame 0 to {frames - 1}, "
                f"x below {width} and y below {height}"
            )
    return np.array(rows, np.float32)


class _Handler(BaseHTTPRequestHandler):
    server: ClickServer

    def do_GET(self) -> None:
        if not self._is_from_here():
            return
        name = self.path.partition("?")[0].lstrip("/")
        files = self.server.files
        if name == "":
            self._send(PAGE.read_bytes(), "text/html; charset=utf-8")
        elif name == "video.json":
            self._send_json(self.server.describe())
        elif name.startswith("frame/") and name[6:].isdecimal():
            self._send_frame(int(name[6:]))
        elif name in files:
            content = files[name].read_bytes()
            self._send(content, KINDS.get(Path(name).suffix, KINDS[".npz"]), download=name)
        else:
            self._send_json({"error": f"nothing at /{name}"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        if not self._is_from_here():
            return
        length = self.headers.get("Content-Length", "")
        # A form of another site cannot send JSON without asking first.
        if self.headers.get_content_type() != "application/json" or self.path != "/track":
            self._send_json({"error": "POST JSON to /track"}, HTTPStatus.BAD_REQUEST)
        elif not length.isdecimal() or int(length) > LARGEST_BODY:
            message = f"a body of up to {LARGEST_BODY} bytes is expected"
            self._send_json({"error": message}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            try:
                self._send_json(self.server.track(self.rfile.read(int(length))))
            except OvertError as error:
                self._send_json({"error": str(error)}, HTTPStatus.BAD_REQUEST)

    def _is_from_here(self) -> bool:
        """Refuse a request that reached this machine under another name (DNS rebinding)."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host in NAMES:
            return True
        self._send_json({"error": "ask for 127.0.0.1 or localhost"}, HTTPStatus.FORBIDDEN)
        return False

    def _send_frame(self, number: int) -> None:
        if number >= len(self.server.frames):
            self._send_json({"error": f"no frame {number}"}, HTTPStatus.NOT_FOUND)
            return
        stream = io.BytesIO()
        picture = Image.fromarray(self.server.frames[number].transpose(1, 2, 0))
        picture.save(stream, "JPEG", quality=90)
        self._send(stream.getvalue(), "image/jpeg")

    def _send_json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content).encode(), "application/json", status)

    def _send(
        self,
        content: bytes,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        download: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if download is not None:
            self.send_header("Content-Disposition", f'attachment; filename="{download}"')
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        return  # a line for every frame would hide what matters
