"""The guides are followed: their commands and calls run, in order, in a folder of their own.

What a guide shows at full size runs here in small, by the substitutions below and no others:
`recipe=X` becomes the tiny X with the sizes of SMALL and one step, the tracker that ships the tiny
one, several processes become one, and the files that a reader brings (weights, videos, data sets)
are made first.
"""

import json
import os
import re
import shlex
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from doc_commands import BLOCK, PAGES, ROOT, commands_in, commands_of, name, try_command
from small_recipes import SMALL as SMALL_RECIPES

from overt.cli import main
from overt.config import build_recipe, load
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.errors import FAILED_EXIT_CODE

TINY = {
    "cotracker3_offline": "cotracker3_tiny",
    "cotracker3_online": "cotracker3_online_tiny",
    **{name: f"{name}_tiny" for name in ("lbm", "hjepa", "pcdiff")},
    "pcdiff_published": "pcdiff_tiny",
    **{name: f"{name}_tiny" for name in ("blade_depthnet", "blade_posenet")},
}
RUN = [
    "training.device=cpu",
    "training.num_workers=0",
    "training.num_steps=1",
    "training.num_epochs=null",
    "training.evaluate_every_steps=null",
    "training.evaluate_at_start=false",
    "logging.use_tensorboard=false",
    "logging.every_steps=1",
    "checkpoint.background=false",
]
# Further words that a guide's commands need to take a few seconds.
QUICKER = {
    "cotracker3_tiny": ["data.synthetic.points=64", "evaluation.single_point=false"],
    "cotracker3_online_tiny": ["data.synthetic.points=64", "evaluation.single_point=false"],
    "pcdiff_tiny": ["evaluation.steps=2", "evaluation.cases=1", "evaluation.loss_times=1"],
}
SMALL = {
    name: [*small.sizes(), *QUICKER.get(name, [])]
    + [word for word in small.words if "batch_size" in word]
    for name, small in SMALL_RECIPES.items()
}
SMALL["hjepa_digits"] = [
    *(word for word in SMALL["hjepa_tiny"] if not word.startswith(("data.", "training."))),
    "evaluation.num_workers=0",
    "evaluation.max_samples=60",
]
# Words of a reader's machine, and what stands for them here.
HERE_INSTEAD = {
    "data prepare data/skullbreak": "data prepare data/skullbreak --points 400",
    "bilateral/003.nrrd": "bilateral/001.nrrd",
    "training.strategy=fsdp": "training.strategy=auto",  # one process has nothing to shard
    "video.mp4": "video.npy",
    "model.backbone_weights=resnet18-f37072fd.pth": "model.backbone_weights=null",
    "--grid 20": "--grid 3",
    "--grid 8": "--grid 2",
    "--grid 6": "--grid 2",
    "grid=6": "grid=2",
    "--frames 16 --size": "--frames 8 --size",
    "features data/digits/test.npz": "features data/digits/test.npz --workers 0",
    "runs/hjepa/": "runs/hjepa_tiny/",
    "runs/pcdiff/": "runs/pcdiff_tiny/",
    "runs/blade_depthnet/": "runs/blade_depthnet_tiny/",
    "runs/blade_posenet/": "runs/blade_posenet_tiny/",
    # The tiny PoseNet is scored on cameras in closed form, which optimizes nothing.
    "--opt-pose --opt-tz": "--opt-pose --opt-tz evaluation.camera.iterations=1",
    # The tiny DepthNet has a backbone of its own.
    "model.depth.backbone_checkpoint=depth_anything_v2.pth": "model.depth.backbone_checkpoint=null",
    # So have the people that the tiny recipes render.
    "model.body.model=body_models/SMPLX_NEUTRAL.npz": "model.body.model=capsule",
    "data.root=mmhuman_data evaluation.dataset=spec_mtp_p3": "evaluation.dataset=people_test",
}
# What other tests run, since it takes long: here only its words are checked.
RUN_BY = {
    "pip install": "tests/test_extras.py",
    "make demo": "tests/commands/test_demo.py",
    "srun ": "tests/cluster/test_slurm_jobs.py",
    "--to onnx --recipe lbm": "tests/recipes/lbm/test_export.py",
    "--to onnx": "tests/recipes/hjepa/test_export.py",
    "overt prove ": "tests/commands/test_prove.py",
    "overt data smplx-labels": "tests/data/people/test_smplx_labels.py",
    "overt data body-transfer": "tests/commands/data/test_people.py",
    "checkpoint.resume=": "tests/engine/test_training_files.py",
    "overt doctor": "tests/commands/test_doctor.py",
    "overt plan ": "tests/commands/test_plan.py",
    "overt stages ": "tests/commands/test_stages.py",
    "overt launch local": "tests/tools/launch/test_local.py",
    "overt launch systemd": "tests/tools/launch/test_systemd.py",
    "overt train -m ": "tests/test_train.py",
    "mlflow_tracker": "tests/run/test_mlflow_tracker.py",
    "profile_steps": "tests/health/test_profile.py",
}
# Signs of a command that needs more than this machine and what a page before it has made.
NEEDS_MORE = re.compile(
    r"^(?:pip|make|python|sudo|source|tensorboard|nohup|pre-commit) |\bsrun\b|launch slurm|--nnodes"
    r"|\b(?:FILE|VIDEO)\b|cuda_graph=true|use_wandb=true logging.wandb_project|track 0 |lbm\.pt"
    r"|data/(?:kubric|skullbreak|imagenet|tapvid|kubric_\w+|shapes_pack)\b|imagenet/|mmhuman_data"
    r"|blade_tiny|\.pth\b(?<!tracker\.pth)|recipe=(?!\w+_tiny|own_recipe|jepa_)\w+"
)
COMMAND = re.compile(r"`((?:overt|torchrun|srun) [^`]+)`")


