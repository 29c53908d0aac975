"""BLADE's benchmarks run at tiny sizes and print what the documentation quotes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmark_scripts import functions, run
from PIL import Image
from real_files import write_dressed_body
from small_recipes import BLADE_VIT, SMALL_BLADE
from toy_runs import HERE

from overt.config import load
from overt.tools.launch.stages import plan, read_stages


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_a_step_is_measured_on_the_cpu(stage: str) -> None:
    small = SMALL_BLADE[stage].sizes("data", "model")
    words = ["--device", "cpu", "--steps", "1", "--rows", "3", "training.batch_size=2"]
    printed = run("step.py", f"blade_{stage}_tiny", *small, *words, "--no-floor")
    assert "s/step" in printed
    assert "samples/s" in printed


def test_the_camera_solve_is_measured_and_finds_something() -> None:
    words = ["--people", "1", "--size", "64", "--iterations", "3", "--rounds", "1"]
    printed = run("camera.py", "--device", "cpu", *words)
    for word in ("ms an iteration", "off at the start: focal length", "off at the end:"):
        assert word in printed


def test_three_precisions_of_the_backbone_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = SMALL_BLADE["depthnet"]
    trained = small.recipe(tmp_path, *BLADE_VIT, "model.depth.freeze_backbone=false").build_model()
    file = tmp_path / "backbone.pth"
    torch.save(trained.depth_backbone.state_dict(), file)
    words = [*small.all_words(tmp_path), *BLADE_VIT, "--device", "cpu", "--crops", "2"]
    run("backbone_precision.py", *words, exit_code=1)
    assert "Set model.depth.backbone_checkpoint" in capsys.readouterr().err
    printed = run("backbone_precision.py", *words, f"model.depth.backbone_checkpoint={file}")
    first, _, _, *rows = printed.splitlines()
    assert first == "2 crops"
    assert [row.split()[1:4:2] for row in rows] == [
        ["bf16", "fp32"], ["fp8", "fp32"], ["fp8", "bf16"]
    ]  # fmt: skip
    errors = [float(row.split("|")[3]) for row in rows]
    assert all(0 < error < 0.05 for error in errors)


@pytest.mark.long
def test_joints_tell_less_of_the_depth_if_blurred_and_if_the_pose_is_unknown() -> None:
    words = ["--body", "capsule", "--people", "6", "--pixels", "0.5", "2"]
    *_, last = run("depth_floor.py", *words).splitlines()
    people, *errors = (float(cell) for cell in last.split("|")[2:-1])
    known, blurred, sampled, both = errors
    assert people == 6
    assert 0 < known < blurred < both
    assert known < sampled < both


def test_the_best_guess_of_a_depth_is_off_by_its_deviation() -> None:
    exact, narrow, wide = functions("depth_floor.py")["relative_error"]([0.0, 0.01, 1.0])
    assert exact == 0
    assert narrow == pytest.approx(0.01 * math.sqrt(2 / math.pi), rel=0.05)
    assert 0.5 < wide < 1  # a guess of 0 has an error of 1


@pytest.mark.long
def test_both_stages_and_the_control_are_trained_and_scored(tmp_path: Path) -> None:
    words = ["--tiny", "--seconds", "0.5", "0.5", "--control", "0.5", "--body", "capsule"]
    words += ["--output", str(tmp_path), "training.device=cpu", "data.synthetic.live=false"]
    printed = run("people.py", *words)
    for part in (
        "depth: before training",
        "depth: by distortion 1 to 1.2 (",
        "best constant",
        "pose: before training",
        "orthographic",
    ):
        assert part in printed
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores) == {"depth", "pose", "control"}
    assert scores["pose"]["mpjpe_mm"] > 0


@pytest.mark.long
def test_stages_of_published_sizes_are_trained_one_after_the_other(tmp_path: Path) -> None:
    file = str(HERE.parent / "benchmarks" / "people_518.yaml")
    write_dressed_body(tmp_path / "body.npz")
    words = ["--tiny", "--plan", file, "--body", str(tmp_path / "body.npz"), "--pace", "1", "1"]
    words += ["--no-initial", "training.device=cpu", "data.synthetic.test=4"]
    words += ["data.synthetic.train=400"]  # an epoch of warm-up is longer than the run
    first = ["--only", "depth_126", "depth_252", "depth", "--seconds", "1", "1", "1"]
    first += ["--control", "equal"]
    printed = run("people.py", *first, "--output", str(tmp_path / "first"), *words)
    assert "before training" not in printed
    scores = json.loads((tmp_path / "first" / "scores.json").read_text())
    assert list(scores) == ["depth_126", "depth_252", "depth", "control"]
    assert scores["depth"]["steps"] == scores["control"]["steps"] > 0
    depth = tmp_path / "first" / "depth" / "checkpoints" / "latest"
    second = ["--only", "base_256", "pose", "--seconds", "1", "1", "--output", str(tmp_path / "2")]
    second += ["--given", f"depth={depth}", "base_128=null"]
    run("people.py", *second, *words)
    scores = json.loads((tmp_path / "2" / "scores.json").read_text())
    assert scores["pose"]["mpjpe_mm"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "1"], "1 numbers for depth, pose"),
        (["--only", "x", "y"], "not a stage of"),
        (["--given", "depth=null", "seed=3"], "--given seed=3: not a stage of"),
    ],
)
def test_seconds_belong_to_stages_of_the_plan(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("people.py", *words, exit_code=2)
    assert message in capsys.readouterr().err


def test_joints_on_photographs_count_if_they_are_near() -> None:
    names = functions("photographs.py")
    pixels = np.zeros((22, 2))
    pixels[names["NAMES"].index("left_knee")] = (50, 0)
    joints = {"left_knee": [0, 0], "right_knee": [45, 0], "neck": [9, 0], "head": [11, 0]}
    person = {"torso": 50, "joints": joints}
    assert names["score"](pixels, person) == 0.25  # the neck
    assert names["score"](pixels, person | {"either_leg": True}) == 0.75
    assert names["other_leg"]("left_shoulder") == "left_shoulder"


def test_without_a_box_the_nearest_person_of_a_photograph_is_scored(tmp_path: Path) -> None:
    names = functions("photographs.py")
    joints = np.ones((22, 3))
    joints[:, :2] = (100, 10)
    found = SimpleNamespace(joints=joints, focal=1.0, centre=(0.0, 0.0))
    estimator = SimpleNamespace(person=lambda picture: found)
    marks = [("a", [0, 10], 50), ("b", [0, 10], 50), ("b", [90, 10], 50), ("b", [92, 10], 5)]
    people = [
        {"image": f"{image}.png", "joints": {"neck": xy}, "torso": torso}
        for image, xy, torso in marks
    ]
    for image in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / image)
    nearest = names["alone_estimates"](estimator, people, tmp_path)
    assert set(nearest) == {0, 2}  # in torsos: the last one is nearer in pixels
    rows = [{"joints": 1, "s": 0.5}, {"joints": 3, "s": 1.0}, {"joints": 9, "s": None}]
    assert names["mean_scores"](rows, ("s",)) == {"s": 0.875}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "no list of people"), ('[{"image": "a.png"}]', "person 0 lacks"), ("{}", "lacks")],
)
def test_a_file_without_marked_people_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "people.json"
    file.write_text(text)
    run("photographs.py", str(file), "--checkpoint", "absent", exit_code=1)
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_plan_of_published_sizes_needs_no_weights_of_others() -> None:
    stages = {
        one.name: one for one in plan(read_stages(HERE.parent / "benchmarks" / "people_518.yaml"))
    }
    settings = {name: load(one.words).settings for name, one in stages.items()}
    assert all(one.data.is_live and one.data.synthetic.body == "anny" for one in settings.values())
    depth, pose = settings["depth"], settings["pose"]
    for one in (depth, pose):
        assert (one.model.depth.encoder, one.data.depth_size) == ("vits", 518)
    published = load(["recipe=blade_posenet", "data.root=x"]).settings
    assert (pose.data.pose_size, pose.data.pose_step_sizes) == (512, [320, 512])
    assert pose.model.branch == settings["base_128"].model.branch == published.model.branch
    assert stages["depth"].after == ["depth_252"]
    assert stages["pose"].after == ["base_256", "depth"]
