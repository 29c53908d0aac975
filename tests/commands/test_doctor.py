"""`overt doctor`: what is well, what is not, and that each finding comes with its remedy."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy_runs import TOY, toy_config, train_toy

from overt.cli import main as overt
from overt.commands.doctor import main
from overt.config import build_recipe
from overt.distributed import Launch, World
from overt.errors import DataError
from overt.tools.doctor import cluster, machine, run
from overt.tools.doctor.report import Check, Level, attempt, fail, merged, ok, table, warn

TOY_RUN = ["--package", str(TOY), "recipe=toy"]
ALONE = World(0, 1, 0, torch.device("cpu"))


def findings(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, dict[str, str]]]:
    code = main([*words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    return code, {row["name"]: row for row in answer["checks"]}


# --- the command ---------------------------------------------------------------------------------


def test_a_machine_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(["--device", "cpu", "--folder", str(tmp_path)], capsys)
    assert code == 0
    assert {"versions", "rendezvous", "GPUs", "NCCL", "clock", "files"} <= found.keys()
    assert found["versions"]["level"] == found["files"]["level"] == "OK"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_a_run_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings([*TOY_RUN, f"output_dir={tmp_path}/runs"], capsys)
    assert code == 0
    assert found["batch"]["found"] == "2 per process x 1 process(es) x 1 accumulated = 2"
    assert found["data"]["found"].startswith("10 samples; 8 of them read")
    assert found["disk space"]["level"] == "OK"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "name", "text"),
    [
        ("training.num_stps=1", "configuration", "did you mean training.num_steps?"),
        ("data.samples=0", "data", "empty"),
        ("data.broken_sample=3", "data", "sample 3 cannot be read: toy file 3 is unreadable"),
        ("training.global_batch_size=5", "batch", "5 is not"),
    ],
)
def test_a_run_that_cannot_work_fails_with_a_remedy(
    override: str, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TOY_RUN, f"output_dir={tmp_path}", override, "--samples", "10"]
    code, found = findings(words, capsys)
    assert code == 1
    assert found[name]["level"] == "FAIL"
    assert text in found[name]["found"]
    assert found[name]["remedy"]


def test_strict_makes_a_warning_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [*TOY_RUN, f"output_dir={tmp_path}", "--step-seconds", "1e-9"]
    assert main(slow) == 0
    assert "WARN  loader speed" in capsys.readouterr().out
    assert main([*slow, "--strict"]) == 1


def test_the_verb_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert overt(["doctor", "--device", "cpu", "--folder", str(tmp_path)]) == 0
    assert "OK    versions" in capsys.readouterr().out


def test_contradicting_ranks_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    code, found = findings(["--folder", str(tmp_path)], capsys)
    assert code == 1
    assert "RANK=0 but not WORLD_SIZE" in found["rendezvous"]["found"]


def doctor_of(folder: Path) -> tuple[int, list[str], str]:
    with redirect_stdout(StringIO()) as printed:
        code = main([*TOY_RUN, f"output_dir={folder}", "--json"])
    return code, os.listdir(folder), printed.getvalue()


def test_two_processes_find_the_same(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (code, left, text), other = run_processes(doctor_of, 2, folder)
    assert (code, left) == (0, [])
    assert other == (0, [], "")
    checks = {row["name"]: row["found"] for row in json.loads(text)["checks"]}  # one answer
    assert checks["rendezvous"].startswith("2 processes on 1 host(s)")
    assert "between any two processes" in checks["clock"]
    assert "seen by all within" in checks["files"]


def on_own_disk(folder: Path) -> Check:
    """Each process looks at a folder of its own, as on hosts without a shared disk."""
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    own = folder / str(world.rank)
    own.mkdir()
    return cluster.shared_folder(own, world, patience=0.2)


def test_a_folder_that_is_not_shared_is_found(
    run_processes: Callable[..., list[Check]], tmp_path: Path
) -> None:
    for check in run_processes(on_own_disk, 2, tmp_path):
        assert check.level is Level.FAIL
        assert "not seen by rank 1" in check.found
        assert "output_dir" in check.remedy


# --- single checks -------------------------------------------------------------------------------


def test_a_missing_gpu_fails_only_where_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    levels = [machine.gpus(device, None).level for device in ("cpu", "auto", "cuda")]
    assert levels == [Level.OK, Level.WARN, Level.FAIL]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_named_and_computes() -> None:
    found = machine.gpus("cuda", World(0, 1, 0, torch.device("cuda", 0)))
    assert torch.cuda.get_device_name(0) in found.found
    assert found.level < Level.FAIL
    assert machine.nccl({"NCCL_P2P_DISABLE": "1"}).level is Level.WARN


def test_an_unsupported_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.versions().level is Level.OK
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    assert machine.versions().level is Level.WARN


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_said(taken_port: int) -> None:
    launch = Launch(0, 1, 0, 1, "single process", "", taken_port)
    check = machine.rendezvous(launch)
    assert check.level is Level.WARN
    assert f"port {taken_port}" in check.found


def test_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = SimpleNamespace(total=1 << 26, used=0, free=1 << 26)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert machine.loader_memory(4, shared=tmp_path).level is Level.WARN
    assert machine.loader_memory(0, shared=tmp_path).level is Level.OK


def test_more_loaders_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert machine.processors(2, 7).level is Level.OK
    check = machine.processors(8, 8)
    assert check.level is Level.WARN
    assert "training.num_workers=1" in check.remedy


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check = cluster.shared_folder(file / "runs", ALONE)  # the nearest folder is tmp_path
    assert check.level is Level.OK
    check = cluster.shared_folder(Path("/proc/self"), ALONE)
    assert check.level is Level.FAIL
    assert "cannot be written" in check.found


@pytest.mark.parametrize(
    "settings",
    [(), ("training.ema_momentum=0.9",), ("optimizer._target_=torch.optim.SGD",)],
    ids=["adamw", "average", "sgd"],
)
def test_the_size_of_a_checkpoint_is_predicted(settings: tuple[str, ...], tmp_path: Path) -> None:
    words = [*settings, "model.width=4096", "training.num_steps=1"]
    if settings[-1:] == ("optimizer._target_=torch.optim.SGD",):
        words += ["~optimizer.arguments.betas", "~optimizer.arguments.eps"]
    train_toy(tmp_path, *words)
    folder = tmp_path / "toy" / "checkpoints" / "latest"
    parts = [folder / f"{name}.safetensors" for name in ("model", "ema", "optimizer")]
    real = sum(path.stat().st_size for path in parts if path.exists())
    config = toy_config(tmp_path, *words)
    assert run.checkpoint_bytes(config, build_recipe(config)) == pytest.approx(real, rel=0.02)


def test_a_small_disk_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    recipe = build_recipe(config)
    size = run.checkpoint_bytes(config, recipe)
    levels = []
    for checkpoints in (1, 3, 100):
        usage = SimpleNamespace(total=0, used=0, free=checkpoints * size)
        monkeypatch.setattr("shutil.disk_usage", lambda path, usage=usage: usage)
        levels.append(run.disk_space(config, recipe).level)
    assert levels == [Level.FAIL, Level.WARN, Level.OK]


def test_loaders_are_compared_with_the_steps_of_an_earlier_session(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.num_workers=1", "training.batch_size=10")
    config.run_dir.mkdir()
    rows = [{"step": step, "train/seconds_per_step": 0.5} for step in range(5)]
    lines = [*map(json.dumps, rows), '{"step": 5, "tra']  # torn by a crash
    (config.run_dir / "metrics.jsonl").write_text("\n".join(lines))
    seconds = run.measured_step_seconds(config.run_dir)
    assert seconds == 0.5  # 20 samples a second
    assert run.loader_speed(config, 0.01, 1, seconds).level is Level.OK
    check = run.loader_speed(config, 0.1, 1, seconds)
    assert check.level is Level.WARN
    assert "training.num_workers=3" in check.remedy


def test_a_bug_in_the_data_set_is_a_finding(tmp_path: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 3

        def sample(self, index: int, rng: Any) -> Any:
            raise KeyError("tracks")

    check, seconds = run.read_samples(Broken(), toy_config(tmp_path), 2)
    assert check.level is Level.FAIL
    assert "KeyError: 'tracks'" in check.found
    assert seconds is None


# --- the report ----------------------------------------------------------------------------------


def test_the_worst_process_is_named() -> None:
    labels = ["rank 0 on a", "rank 1 on b", "rank 2 on b"]
    well, ill = ok("GPUs", "8 visible"), warn("GPUs", "7 visible", "look at it")
    (check,) = merged([[well], [ill], [well]], labels)
    assert check.level is Level.WARN
    assert check.found == "7 visible (rank 1 on b)"
    assert merged([[well], [well], [well]], labels) == [well]
    other = ok("GPUs", "of another kind")
    assert merged([[well], [other], [well]], labels) == [well]


def test_a_check_that_breaks_off_is_a_failure() -> None:
    def breaks() -> Check:
        raise DataError("nothing there; look elsewhere")

    check = attempt("data", breaks, "mend it")
    assert (check.level, check.found) == (Level.FAIL, "nothing there; look elsewhere")


def test_the_table_shows_the_remedy_below() -> None:
    text = table([ok("one", "fine"), fail("another", "bad " * 40, "do this")])
    assert text.splitlines()[0] == "OK    one      fine"
    assert text.splitlines()[-1].strip() == "-> do this"
    assert max(map(len, text.splitlines())) <= 100
