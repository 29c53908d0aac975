"""overt/viz/case_page.py: one file that needs nothing else."""

import re
from pathlib import Path

import numpy as np
import pytest

from overt.geometry.isosurface import mask_surface
from overt.viz.case_page import Shown, write_case_page


def test_the_page_holds_everything_and_asks_nobody(tmp_path: Path) -> None:
    vertices, faces = mask_surface(np.ones((3, 3, 3), dtype=bool))
    meshes = [
        Shown("skull <b>", vertices, faces, (1, 1, 1, 1)),
        Shown("implant", vertices, faces, (1, 0, 0, 1), np.ones(len(vertices)), visible=False),
        Shown("nothing", vertices[:0], faces[:0], (1, 1, 1, 1)),
    ]
    rows = [{"measure": "volume", "value": 1.2345}, {"measure": "gap", "value": None}]
    write_case_page(tmp_path / "x.html", "a & b", meshes, {"Implant": rows, "None": []}, ["a note"])
    page = (tmp_path / "x.html").read_text()
    assert "a &amp; b" in page
    assert "skull &lt;b&gt;" in page
    assert page.count('type="checkbox"') == 3  # two meshes, and the thickness
    assert "<td>1.23</td>" in page
    assert not re.search(r"(src|href)=|https?://|import ", page)


def test_samples_are_shown_side_by_side(tmp_path: Path) -> None:
    vertices, faces = mask_surface(np.ones((3, 3, 3), dtype=bool))
    spread = np.linspace(0, 2, len(vertices))
    meshes = [Shown("skull", vertices, faces, (1, 1, 1, 1))] + [
        Shown(f"sample {index}", vertices, faces, (0, 0, 1, 1), spread, 4.0, False, own_view=True)
        for index in range(7)
    ]
    write_case_page(tmp_path / "x.html", "x", meshes, {}, [])
    page = (tmp_path / "x.html").read_text()
    assert page.count('"own": true') == 7
    assert 'width="1200" height="1300"' in page  # two rows below the large view
    assert "sample 0 to sample 6, row by row" in page
    write_case_page(tmp_path / "x.html", "x", meshes[:1], {}, [])
    page = (tmp_path / "x.html").read_text()
    assert 'width="1200" height="700"' in page
    assert "row by row" not in page


@pytest.mark.parametrize(
    ("place", "seen_from"),
    [((0, -80, 0), "front"), ((90, 0, 0), "left"), ((-90, 0, 0), "right"), ((0, 80, 10), "back")],
)
def test_the_first_view_faces_the_implant(
    place: tuple[int, int, int], seen_from: str, tmp_path: Path
) -> None:
    """Patient space: x left, y back, z up. The page turns by yaw, then by pitch."""
    vertices, faces = mask_surface(np.ones((3, 3, 3), dtype=bool))
    head = (vertices - vertices.mean(axis=0)) * 100
    implant = vertices - vertices.mean(axis=0) + place
    meshes = [
        Shown("skull", head, faces, (1, 1, 1, 1)),
        Shown("implant", implant, faces, (1, 0, 0, 1), np.ones(len(vertices))),
    ]
    write_case_page(tmp_path / "x.html", "x", meshes, {}, [])
    found = re.search(r'"view": \[([^,]+), ([^]]+)\]', (tmp_path / "x.html").read_text())
    assert found is not None
    yaw, pitch = float(found[1]), float(found[2])
    right, up, near = place[0], place[2], -place[1]  # of the screen, before turning
    right, near = (
        np.cos(yaw) * right + np.sin(yaw) * near,
        -np.sin(yaw) * right + np.cos(yaw) * near,
    )
    up, near = np.cos(pitch) * up - np.sin(pitch) * near, np.sin(pitch) * up + np.cos(pitch) * near
    np.testing.assert_allclose([right, up], 0, atol=1e-6)
    assert near > 0, seen_from
