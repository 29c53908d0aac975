"""TAP-Vid readers: points by the rule of the published numbers, refusals that say what is wrong."""

import io
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from overt.data.tracking import tapvid
from overt.data.tracking.tapvid import FORMATS, TapVid, choose_queries, resize
from overt.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def entry(frames=6, height=20, width=30, tracks=4, jpeg=False):
    video = RNG.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    occluded = RNG.random((tracks, frames)) < 0.3
    occluded[0] = True  # never seen
    occluded[1:, frames - 1] = False
    content = {"video": video, "points": RNG.random((tracks, frames, 2)), "occluded": occluded}
    if jpeg:
        content["video"] = [as_jpeg(frame) for frame in video]
    return content


def as_jpeg(frame):
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, format="JPEG", quality=95)
    return stream.getvalue()


def write(root, dataset, content, name=None):
    folder = root / FORMATS[dataset].folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or FORMATS[dataset].pattern)
    path.write_bytes(pickle.dumps(content))
    return path


@pytest.fixture
def davis(tmp_path):
    content = {"car": entry(), "dog": entry(frames=8)}
    write(tmp_path, "davis", content)
    return tmp_path, content


def test_davis_first(davis):
    root, content = davis
    videos = TapVid(root, "davis")
    assert len(videos) == 2
    assert videos.names == ["car", "dog"]
    dog = videos.video(1)
    assert dog.name == "dog"
    assert dog.video.shape == (8, 3, 256, 256)
    assert dog.video.dtype == np.uint8
    stored = content["dog"]
    expected = np.asarray(
        Image.fromarray(stored["video"][3]).resize((256, 256), Image.Resampling.LANCZOS)
    )
    np.testing.assert_array_equal(dog.video[3].transpose(1, 2, 0), expected)
    # The track that is never seen is left out; the others are asked for where first seen.
    np.testing.assert_array_equal(dog.occluded, stored["occluded"][1:])
    np.testing.assert_allclose(dog.tracks_xy, stored["points"][1:] * 255, rtol=1e-6)
    first = (~stored["occluded"][1:]).argmax(axis=1)
    np.testing.assert_array_equal(dog.queries_txy[:, 0], first)
    np.testing.assert_array_equal(dog.queries_txy[:, 1:], dog.tracks_xy[np.arange(3), first])
    for part in (dog.queries_txy, dog.tracks_xy):
        assert part.dtype == np.float32
    assert dog.occluded.dtype == np.bool_


def test_reading_twice_gives_the_same_points(davis):
    videos = TapVid(davis[0], "davis")
    one, again = videos.video(0), videos.video(0)
    for field in vars(one):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))


def test_stored_size_and_other_sizes(davis):
    root, content = davis
    car = TapVid(root, "davis", size=None).video(0)
    np.testing.assert_array_equal(car.video.transpose(0, 2, 3, 1), content["car"]["video"])
    np.testing.assert_allclose(car.tracks_xy, content["car"]["points"][1:] * (29, 19), rtol=1e-6)
    wide = TapVid(root, "davis", size=(40, 60)).video(0)
    assert wide.video.shape == (6, 3, 40, 60)
    np.testing.assert_allclose(wide.tracks_xy, content["car"]["points"][1:] * (59, 39), rtol=1e-6)


