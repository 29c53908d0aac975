"""Dynamic Replica, in small files of its layout."""

import gzip
import json

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.tracking.dynamic_replica import DynamicReplica
from overt.errors import DataError

FRAMES, POINTS, HEIGHT, WIDTH = 14, 5, 8, 10


def write_dynamic_replica(root, split="valid"):
    """Two cameras of one sequence; point 0 leaves, 1 is hidden at first, 2 for too long."""
    folder, entries = root / split, []
    (folder / "room").mkdir(parents=True)
    for camera in ("left", "right"):
        for number in reversed(range(FRAMES)):  # the order of the list is not that of time
            name = f"room/{camera}_{number}"
            pixels = np.full((HEIGHT, WIDTH, 3), number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.png")
            points = torch.full((POINTS, 3), 2.0)
            points[0, 0] = number
            visible = torch.ones(POINTS, dtype=torch.bool)
            visible[1] = number > 0
            visible[2] = number < 3
            content = {
                "img": torch.from_numpy(pixels),
                "traj_2d": points,
                "verts_inds_vis": visible,
            }
            torch.save(content, folder / f"{name}.pth")
            entries.append(
                {
                    "sequence_name": "room",
                    "frame_number": number,
                    "frame_timestamp": 0.1 * number,
                    "camera_name": camera,
                    "trajectories": {"path": f"{name}.pth"},
                    "image": {"path": f"{name}.png", "size": [HEIGHT, WIDTH]},
                }
            )
    file = folder / f"frame_annotations_{split}.jgz"
    file.write_bytes(gzip.compress(json.dumps(entries).encode()))
    return file


def test_a_clip_of_the_left_camera(tmp_path):
    write_dynamic_replica(tmp_path)
    clips = DynamicReplica(tmp_path)
    assert clips.names == ["room-0"]
    clip = clips.clip(0)
    assert clip.frames.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert clip.frames[:, 0, 0, 0].tolist() == list(range(FRAMES))
    assert len(clip.coords_xy) == 2  # 0 is outside too soon, 1 and 2 are seen too little
    assert clip.visible.all()
    assert len(DynamicReplica(tmp_path, points=1).clip(0).coords_xy) == 1
    short = DynamicReplica(tmp_path, frames=5)
    assert short.names == ["room-0", "room-5"]
    assert short.clip(0).visible[0, :5].all()


def test_what_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        DynamicReplica(tmp_path)
    file = write_dynamic_replica(tmp_path)
    (tmp_path / "valid" / "room" / "left_3.pth").write_bytes(b"")
    with pytest.raises(Exception, match="left_3"):
        DynamicReplica(tmp_path).clip(0)
    outside = [{"camera_name": "left", "frame_number": 0, "sequence_name": "a",
                "image": {"path": "../../x.png"}, "trajectories": {"path": "b"}}]  # fmt: skip
    for content, message in (
        (b"no gzip", "not a gzip"),
        (gzip.compress(b"{}"), "a list"),
        (gzip.compress(b'[{"camera_name": "left"}]'), "without the fields"),
        (gzip.compress(b'[{"camera_name": "right"}]'), "no frames"),
        (gzip.compress(json.dumps(outside).encode()), "outside of the folder"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            DynamicReplica(tmp_path)


@pytest.mark.parametrize(
    "points",
    [torch.zeros(POINTS, 3).to_sparse(), torch.zeros(POINTS, 3, dtype=torch.complex64)],
    ids=["sparse", "complex"],
)
def test_tensors_that_are_no_positions_are_refused(tmp_path, points):
    write_dynamic_replica(tmp_path)
    content = {"traj_2d": points, "verts_inds_vis": torch.ones(POINTS)}
    torch.save(content, tmp_path / "valid" / "room" / "left_3.pth")
    with pytest.raises(DataError, match=r"left_3\.pth: expected traj_2d \(N, 3\)"):
        DynamicReplica(tmp_path).clip(0)


def test_positions_that_require_a_gradient_are_read(tmp_path):
    write_dynamic_replica(tmp_path)
    points = torch.full((POINTS, 3), 2.0, requires_grad=True)
    content = {"traj_2d": points, "verts_inds_vis": torch.ones(POINTS)}
    torch.save(content, tmp_path / "valid" / "room" / "left_3.pth")
    assert DynamicReplica(tmp_path).clip(0).coords_xy.shape == (2, FRAMES, 2)


def test_a_frame_that_is_listed_twice_is_refused(tmp_path):
    file = write_dynamic_replica(tmp_path)
    entries = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps([*entries, entries[-1], entries[3]]).encode()))
    with pytest.raises(DataError, match="frame 10 of sequence room is listed twice"):
        DynamicReplica(tmp_path)