TAKE_SETTINGS = ("evaluate", "estimate", "complete")


def table_commands(page: Path) -> list[str]:
    """The commands in the second column of the page's tables."""
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    return [command for row in rows if len(row) > 1 for command in COMMAND.findall(row[1])]


def smaller(command: str) -> list[str]:
    """The words of `overt`, with the substitutions of this test."""
    for there, here in HERE_INSTEAD.items():
        command = command.replace(there, here)
    command = re.sub(
        r"^(?:[A-Z_]+=\S+ )?(?:torchrun --nproc_per_node=\d+|srun python) ", "", command
    )
    words = shlex.split(command, comments=True)
    if words[0] == "-m":
        words = ["overt", *(["train"] if words[1] == "overt.train" else []), *words[2:]]
    words = words[1:]
    verb = words[0]
    chosen = re.search(r"(?:recipe=|--recipe )(\w+)", command)
    if chosen is None:
        stored = re.search(r"runs/(\w+)/", command)
        extra = SMALL.get(stored[1], []) if stored and verb in TAKE_SETTINGS else []
        return [*words, *(word for word in extra if word.startswith("evaluation"))]
    tiny = TINY.get(chosen[1], chosen[1])
    words = [re.sub(rf"^(recipe=)?{chosen[1]}$", rf"\g<1>{tiny}", word) for word in words]
    if verb == "config":  # prints; nothing is to be made smaller
        return words
    if tiny in SMALL:  # a global batch of its few samples
        batch = 8 if tiny == "hjepa_tiny" else 2
        large = r"^(training.global_batch_size)=\d{2,}$"
        words = [re.sub(large, rf"\1={batch}", word) for word in words]
    small = [*SMALL.get(tiny, []), "training.device=cpu"]
    if verb in ("train", "evaluate"):
        small = [*small, *RUN]
    if verb == "ckpt":
        small = [word for one in small for word in ("--set", one)]
    return [*words, *small]


def make_files(folder: Path, recipes: dict[str, str]) -> None:
    """A video, and weights of small models under the names by which others publish them."""
    frames, _ = make_sequence(SceneSettings(8, 30, 42, 4, seed=0, shapes=3, speed=2), 0)
    np.save(folder / "video.npy", frames)
    for file, recipe in recipes.items():
        torch.manual_seed(0)
        model = build_recipe(load([f"recipe={recipe}", *SMALL[recipe]])).build_model()
        torch.save({"model": model.state_dict()}, folder / file)


def follow(page: str) -> None:
    """Run what a page shows, its tables first, then its blocks in order."""
    file = ROOT / "docs" / page
    blocks = [block for block in BLOCK.findall(file.read_text()) if not block[0]]
    commands = table_commands(file)
    assert commands or blocks
    for command in commands:
        run(page, command)
    names: dict[str, object] = {"SMALL": SMALL, "RUN": RUN}
    for _, _, language, text in blocks:
        if language == "bash":
            for command in commands_in(text):
                run(page, command)
        elif language == "python":
            for there, here in HERE_INSTEAD.items():
                text = text.replace(there, here)
            for full, tiny in TINY.items():
                text = text.replace(f'"recipe={full}"', f'"recipe={tiny}", *SMALL["{tiny}"], *RUN')
            exec(compile(text, page, "exec"), names)


def run(page: str, command: str) -> None:
    """Run a command in small; one that another test runs is only handed to its parser."""
    elsewhere = [test for part, test in RUN_BY.items() if part in command]
    if elsewhere:
        assert (ROOT / elsewhere[0]).is_file()
        try_command(command)
        return
    words = smaller(command)
    with redirect_stderr(StringIO()) as errors:
        code = main(words)
    # Points of random weights may enclose no volume: they are written, and the command says so.
    is_empty = words[0] == "complete" and "enclose no volume" in errors.getvalue()
    ran = f"{page}: {command}\nran as: overt {shlex.join(words)}\n{errors.getvalue()}"
    assert code == (FAILED_EXIT_CODE if is_empty else 0), ran


