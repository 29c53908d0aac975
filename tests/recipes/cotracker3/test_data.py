"""CoTracker3's clips: pure functions of index and generator, true to the files they come from."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import overt
from overt.data.rng import sample_rng
from overt.data.tracking import kubric
from overt.data.tracking.augment import AugmentationSettings
from overt.data.tracking.clips import OWN_TRIES, TRIES
from overt.data.tracking.kubric import frame_paths, list_sequences, read_frames, read_tracks
from overt.data.tracking.packed import pack_sequences
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.errors import ConfigError, DataError
from overt.metrics import scored_clips
from overt.recipes.cotracker3 import data
from overt.recipes.cotracker3.config import DataSettings, EvaluationSettings, SourceSettings
from overt.recipes.cotracker3.data import POSITIONS, KubricClips, collate, training_clips

SEQUENCES, FRAMES, HEIGHT, WIDTH, POINTS = 5, 14, 40, 56, 80
CONF = Path(overt.__file__).parent / "conf"
HELD_OUT = OmegaConf.to_container(OmegaConf.load(CONF / "evaluation/kubric_held_out.yaml"))
FEW_POINTS = {"points_per_sequence": 16, "frames": 8, "resolution": [32, 40]}
EVALUATION = EvaluationSettings(**(HELD_OUT | FEW_POINTS))
SYNTHETIC = OmegaConf.load(CONF / "data/kubric_synthetic.yaml")
AUGMENTATION = AugmentationSettings(**OmegaConf.to_container(SYNTHETIC.augmentation))
FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("kubric") / "set"
    write_sequences(root, SEQUENCES, FRAMES, HEIGHT, WIDTH, POINTS, seed=1)
    return root


@pytest.fixture
def make_settings(root):
    def make(**changes):
        values = {
            "root": str(root),
            "sources": None,
            "crop_size": [32, 40],
            "sequence_len": 7,
            "random_sequence_len": 3,
            "random_frame_rate": True,
            "traj_per_sample": 24,
            "sample_vis_last_frame": True,
            "query_sampling": "random",
            "repeat": 2,
            "held_out": 2,
            "augment": False,
            "augment_on_device": False,
            "augmentation": AUGMENTATION,
        }
        return DataSettings(**{**values, **changes})

    return make


def held_out_clips(config, evaluation):
    return scored_clips.HeldOutClips(config, evaluation, POSITIONS)


def identical(one, other):
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@FEW
@given(
    seed=st.integers(0, 1000),
    epoch=st.integers(0, 3),
    index=st.integers(0, 5),
    augment=st.booleans(),
)
def test_sample_is_a_function_of_index_and_generator(make_settings, seed, epoch, index, augment):
    clips = KubricClips(make_settings(augment=augment))
    one = clips.sample(index, sample_rng(seed, epoch, index))
    # Another object, other samples drawn before: nothing of it may matter.
    again = KubricClips(make_settings(augment=augment))
    again.sample(0, sample_rng(7, 7, 7))
    assert identical(one, again.sample(index, sample_rng(seed, epoch, index)))


def test_epochs_differ(make_settings):
    clips = KubricClips(make_settings())
    samples = [clips.sample(1, sample_rng(0, epoch, 1)) for epoch in range(4)]
    for number, sample in enumerate(samples):
        assert sample.name == samples[0].name
        assert not any(identical(sample, other) for other in samples[:number])


@FEW
@given(
    seed=st.integers(0, 1000),
    index=st.integers(0, 5),
    sampling=st.sampled_from(["random", "first"]),
    augment=st.booleans(),
)
def test_what_holds_of_every_sample(make_settings, seed, index, sampling, augment):
    config = make_settings(query_sampling=sampling, augment=augment)
    sample = KubricClips(config).sample(index, np.random.default_rng(seed))
    frames = len(sample.video)
    assert 3 <= frames < 7
    assert sample.video.shape == (frames, 3, 32, 40)
    assert sample.video.dtype == torch.uint8
    assert sample.tracks.shape == (frames, 24, 2)
    assert sample.tracks.dtype == torch.float32
    assert sample.visibility.shape == (frames, 24)
    assert sample.valid.shape == (24,)
    assert sample.visibility.dtype == sample.valid.dtype == torch.bool
    assert sample.valid.all()
    assert sample.queries.shape == (24, 3)
    assert sample.queries.dtype == torch.float32
    # A visible point lies in the crop.
    x, y = sample.tracks[sample.visibility].T
    assert x.min() >= 0
    assert x.max() <= 39
    assert y.min() >= 0
    assert y.max() <= 31
    # A query is where its track is, in a frame that shows it.
    moments, tracks = sample.queries[:, 0].long(), torch.arange(24)
    assert torch.equal(sample.queries[:, 1:], sample.tracks[moments, tracks])
    assert sample.visibility[moments, tracks].all()
    # Every track was visible in the first, the middle or the last frame.
    named = sample.visibility[[0, frames // 2, frames - 1]]
    assert named.any(dim=0).all()


@FEW
@given(seed=st.integers(0, 1000), index=st.integers(0, 5))
def test_sample_agrees_with_the_file(make_settings, seed, index):
    config = make_settings(random_sequence_len=None, sequence_len=4)
    clips = KubricClips(config)
    sample = clips.sample(index, np.random.default_rng(seed))
    sequence = clips.sequences[index % len(clips.sequences)]
    assert sample.name == sequence.name
    video = read_frames(frame_paths(sequence), range(FRAMES))
    stored = read_tracks(sequence)
    # Find the clip in the sequence by its pixels, over all starts, rates and columns.
    top = (HEIGHT - 32) // 2
    matches = [
        (frames, left)
        for rate in (1, 2, 3)
        for start in range(FRAMES - 3 * rate)
        for frames in [start + rate * np.arange(4)]
        for left in range(WIDTH - 40 + 1)
        if np.array_equal(video[frames, :, top : top + 32, left : left + 40], sample.video)
    ]
    assert len(matches) == 1
    frames, left = matches[0]
    coords = stored.coords_xy[:, frames] - np.array([left, top], dtype=np.float32)  # (N, T, 2)
    inside = ((coords >= 0) & (coords <= (39, 31))).all(axis=-1)
    visible = stored.visible[:, frames] & inside
    for track in range(24):
        drawn = sample.tracks[:, track].numpy()
        origin = np.flatnonzero((coords == drawn).all(axis=(1, 2)))
        assert len(origin) == 1
        np.testing.assert_array_equal(visible[origin[0]], sample.visibility[:, track])


def test_lengths_rates_and_starts_cover_their_range(make_settings):
    config = make_settings(sequence_len=7, random_sequence_len=3)
    rng = np.random.default_rng(0)
    drawn = [data.frame_indices(FRAMES, config, rng, None) for _ in range(2000)]
    assert {len(indices) for indices in drawn} == {3, 4, 5, 6}
    rates = {len(i): set() for i in drawn}
    for indices in drawn:
        assert indices.min() >= 0
        assert indices.max() < FRAMES
        steps = np.unique(np.diff(indices))
        assert len(steps) == 1
        rates[len(indices)].add(int(steps[0]))
        assert indices[0] in range(max(FRAMES - len(indices) * steps[0], 1))
    assert rates == {3: {1, 2, 3, 4}, 4: {1, 2, 3}, 5: {1, 2}, 6: {1, 2}}


def test_fixed_length_and_rate(make_settings):
    config = make_settings(random_sequence_len=None, random_frame_rate=False, sequence_len=FRAMES)
    sample = KubricClips(config).sample(0, np.random.default_rng(0))
    assert len(sample.video) == FRAMES  # the whole sequence: the start can only be 0


def test_first_sampling_queries_the_first_visible_frame(make_settings):
    clips = KubricClips(make_settings(query_sampling="first", random_sequence_len=None))
    late = 0
    for seed in range(6):
        sample = clips.sample(seed, np.random.default_rng(seed))
        first = sample.visibility.int().argmax(dim=0)
        assert torch.equal(sample.queries[6:, 0].long(), first[6:])
        late += int((sample.queries[:6, 0].long() > first[:6]).sum())
    assert late > 0  # the first quarter is drawn from all visible frames


def test_random_queries_are_uniform_over_visible_frames():
    visible = np.array([[True, False, True, True]] * 6000)
    frames = data._query_frames(visible, "random", np.random.default_rng(0))
    counts = np.bincount(frames, minlength=4)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 2000).max() < 200


def test_candidates_keep_duplicates_and_follow_the_setting():
    visible = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]], bool)
    clip = data.Clip(np.zeros((5, 3, 2, 2), np.uint8), np.zeros((4, 5, 2), np.float32), visible)
    assert data._candidates(clip, with_last_frame=False).tolist() == [0, 1]
    assert data._candidates(clip, with_last_frame=True).tolist() == [0, 1, 0, 3]


def test_far_tracks_are_dropped():
    frames = np.zeros((2, 3, 40, 60), np.uint8)  # centre (30, 20)
    coords = np.zeros((3, 2, 2), np.float32)
    coords[1, 1] = (30 + 600, 20 + 800)  # exactly 1000 away
    coords[2, 1] = (30 + 600, 20 + 799)
    clip = data._drop_far(data.Clip(frames, coords, np.ones((3, 2), bool)), [40, 60])
    np.testing.assert_array_equal(clip.coords_xy, coords[[0, 2]])
    assert clip.visible.shape == (2, 2)


def test_crop_hides_what_lies_beyond_the_last_pixel_centre():
    coords = np.array([[[5, 4]], [[4.9, 4]], [[9, 7]], [[9.1, 7]], [[9, 7.1]]], np.float32)
    clip = data.Clip(np.zeros((1, 3, 20, 20), np.uint8), coords, np.ones((5, 1), bool))
    cut = data.crop(clip, 4, 5, [4, 5], POSITIONS)
    assert cut.visible[:, 0].tolist() == [True, False, True, False, False]
    np.testing.assert_allclose(cut.coords_xy[2, 0], (4, 3))


def test_a_pack_gives_the_same_samples(make_settings, root, tmp_path):
    pack_sequences(root, tmp_path)
    folders, packed = make_settings(augment=True), make_settings(augment=True, root=str(tmp_path))
    one, other = (KubricClips(each).sample(1, sample_rng(0, 0, 1)) for each in (folders, packed))
    assert identical(one, other)
    assert one.name == other.name
    one, other = (held_out_clips(each, EVALUATION).sample(0) for each in (folders, packed))
    assert identical(one, other)


def test_an_epoch_repeats_the_training_sequences_only(make_settings, root):
    config = make_settings()
    training, held_out = KubricClips(config), held_out_clips(config, EVALUATION)
    assert len(training) == 2 * (SEQUENCES - 2)
    assert len(held_out) == 2
    trained = {training.sample(i, sample_rng(0, 0, i)).name for i in range(len(training))}
    evaluated = {held_out.sample(i).name for i in range(len(held_out))}
    assert evaluated == {"0000", "0001"}
    assert trained.isdisjoint(evaluated)
    assert trained | evaluated == {path.name for path in list_sequences(root)}


def test_clip_with_few_candidates_is_drawn_again(make_settings, monkeypatch):
    clips = KubricClips(make_settings())
    usual, calls = data._candidates, []

    def scarce(clip, with_last_frame):
        calls.append(clip)
        return usual(clip, with_last_frame)[: 24 if len(calls) > 6 else 23]

    monkeypatch.setattr(data, "_candidates", scarce)
    sample = clips.sample(0, np.random.default_rng(0))
    assert len(calls) == 7
    assert sample.redrawn == 6
    assert sample.tracks.shape[1] == 24
    calls.clear()
    assert identical(sample, clips.sample(0, np.random.default_rng(0)))


def test_clips_thrown_away_are_counted(make_settings, root, tmp_path):
    """Two of three sequences have too few tracks: their samples come from the third."""
    for name in ("0000", "0001", "0002"):
        shutil.copytree(root / name, tmp_path / name)
    for name in ("0000", "0002"):
        keep_tracks(tmp_path / name, 4)
    clips = KubricClips(make_settings(root=str(tmp_path), held_out=0, random_sequence_len=None))
    samples = [clips.sample(index, sample_rng(0, 0, index)) for index in range(3)]
    assert [sample.name for sample in samples] == ["0001"] * 3
    redrawn = [sample.redrawn for sample in samples]
    assert redrawn[1] == 0
    assert min(redrawn[0], redrawn[2]) >= OWN_TRIES
    assert max(redrawn) < TRIES
    batch = collate(samples)
    assert batch.redrawn.tolist() == redrawn
    assert batch.redrawn.dtype == torch.float32


def keep_tracks(sequence, count):
    file = sequence / f"{sequence.name}.npy"
    content = np.load(file, allow_pickle=True).item()
    fewer = {key: content[key][:count] for key in ("coords", "visibility")}
    np.save(file, np.array(fewer, dtype=object), allow_pickle=True)


def test_too_many_tracks_asked_for(make_settings):
    clips = KubricClips(make_settings(traj_per_sample=3 * POINTS + 1))
    with pytest.raises(DataError) as error:
        clips.sample(0, np.random.default_rng(0))
    assert f"data.traj_per_sample={3 * POINTS + 1}" in str(error.value)
    assert "Lower data.traj_per_sample" in str(error.value)


def test_clip_longer_than_the_sequence(make_settings):
    clips = KubricClips(make_settings(sequence_len=FRAMES + 1, random_sequence_len=None))
    with pytest.raises(DataError, match=rf"has {FRAMES} frames.*data\.sequence_len={FRAMES + 1}"):
        clips.sample(0, np.random.default_rng(0))


@pytest.mark.parametrize("size", [[HEIGHT + 1, 40], [32, WIDTH + 1]])
def test_crop_larger_than_the_frame(make_settings, size):
    config = make_settings(crop_size=size)
    with pytest.raises(DataError, match=r"40x56 .* less than data\.crop_size"):
        KubricClips(config).sample(0, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"40x56 .* less than data\.crop_size"):
        held_out_clips(config, EVALUATION).sample(0)


def test_augmentation_reaches_the_sample(make_settings):
    plain = KubricClips(make_settings()).sample(0, np.random.default_rng(3))
    augmented = KubricClips(make_settings(augment=True)).sample(0, np.random.default_rng(3))
    assert augmented.video.shape == plain.video.shape  # the frames were drawn before
    assert not torch.equal(augmented.video, plain.video)
    assert not torch.equal(augmented.tracks, plain.tracks)


def test_released_and_exact_points_differ_by_a_pixel(make_settings, root):
    exact = dataclasses.replace(AUGMENTATION, exact_points=True, flip_horizontal=1.0)
    released = dataclasses.replace(exact, exact_points=False)
    one, other = (
        data.draw_clip(
            root / "0002",
            make_settings(augment=True, augmentation=augmentation),
            np.random.default_rng(3),
        )
        for augmentation in (exact, released)
    )
    np.testing.assert_array_equal(one.frames, other.frames)
    offset = np.abs(one.coords_xy - other.coords_xy)
    assert 0.5 < offset[..., 0].max() < 2


def test_augmentation_may_enlarge_small_frames(make_settings):
    config = make_settings(augment=True, crop_size=[HEIGHT + 4, WIDTH + 8], traj_per_sample=4)
    sample = KubricClips(config).sample(0, np.random.default_rng(0))
    assert sample.video.shape[2:] == (HEIGHT + 4, WIDTH + 8)


def test_held_out_clips_are_never_augmented(make_settings):
    plain = held_out_clips(make_settings(), EVALUATION).sample(0)
    assert identical(plain, held_out_clips(make_settings(augment=True), EVALUATION).sample(0))


@pytest.mark.parametrize("augment", [False, True])
def test_only_the_frames_of_the_clip_are_decoded(make_settings, monkeypatch, augment):
    decoded, usual = [], kubric._read_image
    monkeypatch.setattr(kubric, "_read_image", lambda path: decoded.append(path) or usual(path))
    config = make_settings(augment=augment, traj_per_sample=4)
    sample = KubricClips(config).sample(0, np.random.default_rng(0))
    assert len(decoded) == len(sample.video) < FRAMES


def test_sequence_with_missing_frames(make_settings, root, tmp_path):
    shutil.copytree(root / "0002", tmp_path / "set" / "0002")
    frame_paths(tmp_path / "set" / "0002")[5].unlink()
    clips = KubricClips(make_settings(root=str(tmp_path / "set"), held_out=0))
    with pytest.raises(DataError, match=rf"{FRAMES - 1} images in frames/, but tracks of {FRAMES}"):
        clips.sample(0, np.random.default_rng(0))


@pytest.mark.parametrize("augment", [False, True])
def test_tracks_outside_the_image_are_not_visible(make_settings, monkeypatch, augment):
    """Half of the tracks are said to be visible far outside: they are never drawn."""

    def astray(sequence):
        tracks = read_tracks(sequence)
        coords, visible = tracks.coords_xy.copy(), np.ones_like(tracks.visible)
        coords[::2] += (3 * WIDTH, -2 * HEIGHT)
        return tracks._replace(coords_xy=coords, visible=visible)

    monkeypatch.setattr(data, "read_tracks", astray)
    clips = KubricClips(make_settings(augment=augment, traj_per_sample=4))
    sample = clips.sample(0, np.random.default_rng(0))
    x, y = sample.tracks[sample.visibility].T
    assert 0 <= x.min() <= x.max() <= 39
    assert 0 <= y.min() <= y.max() <= 31


def test_sources_are_mixed_by_weight(make_settings, root, tmp_path):
    other = tmp_path / "other"
    write_sequences(other, 4, FRAMES, HEIGHT, WIDTH, POINTS, seed=2)
    for name in range(4):  # other names, to tell them apart
        (other / f"{name:04d}" / f"{name:04d}.npy").rename(
            other / f"{name:04d}" / f"other{name}.npy"
        )
        (other / f"{name:04d}").rename(other / f"other{name}")
    sources = [SourceSettings(str(root), 3.0), SourceSettings(str(other), 1.0)]
    clips = training_clips(make_settings(sources=sources, traj_per_sample=4))
    # Three of five here (two are held out) and all four there, each twice in an epoch.
    assert len(clips) == 2 * 3 + 2 * 4
    samples = [clips.sample(i, sample_rng(0, 0, i)) for i in range(len(clips))]
    names = [sample.name for sample in samples]
    assert sum(name.startswith("other") for name in names) in (3, 4)  # a quarter of 14
    assert {"0000", "0001"}.isdisjoint(names)
    again = clips.sample(3, sample_rng(0, 0, 3))
    assert identical(again, samples[3])


def test_one_source_is_the_root(make_settings):
    assert isinstance(training_clips(make_settings()), KubricClips)


def test_source_that_is_not_there(make_settings, root, tmp_path):
    sources = [SourceSettings(str(root), 1.0), SourceSettings(str(tmp_path / "absent"), 1.0)]
    with pytest.raises(DataError, match=r"data\.sources\[1\]: .*no such folder"):
        training_clips(make_settings(sources=sources))


def test_crop_of_the_whole_frame(make_settings):
    clips = KubricClips(make_settings(crop_size=[HEIGHT, WIDTH]))
    assert clips.sample(0, np.random.default_rng(0)).video.shape[2:] == (HEIGHT, WIDTH)


def test_nothing_left_to_train_on(make_settings):
    with pytest.raises(DataError, match=r"Lower data\.held_out"):
        KubricClips(make_settings(held_out=SEQUENCES))


def test_nothing_to_evaluate_on(make_settings):
    with pytest.raises(DataError, match=r"data\.held_out=0"):
        held_out_clips(make_settings(held_out=0), EVALUATION)


def test_collate_stacks(make_settings):
    clips = KubricClips(make_settings(random_sequence_len=None))
    samples = [clips.sample(index, sample_rng(0, 0, index)) for index in range(3)]
    batch = collate(samples)
    assert batch.video.shape == (3, 7, 3, 32, 40)
    assert batch.video.dtype == torch.uint8
    assert batch.tracks.shape == (3, 7, 24, 2)
    assert batch.visibility.shape == batch.valid.shape == (3, 7, 24)
    assert batch.queries.shape == (3, 24, 3)
    assert batch.names == tuple(sample.name for sample in samples)
    for number, sample in enumerate(samples):
        assert torch.equal(batch.tracks[number], sample.tracks)


def test_collate_refuses_different_lengths(make_settings):
    clips = KubricClips(make_settings())
    samples = [clips.sample(0, np.random.default_rng(seed)) for seed in range(8)]
    lengths = {len(sample.video) for sample in samples}
    assert len(lengths) > 1
    with pytest.raises(DataError) as error:
        collate(samples)
    assert "training.batch_size=1" in str(error.value)
    assert "data.random_sequence_len=null" in str(error.value)


def test_collate_refuses_different_numbers_of_tracks(make_settings):
    sample = KubricClips(make_settings()).sample(0, np.random.default_rng(0))
    fewer = dataclasses.replace(sample, tracks=sample.tracks[:, 1:])
    with pytest.raises(DataError, match="23, 24 tracks"):
        collate([sample, fewer])


def test_held_out_clip_is_the_centre_of_the_first_frames(make_settings, root):
    sample = held_out_clips(make_settings(), EVALUATION).sample(1)
    video = read_frames(frame_paths(root / "0001"), range(8))
    np.testing.assert_array_equal(sample.video, video[:, :, 4:36, 8:48])
    assert sample.tracks.shape == (8, 16, 2)
    assert sample.visibility.any(dim=0).all()
    first = sample.visibility.int().argmax(dim=0)
    assert torch.equal(sample.queries[:, 0].long(), first)
    assert torch.equal(sample.queries[:, 1:], sample.tracks[first, torch.arange(16)])
    stored = read_tracks(root / "0001").coords_xy[:, :8] - np.array([8, 4], np.float32)
    origins = [
        int(np.flatnonzero((stored == track).all(axis=(1, 2)))[0])
        for track in sample.tracks.numpy().transpose(1, 0, 2)
    ]
    assert origins == sorted(set(origins))  # spread over the file, none twice
    assert origins[0] < 10
    assert origins[-1] > POINTS - 10


def test_held_out_clip_takes_what_there_is(make_settings):
    many = dataclasses.replace(EVALUATION, points_per_sequence=10 * POINTS)
    sample = held_out_clips(make_settings(), many).sample(0)
    assert 16 < sample.tracks.shape[1] <= POINTS
    assert identical(sample, held_out_clips(make_settings(), many).sample(0))


def test_held_out_sequence_too_short(make_settings):
    long = dataclasses.replace(EVALUATION, frames=FRAMES + 1)
    with pytest.raises(DataError, match=r"Lower evaluation\.frames"):
        held_out_clips(make_settings(), long).sample(0)


def test_held_out_sequence_without_visible_tracks(make_settings, monkeypatch):
    def all_occluded(sequence):
        tracks = read_tracks(sequence)
        return tracks._replace(visible=np.zeros_like(tracks.visible))

    monkeypatch.setattr(scored_clips, "read_tracks", all_occluded)
    with pytest.raises(DataError, match="no track is visible in the first 8 frames"):
        held_out_clips(make_settings(), EVALUATION).sample(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"random_sequence_len": 7}, r"data\.random_sequence_len=7"),
        ({"random_sequence_len": 0}, r"data\.random_sequence_len=0"),
        ({"sequence_len": 0}, r"data\.sequence_len=0"),
        ({"traj_per_sample": 0}, r"data\.traj_per_sample=0"),
        ({"repeat": 0}, r"data\.repeat=0"),
        ({"held_out": -1}, r"data\.held_out=-1"),
        ({"crop_size": [32]}, r"data\.crop_size"),
        ({"crop_size": [32, 0]}, r"data\.crop_size"),
        ({"query_sampling": "last"}, r"data\.query_sampling=last"),
        ({"sources": []}, r"data\.sources=\[\]"),
        ({"sources": [SourceSettings("a", 0.0)]}, r"data\.sources\[0\]\.weight=0\.0"),
    ],
)
def test_impossible_settings(make_settings, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_settings(**changes)


@pytest.mark.parametrize("key", ["points_per_sequence", "frames"])
def test_impossible_evaluation(key):
    with pytest.raises(ConfigError, match=rf"evaluation\.{key}=0"):
        dataclasses.replace(EVALUATION, **{key: 0})


def test_tracks_of_large_frames_are_kept():
    """What is far is measured from the crop, also where frames are still to be cut."""
    values = OmegaConf.to_container(OmegaConf.load(CONF / "data/kubric.yaml"))
    values["augmentation"] = AugmentationSettings(**values["augmentation"])
    wanted = DataSettings(**(values | {"crop_size": [32, 40]}))
    coords = np.full((3, 2, 2), 20.0, np.float32)
    coords[2] = 1500.0
    frames = np.zeros((2, 3, 2160, 3840), np.uint8)
    clip = data.Clip(frames, coords, np.ones((3, 2), bool))
    assert len(data._drop_far(clip, wanted.crop_size).coords_xy) == 2


def test_a_random_number_of_tracks_comes_with_fewer_frames(make_settings):
    wanted = make_settings(random_number_traj=True, sequence_len=60, random_sequence_len=30)
    drawn = [data.with_drawn_number(wanted, sample_rng(0, 0, index)) for index in range(40)]
    tracks = [each.traj_per_sample for each in drawn]
    assert 1 <= min(tracks) < max(tracks) < wanted.traj_per_sample
    for each in drawn:
        fraction = each.traj_per_sample / wanted.traj_per_sample
        middle = int(10 * fraction + (1 - fraction) * 60)
        assert (each.random_sequence_len, each.sequence_len) == (middle - 2, middle + 2)
    fixed = make_settings(random_number_traj=True, sequence_len=64, random_sequence_len=None)
    lengths = {
        data.with_drawn_number(fixed, sample_rng(0, 0, index)).sequence_len for index in range(40)
    }
    assert len(lengths) > 3
    assert all(length % 8 == 0 for length in lengths)
    assert data.with_drawn_number(make_settings(), sample_rng(0, 0, 0)) == make_settings()
