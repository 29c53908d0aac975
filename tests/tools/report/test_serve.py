"""overt/tools/report/serve.py: a page that follows runs, for this host or for who has the token."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import chromium, find_chromium
from sample_runs import write

from overt.errors import OvertError
from overt.tools.report.serve import ReportServer, Source

START = {"time": 1.0, "kind": "start"}


def row(step: int) -> dict[str, float]:
    return {"step": step, "time": 1.0 + step, "train/loss": 1.0 / step}


@contextmanager
def serving(source: Source, host: str = "127.0.0.1", token: str | None = None) -> Iterator[int]:
    with ReportServer(source, host, 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def ask(
    port: int, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


def test_runs_are_followed_as_they_are_written_and_appear(tmp_path: Path) -> None:
    with serving(Source([tmp_path], 12, ["not_yet"])) as port:
        assert "No runs below" in ask(port)[1]
        write(tmp_path / "first", [START], [row(1)])
        status, page, headers = ask(port)
        assert status == 200
        assert "connect-src" in page
        assert headers["X-Frame-Options"] == "DENY"
        version = ask(port, "/version")[1]
        assert ask(port, "/version")[1] == version
        with (tmp_path / "first" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(2)) + "\n")
        assert ask(port, "/version")[1] != version
        assert "at step 2" in ask(port)[1]
        write(tmp_path / "second", [START], [row(1)])
        assert "2 runs" in ask(port)[1]


def test_it_only_reads_and_answers_to_its_own_name_alone(tmp_path: Path) -> None:
    write(tmp_path, [START], [row(1)])
    with serving(Source([tmp_path], 12, [])) as port:
        assert ask(port, Host="evil.example")[0] == 403
        assert ask(port, "/../../etc/passwd")[0] == 404
        assert ask(port, "/metrics.jsonl")[0] == 404
        assert ask(port, "/", "POST")[0] == 501
        assert ask(port, "/", "DELETE")[0] == 501
        assert ask(port, "/", "HEAD")[1] == ""
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_wider_server_asks_for_its_token(tmp_path: Path) -> None:
    write(tmp_path, [START], [row(1)])
    with ReportServer(Source([tmp_path], 12, []), "0.0.0.0", 0) as server:
        assert server.token is not None
        assert server.address.endswith(f"/?token={server.token}")
    with serving(Source([tmp_path], 12, []), "0.0.0.0", "word-of-mine") as port:
        for path in ("/", "/version", "/?token=guess"):
            assert ask(port, path)[0] == 403
        status, _, headers = ask(port, "/?token=word-of-mine")
        assert (status, headers["Location"]) == (303, "/")
        assert "HttpOnly" in headers["Set-Cookie"]
        assert ask(port, Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200
        assert ask(port, Cookie="overt_token=other")[0] == 403


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    source = Source([tmp_path], 12, [])
    with serving(source) as port, pytest.raises(OvertError, match="choose another port"):
        ReportServer(source, "127.0.0.1", port)


@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium or Chrome on the PATH")
def test_a_browser_shows_news_without_being_reloaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [START], [row(1), row(2)])
    program = find_chromium()
    assert program is not None
    with (
        serving(Source([folder], 12, [])) as port,
        chromium(program, tmp_path / "profile") as page,
    ):
        page.open(f"http://localhost:{port}/")
        page.run("window.stays = true")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(3)) + "\n")
        page.run(
            "new Promise((done, fail) => { const look = () => document.querySelector('#overview')"
            ".innerText.includes('0.3333') ? done() : setTimeout(look, 50); look();"
            "setTimeout(() => fail('no news'), 60000); })"
        )
        assert page.run("window.stays")
        assert page.run("document.querySelector('.chart .last').innerText") == "0.3333"
        assert page.complaints == []
