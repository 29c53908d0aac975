"""overt/health/preemption.py: asked to stop, all processes save at one step, and can go on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import TOY, losses_by_step, read_events, same_bits, toy_config, train_toy, weights

from overt.config import load
from overt.distributed import World
from overt.errors import PREEMPTED_EXIT_CODE, Preempted, StoppedAtStart
from overt.health import preemption
from overt.health.preemption import SIGNALS, Preemption, StopSignal
from overt.progress import expendable
from overt.train import main as train_main

RUNS = Callable[..., list[Any]]
STEPS = 12
SETTINGS = [f"training.num_steps={STEPS}", "model.dropout=0.3", "training.ema_momentum=0.9"]
SELDOM = [*SETTINGS, "checkpoint.every_steps=100"]


def train_and_signal(
    folder: Path,
    *overrides: str,
    at: dict[int, str],
    ranks: tuple[int, ...] = (0,),
    during: str = "loss",
) -> tuple[int, str | None]:
    """Train, and send this process a signal at some steps; where it stopped, and what it said."""
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    world = init_distributed("cpu")
    config = toy_config(folder, *overrides)
    trainer = Trainer(config, build_recipe(config), world)
    inner = getattr(trainer.recipe if during != "save" else trainer, during)

    def outer(*arguments: Any, **named: Any) -> Any:
        number = at.get(trainer.state.step)
        if number is not None and world.rank in ranks:
            os.kill(os.getpid(), signal.Signals[number])
        return inner(*arguments, **named)

    setattr(trainer.recipe if during != "save" else trainer, during, outer)
    said = None
    try:
        trainer.train()
    except Preempted as asked:
        said = str(asked)
    return trainer.state.step, said


def assert_same_end(one: Path, other: Path) -> None:
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(one, STEPS, part), weights(other, STEPS, part)), part
    assert losses_by_step(one) == losses_by_step(other)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture(autouse=True)
def _handlers_come_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    # Where the tests run in the background, Ctrl-C is ignored, by what they start as well.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and this one under nohup
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hangup)
    assert [signal.getsignal(number) for number in SIGNALS] == before


# --- the signal -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_once_and_does_nothing_else(number: signal.Signals) -> None:
    other = next(one for one in SIGNALS if one != number)
    heard: list[int] = []
    with StopSignal() as stop:
        assert stop.name is None
        os.kill(os.getpid(), number)
        stop.forward = heard.append
        with stop:  # again, inside itself
            os.kill(os.getpid(), other)
        os.kill(os.getpid(), other)
        assert stop.name == number.name
        assert heard == [other, other]


def test_ctrl_c_asks_first_and_then_stops_at_once() -> None:
    with StopSignal() as stop:
        with stop.interrupts():
            signal.raise_signal(signal.SIGINT)
            assert stop.name == "SIGINT"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_start_at_once() -> None:
    with StopSignal() as stop:
        stop.limit_start()
        with pytest.raises(KeyboardInterrupt), stop.interrupts():
            signal.raise_signal(signal.SIGINT)
        assert stop.name is None


MAKERS = {
    "blade_depthnet_tiny": "overt.recipes.blade.data.write_people",
    "cotracker3_tiny": "overt.data.tracking.clips.write_sequences",
    "hjepa_tiny": "overt.recipes.hjepa.data.write_images",
    "pcdiff_tiny": "overt.recipes.pcdiff.data.write_skulls",
}


@pytest.mark.parametrize("recipe", MAKERS)
def test_a_signal_ends_the_making_of_data_at_once(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    went_on: list[str] = []
    before = [signal.getsignal(number) for number in SIGNALS]

    def make(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        went_on.append(recipe)

    monkeypatch.setattr(MAKERS[recipe], make)
    words = [f"recipe={recipe}", f"data.root={tmp_path / 'data'}", f"output_dir={tmp_path}"]
    assert train_main([*words, "training.device=cpu"]) == PREEMPTED_EXIT_CODE
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)  # a process that is about to exit keeps its own
    assert went_on == []
    assert "SIGTERM asked this run to stop while it was starting" in capsys.readouterr().err


def test_a_run_that_trains_outlives_a_signal_while_data_are_made() -> None:
    """Its evaluation may make the data to score."""
    with StopSignal() as stop:
        stop.limit_start()
        stop.start_is_over()
        with expendable():
            signal.raise_signal(signal.SIGTERM)
        assert stop.name == "SIGTERM"


def test_ctrl_c_stays_ignored_in_the_background() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignal() as stop, stop.interrupts():
        signal.raise_signal(signal.SIGINT)
    assert stop.name is None


def test_a_closed_terminal_stays_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.name is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.name == "SIGTERM"


def test_another_thread_leaves_the_signals_alone() -> None:
    found: list[object] = []

    def use() -> None:
        with StopSignal():
            found.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(number) for number in SIGNALS]


# --- one process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [{3: "SIGTERM"}, {7: "SIGUSR1", 8: "SIGTERM"}])
def test_one_process_saves_after_the_step_and_goes_on_bit_for_bit(
    at: dict[int, str], tmp_path: Path
) -> None:
    train_toy(tmp_path / "whole", *SELDOM)
    first = min(at)
    step, said = train_and_signal(tmp_path, *SELDOM, at=at)
    assert step == first + 1
    assert said is not None
    assert f"{at[first]} asked this run to stop: step {step} of {STEPS} is saved" in said
    assert events(tmp_path / "toy", "preempted")[0]["step"] == step
    (finish,) = events(tmp_path / "toy", "finish")
    assert (finish["exit_code"], finish["step"], "error" in finish) == (85, step, False)
    assert events(tmp_path / "toy", "saved")[-1]["step"] == step
    assert train_and_signal(tmp_path, *SELDOM, at={}) == (STEPS, None)
    assert_same_end(tmp_path / "toy", tmp_path / "whole/toy")


def test_a_step_that_was_saved_is_not_saved_again(tmp_path: Path) -> None:
    settings = [*SETTINGS, "checkpoint.every_steps=4"]
    assert train_and_signal(tmp_path, *settings, at={4: "SIGTERM"}, during="save")[0] == 5
    assert train_and_signal(tmp_path, *settings, at={8: "SIGTERM"}, during="evaluate")[0] == STEPS
    names = sorted(path.name for path in (tmp_path / "toy/checkpoints").glob("step_*"))
    assert names == ["step_00000008", f"step_{STEPS:08d}"]


@pytest.mark.parametrize(
    ("during", "seconds"), [("loss", 20.0), ("evaluate", 20.0), ("evaluate", 0.0)]
)
def test_no_evaluation_is_lost(
    during: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during step 5: evaluated after the restart; during its evaluation: before it.

    An evaluation that takes too long is broken off, and is made after the restart.
    """
    monkeypatch.setattr(preemption, "EVALUATION_SECONDS", seconds)
    settings = [*SETTINGS, "training.evaluate_every_steps=6", "checkpoint.metric_name=error"]
    train_toy(tmp_path / "whole", *settings)
    at = {5 if during == "loss" else 6: "SIGTERM"}
    assert train_and_signal(tmp_path, *settings, at=at, during=during)[0] == 6
    rows = (tmp_path / "toy/metrics.jsonl").read_text()
    assert ('"evaluation/error"' in rows) == (during == "evaluate" and seconds > 0)
    train_toy(tmp_path, *settings)

    def scores(run: Path) -> dict[int, float]:
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["evaluation/error"] for row in rows if "evaluation/error" in row}

    assert scores(tmp_path / "toy") == scores(tmp_path / "whole/toy")
    assert scores(tmp_path / "toy").keys() == {6, STEPS}
    assert_same_end(tmp_path / "toy", tmp_path / "whole/toy")


