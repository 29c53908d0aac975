"""Random command lines, run folders and checkpoints: each is read, or refused in words."""

import io
import json
import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overt.config import load
from overt.errors import OvertError

TOY = str(Path(__file__).parents[1] / "toy_recipe")
VALUES = (
    "1", "-1", "0", "null", "nan", "inf", "1e400", "1e38", "-9223372036854775809", "'9'", "''",
    "[]", "[1,2]", "{}", "{a:1}", "${nope}", "${seed}", "${oc.env:HOME}", "${oc.env:NOT_THERE}",
    "${exp_name}", "${training}", "${oc.decode:'['}", "abc", "true", "../../x", "/tmp/x",
    "overt.train.sys", "overt.nope", "torch.optim.Nope", "os.system", "..", "[[1]]", "[null]",
    "[{_target_:x}]", "${.x}", "${..}", "${oc.env}", "${oc.create:{a:1}}", "???", "0.5", "1e-400",
    "9" * 400, "${oc.select:x,y}", "\u00e9", "[[[[[]]]]]", "{_target_:overt.schedule.Nope}",
)  # fmt: skip
MARKS = ("", "", "", "", "+", "++", "~")
ODD = (
    None, True, -1, 0, 1, 2**53 + 1, 10**400, 1e300, -1e300, float("nan"), "", "x", "nan", "\ud800",
    [], [[]], {}, {"a": {}}, "../..", "\0",
)  # fmt: skip


@cache
def keys() -> list[str]:
    from overt.config.checked import dotted_keys
    from overt.config.compose import compose_values

    return list(dotted_keys(compose_values(["recipe=toy"], packages=[TOY])))


def random_words(rng: random.Random) -> list[str]:
    """One or two overrides of a key that exists."""
    return [
        f"{rng.choice(MARKS)}{rng.choice(keys())}={rng.choice(VALUES)}"
        for _ in range(rng.choice((1, 1, 2)))
    ]


def fuzz_overrides(seed: int, count: int) -> None:
    """Load so many random command lines; what is raised besides OvertError is a bug."""
    import composed_once  # noqa: F401  (composes each choice of groups once)

    rng = random.Random(f"overrides/{seed}")
    resolved = load(["recipe=toy"], packages=[TOY]).text
    problems = []
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "config.yaml"
        file.write_text(resolved)
        for _ in range(count):
            words = random_words(rng)
            from_file = rng.random() < 0.3
            try:
                if from_file:
                    load(words, str(file), [TOY])
                else:
                    load(["recipe=toy", *words], packages=[TOY])
            except OvertError:
                continue
            except Exception as error:
                problems.append(f"{'--config ' if from_file else ''}{words}: {error!r}"[:300])
    assert not problems, "\n".join(problems)


# --- run folders ----------------------------------------------------------------------------------


def random_rows(rng: random.Random, names: tuple[str, ...]) -> Iterator[bytes]:
    """Lines of a log: good ones, odd values, and what is no JSON."""
    for index in range(rng.randrange(1, 30)):
        row: dict[str, Any] = {"step": index, "time": 1.7e9 + index}
        for name in rng.sample(names, rng.randrange(1, len(names))):
            row[name] = rng.choice((*ODD, rng.random()))
        line = json.dumps(row).encode()
        match rng.randrange(8):
            case 0:
                line = line[: rng.randrange(len(line))]
            case 1:
                line = bytes(rng.randrange(256) for _ in range(20))
            case 2:
                line = b"[" * rng.choice((10, 990, 5000))
            case 3:
                line = b'{"step": ' + b"9" * 400 + b', "time": 1e300}'
        yield line + b"\n"


METRICS = (
    "step",
    "time",
    "train/loss",
    "train/epoch",
    "train/seconds_per_step",
    "evaluation/e",
    "x",
)
EVENTS = ("time", "kind", "step", "exit_code", "error", "pid", "host", "path", "name", "stopped")
KINDS = ("start", "resume", "finish", "skipped_step", "image", "video", "saved", "preempted", "x")
CONFIGS = (
    b"", b"\xff\xfe", b"a: [", b"- 1", b"[" * 3000, b"a: &a [*a]", b"training: {num_steps: 9}",
    b"training:\n  num_steps: 1e400\n", b"checkpoint: {metric_name: e, mode: 3}",
    b"training: 3\nlogging: [1]\n", b"training: {num_steps: -5, num_epochs: 0.5}",
)  # fmt: skip


