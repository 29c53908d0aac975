"""A page about one completed skull: meshes to turn in the browser, tables, no network.

Meshes are in LPS and mm; they are written into the page itself. Never imports torch.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.files.atomic import new_file
from overt.geometry.solid import vertex_normals

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:62em;color:#222}"
    "canvas{width:100%;border:1px solid #ccc;touch-action:none;cursor:grab}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .9em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "label{margin-right:1.2em}.bar{display:inline-block;width:12em;height:.8em;vertical-align:middle;"
    "background:linear-gradient(to right,#00007f,#007fff,#7fff7f,#ff7f00,#7f0000)}"
)

_STEEPEST = 0.9  # first pitch: from above the head is still upright

Points = NDArray[np.floating[Any]]
Faces = NDArray[np.int64]


class Shown(NamedTuple):
    """A mesh of the page, in mm; `thickness` (V,) colors it where it is given."""

    title: str
    vertices: Points
    faces: Faces
    color: tuple[float, float, float, float]
    thickness: NDArray[np.float64] | None = None
    visible: bool = True


def write_case_page(
    path: Path,
    title: str,
    meshes: Sequence[Shown],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    notes: Sequence[str],
) -> None:
    """Write the page; a table is a list of rows with the same keys."""
    solid = [mesh for mesh in meshes if len(mesh.faces)]
    points = np.concatenate([mesh.vertices for mesh in solid]) if solid else np.zeros((1, 3))
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    reach = float(np.linalg.norm(points - middle, axis=1).max()) or 1.0
    data = {
        "reach": reach,
        "view": _first_view(solid, middle),
        "meshes": [_packed(mesh, index, middle) for index, mesh in enumerate(solid)],
    }
    boxes = "".join(
        f'<label><input type="checkbox" id="mesh{index}"{" checked" if mesh.visible else ""}> '
        f"{html.escape(mesh.title)}</label>"
        for index, mesh in enumerate(solid)
    )
    script = files("overt.viz").joinpath("assets", "case.js").read_text()
    body = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        '<canvas id="view" width="1200" height="700"></canvas><p id="note">Drag to rotate, scroll '
        "to zoom.</p>",
        f'<p>{boxes}<label><input type="checkbox" id="thickness" checked> wall thickness</label>'
        ' 0 <span class="bar"></span> 12 mm</p>',
        *(_table(name, rows) for name, rows in tables.items()),
        f"<script>const CASE={json.dumps(data)};\n{script}</script>",
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(body)}</body></html>"
    )
    with new_file(path) as hidden:
        hidden.write_text(page, encoding="utf-8")


def _first_view(meshes: Sequence[Shown], middle: Points) -> list[float]:
    """Return yaw and pitch of a view that faces the mesh whose thickness is shown."""
    shown = [mesh.vertices for mesh in meshes if mesh.thickness is not None]
    if not shown:
        return [0.6, -0.2]  # the face, from its left and from above
    x, y, z = np.mean(shown[0], axis=0) - middle
    pitch = np.clip(np.arctan2(z, np.hypot(x, y)), -_STEEPEST, _STEEPEST)
    return [float(np.arctan2(-x, -y)), float(pitch)]


def _packed(mesh: Shown, index: int, middle: Points) -> dict[str, Any]:
    def text(values: NDArray[Any], kind: str) -> str:
        return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()

    thickness = np.zeros(len(mesh.vertices)) if mesh.thickness is None else mesh.thickness
    return {
        "id": f"mesh{index}",
        "positions": text(mesh.vertices - middle, "<f4"),
        "normals": text(vertex_normals(mesh.vertices, mesh.faces), "<f4"),
        "values": text(thickness, "<f4"),
        "faces": text(mesh.faces, "<u4"),
        "count": int(mesh.faces.size),
        "color": list(mesh.color),
        "mapped": mesh.thickness is not None,
    }


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    keys = list(rows[0])
    head = "".join(f"<th>{html.escape(key)}</th>" for key in keys)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shown(row.get(key)))}</td>" for key in keys) + "</tr>"
        for row in rows
    )
    return f"<h2>{html.escape(name)}</h2><table><tr>{head}</tr>{lines}</table>"


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)
