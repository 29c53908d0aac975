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
    "label{margin-right:1.2em;white-space:nowrap}.bar{display:inline-block;width:8em;height:.8em;vertical-align:middle;"
    "background:linear-gradient(to right,#00007f,#007fff,#7fff7f,#ff7f00,#7f0000)}"
)

_WIDTH, _HEIGHT = 1200, 700  # pixels of the large view
_COLUMNS, _ROW = 5, 300  # small views in a row, and its height
_STEEPEST = 0.9  # first pitch: from above the head is still upright

Points = NDArray[np.floating[Any]]
Faces = NDArray[np.int64]


class Shown(NamedTuple):
    """A mesh of the page, in mm; `values` (V,) color it where they are given, from 0 to `most`."""

    title: str
    vertices: Points
    faces: Faces
    color: tuple[float, float, float, float]
    values: NDArray[np.float64] | None = None
    most: float = 12.0
    visible: bool = True
    own_view: bool = False  # also in a small view, with the first mesh


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
    own = [mesh for mesh in solid if mesh.own_view]
    columns = min(len(own), _COLUMNS)
    rows = -(-len(own) // _COLUMNS)
    data = {
        "reach": reach,
        "view": _first_view(solid, middle),
        "columns": columns,
        "row": _ROW,
        "strip": rows * _ROW,
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
        f'<canvas id="view" width="{_WIDTH}" height="{_HEIGHT + rows * _ROW}"></canvas>'
        f'<p id="note">{_side_by_side(own)}Drag to rotate, scroll to zoom.</p>',
        f'<p>{boxes}<label><input type="checkbox" id="mapped" checked> wall thickness, '
        f"{_scale(12)}</label></p>",
        *(_table(name, rows) for name, rows in tables.items()),
        f"<script>const CASE={json.dumps(data)};\n{script}</script>",
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(body)}</body></html>"
    )
    with new_file(path) as hidden:
        hidden.write_text(page, encoding="utf-8")


def _scale(most: float) -> str:
    return f'0 <span class="bar"></span> {most:g} mm'


def _side_by_side(own: Sequence[Shown]) -> str:
    """Return the caption of the small views."""
    if not own:
        return ""
    names = f"{html.escape(own[0].title)} to {html.escape(own[-1].title)}"
    return f"Small views: {names}, row by row; distance to the implant {_scale(own[0].most)}. "


def _first_view(meshes: Sequence[Shown], middle: Points) -> list[float]:
    """Return yaw and pitch of a view that faces the first mesh with values: the implant."""
    shown = [mesh.vertices for mesh in meshes if mesh.values is not None]
    if not shown:
        return [0.6, -0.2]  # the face, from its left and from above
    x, y, z = np.mean(shown[0], axis=0) - middle
    pitch = np.clip(np.arctan2(z, np.hypot(x, y)), -_STEEPEST, _STEEPEST)
    return [float(np.arctan2(-x, -y)), float(pitch)]


def _packed(mesh: Shown, index: int, middle: Points) -> dict[str, Any]:
    def text(values: NDArray[Any], kind: str) -> str:
        return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()

    values = np.zeros(len(mesh.vertices)) if mesh.values is None else mesh.values
    return {
        "id": f"mesh{index}",
        "positions": text(mesh.vertices - middle, "<f4"),
        "normals": text(vertex_normals(mesh.vertices, mesh.faces), "<f4"),
        "values": text(values / mesh.most, "<f4"),
        "faces": text(mesh.faces, "<u4"),
        "count": int(mesh.faces.size),
        "color": list(mesh.color),
        "mapped": mesh.values is not None,
        "own": mesh.own_view,
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