def test_at_the_last_step_only_the_evaluation_is_left_to_the_restart(tmp_path: Path) -> None:
    step, said = train_and_signal(tmp_path, *SELDOM, at={STEPS - 1: "SIGTERM"})
    assert (step, said is None) == (STEPS, False)
    assert train_and_signal(tmp_path, *SELDOM, at={}) == (STEPS, None)
    assert "evaluation/error" in (tmp_path / "toy/metrics.jsonl").read_text()


# --- several processes ----------------------------------------------------------------------------


PAIR = [*SELDOM, "training.evaluate_every_steps=4"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.mark.parametrize(
    ("ranks", "during"), [((1,), "loss"), ((0, 1), "loss"), ((1,), "evaluate")]
)
def test_all_processes_stop_at_the_same_step_and_go_on_bit_for_bit(
    ranks: tuple[int, ...], during: str, run_processes: RUNS, tmp_path: Path, undisturbed: Path
) -> None:
    if not (undisturbed / "toy").exists():
        run_processes(train_and_signal, 2, undisturbed, *PAIR, at={})
    answers = run_processes(
        train_and_signal, 2, tmp_path, *PAIR, at={4: "SIGUSR1"}, ranks=ranks, during=during
    )
    assert answers[0] == answers[1]
    step, said = answers[0]
    assert said is not None
    assert 4 <= step <= 6
    assert run_processes(train_and_signal, 2, tmp_path, *PAIR, at={}) == [(STEPS, None)] * 2
    assert_same_end(tmp_path / "toy", undisturbed / "toy")


def stop_points(points: int, ranks: tuple[int, ...], at: int) -> int:
    """Come by points as fast as possible, with nothing that keeps the processes together."""
    from overt.distributed import init_distributed, open_store
    from overt.health.preemption import Preemption

    world, stop = init_distributed("cpu"), StopSignal()
    preemption = Preemption(stop, world, open_store("stop"), timeout_minutes=1)
    preemption.listen()
    for point in range(points):
        if point == at and world.rank in ranks:
            stop.name = "SIGTERM"
        time.sleep(0)  # lets other threads run, as training does
        if preemption.signal_here() is not None:
            preemption.close()
            return point
    preemption.close()
    return -1


@pytest.mark.parametrize("ranks", [(2,), (0, 1, 2)])
def test_agreement_needs_no_lockstep(ranks: tuple[int, ...], run_processes: RUNS) -> None:
    answers = run_processes(stop_points, 3, 10**9, ranks, 1000)
    assert len(set(answers)) == 1
    assert answers[0] >= 1000


def ask_alone(folder: Path) -> str:
    """Process 1 never answers: it does not train at all."""
    from overt.distributed import init_distributed, open_store
    from overt.errors import LaunchError
    from overt.health.preemption import Preemption

    world, stop = init_distributed("cpu"), StopSignal()
    preemption = Preemption(stop, world, open_store("stop"), timeout_minutes=0.5 / 60)
    if world.rank == 1:
        return ""
    preemption.listen()
    stop.name = "SIGTERM"
    try:
        preemption.signal_here()
    except LaunchError as error:
        return str(error)
    finally:
        preemption.close()
    return "no error"


def test_a_process_that_never_answers_is_not_waited_for_for_ever(
    run_processes: RUNS, tmp_path: Path
) -> None:
    answers = run_processes(ask_alone, 2, tmp_path)
    assert "SIGTERM asked this run to stop, but the ranks could not agree" in answers[0]


def test_an_exit_waits_for_a_store_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that returns from the store during the exit of Python would abort the process."""
    asked, answers = threading.Event(), threading.Event()
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(
        "atexit.register", lambda call, *given: at_exit.append(lambda: call(*given))
    )

    class SlowStore:
        def check(self, keys: list[str]) -> bool:
            asked.set()
            return not answers.wait()

    world = World(0, 2, 0, torch.device("cpu"))
    preemption = Preemption(StopSignal(), world, SlowStore(), timeout_minutes=1.0)
    preemption.listen()
    thread = preemption._thread
    asked.wait()
    preemption.close()
    assert thread is not None
    assert thread.is_alive()
    threading.Timer(0.1, answers.set).start()
    for call in at_exit:
        call()
    assert not thread.is_alive()


# --- the command ----------------------------------------------------------------------------------


def start(folder: Path, *overrides: str, recipe: str = "toy") -> subprocess.Popen[str]:
    words = ["--package", str(TOY), f"recipe={recipe}", f"output_dir={folder}", *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "overt.train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # a process group, as a launcher makes one
    )


def signal_all(
    child: subprocess.Popen[str], step: int, *numbers: signal.Signals, code: int
) -> None:
    """Signal all processes of a run after a step; it must save and ask to be run again."""
    assert child.stdout is not None
    for line in child.stdout:
        if f"step {step}/" in line:
            break
    for number in numbers:
        os.killpg(child.pid, number)
    _, said = child.communicate(timeout=240)
    assert child.returncode == code, said
    assert "the same command resumes from there" in said


@pytest.mark.parametrize(("numbers", "code"), [(SIGNALS, 85), ([signal.SIGINT], 130)])
def test_the_command_ends_with_its_code_although_all_its_processes_are_signalled(
    numbers: Sequence[signal.Signals], code: int, tmp_path: Path
) -> None:
    """Loader processes get the signal as well; if they died of it, the run could not save."""
    settings = ["training.num_steps=1000000", "training.num_workers=2", "logging.every_steps=1"]
    signal_all(start(tmp_path, *settings), 2, *numbers, code=code)


def test_a_closed_terminal_asks_to_stop_and_takes_no_words(tmp_path: Path) -> None:
    """As the end of an ssh session: a hang-up for every process, and nothing can be printed."""
    settings = ["training.num_steps=1000000", "training.num_workers=1", "logging.every_steps=1"]
    child = start(tmp_path, *settings)
    assert child.stdout is not None
    assert child.stderr is not None
    while "step 2/" not in child.stdout.readline():
        continue
    child.stdout.close()
    child.stderr.close()
    os.killpg(child.pid, signal.SIGHUP)
    assert child.wait(timeout=240) == PREEMPTED_EXIT_CODE
    (finish,) = events(tmp_path / "toy", "finish")
    assert finish["exit_code"] == PREEMPTED_EXIT_CODE
    assert (tmp_path / f"toy/checkpoints/step_{finish['step']:08d}").is_dir()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_compiled_and_recorded_run_saves_as_well(tmp_path: Path) -> None:
    """By then compilers run beside it, and a step is a single launch."""
    settings = ["training.num_steps=1000000", "training.num_workers=2", "logging.every_steps=5"]
    faster = ["training.compile=blocks", "training.cuda_graph=true"]
    run = start(tmp_path, *settings, *faster, recipe="cotracker3_tiny")
    signal_all(run, 20, *SIGNALS, code=PREEMPTED_EXIT_CODE)


@pytest.mark.long
def test_a_signal_during_the_start_is_kept_for_the_first_step(tmp_path: Path) -> None:
    """Sent as soon as the handler is there, long before torch is imported."""
    code = (
        "import os, signal, sys\n"
        "import overt.train as train\n"
        "inner = train.load\n"
        "def load(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return inner(*arguments)\n"
        "train.load = load\n"
        "sys.exit(train.main(sys.argv[1:]))\n"
    )
    words = ["--package", str(TOY), "recipe=toy", f"output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == PREEMPTED_EXIT_CODE, done.stderr
    assert (tmp_path / "toy/checkpoints/step_00000000").is_dir()


# --- a start that takes long ----------------------------------------------------------------------


def busy(seconds: float = 60.0) -> None:
    """Work for so long as a compilation does, in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    raise AssertionError("nobody broke this off")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short limit; the handlers, which a process that is about to exit keeps, come back."""
    monkeypatch.setattr("overt.health.preemption.START_SECONDS", 0.2)
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    yield
    assert signal.getsignal(signal.SIGALRM) is before[signal.SIGALRM]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("hurried")
def test_a_start_that_takes_long_is_left_after_a_signal() -> None:
    with StopSignal() as stop:
        stop.limit_start()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedAtStart, match="SIGTERM asked this run to stop"):
            busy()


@pytest.mark.usefixtures("hurried")
def test_a_run_that_has_started_is_not_hurried() -> None:
    with StopSignal() as stop:
        stop.limit_start()
        os.kill(os.getpid(), signal.SIGTERM)
        stop.start_is_over()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)
        assert stop.name == "SIGTERM"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("where", ["build_dataset", "build_model", "loss", "evaluate"])
def test_a_signal_while_data_are_made_or_a_model_is_compiled(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing was trained, so nothing is saved; the end is recorded where the run was open."""

    def signalled(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        busy()

    words = ["--package", str(TOY), "recipe=toy", f"output_dir={tmp_path}", "training.num_steps=2"]
    words += ["training.evaluate_at_start=true"]
    load(["recipe=toy"], packages=[str(TOY)])
    monkeypatch.setattr(f"toy_recipe.recipe.Toy.{where}", signalled)
    assert train_main(words) == PREEMPTED_EXIT_CODE
    said = capsys.readouterr().err
    assert "SIGTERM asked this run to stop while it was starting" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "toy").glob("checkpoints/step_*"))
    assert not (tmp_path / "toy/lock.json").exists()
    ends = read_events(tmp_path / "toy", "finish") if where in ("loss", "evaluate") else []
    assert [event["exit_code"] for event in ends] == [PREEMPTED_EXIT_CODE] * len(ends)
    monkeypatch.undo()
    assert train_main(words) == 0
