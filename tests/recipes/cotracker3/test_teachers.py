"""Pseudo-labels: what teachers say, what of it is learned, and that labels cannot leak."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL_COTRACKER3_PSEUDO, SMALL_LBM, first_batch, small_lbm
from torch import nn

from overt.data.tracking.settings import TeacherSettings, UnlabeledSettings
from overt.errors import ConfigError, DataError
from overt.recipes.cotracker3 import teachers
from overt.recipes.cotracker3.teachers import Faculty, label_clip, load_teacher

VIDEO = torch.zeros((4, 3, 16, 24), dtype=torch.uint8)
QUERIES = torch.tensor([[0.0, 2.0, 3.0], [2.0, 10.0, 5.0]])
SUPPORT = torch.tensor([[1.0, 1.0, 1.0]])


class Still(nn.Module):
    """Says that nothing moves."""

    def forward(
        self, video: torch.Tensor, queries: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        frames = video.shape[1]
        tracks = queries[:, None, :, 1:].repeat(1, frames, 1, 1)
        return tracks, torch.ones_like(tracks[..., 0])


def write_still_onnx(file: Path) -> None:
    """The same by hand: the exporter takes twenty seconds."""
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT

    def constant(name: str, values: list[int]) -> Any:
        return onnx.numpy_helper.from_array(np.array(values, np.int64), name)

    nodes = [
        make.make_node("ReduceSum", ["video", "pixels"], ["sums"], keepdims=0),  # (1, T)
        make.make_node("Sub", ["sums", "sums"], ["zeros"]),
        make.make_node("Unsqueeze", ["zeros", "last_two"], ["rows"]),  # (1, T, 1, 1)
        make.make_node("Slice", ["queries", "one", "three", "two"], ["xy"]),
        make.make_node("Unsqueeze", ["xy", "one"], ["still"]),  # (1, 1, N, 2)
        make.make_node("Add", ["rows", "still"], ["tracks"]),
        make.make_node("Sub", ["tracks", "tracks"], ["nothing"]),
        make.make_node("Exp", ["nothing"], ["ones"]),
        make.make_node("ReduceMean", ["ones", "three"], ["visibility"], keepdims=0),
    ]
    graph = make.make_graph(
        nodes,
        "still",
        [
            make.make_tensor_value_info("video", floats, [1, "T", 3, 8, 12]),
            make.make_tensor_value_info("queries", floats, [1, "N", 3]),
        ],
        [
            make.make_tensor_value_info("tracks", floats, [1, "T", "N", 2]),
            make.make_tensor_value_info("visibility", floats, [1, "T", "N"]),
        ],
        [
            constant("pixels", [2, 3, 4]),
            constant("last_two", [2, 3]),
            constant("one", [1]),
            constant("two", [2]),
            constant("three", [3]),
        ],
    )
    opset = make.make_opsetid("", 18)
    onnx.save(make.make_model(graph, opset_imports=[opset], ir_version=9), file)


class Said:
    """A teacher of given answers."""

    name, tracks_backward, support = "said", True, "grid"

    def __init__(self, tracks, visibility):
        self.answer, self.asked = (tracks, visibility), 0

    def track(self, video, queries):
        self.asked = len(queries)
        frames, extra = len(self.answer[0]), len(queries) - self.answer[0].shape[1]
        tracks, visibility = self.answer
        return (
            torch.cat([tracks, torch.zeros(frames, extra, 2)], 1),
            torch.cat([visibility, torch.zeros(frames, extra)], 1),
        )


def test_what_of_a_teacher_is_learned():
    tracks = torch.rand(4, 2, 2)
    tracks[3, 0] = torch.nan
    visibility = torch.tensor([[0.95, 0.5]]).repeat(4, 1)
    teacher = Said(tracks, visibility)
    labels = label_clip(teacher, TeacherSettings("x"), VIDEO, QUERIES, SUPPORT)
    assert teacher.asked == 2 + 25
    assert labels.visible[:3, 0].all()
    assert not labels.visible[:, 1].any()
    # NaN is replaced, hidden and not learned; before the query this teacher may be trusted.
    assert labels.tracks.isfinite().all()
    assert labels.valid.tolist() == [[True, True]] * 3 + [[False, True]]
    forward = TeacherSettings("x", tracks_backward=False, occluded_positions=False, support="none")
    labels = label_clip(teacher, forward, VIDEO, QUERIES, SUPPORT)
    assert labels.valid.tolist() == [[True, False]] * 3 + [[False, False]]
    assert teacher.asked == 2
    with pytest.raises(DataError, match="gave tracks of shape"):
        label_clip(Said(tracks[:2], visibility[:2]), forward, VIDEO[:3], QUERIES, SUPPORT)


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_an_exported_tracker_teaches(tmp_path, kind):
    file = tmp_path / f"still.{kind}"
    if kind == "torchscript":
        torch.jit.script(Still()).save(file)
    else:
        pytest.importorskip("onnxruntime")
        write_still_onnx(file)
    settings = TeacherSettings(str(file), resolution=[8, 12])
    labels = label_clip(
        load_teacher(settings, torch.device("cpu")), settings, VIDEO, QUERIES, SUPPORT
    )
    assert torch.allclose(labels.tracks, QUERIES[None, :, 1:].expand(4, -1, -1), atol=1e-4)
    assert labels.valid[:, 1].tolist() == [False, False, True, True]


def test_refused_teachers(tmp_path):
    for name in ("a.torchscript", "a.onnx"):
        with pytest.raises(DataError, match="no such file"):
            load_teacher(TeacherSettings(str(tmp_path / name)), torch.device("cpu"))
    (tmp_path / "a.torchscript").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a TorchScript"):
        load_teacher(TeacherSettings(str(tmp_path / "a.torchscript")), torch.device("cpu"))


def test_an_lbm_teaches_frames_from_the_query_on(tmp_path, monkeypatch):
    recipe = SMALL_LBM.recipe(tmp_path)
    opened = (recipe, small_lbm().eval(), "lbm_tiny")
    monkeypatch.setattr(teachers, "open_tracker", lambda source, name: opened)
    settings = TeacherSettings("lbm.pt", visible_threshold=0.0)
    teacher = load_teacher(settings, torch.device("cpu"))
    labels = label_clip(teacher, settings, VIDEO, QUERIES, SUPPORT)
    assert labels.valid[:, 1].tolist() == [False, False, True, True]


@pytest.fixture(scope="module")
def pseudo(tmp_path_factory):
    return SMALL_COTRACKER3_PSEUDO.recipe(tmp_path_factory.mktemp("pseudo"), "data.sequence_len=4")


def test_labels_do_not_depend_on_the_split_and_teachers_load_once(pseudo, monkeypatch):
    loads = []
    load = teachers.load_teacher
    monkeypatch.setattr(
        teachers, "load_teacher", lambda *given: loads.append(given) or load(*given)
    )
    batch = first_batch(pseudo, 2)
    before = torch.get_rng_state()
    together = pseudo.on_device(batch)
    assert torch.equal(torch.get_rng_state(), before)  # loading draws, but not from the run's
    alone = pseudo.on_device(first_batch(pseudo, 1, start=1))
    assert torch.allclose(together.tracks[1], alone.tracks[0], atol=1e-4)
    assert torch.equal(together.visibility[1], alone.visibility[0])
    assert len(loads) == 1
    assert not together.tracks.requires_grad
    assert pseudo.teachers._loaded
    assert not pickle.loads(pickle.dumps(pseudo.teachers))._loaded  # not for loader processes


def test_the_head_of_visibility_stays(pseudo):
    model = pseudo.build_model()
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert frozen == ["updateformer.vis_conf_head.weight", "updateformer.vis_conf_head.bias"]


def test_a_student_of_random_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint\.init_from=FILE"):
        SMALL_COTRACKER3_PSEUDO.recipe(tmp_path, "data.unlabeled.student=null").build_dataset()
    own = "data.unlabeled.teachers=[{source: student}]"
    recipe = SMALL_COTRACKER3_PSEUDO.recipe(tmp_path, own)
    with pytest.raises(ConfigError, match="cannot be a teacher"):
        recipe.build_dataset()
    with pytest.raises(ConfigError, match="per_clip"):
        SMALL_COTRACKER3_PSEUDO.recipe(tmp_path, "loss.per_clip=false")


def test_a_teacher_called_student_is_the_file_that_training_starts_from():
    settings = UnlabeledSettings([TeacherSettings("student"), TeacherSettings("small")], "a.pth")
    faculty = teachers.teachers_of(settings)
    assert isinstance(faculty, Faculty)
    assert [each.source for each in faculty.settings] == ["a.pth", "small"]


def test_a_student_can_start_from_weights_that_ship():
    settings = UnlabeledSettings([TeacherSettings("student")], "shipped:cotracker3_tiny")
    faculty = teachers.teachers_of(settings)
    assert isinstance(faculty, Faculty)
    assert faculty.teacher(0, torch.device("cpu")).name == "cotracker3_tiny"
    with pytest.raises(ConfigError, match="no weights of nothing come with overt"):
        teachers.load_teacher(TeacherSettings("shipped:nothing"), torch.device("cpu"))
