"""Scores of people by the protocols: errors of a depth, and the table of all scores."""

from __future__ import annotations

import math
from typing import Any

from overt.evaluation import Row

# Name in the scores, heading of the table, digits.
COLUMNS = (
    ("Tz_m", "Tz m", 3),
    ("inverse_Tz", "1/Tz", 3),
    ("relative_Tz", "Tz rel", 3),
    ("Txy_m", "Txy m", 3),
    ("focal_percent", "f %", 1),
    ("pa_mpjpe_mm", "PA-MPJPE", 1),
    ("mpjpe_mm", "MPJPE", 1),
    ("pve_mm", "PVE", 1),
    ("pa_pve_mm", "PA-PVE", 1),
    ("miou_percent", "mIoU", 1),
    ("pmiou_percent", "P-mIoU", 1),
    ("miou_raw_percent", "mIoU raw", 1),
    ("pmiou_raw_percent", "P-mIoU raw", 1),
    ("silhouette_iou_percent", "silhouette IoU", 1),
)


# The scores of the camera again, where they do not compare with published numbers: no mask of the
# person was given, so the camera was solved with that of the true mesh; or nothing was given, and
# it was solved with the model's own keypoints and silhouette.
OTHERS = tuple(
    (f"{name}_{kind}", f"{title} ({words})", digits)
    for kind, words in (("true_mask", "true mask"), ("own", "own"))
    for name, title, digits in COLUMNS
    if name in ("Txy_m", "focal_percent") or "miou" in name
)


def depth_row(predicted: float, true: float) -> Row:
    """Errors of one depth: meters, inverse meters, relative."""
    # A network that has diverged may predict 0: infinitely near, not an error of Python.
    inverse = 1 / predicted if predicted else math.inf
    return {
        "Tz_m": abs(predicted - true),
        "inverse_Tz": abs(inverse - 1 / true),
        "relative_Tz": abs(predicted - true) / true,
    }


def table(dataset: str, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
    """One line of the scores that there are, with their headings."""
    shown = [
        (title, f"{scores[name]:.{digits}f}")
        for name, title, digits in (*COLUMNS, *OTHERS)
        if not math.isnan(scores.get(name, math.nan))
    ]
    widths = [max(len(title), len(text)) for title, text in shown]
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for cells in zip(*shown, strict=True)
    ]
    return "\n".join([f"{dataset}: {len(rows)} people", *lines])
