"""The report over HTTP, renewed while runs are being written: read-only, two addresses, no files.

On this host alone it needs no token; a server that other hosts reach always has one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from overt.errors import OvertError
from overt.tools.report.charts import matches
from overt.tools.report.markup import element
from overt.tools.report.page import build_page
from overt.tools.report.reading import find_runs, is_run, open_runs

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_RUNS = 50  # the newest; a page with more is unreadable
WATCHED = (
    "metrics.jsonl", "events.jsonl", "config.yaml", "evaluation/scores.json", "checkpoints",
)  # fmt: skip
LOOK_AGAIN_SECONDS = 30  # a killed run writes nothing: its status is asked for again
COOKIE = "overt_token"


class Source:
    """Runs in some folders, as a page that is built again only when a run has changed."""

    def __init__(self, folders: Sequence[Path], most_pictures: int, pins: Sequence[str]) -> None:
        self.folders, self.most_pictures, self.pins = folders, most_pictures, pins
        self._lock = threading.Lock()
        self._built: tuple[str, str] = ("", "")  # version and page
        self._has_running = False

    def runs(self) -> list[Path]:
        """Return the run folders, the newest `MOST_RUNS` of them, in the order of their names."""
        runs = [
            run
            for folder in self.folders
            for run in ([folder] if is_run(folder) else find_runs(folder))
        ]
        newest = sorted(runs, key=_last_change, reverse=True)[:MOST_RUNS]
        return [run for run in runs if run in set(newest)]

    def version(self, runs: Sequence[Path] | None = None) -> str:
        """Return a short text that changes whenever the page would."""
        digest = hashlib.sha256()
        for run in self.runs() if runs is None else runs:
            digest.update(repr([str(run), *(_mark(run / name) for name in WATCHED)]).encode())
        if self._has_running:
            digest.update(str(int(time.time() / LOOK_AGAIN_SECONDS)).encode())
        return digest.hexdigest()[:16]

    def page(self) -> str:
        with self._lock:  # several tabs ask at once; the page is built for all of them
            runs = self.runs()
            version = self.version(runs)
            if version != self._built[0]:
                self._built = (version, self._build(runs))
            return self._built[1]

    def _build(self, paths: Sequence[Path]) -> str:
        if not paths:
            return _waiting(self.folders)
        runs = open_runs(list(paths))
        self._has_running = any(run.status() == "running" for run in runs)
        metric_names = {name for run in runs for name in run.curves}
        # A pinned metric may not be logged yet: show the rest.
        pins = [pin for pin in self.pins if any(matches(name, [pin]) for name in metric_names)]
        return build_page(runs, self.most_pictures, pins, is_live=True)


def _mark(path: Path) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


def _last_change(run: Path) -> int:
    return max(_mark(run / name)[0] for name in WATCHED[:2])


def _waiting(folders: Sequence[Path]) -> str:
    names = ", ".join(map(str, folders))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="refresh", content="3"),
        element("title", "overt report"),
    )
    body = element("body", element("main", element("h1", f"No runs below {names} yet")))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page and of its version; anything else is refused."""

    server: ReportServer
    server_version, sys_version = "overt", ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not self._is_this_host():
            self._answer(HTTPStatus.FORBIDDEN, "this server answers to localhost only")
        elif (tokens := parse_qs(address.query).get("token")) and self.server.accepts(tokens[0]):
            # The token leaves the address bar and the history.
            self._answer(HTTPStatus.SEE_OTHER, "", cookie=tokens[0])
        elif self.server.token is not None and not self.server.accepts(self._cookie()):
            self._answer(
                HTTPStatus.FORBIDDEN, "open the address with ?token=... that the server printed"
            )
        elif address.path not in ("/", "/version"):
            self._answer(HTTPStatus.NOT_FOUND, "this server has one page, at /")
        else:
            self._report(address.path)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _report(self, path: str) -> None:
        try:
            source = self.server.source
            text = source.page() if path == "/" else source.version()
        except (OvertError, OSError) as error:  # a run was removed meanwhile
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        else:
            self._answer(HTTPStatus.OK, text, "text/html" if path == "/" else "text/plain")

    def _is_this_host(self) -> bool:
        """Refuse other names for this host: a page elsewhere may point its own name here."""
        if self.server.is_wide:
            return True
        return urlsplit(f"//{self.headers.get('Host', '')}").hostname in LOOPBACK

    def _cookie(self) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return "" if cookie is None else cookie.value

    def _answer(
        self, status: HTTPStatus, text: str, kind: str = "text/plain", cookie: str | None = None
    ) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        if cookie is not None:
            self.send_header("Set-Cookie", f"{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Location", "/")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a page asks every few seconds."""


class ReportServer(ThreadingHTTPServer):
    """Serves one source on one address."""

    daemon_threads = True

    def __init__(self, source: Source, host: str, port: int, token: str | None = None) -> None:
        self.source = source
        self.is_wide = host not in LOOPBACK
        if self.is_wide and token is None:
            token = secrets.token_urlsafe(16)
        self.token = token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise OvertError(
                f"--host {host} --port {port} cannot be opened ({error.strerror}); choose another "
                "port, or --port 0 for any free one"
            ) from None

    def accepts(self, token: str) -> bool:
        return self.token is not None and secrets.compare_digest(
            token.encode(errors="replace"), self.token.encode()
        )

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = str(self.server_address[0])
        host = "localhost" if host in LOOPBACK else f"[{host}]" if ":" in host else host
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{host}:{self.server_address[1]}/{query}"
