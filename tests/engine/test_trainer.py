"""overt/engine/trainer.py: what one run does with bad steps, precisions, scores and settings."""

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from toy_recipe.recipe import Toy
from toy_runs import losses_by_step, read_rows, same_bits, toy_config, train_toy, weights

from overt.config import build_recipe
from overt.distributed import get_rank, get_world_size, init_distributed
from overt.engine.trainer import Trainer
from overt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    NonFiniteError,
    NonFiniteWeightsError,
    StopError,
)
from overt.recipe import StepOutput

RUNS = Callable[..., list[Any]]
AVERAGE = "training.ema_momentum=0.9"
DROPOUT = "model.dropout=0.3"
SKIPS = ["training.nonfinite=skip", "data.nan_sample=3"]


def test_the_file_can_be_read_in_one_sitting() -> None:
    assert len(Path(inspect.getfile(Trainer)).read_text().splitlines()) <= 350


def make(folder: Path, *overrides: str, recipe: type[Toy] = Toy) -> Trainer:
    config = toy_config(folder, *overrides)
    return Trainer(config, recipe(config.settings), init_distributed("cpu"))


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of all that an update may change: weights, average, momenta and their counters."""
    assert trainer.average is not None
    tensors = {f"model.{key}": value for key, value in trainer.model.state_dict().items()}
    tensors |= {f"average.{key}": value for key, value in trainer.average.state_dict().items()}
    for number, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"{number}.{key}": value for key, value in moments.items()}
    return {key: value.clone() for key, value in tensors.items()}


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def steps_with_sample(trainer: Trainer, index: int, steps: int) -> list[int]:
    """The steps whose global batch holds this sample, by the loader's own order."""
    found = []
    for step in range(steps):
        group = trainer.loader.next_step()
        if any(one.index == index for micro in group.micro_batches for one in micro.ids):
            found.append(step)
    trainer.close()
    return found


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with dropout and an average that nothing disturbs, to compare others with."""
    folder = tmp_path_factory.mktemp("plain")
    train_toy(folder, AVERAGE, DROPOUT)
    return folder / "toy"


# --- steps that are not finite --------------------------------------------------------------------


def test_a_skipped_step_moves_nothing(tmp_path: Path) -> None:
    trainer = make(tmp_path, *SKIPS, AVERAGE)
    (bad,) = steps_with_sample(make(tmp_path / "order"), 3, steps=5)
    unmoved, rates = [], []
    for step in range(5):
        before = everything(trainer)
        trainer.train_step()
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        if same_bits(before, everything(trainer)):
            unmoved.append(step)
    trainer.close()
    assert unmoved == [bad]
    # The schedule has not moved either: the step after gets the rate of the skipped one.
    numbers = [step if step <= bad else step - 1 for step in range(5)]
    assert rates == [trainer.schedule(number) for number in numbers]


def test_skipping_goes_on_and_leaves_a_trace(tmp_path: Path) -> None:
    trainer = make(tmp_path, *SKIPS, "training.num_steps=10")
    trainer.train()
    bad = steps_with_sample(make(tmp_path / "order", "data.nan_sample=3"), 3, steps=10)
    assert len(bad) == 2  # once an epoch
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.state_dict().values())
    assert trainer.state.skipped == 2
    assert trainer.state.updates == 8
    rows = [
        json.loads(line)
        for line in (tmp_path / "toy/skipped/rank_0.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == bad
    assert all(3 in [sample["index"] for sample in row["samples"]] for row in rows)
    assert [row["samples"][0]["epoch"] for row in rows] == [0, 1]
    assert [event["step"] for event in events(tmp_path / "toy", "skipped_step")] == bad
    # A skipped step is no part of any mean; where it stood alone there is no mean.
    losses = losses_by_step(tmp_path / "toy")
    assert [step for step in range(10) if losses[step + 1] == "nan"] == bad


def test_stopping_saves_the_weights_from_before_the_step(tmp_path: Path) -> None:
    settings = ["data.nan_sample=3", "training.nonfinite=stop", "checkpoint.every_steps=100"]
    trainer = make(tmp_path, *settings)
    with pytest.raises(NonFiniteError, match="skipped: its loss or gradient is non-finite"):
        trainer.train()
    bad = steps_with_sample(make(tmp_path / "order"), 3, steps=5)[0]
    saved = weights(tmp_path / "toy", bad + 1)
    reference = make(tmp_path / "reference", *settings)
    for _ in range(bad):
        reference.train_step()
    reference.close()
    assert same_bits(saved, reference.model.state_dict())
    # What was saved is a checkpoint like any other: a run that skips goes on from it.
    train_toy(tmp_path, "data.nan_sample=3", "training.nonfinite=skip")
    assert all(
        bool(torch.isfinite(value).all()) for value in weights(tmp_path / "toy", 12).values()
    )


def test_too_many_skipped_in_a_row_stop_the_run(tmp_path: Path) -> None:
    class AlwaysNan(Toy):
        """A loss that is NaN although its gradient is not."""

        def loss(self, model: nn.Module, batch: Any, counts: Any, step: int) -> StepOutput:
            output = super().loss(model, batch, counts, step)
            wrong = float("nan") if step >= 2 else 0.0
            return StepOutput({"fit": output.losses["fit"] + wrong})

    trainer = make(
        tmp_path,
        "training.nonfinite=skip",
        "training.max_skipped_in_a_row=3",
        "logging.every_steps=100",
        recipe=AlwaysNan,
    )
    with pytest.raises(NonFiniteError, match=r"3 step\(s\) in a row"):
        trainer.train()
    assert (trainer.state.step, trainer.state.skipped) == (5, 3)


def skip_and_digest(folder: Path, *overrides: str) -> dict[str, Any]:
    trainer = make(folder, *overrides)
    trainer.train()
    rank = trainer.world.rank
    path = folder / "toy" / "skipped" / f"rank_{rank}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    result = {
        "weights": {key: value.tolist() for key, value in trainer.model.state_dict().items()},
        "skipped": trainer.state.skipped,
        "steps": [row["step"] for row in rows],
        "bad": [row["loss"] == "nan" for row in rows],
    }
    del trainer
    return result


def test_nan_on_one_process_makes_both_skip(run_processes: RUNS, tmp_path: Path) -> None:
    one, other = run_processes(
        skip_and_digest, 2, tmp_path, *SKIPS, "training.batch_size=1", "training.num_steps=10"
    )
    assert one["skipped"] == 2
    assert one["steps"] == other["steps"]
    # In each skipped step it was one process, not both, that met the sample.
    assert all(a != b for a, b in zip(one["bad"], other["bad"], strict=True))
    assert one["weights"] == other["weights"]
    alone = skip_and_digest(tmp_path / "alone", *SKIPS, "training.num_steps=10")
    assert alone["steps"] == one["steps"]


class Faulty(nn.Module):
    broken = False

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 0.0 * 0.0 if self.broken else inputs


class WithFault(Toy):
    """In step 2, on the last process, one module makes NaN."""

    def build_model(self) -> Any:
        model = super().build_model()
        model.dropout = Faulty()
        return model

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> StepOutput:
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        bare.dropout.broken = step == 2 and get_rank() == get_world_size() - 1
        return super().loss(model, batch, counts, step)


def stop_with_name(folder: Path) -> str:
    settings = ["training.nonfinite=stop", "training.name_nonfinite_module=true"]
    trainer = make(folder, *settings, recipe=WithFault)
    with pytest.raises(NonFiniteError) as stopped:
        trainer.train()
    del trainer
    return str(stopped.value)


def test_the_module_is_named_on_request(run_processes: RUNS, tmp_path: Path) -> None:
    assert "dropout (Faulty, forward)" in stop_with_name(tmp_path)
    (event,) = events(tmp_path / "toy", "skipped_step")
    assert event["module"] == "dropout (Faulty, forward)"
    # All say the same, although the main one of two processes saw nothing wrong itself.
    for text in run_processes(stop_with_name, 2, tmp_path / "two"):
        assert "dropout (Faulty, forward)" in text
    # Two processes that stop together save together.
    assert all(bool(value.isfinite().all()) for value in weights(tmp_path / "two/toy", 3).values())


# --- precision, compilation, strategies -----------------------------------------------------------


def scaler_state(run: Path, step: int) -> dict[str, Any]:
    path = run / "checkpoints" / f"step_{step:08d}" / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())["scaler"]
    return state


def test_fp16_keeps_its_scaler_over_a_resume(tmp_path: Path) -> None:
    settings = ["training.precision=fp16", "data.nan_sample=3", "checkpoint.keep_last_n=9"]
    settings.append("training.nonfinite=stop")
    train_toy(tmp_path, *settings)
    run = tmp_path / "toy"
    # Although `nonfinite` says stop, one overflow is the scaler's to mend: it halves its scale.
    before, after = scaler_state(run, 6), scaler_state(run, 12)
    assert after["scale"] < before["scale"] < 2.0**16
    whole = weights(run, 12)
    shutil.rmtree(run / "checkpoints" / "step_00000012")
    shutil.rmtree(run / "checkpoints" / "step_00000009")
    resumed = make(tmp_path, *settings)
    assert resumed.state.step == 6
    assert resumed.scaler.state_dict() == before
    resumed.train()
    assert scaler_state(run, 12) == after
    assert same_bits(weights(run, 12), whole)


def test_bf16_runs_no_scaler(tmp_path: Path) -> None:
    trainer = make(tmp_path, "training.precision=bf16")
    trainer.train()
    assert not trainer.scaler.is_enabled()
    assert scaler_state(tmp_path / "toy", 12) == {}
    train_toy(tmp_path / "full", "training.precision=fp32")
    assert losses_by_step(tmp_path / "toy") != losses_by_step(tmp_path / "full/toy")


@pytest.mark.parametrize(
    "setting",
    [
        "training.compile=blocks",
        "training.compile=model",
        "training.activation_checkpointing=true",
    ],
)
def test_compiled_and_recomputed_runs_give_the_same_losses_and_clean_keys(
    setting: str, plain_run: Path, tmp_path: Path
) -> None:
    train_toy(tmp_path, AVERAGE, DROPOUT, setting, "training.compile_backend=eager")
    run = tmp_path / "toy"
    assert losses_by_step(run) == pytest.approx(losses_by_step(plain_run), rel=1e-6)
    for part in ("model", "ema", "optimizer"):
        assert weights(run, 12, part).keys() == weights(plain_run, 12, part).keys()


def test_blocks_are_asked_for_by_name(tmp_path: Path) -> None:
    class NoBlocks(Toy):
        def blocks(self, model: nn.Module) -> list[nn.Module]:
            return []

    for setting in ("training.compile=blocks", "training.activation_checkpointing=true"):
        with pytest.raises(ConfigError, match=setting.partition("=")[0]):
            make(tmp_path, setting, recipe=NoBlocks)


def refusal(folder: Path, *overrides: str) -> str:
    try:
        train_toy(folder, *overrides)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_strategy_that_contradicts_the_launch_is_refused(
    run_processes: RUNS, tmp_path: Path
) -> None:
    assert "ddp and fsdp take several" in refusal(tmp_path, "training.strategy=ddp")
    both = run_processes(refusal, 2, tmp_path, "training.strategy=single")
    assert all("single takes one process" in text for text in both)


def test_an_idle_layer_is_named(
    run_processes: RUNS, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in run_processes(refusal, 2, tmp_path / "two", "model.idle_layer=true"):
        assert "idle.weight, idle.bias" in text
        assert "requires_grad_(False)" in text
    train_toy(tmp_path, "model.idle_layer=true")  # one process only says so
    assert "idle.weight" in capsys.readouterr().out
    assert losses_by_step(tmp_path / "toy").keys() == set(range(1, 13))


# --- evaluation, averages, lengths ----------------------------------------------------------------


def test_evaluation_does_not_disturb_training(plain_run: Path, tmp_path: Path) -> None:
    class Careless(Toy):
        def evaluate(self, model: nn.Module, world: Any) -> dict[str, float]:
            torch.rand(5)
            assert not model.training
            return super().evaluate(model, world)

    often = ["training.evaluate_at_start=true", "training.evaluate_every_steps=1"]
    make(tmp_path, AVERAGE, DROPOUT, *often, recipe=Careless).train()
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(tmp_path / "toy", 12, part), weights(plain_run, 12, part)), part
    scored = [row["step"] for row in read_rows(tmp_path / "toy") if "evaluation/error" in row]
    assert scored == list(range(13))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_checkpoint_is_the_one_with_the_best_score(mode: str, tmp_path: Path) -> None:
    train_toy(
        tmp_path,
        f"checkpoint.mode={mode}",
        "checkpoint.every_steps=1",
        "checkpoint.keep_best_n=1",
        "checkpoint.keep_last_n=1",
        "training.evaluate_every_steps=1",
        "optimizer.lr=0.3",
    )
    run = tmp_path / "toy"
    scores = {
        row["step"]: row["evaluation/error"] for row in read_rows(run) if "evaluation/error" in row
    }
    best = (min if mode == "min" else max)(scores, key=lambda step: scores[step])
    assert (run / "checkpoints/best").resolve().name == f"step_{best:08d}"
    assert best != 12  # else the newest would pass as well
    assert len(list((run / "checkpoints").glob("step_*"))) == 2


def test_the_averaged_weights_are_what_is_evaluated(tmp_path: Path) -> None:
    trainer = make(tmp_path, AVERAGE)
    scores = trainer.train()
    assert trainer.average is not None
    with torch.no_grad():
        assert scores == trainer.recipe.evaluate(trainer.average, trainer.world)
        assert scores != trainer.recipe.evaluate(trainer.model.eval(), trainer.world)


def test_the_average_follows_its_momentum_schedule(tmp_path: Path) -> None:
    trainer = make(tmp_path, "training.ema_momentum=0.5", "training.ema_final_momentum=1.0")
    key = "last.bias"
    assert trainer.average is not None
    expected = trainer.average.state_dict()[key].clone()
    for step in range(12):
        trainer.train_step()
        momentum = 0.5 + 0.5 * step / 12
        assert trainer.parts.momentum(step) == pytest.approx(momentum)
        expected = momentum * expected + (1 - momentum) * trainer.model.state_dict()[key]
    torch.testing.assert_close(trainer.average.state_dict()[key], expected)
    trainer.close()


def test_two_epochs_are_ten_steps(tmp_path: Path) -> None:
    train_toy(tmp_path / "epochs", "training.num_steps=null", "training.num_epochs=2")
    train_toy(tmp_path / "steps", "training.num_steps=10")
    assert same_bits(weights(tmp_path / "epochs/toy", 10), weights(tmp_path / "steps/toy", 10))
    assert losses_by_step(tmp_path / "epochs/toy") == losses_by_step(tmp_path / "steps/toy")


def test_a_wrong_metric_name_is_said_and_costs_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(tmp_path, "checkpoint.metric_name=eror", "training.evaluate_every_steps=3")
    trainer.train()
    assert "checkpoint.metric_name=eror is not among the scores (error)" in capsys.readouterr().out
    assert trainer.manager.get_best_checkpoint() is None
    assert (tmp_path / "toy/checkpoints/latest").resolve().name == "step_00000012"


class Told(Toy):
    """Remembers how long training will be, and stops itself at the third step."""

    def begin(self, total_steps: int, steps_per_epoch: int) -> None:
        self.length = (total_steps, steps_per_epoch)

    def loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        if step == 2:
            raise StopError("enough")
        return super().loss(model, batch, counts, step)


def test_a_recipe_learns_the_length_and_may_stop_the_run_without_loss(tmp_path: Path) -> None:
    trainer = make(tmp_path, recipe=Told)
    assert trainer.recipe.length == (12, 5)
    with pytest.raises(StopError, match="enough"):
        trainer.train()
    assert (tmp_path / "toy/checkpoints/latest").resolve().name == "step_00000002"


class SignDescent(Toy):
    """An update of its own: the optimizer is given the signs of the gradients."""

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: Any
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        outputs = trainer.add_gradients(micro_batches, counts)
        for parameter in trainer.parameters:
            parameter.grad.sign_()
        return outputs, *trainer.update()


SIGNS = [
    "optimizer=sgd",
    "optimizer.lr=0.125",
    "optimizer.arguments.momentum=0",
    "training.grad_clip_norm=null",
]


def test_a_custom_step_is_another_update(tmp_path: Path) -> None:
    trainer = make(tmp_path, "training.num_steps=1", *SIGNS, recipe=SignDescent)
    first = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    moved = (trainer.model.state_dict()["last.bias"] - first["last.bias"]).abs()
    torch.testing.assert_close(moved.max(), torch.tensor(0.125))
    assert losses_by_step(tmp_path / "toy").keys() == {1}


class TwoPasses(Toy):
    """Adds up the gradient twice before each update."""

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: Any
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        trainer.add_gradients(micro_batches, counts)
        return trainer.add_gradients(micro_batches, counts), *trainer.update()


def test_a_custom_step_is_guarded_and_averaged_like_any_other(tmp_path: Path) -> None:
    settings = ["data.nan_sample=3", "training.ema_momentum=0.5"]
    trainer = make(tmp_path, *settings, recipe=TwoPasses)
    trainer.train()
    assert trainer.state.skipped > 0
    for module in (trainer.model, trainer.average):
        assert all(value.isfinite().all() for value in module.state_dict().values())
    moved, still = trainer.average.state_dict(), trainer.recipe.build_model().state_dict()
    assert not torch.equal(moved["last.weight"], still["last.weight"])


def test_init_from_a_plain_file_with_prefixes(tmp_path: Path) -> None:
    source = build_recipe(toy_config(tmp_path)).build_model().state_dict()
    source = {f"module.{key}": value + 1.0 for key, value in source.items()}
    torch.save(source, tmp_path / "old.pth")
    trainer = make(tmp_path, f"checkpoint.init_from={tmp_path / 'old.pth'}")
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(value, source[f"module.{key}"]), key
    trainer.close()


# --- bad data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_sample_stops_the_run_and_loses_nothing(
    workers: int, plain_run: Path, tmp_path: Path
) -> None:
    settings = [AVERAGE, DROPOUT, f"training.num_workers={workers}"]
    trainer = make(tmp_path, *settings, "data.broken_sample=3", "checkpoint.every_steps=100")
    with pytest.raises(DataError, match="sample 3 of the training data"):
        trainer.train()
    # Once the file is mended the run goes on as if nothing had happened.
    resumed = make(tmp_path, *settings, "checkpoint.accept_changes=[data]")
    assert resumed.state.step == trainer.state.step > 0
    resumed.train()
    assert same_bits(weights(tmp_path / "toy", 12), weights(plain_run, 12))


# --- weights that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize(
    "poison",
    [
        # Finite gradients of zero: AdamW divides 0 by 0.
        ["optimizer.arguments.eps=0", "loss.scale=0"],
        ["optimizer.lr=1e38", "training.nonfinite=skip"],
        ["optimizer.lr=1e38", "training.nonfinite=stop"],
        # Finite weights from which every loss is NaN: each step would be skipped, and saved.
        ["optimizer.lr=3e37"],
        # In the first steps of the warm-up the rate is small.
        ["optimizer.lr=1e30", "schedule.warmup_epochs=1", "checkpoint.every_steps=100"],
    ],
)
def test_poisoned_weights_are_never_saved(tmp_path: Path, poison: list[str]) -> None:
    with pytest.raises(NonFiniteWeightsError, match="the weights hold NaN or Inf") as raised:
        train_toy(tmp_path, "checkpoint.every_steps=1", *poison)
    assert "have been saved" not in str(raised.value)
    assert "no checkpoint exists yet" in str(raised.value)
    assert not list((tmp_path / "toy/checkpoints").iterdir())
    (finish,) = events(tmp_path / "toy", "finish")
    assert finish["exit_code"] == 1
    assert finish["error"].startswith("NonFiniteWeightsError")


class PoisonedLater(Toy):
    """Writes NaN into the weights of one rank after the fourth step, as a faulty update would."""

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        super().after_step(model, step, applied, carry)
        if step == 3 and get_rank() == get_world_size() - 1:
            with torch.no_grad():
                model.target.bias[0] = float("nan")


def trains_until_poisoned(folder: Path) -> str:
    trainer = make(folder, "checkpoint.every_steps=1", recipe=PoisonedLater)
    with pytest.raises(NonFiniteWeightsError) as raised:
        trainer.train()
    del trainer  # before the process group goes
    return str(raised.value)


def test_a_schedule_that_overflows_is_refused_before_the_first_step(tmp_path: Path) -> None:
    growing = "schedule._target_=overt.schedule.ExponentialScheduler"
    with pytest.raises(ConfigError, match=r"schedule: .*at step \d+ of 31 .*is not finite"):
        train_toy(tmp_path, "schedule=constant", growing, "+schedule.gamma=1e60",
                  "training.num_steps=31")  # fmt: skip


def test_weights_that_grow_beyond_use_in_mid_run_leave_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    """A rate that grows by a million with each epoch of five steps."""
    growing = "schedule._target_=overt.schedule.ExponentialScheduler"
    with pytest.raises(NonFiniteWeightsError, match="the newest good checkpoint is"):
        train_toy(tmp_path, "schedule=constant", growing, "+schedule.gamma=1e6",
                  "training.num_steps=30", "checkpoint.every_steps=1")  # fmt: skip
    newest = (tmp_path / "toy/checkpoints/latest").resolve()
    tensors = load_file(newest / "model.safetensors").values()
    assert all(float(tensor.abs().max()) < 1e18 for tensor in tensors)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_last_good_checkpoint_stays_the_latest(
    world_size: int, tmp_path: Path, run_processes: RUNS
) -> None:
    said = run_processes(trains_until_poisoned, world_size, tmp_path)
    assert all("target.bias" in text and "step_00000003" in text for text in said)
    checkpoints = tmp_path / "toy/checkpoints"
    assert (checkpoints / "latest").resolve().name == "step_00000003"
    assert not list(checkpoints.glob("step_00000004*"))


def test_an_error_after_the_last_step_is_not_a_success(tmp_path: Path) -> None:
    class Fails(Toy):
        def evaluate(self, model: nn.Module, world: Any) -> dict[str, float]:
            raise ValueError("no scores")

    trainer = make(tmp_path, recipe=Fails)
    with pytest.raises(ValueError, match="no scores"):
        trainer.train()
    (finish,) = events(tmp_path / "toy", "finish")
    assert (finish["exit_code"], finish["error"]) == (1, "ValueError: no scores")


def test_a_last_save_that_fails_in_the_background_is_not_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.checkpoint import writing

    def full_disk(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    trainer = make(
        tmp_path, "checkpoint.background=true", "checkpoint.every_steps=9", "training.num_steps=2"
    )
    monkeypatch.setattr(writing, "write_file", full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        trainer.train()
    (finish,) = events(tmp_path / "toy", "finish")
    assert finish["exit_code"] == 1
    assert finish["error"].startswith("CheckpointError")
