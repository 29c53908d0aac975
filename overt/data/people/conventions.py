"""Names of keypoints: which column of a file is which joint, by convention.

A convention is an ordered list of names; two are matched by equal names. `human_data` is
MMHuman3D's list of 190, whose first 144 are those of SMPL-X.
"""

from __future__ import annotations

from collections.abc import Sequence

from overt.errors import DataError

_LIMBS = ("shoulder", "elbow", "wrist")


def _fingers(side: str) -> list[str]:
    order = ("index", "middle", "pinky", "ring", "thumb")
    return [f"{side}_{finger}_{number}" for finger in order for number in (1, 2, 3)]


def _tips(side: str) -> list[str]:
    return [f"{side}_{finger}" for finger in ("thumb", "index", "middle", "ring", "pinky")]


_BODY = [
    "pelvis", "left_hip", "right_hip", "spine_1", "left_knee", "right_knee",
    "spine_2", "left_ankle", "right_ankle", "spine_3", "left_foot", "right_foot",
    "neck", "left_collar", "right_collar", "head", "left_shoulder", "right_shoulder",
    "left_elbow", "right_elbow", "left_wrist", "right_wrist",
]  # fmt: skip
_FACE_POINTS = ["nose", "right_eye", "left_eye", "right_ear", "left_ear"]
_FEET = [
    "left_bigtoe", "left_smalltoe", "left_heel", "right_bigtoe", "right_smalltoe", "right_heel",
]  # fmt: skip
_LANDMARKS = [f"face_{number}" for number in range(1, 52)]
_CONTOUR = [
    *(f"right_contour_{number}" for number in range(1, 9)),
    "contour_middle",
    *(f"left_contour_{number}" for number in range(8, 0, -1)),
]
_EXTRA = [
    "right_hip_extra", "left_hip_extra", "neck_extra", "headtop", "pelvis_extra", "thorax_extra",
    "spine_extra", "jaw_extra", "head_extra",
]  # fmt: skip
_OPENPOSE = [
    f"{name}_openpose"
    for name in (
        "nose", "neck", "right_shoulder", "right_elbow", "right_wrist", "left_shoulder",
        "left_elbow", "left_wrist", "pelvis", "right_hip", "right_knee", "right_ankle", "left_hip",
        "left_knee", "left_ankle", "right_eye", "left_eye", "right_ear", "left_ear", "left_bigtoe",
        "left_smalltoe", "left_heel", "right_bigtoe", "right_smalltoe", "right_heel",
    )
]  # fmt: skip
_3DHP = [
    f"{name}_3dhp"
    for name in (
        "spine_4", "left_clavicle", "right_clavicle", "left_hand", "right_hand", "left_toe",
        "right_toe",
    )
]  # fmt: skip
_LAST = ["head_h36m", "headtop_h36m", "head_bottom_pt", "left_hand", "right_hand"]
_SMPLX = [
    *_BODY, "jaw", "left_eyeball", "right_eyeball", *_fingers("left"), *_fingers("right"),
    *_FACE_POINTS, *_FEET, *_tips("left"), *_tips("right"), *_LANDMARKS, *_CONTOUR,
]  # fmt: skip
_HUMAN_DATA = [*_SMPLX, *_EXTRA, *_OPENPOSE, *_3DHP, *_LAST]
_SMPL = [*_BODY, "left_hand", "right_hand"]
# COCO's hips are the extra ones, which are farther apart than the joints of the skeleton.
_COCO = [
    "nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder",
    "left_elbow", "right_elbow", "left_wrist", "right_wrist", "left_hip_extra", "right_hip_extra",
    "left_knee", "right_knee", "left_ankle", "right_ankle",
]  # fmt: skip


def _of_human_data(indices: Sequence[int]) -> list[str]:
    return [_HUMAN_DATA[index] for index in indices]


CONVENTIONS: dict[str, tuple[str, ...]] = {
    "human_data": tuple(_HUMAN_DATA),
    "smplx": tuple(_SMPLX),
    "agora": tuple(_SMPLX[:127]),
    "smpl": tuple(_SMPL),
    "smpl_45": (*_SMPL, *_of_human_data(range(55, 76))),
    "smpl_54": (*_SMPL, *_of_human_data(range(55, 76)), *_EXTRA),
    "coco": tuple(_COCO),
    "openpose_25": tuple(_OPENPOSE),
    "h36m": tuple(
        _of_human_data(
            (148, 145, 4, 7, 144, 5, 8, 150, 146, 152, 147, 16, 18, 20, 17, 19, 21)
        )
    ),
    # Those rendered by overt: COCO's, then the joints of the body.
    "people": (*(f"coco_{name}" for name in _COCO), *_BODY),
}  # fmt: skip
# Only one convention has this many points; 17 may be COCO's or those of Human3.6M.
_BY_WIDTH = {
    width: [name for name, names in CONVENTIONS.items() if len(names) == width]
    for width in {len(names) for names in CONVENTIONS.values()}
}

# The twelve limb joints, left first, each with its possible names; the first one in a file is used.
LIMBS = tuple(
    (f"{side}_{joint}", f"{side}_{joint}_extra", f"{side}_{joint}_openpose")
    for joint in (*_LIMBS, "hip", "knee", "ankle")
    for side in ("left", "right")
)


def names_of(convention: str | None, stored: str | None, width: int, title: str) -> tuple[str, ...]:
    """Return the names of a file's `width` columns.

    `convention` is the setting; if it is None, the file states it (`stored`) or its width implies
    it.
    """
    chosen = convention
    if chosen is None:
        candidates = [stored] if stored in CONVENTIONS else _BY_WIDTH.get(width, [])
        if len(candidates) != 1:
            allowed = ", ".join(f"{name} ({len(names)})" for name, names in CONVENTIONS.items())
            guess = f"may be {' or '.join(map(str, candidates))}" if candidates else "fits none"
            raise DataError(
                f"{title}: keypoints2d has {width} points, which {guess}; set "
                f"data.keypoint_convention to one of {allowed}"
            )
        chosen = str(candidates[0])
    names = CONVENTIONS[chosen]
    if len(names) != width:
        raise DataError(
            f"{title}: keypoints2d has {width} points, but data.keypoint_convention={chosen} has "
            f"{len(names)}; set it to the file's own, or to null"
        )
    return names


def limb_columns(names: Sequence[str], title: str) -> list[int]:
    """Return the columns of the twelve limb joints among those that a file has."""
    column_of = {name: column for column, name in reversed(list(enumerate(names)))}
    columns, missing = [], []
    for candidates in LIMBS:
        present = [column_of[name] for name in candidates if name in column_of]
        columns.append(present[0] if present else -1)
        if not present:
            missing.append(candidates[0])
    if missing:
        raise DataError(f"{title}: keypoints2d has no {', '.join(missing)}")
    return columns
