"""The page on which points are clicked, by the requests that a browser makes."""

import http.client
import json
import threading

import numpy as np
import pytest

from overt.errors import DataError
from overt.viz.click_page import LARGEST_BODY, ClickServer, Shown, read_points

FRAMES = np.random.default_rng(0).integers(0, 255, (3, 3, 8, 12), dtype=np.uint8)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "tracks.csv"

    def follow(queries):
        if queries[0, 1] == 7:
            raise DataError("seven is refused")
        file.write_text("point\n")
        tracks = np.repeat(queries[None, :, 1:], len(FRAMES), 0)
        return Shown(tracks, np.ones(tracks.shape[:2], bool), {"tracks.csv": file})

    with ClickServer(FRAMES, 10.0, "film", follow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def post(server, points, **headers):
    body = json.dumps({"points": points})
    headers = {"Content-Type": "application/json"} | headers
    answer, content = ask(server, "POST", "/track", body, **headers)
    return answer.status, json.loads(content)


def test_the_video_and_its_frames(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url.startswith("http://127.0.0.1:")
    answer, page = ask(server, "GET", "/")
    assert answer.status == 200
    assert b"<canvas" in page
    described = json.loads(ask(server, "GET", "/video.json")[1])
    assert described == {"name": "film", "frames": 3, "width": 12, "height": 8, "fps": 10.0}
    answer, frame = ask(server, "GET", "/frame/2")
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert frame.startswith(b"\xff\xd8")


def test_clicked_points_are_followed_and_downloaded(server):
    status, content = post(server, [[0, 3.5, 2], [1, 4, 5]])
    assert status == 200
    assert np.shape(content["tracks"]) == (3, 2, 2)
    assert content["tracks"][2][0] == [3.5, 2.0]
    assert content["files"] == ["tracks.csv"]
    answer, file = ask(server, "GET", "/tracks.csv")
    assert file == b"point\n"
    assert "attachment" in answer.headers["Content-Disposition"]


def test_what_is_refused(server):
    assert post(server, [[0, 7, 2]]) == (400, {"error": "seven is refused"})
    assert post(server, [[9, 1, 1]])[0] == 400
    for path in ("/frame/3", "/nothing", "/../pyproject.toml", "/frame/x"):
        assert ask(server, "GET", path)[0].status == 404
    assert ask(server, "GET", "/", Host="evil.example:80")[0].status == 403
    # What a form of another site could send.
    assert ask(server, "POST", "/track", "{}", **{"Content-Type": "text/plain"})[0].status == 400
    headers = {"Content-Type": "application/json", "Content-Length": str(LARGEST_BODY + 1)}
    assert ask(server, "POST", "/track", None, **headers)[0].status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b'{"points": 3}', b'{"points": []}', b'{"points": [[0, 1]]}',
        b'{"points": [[0.5, 1, 1]]}', b'{"points": [[0, 12, 1]]}', b'{"points": [[0, NaN, 1]]}',
    ],
)  # fmt: skip
def test_points_that_are_none(body):
    with pytest.raises(DataError):
        read_points(body, FRAMES.shape)