def test_strided(davis):
    root, content = davis
    dog = TapVid(root, "davis", "strided").video(1)
    hidden = content["dog"]["occluded"]
    wanted = [(frame, row) for frame in (0, 5) for row in range(4) if not hidden[row, frame]]
    assert dog.queries_txy[:, 0].tolist() == [frame for frame, _ in wanted]
    rows = [row for _, row in wanted]
    np.testing.assert_array_equal(dog.occluded, hidden[rows])
    np.testing.assert_allclose(dog.tracks_xy, content["dog"]["points"][rows] * 255, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    tracks=st.integers(0, 6),
    frames=st.integers(1, 14),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_queries_are_visible(tracks, frames, share, seed):
    occluded = np.random.default_rng(seed).random((tracks, frames)) < share
    rows, moments = choose_queries(occluded, "first")
    assert not occluded[rows, moments].any()
    assert rows.tolist() == np.flatnonzero(~occluded.all(axis=1)).tolist()
    for row, moment in zip(rows, moments, strict=True):
        assert occluded[row, :moment].all()
    rows, moments = choose_queries(occluded, "strided")
    assert not occluded[rows, moments].any()
    assert len(rows) == (~occluded[:, ::5]).sum()
    assert (moments % 5 == 0).all()


def test_rgb_stacking_is_a_list(tmp_path):
    content = [entry(height=256, width=256), entry(height=256, width=256)]
    write(tmp_path, "rgb_stacking", content)
    videos = TapVid(tmp_path, "rgb_stacking")
    assert videos.names == ["tapvid_rgb_stacking-000", "tapvid_rgb_stacking-001"]
    second = videos.video(1).video
    np.testing.assert_array_equal(second.transpose(0, 2, 3, 1), content[1]["video"])


def test_kinetics_decodes_jpeg_and_holds_one_file_at_a_time(tmp_path, monkeypatch):
    files = [[entry(jpeg=True), entry(jpeg=True)], [entry(jpeg=True)]]
    for number, content in enumerate(files):
        write(tmp_path, "kinetics", content, f"{number:04d}_of_0010.pkl")
    videos = TapVid(tmp_path, "kinetics", size=None)
    assert videos.names == ["0000_of_0010-000", "0000_of_0010-001", "0001_of_0010-000"]
    opened = []
    usual = tapvid.load_pickle
    monkeypatch.setattr(tapvid, "load_pickle", lambda file: opened.append(file.name) or usual(file))
    for index, content in enumerate(files[0] + files[1]):
        frame = np.asarray(Image.open(io.BytesIO(content["video"][2])))
        np.testing.assert_array_equal(videos.video(index).video[2].transpose(1, 2, 0), frame)
    assert [name[-16:] for name in opened] == ["0000_of_0010.pkl", "0001_of_0010.pkl"]


def test_missing_files_are_reported(tmp_path, caplog):
    for number in range(9):
        write(tmp_path, "kinetics", [entry(jpeg=True)], f"{number:04d}_of_0010.pkl")
    TapVid(tmp_path, "kinetics")
    TapVid(tmp_path, "kinetics")  # as the next evaluation of a run does
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'tapvid_kinetics'} has 9 of the 10 files of kinetics: scores do not compare "
        "with those of the whole set"
    ]
    write(tmp_path, "kinetics", [entry(jpeg=True)], "0009_of_0010.pkl")
    TapVid(tmp_path, "kinetics")
    assert len(caplog.records) == 1


def test_frames_as_an_array_of_bytes(tmp_path):
    content = entry(jpeg=True)
    content["video"] = np.array(content["video"], dtype=object)
    write(tmp_path, "kinetics", [content], "0003_of_0010.pkl")
    assert TapVid(tmp_path, "kinetics").video(0).video.shape == (6, 3, 256, 256)


def test_robotap_merges_its_splits(tmp_path):
    write(tmp_path, "robotap", {"b": entry(), "a": entry()}, "robotap_split0.pkl")
    write(tmp_path, "robotap", {"c": entry(frames=9)}, "robotap_split1.pkl")
    videos = TapVid(tmp_path, "robotap")
    assert videos.names == ["b", "a", "c"]
    assert len(videos.video(2).video) == 9


def test_folder_below_tapvid_or_given_itself(tmp_path):
    write(tmp_path / "tapvid", "davis", {"car": entry()})
    assert len(TapVid(tmp_path, "davis")) == 1
    assert len(TapVid(tmp_path / "tapvid" / "tapvid_davis", "davis")) == 1


def test_fast_takes_fifty_and_passes_over_long_videos(tmp_path):
    def tiny(frames):
        return {
            "video": np.zeros((frames, 1, 1, 3), np.uint8),
            "points": np.zeros((1, frames, 2)),
            "occluded": np.zeros((1, frames), bool),
        }

    names = [f"v{number:03d}" for number in range(70)]
    chosen = random.Random(42).sample(names, 50)
    long = {chosen[4], chosen[5], chosen[49]}
    shuffled = list(np.random.default_rng(1).permutation(names))
    content = {str(name): tiny(301 if name in long else 300) for name in shuffled}
    for number, part in enumerate(np.array_split(shuffled, 3)):
        split = {str(name): content[str(name)] for name in part}
        write(tmp_path, "robotap", split, f"robotap_split{number}.pkl")
    videos = TapVid(tmp_path, "robotap", fast=True)
    expected = list(chosen)
    expected[4] = expected[5] = chosen[6]
    expected[49] = chosen[0]
    assert videos.names == expected
    assert len(TapVid(tmp_path, "robotap")) == 70


def test_fast_leaves_the_small_sets_whole(davis):
    assert TapVid(davis[0], "davis", fast=True).names == ["car", "dog"]


def test_resize_leaves_the_right_size_alone():
    frames = RNG.integers(0, 256, (2, 8, 9, 3), dtype=np.uint8)
    assert resize(frames, (8, 9)) is frames


# --- bad input -----------------------------------------------------------------------------------


