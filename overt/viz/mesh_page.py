"""A mesh as one page for the browser, to be turned with the mouse; nothing is loaded from afar."""

from __future__ import annotations

import base64
import html
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>TITLE</title>
<style>body{margin:0;background:#f4f4f2;font:14px sans-serif}canvas{display:block;width:100vw;
height:100vh;cursor:grab}p{position:fixed;left:1em;top:0;color:#555}</style></head>
<body><p>TITLE: drag to rotate, scroll to zoom</p><canvas id="view"></canvas><script>
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer;
const points = new Float32Array(bytes("POINTS")), faces = new Uint32Array(bytes("FACES"));
const view = document.getElementById("view"), pen = view.getContext("2d");
let yaw = 0.4, pitch = 0.1, zoom = 1, held = null;
const count = faces.length / 3, turned = new Float32Array(points.length);
function draw() {
  const width = view.width = innerWidth, height = view.height = innerHeight;
  const scale = SCALE * Math.min(width, height) * zoom;
  const a = Math.cos(yaw), b = Math.sin(yaw), c = Math.cos(pitch), d = Math.sin(pitch);
  for (let i = 0; i < points.length; i += 3) {
    const x = a * points[i] + b * points[i + 2], z = a * points[i + 2] - b * points[i];
    turned[i] = x; turned[i + 1] = c * points[i + 1] - d * z;
    turned[i + 2] = d * points[i + 1] + c * z;
  }
  const order = [];
  for (let f = 0; f < count; f++) {
    const i = 3 * faces[3 * f], j = 3 * faces[3 * f + 1], k = 3 * faces[3 * f + 2];
    const ux = turned[j] - turned[i], uy = turned[j + 1] - turned[i + 1];
    const vx = turned[k] - turned[i], vy = turned[k + 1] - turned[i + 1];
    const area = ux * vy - uy * vx;
    if (area <= 0) continue;
    const uz = turned[j + 2] - turned[i + 2], vz = turned[k + 2] - turned[i + 2];
    const nx = uy * vz - uz * vy, ny = uz * vx - ux * vz;
    const light = 0.35 + 0.65 * Math.max(0, (0.3 * nx + 0.5 * ny + 0.8 * area)
      / Math.hypot(nx, ny, area));
    order.push([turned[i + 2] + turned[j + 2] + turned[k + 2], i, j, k, light]);
  }
  order.sort((one, other) => one[0] - other[0]);
  for (const [, i, j, k, light] of order) {
    pen.fillStyle = pen.strokeStyle = `rgb(${150 * light},${180 * light},${230 * light})`;
    pen.beginPath();
    for (const n of [i, j, k])
      pen.lineTo(width / 2 + scale * turned[n], height / 2 - scale * turned[n + 1]);
    pen.closePath(); pen.fill(); pen.stroke();
  }
}
view.onpointerdown = e => { held = [e.x, e.y]; view.setPointerCapture(e.pointerId); };
view.onpointerup = () => held = null;
view.onpointermove = e => {
  if (!held) return;
  yaw += (e.x - held[0]) / 150; pitch += (e.y - held[1]) / 150; held = [e.x, e.y]; draw();
};
view.onwheel = e => { zoom *= Math.exp(-e.deltaY / 500); draw(); };
onresize = draw; draw();
</script></body></html>
"""


def mesh_page(vertices: NDArray[Any], faces: NDArray[Any], title: str) -> str:
    """Return a page that shows vertices (V, 3) of the camera frame and faces (F, 3)."""
    middle = (vertices.min(0) + vertices.max(0)) / 2
    # From y down and z away from the viewer to y up and z toward.
    points = ((vertices - middle) * np.array([1.0, -1.0, -1.0])).astype("<f4")
    longest = max(float(np.ptp(points, axis=0).max()), 1e-6)
    content = {
        "SCALE": f"{0.85 / longest:.5f}",
        "TITLE": html.escape(title),
        "POINTS": base64.b64encode(points.tobytes()).decode(),
        "FACES": base64.b64encode(faces.astype("<u4").tobytes()).decode(),
    }
    # In one pass: a title, and one of some thousand meshes in base64, contains such a word itself.
    return re.sub("|".join(content), lambda word: content[word[0]], _PAGE)
