"""Draws the curves of docs/ssl.md from the rows that benchmarks/cifar.py wrote.

    python benchmarks/cifar_curves.py docs/pictures/cifar_curves.svg

Left: k-NN over epochs, every seed a line through its evaluations. Right: k-NN over the held-out
loss, an arrow from each evaluation of a run to the next.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command import guarded

ROWS = Path(__file__).with_name("cifar_rows.jsonl")
NAMES = {
    "simclr": ("SimCLR", "#0072b2"),
    "supervised": ("all labels (supervised)", "#555555"),
    "ijepa": ("I-JEPA", "#d55e00"),
    "hjepa": ("H-JEPA, three levels", "#cc79a7"),
    "mae": ("MAE", "#009e73"),
    "ijepa, official masks": ("I-JEPA, official masks", "#e69f00"),
    "control": ("control: wrong image", "#56b4e9"),
}
BASELINES = {"pixels": "raw pixels", "random weights": "random weights"}
LOSSES = ("ijepa", "hjepa", "ijepa, official masks", "control")  # comparable: of one method
TOP, BOTTOM = 30, 290  # pixels
PERCENT = (30, 80)

Scale = Callable[[float], float]
Row = dict[str, Any]


def linear(domain: tuple[float, float], pixels: tuple[float, float]) -> Scale:
    """Return the map of values to pixels."""
    (low, high), (first, last) = domain, pixels
    return lambda value: first + (value - low) / (high - low) * (last - first)


HEIGHT = linear(PERCENT, (BOTTOM, TOP))


def text(x: float, y: float, words: str, anchor: str = "start", color: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def axes(across: Scale, ticks: list[float], title: str) -> list[str]:
    """Return grid lines and labels of a panel."""
    left, right = across(ticks[0]), across(ticks[-1])
    lines = [text(left, TOP - 14, "k-NN accuracy in percent")]
    for percent in range(PERCENT[0], PERCENT[1] + 1, 10):
        y = HEIGHT(percent)
        lines += [
            f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        ]
        lines += [text(left - 6, y + 4, str(percent), "end")]
    lines += [text(across(tick), BOTTOM + 18, f"{tick:g}", "middle") for tick in ticks]
    return [*lines, text((left + right) / 2, BOTTOM + 34, title, "middle")]


def draw_curve(points: list[tuple[float, float]], color: str, arrow: bool) -> list[str]:
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    end = ' marker-end="url(#tip)"' if arrow else ""
    line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"{end}/>'
    return [*dots, line] if len(points) > 1 else dots


def draw_epochs(rows: list[Row]) -> list[str]:
    """Return the left panel."""
    across = linear((0, 90), (40, 400))
    lines = axes(across, [0, 15, 30, 45, 60, 75, 90], "epochs")
    for method, name in BASELINES.items():
        scores = [100 * row["knn_top1"] for row in rows if row["method"] == method]
        y = HEIGHT(sum(scores) / len(scores))
        lines += [f'<line x1="40" x2="400" y1="{y:.1f}" y2="{y:.1f}" stroke="#888" '
                  'stroke-dasharray="5 4"/>', text(398, y - 4, name, "end")]  # fmt: skip
    for method, (_, color) in NAMES.items():
        for row in rows:
            is_length = method == "simclr" and row["method"].startswith("simclr, ")
            if row["method"] == method or is_length:
                per_epoch = row["curve"][-1]["step"] / row["epochs"]
                points = [
                    (across(point["step"] / per_epoch), HEIGHT(100 * point["knn_top1"]))
                    for point in row["curve"]
                ]
                lines += draw_curve(points, color, arrow=False)
    return lines


def draw_losses(rows: list[Row]) -> list[str]:
    """Return the right panel."""
    across = linear((0, 0.2), (460, 660))
    lines = axes(across, [0, 0.05, 0.1, 0.15, 0.2], "held-out loss: lower is not better")
    for method in LOSSES:
        for row in rows:
            if row["method"] == method:
                points = [
                    (across(point["val_loss"]), HEIGHT(100 * point["knn_top1"]))
                    for point in row["curve"]
                ]
                lines += draw_curve(points, NAMES[method][1], arrow=True)
    return lines


def draw(rows: list[Row]) -> str:
    """Return the picture as SVG."""
    legend = []
    for number, (name, color) in enumerate(NAMES.values()):
        y = TOP + 20 + 22 * number
        legend += [f'<rect x="684" y="{y - 9}" width="10" height="10" fill="{color}"/>']
        legend += [text(700, y, name)]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="5" '
        'markerHeight="5" orient="auto"><path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>'
    )
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 850 335" font-family="sans-serif" '
        'font-size="12">',
        tip,
        '<rect width="850" height="335" fill="white"/>',
        *draw_epochs(rows),
        *draw_losses(rows),
        *legend,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the SVG file to write")
    parser.add_argument("--rows", type=Path, default=ROWS, help="of benchmarks/cifar.py --rows")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    options.output.write_text(draw(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