def test_unknown_names(tmp_path):
    with pytest.raises(ConfigError, match="did you mean kinetics"):
        TapVid(tmp_path, "kinetic")
    with pytest.raises(ConfigError, match="query mode last; allowed: first, strided"):
        TapVid(tmp_path, "davis", "last")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"no tapvid_davis\.pkl in .*evaluation\.dataset_root"):
        TapVid(tmp_path, "davis")
    with pytest.raises(DataError, match=r"no \*_of_0010\.pkl in .*overt data tapvid"):
        TapVid(tmp_path / "absent", "kinetics")


def test_wrong_container(tmp_path):
    write(tmp_path, "davis", [entry()])
    with pytest.raises(DataError, match="holds a list, expected a dict of videos for davis"):
        TapVid(tmp_path, "davis")


@pytest.mark.parametrize(("dataset", "content"), [("davis", {}), ("rgb_stacking", [])])
def test_empty_file(tmp_path, dataset, content):
    path = write(tmp_path, dataset, content)
    with pytest.raises(DataError, match=rf"no videos in {path}"):
        TapVid(tmp_path, dataset)


class Foreign:
    """A class that a pickle could name."""

    def __init__(self):
        self.value = 1


def test_foreign_classes_are_refused(tmp_path):
    write(tmp_path, "davis", {"car": {**entry(), "extra": Foreign()}})
    with pytest.raises(DataError, match=r"the pickle asks for .*\.Foreign"):
        TapVid(tmp_path, "davis")


def test_cut_off_file(tmp_path):
    path = write(tmp_path, "davis", {"car": entry()})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="not a readable pickle"):
        TapVid(tmp_path, "davis")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"video": np.zeros((6, 20, 30, 3), np.float32)}, "type float32, expected uint8"),
        ({"video": np.zeros((6, 20, 30, 4), np.uint8)}, r"shape \(6, 20, 30, 4\)"),
        ({"video": np.zeros((6, 0, 30, 3), np.uint8)}, "frames of 30 x 0 pixels"),
        ({"video": []}, "no frames"),
        ({"video": None}, "no frames"),
        ({"video": ["a.jpg"]}, "neither one uint8 array nor JPEG"),
        ({"points": np.zeros((4, 5, 2))}, r"points of shape \(4, 5, 2\).*\(tracks, 6, 2\)"),
        ({"points": np.full((4, 6, 2), 100.0)}, "visible points from 100 to 100"),
        ({"points": np.full((4, 6, 2), np.nan)}, "visible points from nan"),
        ({"occluded": np.zeros((3, 6), bool)}, r"occluded of shape \(3, 6\)"),
        ({"occluded": np.full((4, 6), 2)}, "true or false for each"),
        ({"points": [[1, 2], [3]]}, "points has rows of different lengths"),
        ({"occluded": [[True], []]}, "occluded has rows of different lengths"),
    ],
)
def test_wrong_content(tmp_path, change, message):
    write(tmp_path, "davis", {"car": {**entry(), **change}})
    with pytest.raises(DataError, match=rf"video car: .*{message}"):
        TapVid(tmp_path, "davis").video(0)


def test_missing_parts(tmp_path):
    write(tmp_path, "davis", {"car": {"video": entry()["video"]}})
    with pytest.raises(DataError, match="video car: no points, no occluded; found video"):
        TapVid(tmp_path, "davis")
    write(tmp_path, "davis", {"car": 3})
    with pytest.raises(DataError, match="a int, expected a dict"):
        TapVid(tmp_path, "davis")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:200], lambda data: b"no image", lambda _: b""]
)
def test_undecodable_frame(tmp_path, damage):
    content = entry(jpeg=True)
    content["video"][3] = damage(content["video"][3])
    write(tmp_path, "kinetics", [content], "0000_of_0010.pkl")
    videos = TapVid(tmp_path, "kinetics")
    with pytest.raises(DataError, match="frame 3 is not a readable image"):
        videos.video(0)


def test_frames_of_different_sizes(tmp_path):
    content = entry(jpeg=True)
    content["video"][1] = entry(height=24, jpeg=True)["video"][0]
    write(tmp_path, "kinetics", [content], "0000_of_0010.pkl")
    with pytest.raises(DataError, match="different sizes, 30x20, 30x24"):
        TapVid(tmp_path, "kinetics").video(0)


def test_video_without_a_visible_point_has_no_queries(tmp_path):
    write(tmp_path, "davis", {"car": {**entry(), "occluded": np.ones((4, 6), bool)}})
    for mode in ("first", "strided"):
        video = TapVid(tmp_path, "davis", mode).video(0)
        assert video.queries_txy.shape == (0, 3)
        assert video.tracks_xy.shape == (0, 6, 2)


def test_all_videos_too_long_for_the_quick_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(tapvid, "FAST_FRAMES", 5)
    write(tmp_path, "robotap", {"a": entry()}, "robotap_split0.pkl")
    with pytest.raises(DataError, match="more than 5 frames"):
        TapVid(tmp_path, "robotap", fast=True)
