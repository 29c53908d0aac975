"""overt/data/tracking/clips.py: what all trackers do to a clip, whichever way they count."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overt.data.tracking.clips import (
    OWN_TRIES,
    TRIES,
    Clip,
    Positions,
    centre_crop,
    inside,
    name_of,
    read_clip,
    refuse_shorter,
    sequences_to_try,
    stack_samples,
    to_sample,
)
from overt.data.tracking.kubric import read_tracks
from overt.data.tracking.packed import pack_sequences
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.errors import DataError


def noise_clip(tracks: int, frames: int, height: int, width: int, seed: int = 0) -> Clip:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (frames, 3, height, width), dtype=np.uint8)
    coords = rng.uniform(0, [width, height], (tracks, frames, 2)).astype(np.float32)
    return Clip(pixels, coords, rng.random((tracks, frames)) < 0.7)


@pytest.mark.parametrize(
    ("positions", "last"), [(Positions.SHARES, (32, 24)), (Positions.CENTRES, (31, 23))]
)
def test_the_last_position_is_inside_and_nothing_beyond_it(
    positions: Positions, last: tuple[int, int]
) -> None:
    x, y = last
    points = np.array(
        [[x, 5], [x + 0.01, 5], [0, y], [3, y + 0.01], [0, 0], [-0.01, 3], [3, -0.01]], np.float32
    )
    found = inside(points, [24, 32], positions)
    assert found.tolist() == [True, False, True, False, True, False, False]


@given(
    height=st.integers(1, 12), width=st.integers(1, 12), rows=st.integers(0, 5), columns=st.data()
)
def test_the_centre_keeps_points_on_their_pixels(
    height: int, width: int, rows: int, columns: st.DataObject
) -> None:
    spare = columns.draw(st.integers(0, 5))
    clip = noise_clip(9, 3, height + rows, width + spare)
    cut = centre_crop(clip, [height, width], Positions.CENTRES, Path("x"))
    assert cut.frames.shape == (3, 3, height, width)
    top, left = rows // 2, spare // 2
    np.testing.assert_array_equal(cut.frames[..., 0, 0], clip.frames[..., top, left])
    np.testing.assert_allclose(cut.coords_xy + np.array([left, top]), clip.coords_xy, atol=1e-5)
    assert not (cut.visible & ~clip.visible).any()
    assert not (cut.visible & ~inside(cut.coords_xy, [height, width], Positions.CENTRES)).any()


def test_the_sequence_asked_for_is_tried_first_then_others_by_lot() -> None:
    sequences = [Path(str(number)) for number in range(50)]
    tried = list(sequences_to_try(sequences, 7, np.random.default_rng(0)))
    assert len(tried) == TRIES
    assert tried[:OWN_TRIES] == [sequences[7]] * OWN_TRIES
    assert len(set(tried[OWN_TRIES:])) > 1
    assert tried == list(sequences_to_try(sequences, 7, np.random.default_rng(0)))
    # Nothing is drawn for a sequence that is not tried: the clip's own draws come first.
    rng = np.random.default_rng(0)
    next(sequences_to_try(sequences, 7, rng))
    assert rng.random() == np.random.default_rng(0).random()


def test_a_sample_holds_the_chosen_tracks_and_filling_that_counts_for_nothing() -> None:
    clip = noise_clip(6, 4, 8, 10)
    chosen, frames = np.array([4, 1, 4]), np.array([0, 3, 2])
    sample = to_sample(clip, chosen, frames, 5, "name")
    assert sample.valid.tolist() == [True, True, True, False, False]
    np.testing.assert_array_equal(sample.tracks[:, :3], clip.coords_xy[chosen].transpose(1, 0, 2))
    np.testing.assert_array_equal(sample.visibility[:, :3], clip.visible[chosen].T)
    assert sample.queries[:3, 0].tolist() == [0, 3, 2]
    assert torch.equal(sample.queries[:3, 1:], sample.tracks[[0, 3, 2], [0, 1, 2]])
    assert not sample.tracks[:, 3:].any()
    assert not sample.visibility[:, 3:].any()
    batch = stack_samples([sample, sample])
    assert batch.video.shape == (2, 4, 3, 8, 10)
    assert batch.valid.shape == (2, 5)
    assert batch.names == ("name", "name")


def test_a_folder_and_its_pack_give_the_same_clip_and_name(tmp_path: Path) -> None:
    folders, packs = tmp_path / "folders", tmp_path / "packs"
    write_sequences(folders, 1, frames=5, height=20, width=24, points=8)
    pack_sequences(folders, packs)
    folder, pack = folders / "0000", packs / "0000.npz"
    tracks, indices = read_tracks(folder), np.array([3, 0])
    one, other = read_clip(folder, tracks, indices), read_clip(pack, tracks, indices)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert name_of(folder) == name_of(pack) == "0000"
    assert name_of(Path("take.2")) == "take.2"
    refuse_shorter(folder, tracks, 5, "data.frames")
    with pytest.raises(DataError, match=r"0000 has 5 frames, data\.frames=6 asks for more"):
        refuse_shorter(folder, tracks, 6, "data.frames")
