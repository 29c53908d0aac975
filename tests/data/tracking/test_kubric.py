"""The reader of Kubric sequences, and every way in which one can be broken."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from overt.data.tracking.kubric import frame_paths, list_sequences, read_frames, read_tracks
from overt.errors import DataError

TRACKS, FRAMES, HEIGHT, WIDTH = 5, 4, 12, 16


def write_content(sequence, content):
    np.save(sequence / f"{sequence.name}.npy", content, allow_pickle=True)


def content_of(sequence):
    return np.load(sequence / f"{sequence.name}.npy", allow_pickle=True).item()


@pytest.fixture
def sequence(tmp_path):
    """A small sequence `0007` with known pixels and tracks."""
    rng = np.random.default_rng(0)
    sequence = tmp_path / "0007"
    (sequence / "frames").mkdir(parents=True)
    for frame in range(FRAMES):
        image = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        Image.fromarray(image).save(sequence / "frames" / f"{frame:03d}.png")
    write_content(
        sequence,
        {
            "coords": rng.normal(size=(TRACKS, FRAMES, 2)).astype(np.float32),
            "visibility": rng.random((TRACKS, FRAMES)) < 0.5,
            "depth": np.zeros(3),  # the public release has more keys
        },
    )
    return sequence


def test_tracks_are_read_and_visibility_is_turned_round(sequence):
    content = content_of(sequence)
    tracks = read_tracks(sequence)
    assert tracks.coords_xy.dtype == np.float32
    np.testing.assert_array_equal(tracks.coords_xy, content["coords"])
    assert tracks.visible.dtype == np.bool_
    np.testing.assert_array_equal(tracks.visible, ~content["visibility"])


@pytest.mark.parametrize("coords_type", [np.float32, np.float64])
@pytest.mark.parametrize("occluded_type", [np.bool_, np.uint8, np.float32])
def test_other_number_types_mean_the_same(sequence, coords_type, occluded_type):
    expected = read_tracks(sequence)
    content = content_of(sequence)
    content["coords"] = content["coords"].astype(coords_type)
    content["visibility"] = content["visibility"].astype(occluded_type)
    write_content(sequence, content)
    tracks = read_tracks(sequence)
    np.testing.assert_array_equal(tracks.coords_xy, expected.coords_xy)
    np.testing.assert_array_equal(tracks.visible, expected.visible)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=6))
def test_frames_are_those_asked_for(sequence, indices):
    paths = frame_paths(sequence)
    frames = read_frames(paths, indices)
    assert frames.shape == (len(indices), 3, HEIGHT, WIDTH)
    assert frames.dtype == np.uint8
    for frame, index in zip(frames, indices, strict=True):
        expected = np.asarray(Image.open(sequence / "frames" / f"{index:03d}.png"))
        np.testing.assert_array_equal(frame.transpose(1, 2, 0), expected)


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    """Also without leading zeros, beyond 999, and beside the files that macOS leaves behind."""
    numbers = (0, 1, 2, 9, 10, 11, 999, 1000, 1001)
    sequence = tmp_path / "7"
    (sequence / "frames").mkdir(parents=True)
    for number in reversed(numbers):
        image = np.full((HEIGHT, WIDTH, 3), number % 251, np.uint8)
        Image.fromarray(image).save(sequence / "frames" / f"{number}.png")
    (sequence / "frames" / "._0.png").write_bytes(b"\0")
    assert [int(path.stem) for path in frame_paths(sequence)] == list(numbers)
    frames = read_frames(frame_paths(sequence), range(len(numbers)))
    assert frames[:, 0, 0, 0].tolist() == [number % 251 for number in numbers]


def test_only_the_frames_asked_for_are_decoded(sequence):
    (sequence / "frames" / "003.png").write_bytes(b"broken")
    assert read_frames(frame_paths(sequence), [0, 1, 2]).shape[0] == 3


def test_gray_and_transparent_images_become_rgb(sequence):
    for frame, mode in enumerate(("L", "RGBA", "P")):
        path = sequence / "frames" / f"{frame:03d}.png"
        Image.open(path).convert(mode).save(path)
    assert read_frames(frame_paths(sequence), range(FRAMES)).shape == (FRAMES, 3, HEIGHT, WIDTH)


def test_sequences_are_the_sorted_folders(sequence):
    root = sequence.parent
    for name in ("0010", "0002", "10000"):
        shutil.copytree(sequence, root / name)
    (root / ".0011.partial").mkdir()
    (root / "notes.txt").touch()
    names = [path.name for path in list_sequences(str(root))]
    assert names == ["0002", "0007", "0010", "10000"]


def test_missing_root_says_where_to_get_data(tmp_path):
    with pytest.raises(DataError) as error:
        list_sequences(tmp_path / "absent")
    assert "facebook/CoTracker3_Kubric" in str(error.value)
    assert f"overt data kubric {tmp_path / 'absent'}" in str(error.value)


def test_empty_root_and_packed_root(tmp_path):
    with pytest.raises(DataError, match="no sequence folders"):
        list_sequences(tmp_path)
    (tmp_path / "0000.tar.gz").touch()
    with pytest.raises(DataError, match="1 archives to unpack"):
        list_sequences(tmp_path)


def test_root_one_level_too_high(sequence):
    with pytest.raises(DataError, match="to the folder whose subfolders are sequences"):
        list_sequences(sequence.parent.parent)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.floats(0, 0.9))  # the last bytes are a check sum, not pixels
def test_truncated_image_is_named(sequence, share):
    path = sequence / "frames" / "001.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    try:
        with pytest.raises(DataError, match=r"001\.png: not a readable image.*Get the sequence"):
            read_frames(frame_paths(sequence), [0, 1])
    finally:
        path.write_bytes(whole)


def test_images_of_different_size(sequence):
    Image.new("RGB", (8, 8)).save(sequence / "frames" / "002.png")
    with pytest.raises(DataError, match="different sizes, 8x8, 16x12"):
        read_frames(frame_paths(sequence), range(FRAMES))


def test_missing_and_empty_frames_folder(sequence):
    for path in (sequence / "frames").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no images"):
        frame_paths(sequence)
    (sequence / "frames").rmdir()
    with pytest.raises(DataError, match="no folder `frames`"):
        frame_paths(sequence)


def test_frame_count_disagrees_with_tracks(sequence):
    (sequence / "frames" / "003.png").unlink()
    with pytest.raises(DataError, match="3 images in frames/, but tracks of 4 frames"):
        read_tracks(sequence)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite(sequence, value):
    content = content_of(sequence)
    content["coords"] = content["coords"].astype(np.float64)
    content["coords"][2, 1, 0] = content["coords"][4, 3] = value
    write_content(sequence, content)
    with pytest.raises(DataError) as error:
        read_tracks(sequence)
    assert "0007.npy: coords has 3 values that are NaN or Inf in 2 of 5 tracks" in str(error.value)
    assert "track 2 at frame 1" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("coords", None, "has no coords; found visibility, depth"),
        ("visibility", None, "has no visibility; found coords, depth"),
        ("coords", np.zeros((TRACKS, FRAMES, 3)), r"coords has shape \(5, 4, 3\)"),
        ("coords", np.zeros((TRACKS, FRAMES)), r"coords has shape \(5, 4\)"),
        ("coords", np.full((TRACKS, FRAMES, 2), "a"), "expected numbers"),
        ("visibility", np.zeros((TRACKS, FRAMES + 1)), r"shape \(5, 5\), expected \(5, 4\)"),
        ("visibility", np.full((TRACKS, FRAMES), 2), "other than 0 and 1"),
        ("visibility", np.full((TRACKS, FRAMES), "a"), "other than 0 and 1"),
    ],
)
def test_missing_keys_and_wrong_shapes(sequence, key, value, message):
    content = content_of(sequence)
    if value is None:
        del content[key]
    else:
        content[key] = value
    write_content(sequence, content)
    with pytest.raises(DataError, match=message):
        read_tracks(sequence)


def test_track_file_missing_or_of_another_kind(sequence):
    write_content(sequence, np.array({"no dict"}, dtype=object))
    with pytest.raises(DataError, match="holds a set, expected a dict"):
        read_tracks(sequence)
    (sequence / "0007.npy").unlink()
    with pytest.raises(DataError, match=r"0007\.npy: no such file"):
        read_tracks(sequence)
