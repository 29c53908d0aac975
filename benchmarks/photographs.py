"""Score meshes over photographs whose joints were marked by hand.

    python benchmarks/photographs.py PEOPLE.json --checkpoint FILE --output FOLDER

PEOPLE.json is a list of people: `image` (next to the file), `box` [x, y, width, height], `torso`
(pixels from shoulders to hips), `joints` {name: [x, y]} with names of the body's joints, and
optionally `name`, and `either_leg` where nobody can tell left from right. The score is PCK: the
fraction of marked joints within 0.2 torsos of those of the mesh. Beside it: the same for the body
at rest that fills the box, which has seen no photograph, and for the model without the box. Without
a box there is one estimate of a picture: it is compared with the nearest of its marked people
(mean distance of joints, in their torsos), and the others have no such score. The overlays are
written with the marks, by the given box and by the model's own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from command import guarded
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from overt.commands.estimate import Estimator, read_picture
from overt.data.people.conventions import CONVENTIONS
from overt.errors import DataError
from overt.tasks import PersonEstimate

NEAR = 0.2  # torsos
NAMES = CONVENTIONS["smplx"][:22]
LEGS = ("hip", "knee", "ankle", "foot")

Array = NDArray[np.floating[Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("people", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("photographs"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    people = read_people(options.people)
    options.output.mkdir(parents=True, exist_ok=True)
    estimator = Estimator(options.checkpoint, overrides=options.overrides)
    rows, alone = [], alone_estimates(estimator, people, options.people.parent)
    for number, person in enumerate(people):
        name = person.get("name", Path(person["image"]).stem)
        picture = read_picture(options.people.parent / person["image"])
        boxed = estimator.person(picture, box=np.array(person["box"], np.float32))
        found = alone.get(number)
        rest = rest_pixels(estimator, np.array(person["box"]))
        row = {
            "name": name,
            "joints": len(person["joints"]),
            "box": score(joint_pixels(boxed), person),
            "no box": None if found is None else score(joint_pixels(found), person),
            "at rest": score(rest, person),
        }
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        for kind, estimate in (("box", boxed), ("alone", found)):
            if estimate is not None:
                marked(estimate, person).save(options.output / f"{name}_{kind}.png")
    keys = ("box", "no box", "at rest")
    means = {"all": mean_scores(rows, keys)}
    # The same people for all three: a picture without a box has one estimate.
    means["nearest"] = mean_scores([row for row in rows if row["no box"] is not None], keys)
    for kind, scores in means.items():
        print(f"{kind}: " + ", ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    (options.output / "scores.json").write_text(json.dumps({"people": rows, **means}, indent=1))
    return 0


def read_people(file: Path) -> list[dict[str, Any]]:
    """Return the marked people; refuse a file that is not such a list."""
    try:
        people = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file}: no list of people ({error}); the head of this script has its format"
        ) from None
    needed = {"image", "box", "torso", "joints"}
    for number, person in enumerate(people if isinstance(people, list) else [None]):
        missing = needed - set(person) if isinstance(person, dict) else needed
        unknown = set() if missing else set(person["joints"]) - set(NAMES)
        if missing or unknown:
            found = f"lacks {sorted(missing)}" if missing else f"has the joints {sorted(unknown)}"
            raise DataError(f"{file}: person {number} {found}; joints are {', '.join(NAMES)}")
    return list(people)


def alone_estimates(
    estimator: Estimator, people: list[dict[str, Any]], folder: Path
) -> dict[int, PersonEstimate]:
    """Return the estimate of each picture without a box, by the number of the nearest person."""
    nearest = {}
    for image in dict.fromkeys(person["image"] for person in people):
        found = estimator.person(read_picture(folder / image))
        shown = [index for index, person in enumerate(people) if person["image"] == image]
        pixels = joint_pixels(found)
        nearest[min(shown, key=lambda index: mean_distance(pixels, people[index]))] = found
    return nearest


def mean_distance(pixels: Array, person: dict[str, Any]) -> float:
    """Return how far marked joints are from those of a mesh (22, 2), in torsos."""
    joints = person["joints"].items()
    distances = [np.linalg.norm(pixels[NAMES.index(name)] - xy) for name, xy in joints]
    return float(np.mean(distances)) / float(person["torso"])


def mean_scores(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, float]:
    """Return mean scores over the joints of all people who have one."""
    means = {}
    for key in keys:
        scored = [row for row in rows if row[key] is not None]
        weights = [row["joints"] for row in scored]
        means[key] = float(np.average([row[key] for row in scored], weights=weights))
    return means


def joint_pixels(person: PersonEstimate) -> Array:  # (22, 2)
    """Return the body's joints in the picture."""
    joints = person.joints[: len(NAMES)]
    return np.asarray(person.focal * joints[:, :2] / joints[:, 2:] + np.array(person.centre))


def rest_pixels(estimator: Estimator, box: Array) -> Array:  # (22, 2)
    """Return the joints of the body at rest, upright, as large as the box and in its middle."""
    recipe: Any = estimator.recipe
    body = recipe.body(next(estimator.model.parameters()).device)
    flipped = np.array([1.0, -1.0])  # pixels count downward
    vertices = body.template.cpu().numpy()[:, :2] * flipped
    joints = body.rest_places.cpu().numpy()[: len(NAMES), :2] * flipped
    low, high = vertices.min(0), vertices.max(0)
    scale = box[3] / (high - low)[1]
    return np.asarray(box[:2] + box[2:] / 2 + scale * (joints - (low + high) / 2))


def score(pixels: Array, person: dict[str, Any]) -> float:
    """Return the fraction of marked joints that are near those of the mesh (22, 2)."""
    best = near_count(pixels, person["joints"], person["torso"])
    if person.get("either_leg"):
        swapped = {other_leg(name): xy for name, xy in person["joints"].items()}
        best = max(best, near_count(pixels, swapped, person["torso"]))
    return round(best / len(person["joints"]), 3)


def near_count(pixels: Array, joints: dict[str, list[float]], torso: float) -> int:
    distances = [np.linalg.norm(pixels[NAMES.index(name)] - xy) for name, xy in joints.items()]
    return int(np.sum(np.array(distances) < NEAR * torso))


def other_leg(name: str) -> str:
    """Return the same joint of the other leg; other joints stay."""
    side, _, joint = name.partition("_")
    if joint not in LEGS:
        return name
    return f"{'right' if side == 'left' else 'left'}_{joint}"


def marked(person: PersonEstimate, marks: dict[str, Any]) -> Image.Image:
    """Return the overlay with marked joints (green) and lines to those of the mesh (red)."""
    overlay = Image.fromarray(person.overlay)
    canvas, pixels = ImageDraw.Draw(overlay), joint_pixels(person)
    for name, (x, y) in marks["joints"].items():
        end = pixels[NAMES.index(name)]
        canvas.line([x, y, float(end[0]), float(end[1])], fill=(255, 60, 60), width=2)
        canvas.ellipse([x - 3, y - 3, x + 3, y + 3], fill=(60, 255, 60))
    return overlay


if __name__ == "__main__":
    raise SystemExit(guarded(main))
