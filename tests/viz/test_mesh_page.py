"""overt/viz/mesh_page.py: one page with the whole mesh in it and nothing from elsewhere."""

import base64
import re

import numpy as np

from overt.viz.mesh_page import mesh_page


def test_the_page_holds_the_mesh() -> None:
    vertices = np.array([[0, 0, 2.0], [1, 0, 2], [0, 1, 2], [0, 0, 3]])
    faces = np.array([[0, 1, 2], [0, 2, 3]])
    page = mesh_page(vertices, faces, "a <person>")
    assert "a &lt;person&gt;" in page
    assert "http" not in page
    stored = re.findall(r'bytes\("([^"]+)"\)', page)
    points = np.frombuffer(base64.b64decode(stored[0]), "<f4").reshape(-1, 3)
    np.testing.assert_allclose(points[0], [-0.5, 0.5, 0.5])
    assert np.frombuffer(base64.b64decode(stored[1]), "<u4").tolist() == faces.ravel().tolist()


def test_words_of_the_page_may_be_in_title_and_mesh() -> None:
    """The letters FACES are three bytes and a bit of a mesh in base64."""
    word = np.frombuffer(base64.b64decode("AAAFACES"), np.uint8)  # six bytes
    vertices = np.zeros((4, 3), "<f4")
    vertices[1] = np.frombuffer(word.tobytes() + bytes(6), "<f4")
    vertices[2] = -vertices[1]  # so that the middle is 0
    vertices *= np.array([1, -1, -1], "<f4")
    page = mesh_page(vertices, np.array([[0, 1, 2]]), "POINTS of FACES")
    assert "<title>POINTS of FACES</title>" in page
    stored = re.findall(r'bytes\("([^"]+)"\)', page)
    assert "FACES" in stored[0]
    assert np.frombuffer(base64.b64decode(stored[1]), "<u4").tolist() == [0, 1, 2]