@pytest.fixture(autouse=True)
def folder(tiny_tracker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_davis() -> None:
    size = ["--videos", "1", "--frames", "8", "--size", "32", "40", "--points", "4"]
    assert main(["data", "tapvid", "data/tapvid", "--dataset", "davis", *size]) == 0


@pytest.mark.long
def test_coming_from_cotracker(folder: Path) -> None:
    make_files(
        folder,
        {
            "scaled_offline.pth": "cotracker3_tiny",
            "scaled_online.pth": "cotracker3_online_tiny",
        },
    )
    make_davis()
    follow("coming_from_cotracker.md")
    assert (folder / "video_tracks" / "tracks.npz").is_file()


@pytest.mark.long
def test_coming_from_lbm(folder: Path) -> None:
    make_files(folder, {"lbm.pt": "lbm_tiny"})
    make_davis()
    follow("coming_from_lbm.md")
    assert (folder / "lbm.safetensors").is_file()


def test_coming_from_hjepa(folder: Path) -> None:
    follow("coming_from_hjepa.md")
    assert (folder / "runs/from_python/checkpoints/latest").exists()


@pytest.mark.long
def test_coming_from_pcdiff(folder: Path) -> None:
    make_files(folder, {"epoch_999.pth": "pcdiff_tiny"})
    skulls = [
        "data/skullbreak",
        "--skulls",
        "2",
        "--side",
        "24",
        "--points",
        "400",
        "--kind",
        "shells",
    ]
    assert main(["data", "skulls", *skulls]) == 0
    shutil.copy("data/skullbreak/defective_skull/bilateral/001.nrrd", "skull.nrrd")
    follow("coming_from_pcdiff.md")
    assert (folder / "skull_implant" / "sample_0.ply").is_file()


@pytest.mark.long
def test_coming_from_blade(folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    people = ["--count", "1", "--size", "32", "--name", "one"]
    assert main(["data", "people", "photos", *people]) == 0
    for photo in ("photo.jpg", "photo2.jpg"):
        shutil.copy("photos/datasets/one/imgs/000000.jpg", photo)
    shutil.copy("photos/datasets/one/masks/000000.png", "person.png")
    # A detector's boxes and outlines, the whole pictures.
    outline = {"bbox": [0, 0, 32, 32], "segmentation": [[0, 0, 32, 0, 32, 32, 0, 32]]}
    found = [{"image_id": name, "category_id": 1, **outline} for name in ("photo", "photo2")]
    Path("results.json").write_text(json.dumps(found))
    follow("coming_from_blade.md")
    assert (folder / "photo_person" / "mesh.obj").is_file()


def test_the_first_hour(folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    follow("first_hour.md")
    assert (folder / "runs/mine/report.html").is_file()
    assert (folder / "frames_tracks" / "tracks.npz").is_file()


@pytest.mark.parametrize(
    ("page", "looked_at"),
    [
        pytest.param("track_a_video", "python_tracks.gif", marks=pytest.mark.long),
        pytest.param("track_in_real_time", "live.gif", marks=pytest.mark.long),
        ("pretrain_an_encoder", "neighbors.png"),
        ("complete_a_skull", "case/report.html"),
        ("estimate_a_person", "person/overlay.png"),
    ],
)
def test_a_tutorial_ends_with_something_to_look_at(
    page: str, looked_at: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After one step of training, sampled points are 500 mm apart.
    monkeypatch.setattr("overt.geometry.solid.LARGEST_CM2", float("inf"))
    follow(f"tutorials/{page}.md")
    assert (folder / looked_at).stat().st_size > 1000
    assert looked_at in (ROOT / f"docs/tutorials/{page}.md").read_text()


def test_training_from_python(folder: Path) -> None:
    follow("python.md")
    assert (folder / "runs/line/checkpoints/latest").exists()


def make_runs(command: str) -> None:
    """The run folders that a command speaks of, where the page has not made them."""
    for run_name in re.findall(r"runs/(\w+)", command):
        if not Path("runs", run_name).exists():
            own = "own_recipe" in run_name
            recipe = run_name if run_name in SMALL or own else "cotracker3_tiny"
            package = ["--package", str(ROOT / "examples/own_recipe")] if own else []
            words = [f"recipe={recipe}", f"exp_name={run_name}", *SMALL.get(recipe, []), *RUN]
            assert main(["train", *words, *package]) == 0


FOLLOWED = ("coming_from", "first_hour", "tutorials", "python.md")
OTHERS = [page for page in PAGES if not any(part in name(page) for part in FOLLOWED)]


@pytest.mark.parametrize("page", OTHERS, ids=name)
def test_commands_that_need_nothing_run(page: Path, folder: Path) -> None:
    """In some minutes; `make test` leaves it at handing them to their parsers (test_docs.py)."""
    if os.environ.get("OVERT_RUN_DOCS") != "1":
        pytest.skip("OVERT_RUN_DOCS=1 runs the commands of all pages")
    (folder / "examples").symlink_to(ROOT / "examples")
    for command in commands_of(page):
        if not command.needs and not NEEDS_MORE.search(command.text):
            make_runs(command.text)
            run(command.page, command.text)
