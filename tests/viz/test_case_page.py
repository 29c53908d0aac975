"""overt/viz/case_page.py: one file that needs nothing else."""

import re
from pathlib import Path

import numpy as np

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
