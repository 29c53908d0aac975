"""Pictures and videos of runs as part of the page, with stills for who wants no motion."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from overt.tools.report.markup import Html, element, join
from overt.tools.report.run import Picture, Run
from overt.tools.report.sections import COLORS, label

TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp",
    ".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm",
}  # fmt: skip


def galleries(runs: Sequence[Run], most: int) -> tuple[Html | None, dict[str, Any]]:
    """A gallery for each name of a picture, runs side by side, and the data its slider needs.

    Of each run and name up to `most` are shown: the first, the last, and some between.
    """
    names = list(dict.fromkeys(picture.name for run in runs for picture in run.pictures))
    blocks, data = [], {}
    for number, name in enumerate(names):
        identity = f"gallery{number}"
        shown = [
            (
                index,
                evenly_spaced(
                    [
                        shown_picture
                        for shown_picture in run.pictures
                        if shown_picture.name == name and opens(shown_picture)
                    ],
                    most,
                ),
            )
            for index, run in enumerate(runs)
        ]
        shown = [(index, pictures) for index, pictures in shown if pictures]
        if not shown:
            continue
        steps = sorted(
            {
                shown_picture.step
                for _, pictures in shown
                for shown_picture in pictures
                if shown_picture.step is not None
            }
        )
        figures = [
            element(
                "figure",
                _view(name, run=runs[index], picture=pictures[-1]),
                element("figcaption", label(index, runs[index]), _caption(pictures[-1])),
                class_=f"picture run{index % COLORS}",
                data_run=index,
            )
            for index, pictures in shown
        ]
        slider = Html("")
        if len(steps) > 1:
            slider = element(
                "label",
                element("span", f"step {steps[-1]:,}", class_="at"),
                element(
                    "input", type="range", min=0, max=len(steps) - 1, value=len(steps) - 1,
                    aria_label=f"step of {name}",
                ),
                class_="tools slider",
            )  # fmt: skip
        moving = any(is_moving(picture.path) for _, pictures in shown for picture in pictures)
        button = element("button", "stop", type="button", class_="motion") if moving else Html("")
        head = element("div", element("h3", name), slider, button, class_="gallery-head")
        several = " several" if len(figures) > 3 else ""
        pictures_row = element("div", *figures, class_=f"pictures{several}")
        blocks.append(element("section", head, pictures_row, class_="gallery", id=identity))
        data[identity] = {
            "steps": steps,
            "runs": {
                str(index): [
                    # The last one is what the page shows at first: it is not put in twice.
                    {
                        "step": picture.step,
                        "uri": None if picture is pictures[-1] else as_uri(picture.path),
                        "still": still(picture.path),
                    }
                    for picture in pictures
                    if not picture.is_film
                ]
                for index, pictures in shown
            },
        }
    return (join(*blocks) if blocks else None), data


def _view(name: str, run: Run, picture: Picture) -> Html:
    at = "" if picture.step is None else f" at step {picture.step}"
    words = f"{name} of {run.name}{at}" + (f": {picture.caption}" if picture.caption else "")
    if picture.is_film:
        return element("video", src=as_uri(picture.path), controls=True, loop=True, muted=True,
                       aria_label=words)  # fmt: skip
    with Image.open(picture.path) as image:
        width, height = image.size
    return element(
        "img", src=as_uri(picture.path), alt=words, width=width, height=height, decoding="async"
    )


def _caption(picture: Picture) -> Html:
    at = "after training" if picture.step is None else f"step {picture.step:,}"
    words = f"{at}, {picture.caption}" if picture.caption else at
    return element("span", words, class_="quiet step")


def opens(picture: Picture) -> bool:
    """Whether a picture can be shown: a crash may have left half of one, or a file be forged."""
    if picture.is_film:
        return True
    try:
        with Image.open(picture.path):
            pass
        still(picture.path)
    # Pillow stops at a damaged file with many kinds, and at a huge one with its own.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return False
    return True


def evenly_spaced(pictures: list[Picture], most: int) -> list[Picture]:
    """Return up to `most` of them at equal distances, the last always among them."""
    if len(pictures) <= most:
        return pictures
    if most == 1:
        return pictures[-1:]
    last = len(pictures) - 1
    return [pictures[round(position * last / (most - 1))] for position in range(most)]


def as_uri(path: Path) -> str:
    """Return a file as a data URI."""
    text = base64.b64encode(path.read_bytes()).decode()
    return f"data:{TYPES[path.suffix.lower()]};base64,{text}"


def is_moving(path: Path) -> bool:
    if path.suffix.lower() not in (".gif", ".webp"):
        return False
    with Image.open(path) as image:
        return getattr(image, "n_frames", 1) > 1


def still(path: Path) -> str | None:
    """Return the first frame of an animation, as a data URI; None where nothing moves."""
    if not is_moving(path):
        return None
    with Image.open(path) as image:
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
