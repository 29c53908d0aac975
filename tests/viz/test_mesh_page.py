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
