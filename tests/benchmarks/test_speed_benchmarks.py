"""The speed benchmarks run at tiny sizes and print what the documentation quotes."""

import json
from pathlib import Path

import pytest
from benchmark_scripts import functions, run


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_overhead_compares_the_loops(processes: str, capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--inputs", "16", "--hidden", "8", "--batch", "4", "--rounds", "1", "--steps", "2"]
    printed = run("overhead.py", "--processes", processes, *sizes)
    printed += capfd.readouterr().out  # of the processes that it starts
    for word in ("bare", "plain", "overt / plain = ", "watching", f"{processes} process(es)"):
        assert word in printed


def test_step_measures_a_recipe_on_the_cpu(tmp_path: Path) -> None:
    small = ["data.crop_size=[32,32]", "data.traj_per_sample=4", "model.train_iters=1"]
    words = ["--device", "cpu", "--steps", "1", "--rows", "3"]
    printed = run("step.py", "cotracker3_tiny", *small, *words, "--json", str(tmp_path / "row"))
    assert "s/step" in printed
    assert "launches and 0 host syncs per step" in printed
    assert "GiB" not in printed
    assert "floor" not in printed
    row = json.loads((tmp_path / "row").read_text(), parse_constant=pytest.fail)
    assert row["gib"] is row["matrix_seconds"] is None


def test_a_step_has_all_its_accumulated_micro_batches(tmp_path: Path) -> None:
    small = ["training.batch_size=2", "training.accumulation_steps=3", "model.depth=1"]
    trainer, _ = functions("step.py")["build"]("hjepa_tiny", small, str(tmp_path), "cpu")
    batch = trainer.loader.next_step()
    trainer.close()
    assert len(batch.micro_batches) == 3
    assert batch.samples == trainer.plan.global_batch_size == 6


def test_precision_compares_losses_with_float32() -> None:
    small = ["training.global_batch_size=2", "training.batch_size=2", "model.depth=1"]
    words = ["hjepa_tiny", *small, "--device", "cpu", "--steps", "1", "--seeds", "3"]
    tanh, exact = (
        float(run("precision.py", *words, *form).rpartition("hjepa_tiny: ")[2].split()[0])
        for form in ((), ("--exact-gelu",))
    )
    assert 0 < tanh < 1e-2
    assert 0 < exact < 1e-2
    assert exact != tanh


REFUSED = {
    "step.py nosuch --device cpu": "nosuch",
    "step.py hjepa_tiny training.nosuch=1 --device cpu": "training.nosuch",
    "step.py hjepa_tiny --steps 0": "expected an integer of at least 1, got '0'",
    "step.py hjepa_tiny --json nosuch/row.json": "not a file in an existing folder",
    "floor.py nosuch": "nosuch",
    "precision.py nosuch --device cpu": "nosuch",
    "buckets.py nosuch --device cpu": "nosuch",
    "buckets.py hjepa_tiny --processes 0": "at least 1",
    "sampling.py hjepa_tiny --device cpu": "recipe=hjepa_tiny does not sample",
    "rows.py --only hjeppa --device cpu": "did you mean hjepa?",
    "fed.py nosuch --device cpu": "fed.py makes no data for it",
    "loader.py images --size 0 8": "at least 1",
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_ends_in_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*command.split(), exit_code=2)
    assert REFUSED[command] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("script", ["buckets.py", "rows.py --only", "camera.py"])
def test_a_device_that_is_missing_is_named(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = script.split() if script == "camera.py" else [*script.split(), "hjepa"]
    run(*words, exit_code=2)
    assert capsys.readouterr().err.endswith("no CUDA device; use --device cpu\n")


def test_a_row_that_fails_names_the_file_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", lambda command, stdout, **_: stdout.write("a reason"))
    words = ["--only", "mine=nosuch", "--device", "cpu", "--output", str(tmp_path)]
    printed = run("rows.py", *words, exit_code=1)
    assert printed.endswith(f"| mine | failed: {tmp_path}/mine.txt |\n")
    assert (tmp_path / "mine.txt").read_text() == "a reason"


def test_a_negative_waiting_time_is_noise() -> None:
    waiting = functions("buckets.py")["waiting"]
    assert waiting(0.9, 1.0, 0.5) == "waiting 0 s (within noise)"
    assert waiting(1.1, 1.0, 0.5) == "waiting 0.1000 s, 0.20 of the all-reduce alone"


@pytest.mark.long
def test_buckets_are_compared_with_a_pass_that_sends_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    small = ["data.crop_size=[32,32]", "data.traj_per_sample=4", "model.train_iters=1"]
    run("buckets.py", "cotracker3_tiny", "--device", "cpu", "--passes", "1", *small, "--mib", "1")
    printed = capfd.readouterr().out  # of the processes that it starts
    assert "2 processes on one device, Gloo" in printed
    assert "pass without communication" in printed
    assert "buckets of 1 MiB: pass" in printed


@pytest.mark.long
def test_a_floor_is_printed_without_a_gpu() -> None:
    small = ["data.crop_size=[32,32]", "data.traj_per_sample=4", "model.train_iters=1"]
    printed = json.loads(run("floor.py", "cotracker3_tiny", "--json", "--set", *small))
    # AdamW holds two numbers for each weight.
    assert printed["optimizer"] == pytest.approx(2 * printed["weights"], rel=0.01)
    assert printed["flops"] > 0


def test_a_floor_counts_operations_and_bytes() -> None:
    floor = functions("floor.py")["Floor"]
    known = floor(790 * 10**12, 10**9, 0, 0, 0, 10**9, 0, "bf16")
    assert known.matrix_seconds == pytest.approx(1.0)
    assert known.moved == 6 * 10**9
    assert known.within(1.5e9).moved == 5 * 10**9  # of the activations half was seen
    assert known.words(2.0).endswith("reached 50%")


def test_idle_time_is_what_no_kernel_covers() -> None:
    busy = functions("step.py")["busy"]
    assert busy([(4.0, 6.0), (0.0, 3.0), (1.0, 2.0)]) == (6.0, 1.0)


def test_training_from_files_is_compared_with_resident_data() -> None:
    # More samples in a batch than the data would have by themselves.
    small = ["training.batch_size=20", "model.depth=1", "model.predictor.depth=1"]
    words = ["--here", "--small", "--device", "cpu", "--workers", "1", "--steps", "1", "--json"]
    lines = run("fed.py", "hjepa_tiny", *words, "--set", *small).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["storage"] for row in rows] == ["packed", "files"]
    assert all(row["fed"] > 0 and 0 <= row["wait"] < 1 for row in rows)


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_fed_gives_frozen_parts_random_weights(stage: str) -> None:
    small = ["training.batch_size=2", "model.depth.freeze_backbone=true"]
    words = ["--here", "--small", "--device", "cpu", "--workers", "0", "--steps", "1", "--json"]
    (line,) = run("fed.py", f"blade_{stage}_tiny", *words, "--set", *small).splitlines()
    assert json.loads(line)["fed"] > 0


def test_loader_compares_whole_jpegs_with_reduced_ones() -> None:
    printed = run("loader.py", "images", "--count", "1", "--size", "480", "480", "--rounds", "1")
    assert "decoded whole" in printed
    assert "reduced_decode" in printed


def test_a_row_of_the_table_has_its_share() -> None:
    rows = functions("rows.py")
    numbers = {"seconds": 0.1, "samples_per_second": 40.0, "gib": 8.0, "first_seconds": 12.0}
    numbers |= {"launches": 20, "compile": "blocks", "cuda_graph": True}
    text = rows["line"]("lbm", numbers | {"matrix_seconds": 0.03, "copy_seconds": 0.01})
    assert text.endswith("| blocks | true | 0.0300 | 0.0100 | 30% |")
    assert len(text.split("|")) == len(rows["HEAD"]) + 2
    on_cpu = {"gib": None, "matrix_seconds": None, "copy_seconds": None}
    text = rows["line"]("lbm", numbers | on_cpu)
    assert text == "| lbm | 0.1000 | 40.0 |  | 12 | 20 | blocks | true |  |  |  |"


@pytest.mark.long
def test_jepa_tells_what_masks_and_monitor_cost() -> None:
    small = ["training.batch_size=4", "model.depth=1", "model.predictor.depth=1"]
    printed = run("jepa.py", "hjepa_tiny", *small, "--device", "cpu", "--steps", "1")
    for word in ("ms per image and core", "step without monitor", "one in 50 steps", "goal 1%"):
        assert word in printed


@pytest.mark.long
def test_tracking_compares_one_encoding_with_many() -> None:
    words = ["cotracker3_tiny", "--device", "cpu", "--frames", "2", "--queries", "2"]
    printed = run("tracking.py", *words, "--rounds", "1", "--backend", "eager")
    for word in ("encoded for each", "encoded once", "and compiled", "queries/s"):
        assert word in printed


def test_loader_compares_the_frames_that_are_used_with_all() -> None:
    sizes = ["--count", "1", "--frames", "8", "--size", "64", "64", "--points", "60"]
    printed = run("loader.py", "clips", *sizes, "--rounds", "1")
    assert "all frames, then the cut" in printed
    assert "clips/s" in printed


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["cotracker3_tiny", "lbm_tiny"])
def test_augmentation_compares_the_loader_with_the_device(recipe: str) -> None:
    sizes = ["--frames", "12", "--size", "64", "64", "--points", "80", "--count", "4"]
    counts = ["--clips", "2", "--workers", "0", "--storage", "raw"]
    words = [recipe, "training.batch_size=1", "--device", "cpu", *sizes, *counts]
    printed = run("augmentation.py", *words)
    for word in ("augmented by the loader", "augmented on the device", "4 raw", "clips/s"):
        assert word in printed
