"""overt/recipes/lbm/data.py: clips of Kubric folders and packs, and what is done with bad ones."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_LBM

from overt.data.rng import sample_rng
from overt.data.tracking.clips import OWN_TRIES, TrackSample, rendered, stack_samples
from overt.data.tracking.kubric import read_tracks
from overt.data.tracking.packed import pack_sequences
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.errors import DataError
from overt.recipes.lbm.config import DataSettings
from overt.recipes.lbm.data import KubricClips, draw_query_frames, evaluation_clips


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubric")
    write_sequences(folder, 3, frames=6, height=40, width=48, points=60)
    return folder


@cache
def settings(root: Path, *overrides: str) -> DataSettings:
    data: DataSettings = SMALL_LBM.config(root, *overrides).settings.data
    return data


def sample(root: Path, *overrides: str, index: int = 0, epoch: int = 0) -> TrackSample:
    return KubricClips(settings(root, *overrides)).sample(index, sample_rng(1, epoch, index))


def same(one: TrackSample, other: TrackSample) -> bool:
    names = ("video", "tracks", "visibility", "valid", "queries")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("augment", ["true", "false"])
def test_a_sample_is_a_function_of_its_generator(augment: str, root: Path) -> None:
    first, again = (sample(root, f"data.augment={augment}") for _ in range(2))
    assert same(first, again)
    assert not same(first, sample(root, f"data.augment={augment}", epoch=1))
    assert first.video.shape == (4, 3, 32, 32)
    assert first.video.dtype == torch.uint8
    assert first.tracks.shape == (4, 8, 2)


def test_tracks_are_visible_at_first_and_queried_where_they_are_seen(root: Path) -> None:
    found = sample(root, "data.points=12")
    assert found.valid.all()
    assert found.visibility[0].all()
    frames = found.queries[:, 0].long()
    points = torch.arange(12)
    assert found.visibility[frames, points].all()
    torch.testing.assert_close(found.queries[:, 1:], found.tracks[frames, points])
    assert not frames[3:].any()  # the first frame but for one in four


def test_without_augmentation_the_centre_is_cut(root: Path) -> None:
    found = sample(root, "data.augment=false", "data.frames=6", "data.held_out=0", "data.points=9")
    truth = read_tracks(root / "0000").coords_xy - np.array([8, 4], np.float32)
    matches = [
        np.abs(truth - track).max(axis=(1, 2)).min()
        for track in found.tracks.numpy().transpose(1, 0, 2)
    ]
    assert max(matches) < 1e-4


def test_missing_tracks_are_filled_up_and_count_for_nothing(root: Path) -> None:
    found = sample(root, "data.points=500")
    count = int(found.valid.sum())
    assert 0 < count < 60
    assert found.valid[:count].all()
    assert not found.visibility[:, count:].any()
    assert not found.tracks[:, count:].any()
    batch = stack_samples([found, sample(root, "data.points=500", index=1)])
    assert batch.valid.shape == (2, 500)  # neither clip was cut to the other's number


def test_a_pack_gives_the_same_samples(root: Path, tmp_path: Path) -> None:
    pack_sequences(root, tmp_path)
    one, other = sample(root, "data.augment=true"), sample(tmp_path, "data.augment=true")
    assert same(one, other)
    assert one.name == other.name


def test_depth_files_are_never_needed_nor_read(root: Path) -> None:
    before = sample(root)
    depths = root / "0001" / "depths"
    depths.mkdir()
    (depths / "000.png").write_bytes(b"not an image")
    assert same(before, sample(root))


def test_a_short_sequence_is_refused_by_name(root: Path) -> None:
    with pytest.raises(DataError, match=r"0001 has 6 frames, data\.frames=24 asks for more"):
        sample(root, "data.frames=24")


def test_longer_sequences_give_any_run_of_frames(root: Path) -> None:
    first = {
        tuple(sample(root, "data.augment=false", epoch=epoch).video[0, 0, 0].tolist())
        for epoch in range(24)
    }
    assert len(first) == 3  # starts 0, 1 and 2 of 6 frames


def test_a_clip_without_a_visible_track_is_drawn_elsewhere(tmp_path: Path) -> None:
    write_sequences(tmp_path, 2, frames=4, height=40, width=40, points=20)
    hide_all(tmp_path / "0000")
    found = sample(tmp_path, "data.held_out=0")
    assert found.name == "0001"
    assert found.redrawn >= OWN_TRIES
    assert sample(tmp_path, "data.held_out=0", index=1).redrawn == 0
    hide_all(tmp_path / "0001")
    with pytest.raises(DataError, match="none of 12 clips drawn for sample 0"):
        sample(tmp_path, "data.held_out=0")


def hide_all(sequence: Path) -> None:
    file = sequence / f"{sequence.name}.npy"
    content = np.load(file, allow_pickle=True).item()
    content["visibility"][:] = True
    np.save(file, np.array(content, dtype=object), allow_pickle=True)


def test_other_faults_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match=r"data\.held_out=3 of them are kept"):
        KubricClips(settings(root, "data.held_out=3"))
    with pytest.raises(DataError, match=r"less than data\.crop_size=\[64, 64\]"):
        sample(root, "data.crop_size=[64,64]", "data.augment=false")
    with pytest.raises(DataError, match="no such folder"):
        KubricClips(settings(root / "nowhere"))


def test_held_out_clips_are_always_the_same(root: Path) -> None:
    config = SMALL_LBM.config(root, "evaluation.points_per_sequence=7").settings
    clips = evaluation_clips(config)
    assert clips.names == ["0000"]
    found = clips.sample(0)
    assert same(found, clips.sample(0))
    assert found.tracks.shape == (4, 7, 2)
    first = found.visibility.float().argmax(0)
    assert torch.equal(found.queries[:, 0].long(), first)
    with pytest.raises(DataError, match=r"evaluation\.frames=9 asks for more"):
        evaluation_clips(SMALL_LBM.config(root, "evaluation.frames=9").settings).sample(0)
    with pytest.raises(DataError, match=r"data\.held_out=0 leaves no sequence"):
        evaluation_clips(SMALL_LBM.config(root, "data.held_out=0").settings)


def test_a_quarter_of_the_queries_may_be_in_any_visible_frame() -> None:
    rng = np.random.default_rng(0)
    visible = rng.random((400, 6)) < 0.5
    visible[:, 0] = True
    frames = draw_query_frames(visible, rng)
    assert visible[np.arange(400), frames].all()
    assert not frames[100:].any()
    assert set(frames[:100]) == set(range(6))


def test_clips_can_be_augmented_on_the_device(root: Path) -> None:
    own = ("data.augment=true",)
    done = stack_samples([sample(root, *own)])
    found = stack_samples([sample(root, *own, "data.augment_on_device=true")])
    assert found.renderings is not None
    assert torch.equal(rendered(found).video, done.video)
    assert torch.equal(found.tracks, done.tracks)


def test_sequences_of_different_sizes_make_a_batch(root: Path, tmp_path: Path) -> None:
    """Their clips have one size once they are rendered, which for such a batch the loader does."""
    write_sequences(tmp_path, 1, frames=6, height=36, width=52, points=60)
    own = ("data.augment=true", "data.held_out=0")
    done, planned = (
        stack_samples([sample(folder, *own, *where) for folder in (root, tmp_path)])
        for where in ((), ("data.augment_on_device=true",))
    )
    assert torch.equal(rendered(planned).video, done.video)
    assert torch.equal(planned.tracks, done.tracks)