def random_run(folder: Path, rng: random.Random) -> Path:
    """A run folder of random content, with links and odd files in it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "checkpoints" / "step_00000003").mkdir(parents=True)
    (folder / "evaluation").mkdir()
    (folder / "metrics.jsonl").write_bytes(b"".join(random_rows(rng, METRICS)))
    lines = []
    for line in random_rows(rng, EVENTS):
        kind = json.dumps(rng.choice(KINDS)).encode()
        lines.append(line.replace(b'"kind": null', b'"kind": ' + kind))
    for kind in rng.sample(KINDS, 4):
        lines.append(json.dumps({"time": 1.7e9, "kind": kind, "step": rng.choice(ODD)}).encode())
        lines.append(b"\n")
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    (folder / "config.yaml").write_bytes(rng.choice(CONFIGS))
    (folder / "command.txt").write_bytes(bytes(rng.randrange(256) for _ in range(50)))
    manifest = {"metric": rng.choice(ODD), "step": rng.choice(ODD), "is_best": True}
    (folder / "checkpoints/step_00000003/manifest.json").write_text(json.dumps(manifest))
    (folder / "evaluation/scores.json").write_text(json.dumps({"scores": rng.choice(ODD)}))
    (folder / "evaluation/picture.png").write_bytes(b"no picture")
    if rng.random() < 0.3:
        (folder / "checkpoints/best").symlink_to(rng.choice(("..", "/", "step_00000003", "x")))
    if rng.random() < 0.2:
        (folder / "config.yaml").unlink()
        (folder / "config.yaml").symlink_to(rng.choice(("/etc/passwd", "config.yaml", "..")))
    return folder


def show(folder: Path) -> None:
    """All that looks at a run folder; what is raised besides OvertError is a bug."""
    from overt.cli import main

    page = str(folder.parent / "page.html")
    for words in (
        ["runs", str(folder.parent)],
        ["runs", str(folder.parent), "--json"],
        ["watch", "--once", str(folder)],
        ["report", str(folder), "--output", page],
    ):
        with redirect_stdout(io.StringIO()):
            main(words)


def forged_checkpoint(source: Path, target: Path, rng: random.Random) -> Path:
    """A checkpoint in which one value of its state is another one, with right checksums."""
    from tests.checkpoint.forged import forge_state, forge_tensors

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)

    def change(described: dict[str, Any]) -> None:
        node: Any = described
        while True:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            child = node[key]
            if isinstance(child, dict | list) and child and rng.random() < 0.8:
                node = child
                continue
            node[key] = rng.choice(tuple(odd for odd in ODD if odd != "\ud800"))
            return

    forge_state(target, change)
    if rng.random() < 0.3:
        file = rng.choice(sorted(path.name for path in target.glob("*.safetensors")))
        forge_tensors(target, file, lambda tensors: other_tensors(tensors, rng))
    return target


def other_tensors(tensors: dict[str, Tensor], rng: random.Random) -> dict[str, Tensor]:
    """One tensor with another shape, type, name or value, or without it."""
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    match rng.randrange(6):
        case 0:
            tensors[name] = tensor.flatten()[: tensor.numel() // 2].clone()
        case 1:
            tensors[name] = tensor[None].repeat(3, *[1] * tensor.dim())
        case 2:
            tensors[name] = tensor.to(rng.choice((torch.int64, torch.float16, torch.bool)))
        case 3:
            tensors[f"{name}.more"] = tensor
        case 4:
            tensors[name] = torch.full_like(tensor.float(), float("nan"))
    return tensors


def resume_forged(folder: Path) -> None:
    """Resume from a forged checkpoint, and train on where it is accepted."""
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    torch.manual_seed(0)
    config = config_below(folder.parents[2])
    try:
        with redirect_stdout(io.StringIO()):
            Trainer(config, build_recipe(config), init_distributed("cpu")).train()
    except OvertError:
        return


@cache
def config_below(folder: Path) -> Any:
    """The configuration of all runs in one folder: to compose it takes longer than to train."""
    from toy_runs import toy_config

    return toy_config(folder, "training.num_steps=4")


def fuzz_folders(seed: int, count: int) -> None:
    """Show so many random run folders, and resume from as many forged checkpoints."""
    from toy_runs import train_toy

    rng = random.Random(f"folders/{seed}")
    with tempfile.TemporaryDirectory() as home:
        good = Path(home) / "good"
        with redirect_stdout(io.StringIO()):
            train_toy(good, "training.num_steps=4", "checkpoint.every_steps=2")
        step = good / "toy/checkpoints/step_00000002"
        problems = []
        for index in range(count):
            try:
                show(random_run(Path(home) / "shown/run", rng))
                run = Path(home) / "forged/toy"
                shutil.rmtree(run, ignore_errors=True)
                forged = forged_checkpoint(step, run / "checkpoints" / step.name, rng)
                if rng.random() < 0.3:
                    (run / "config.yaml").write_bytes(rng.choice(CONFIGS))
                resume_forged(forged)
            except Exception:
                problems.append(f"folder {index}: {traceback.format_exc()}")
    assert not problems, "\n".join(problems)
