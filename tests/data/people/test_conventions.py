"""overt/data/people/conventions.py: every name at its published column, on a drawn skeleton."""

import numpy as np
import pytest

from overt.data.people.conventions import CONVENTIONS, LIMBS, limb_columns, names_of
from overt.errors import DataError

# Where joints lie when someone stands and looks at the camera: x to the viewer's right, y down. The
# left side of the person is then on the right.
HEIGHTS = {
    "shoulder": 0.2, "elbow": 0.4, "wrist": 0.6, "hip": 0.55, "knee": 0.75, "ankle": 0.95,
    "eye": 0.06, "ear": 0.07, "bigtoe": 1.0, "smalltoe": 1.0, "heel": 0.98,
}  # fmt: skip


def drawn(names: tuple[str, ...]) -> np.ndarray:
    """Points (J, 2) of a skeleton whose joints lie where their names say."""
    points = np.full((len(names), 2), 0.5)
    for column, name in enumerate(names):
        side = 0.2 if "left_" in name else -0.2 if "right_" in name else 0.0
        height = next((y for part, y in HEIGHTS.items() if f"_{part}" in name), 0.5)
        points[column] = (0.5 + side, height)
    return points


def test_the_190_names_are_at_their_published_columns() -> None:
    names = CONVENTIONS["human_data"]
    assert len(names) == len(set(names)) == 190
    expected = {
        0: "pelvis", 1: "left_hip", 5: "right_knee", 8: "right_ankle", 15: "head",
        16: "left_shoulder", 21: "right_wrist", 22: "jaw", 25: "left_index_1", 37: "left_thumb_1",
        40: "right_index_1", 55: "nose", 56: "right_eye", 57: "left_eye", 58: "right_ear",
        60: "left_bigtoe", 65: "right_heel", 66: "left_thumb", 75: "right_pinky",
        127: "right_contour_1", 135: "contour_middle", 143: "left_contour_1",
        144: "right_hip_extra", 145: "left_hip_extra", 147: "headtop", 152: "head_extra",
        153: "nose_openpose", 161: "pelvis_openpose", 177: "right_heel_openpose",
        178: "spine_4_3dhp", 185: "head_h36m", 189: "right_hand",
    }  # fmt: skip
    assert {column: names[column] for column in expected} == expected
    assert CONVENTIONS["smplx"] == names[:144]
    assert CONVENTIONS["agora"] == names[:127]


def test_coco_in_human_data() -> None:
    """The published table of COCO's 17, hips being the extra ones."""
    names = CONVENTIONS["human_data"]
    assert [names.index(name) for name in CONVENTIONS["coco"]] == [
        55, 57, 56, 59, 58, 16, 17, 18, 19, 20, 21, 145, 144, 4, 5, 7, 8
    ]  # fmt: skip


@pytest.mark.parametrize(
    "convention", ["human_data", "smplx", "smpl", "coco", "openpose_25", "h36m"]
)
def test_limbs_lie_where_their_names_say(convention: str) -> None:
    names = CONVENTIONS[convention]
    limbs = drawn(names)[limb_columns(names, "file")]
    expected = drawn(tuple(candidates[0] for candidates in LIMBS))
    np.testing.assert_array_equal(limbs, expected)
    # In COCO's columns of a file of 190, the left shoulder would be the right knee.
    if convention == "human_data":
        assert np.abs(drawn(names)[5:17] - expected).max() > 0.3


def test_joints_of_the_skeleton_come_before_others() -> None:
    names = CONVENTIONS["human_data"]
    assert limb_columns(names, "file") == [16, 17, 18, 19, 20, 21, 1, 2, 4, 5, 7, 8]
    without = [f"no_{name}" if name in ("left_hip", "left_knee") else name for name in names]
    columns = limb_columns(without, "file")
    assert [names[columns[number]] for number in (6, 8)] == ["left_hip_extra", "left_knee_openpose"]


def test_a_convention_is_recognized_or_asked_for() -> None:
    assert names_of(None, None, 190, "file")[5] == "right_knee"
    assert names_of(None, "coco", 17, "file")[5] == "left_shoulder"
    assert names_of("h36m", None, 17, "file")[0] == "pelvis_extra"
    with pytest.raises(DataError, match=r"17 points, which may be coco or h36m; set data\.k"):
        names_of(None, None, 17, "file")
    with pytest.raises(DataError, match="18 points, which fits none"):
        names_of(None, None, 18, "file")
    with pytest.raises(DataError, match=r"190 points, but data\.keypoint_convention=coco has 17"):
        names_of("coco", None, 190, "file")
    with pytest.raises(DataError, match="has no left_shoulder, right_shoulder"):
        limb_columns(["nose"], "file")
