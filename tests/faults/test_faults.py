"""A short set of faults; `make faults` injects hundreds: the table in docs/reliability.md."""

from pathlib import Path

import pytest
from claim_injections import CLAIM_KINDS
from injections import KINDS
from trials import Bench

# Seeds that give one and two processes, both ways of saving, early and late steps.
SHORT = [
    ("SIGKILL of a rank", 1),
    ("SIGKILL of a rank", 4),
    ("SIGTERM", 5),
    ("full disk", 1),
    pytest.param("newest checkpoint truncated", 0, marks=pytest.mark.long),  # as the next
    ("newest checkpoint with a flipped bit", 1),
    ("sample that raises", 3),
    ("NaN gradients on one rank", 0),
    ("tracker without its server", 1),
    ("clock that jumps", 1),
    ("update that is not finite", 0),
    ("all checkpoints damaged, started twice", 0),
    ("second start while the first trains", 0),
    ("full disk at the start", 0),
    ("SIGKILL of a rank before the first step", 1),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(("kind", "seed"), SHORT)
def test_the_outcome_is_as_promised(kind: str, seed: int, bench: Bench) -> None:
    trial = {**KINDS, **CLAIM_KINDS}[kind].inject(bench, seed)
    assert not trial.problems, f"{trial.detail}: {trial.problems}\n{trial.log}"


def test_the_harness_sees_a_run_that_ends_elsewhere(bench: Bench, tmp_path: Path) -> None:
    """A check that cannot fail proves nothing: one flipped bit of the result is found."""
    from trials import STEPS, Trial, check_same_end, launch

    assert launch(tmp_path, 1, ()).wait(60).codes == [0]
    last = tmp_path / "toy/checkpoints" / f"step_{STEPS:08d}" / "optimizer.safetensors"
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    trial = Trial("none", 0, tmp_path)
    check_same_end(trial, bench.reference(1))
    (problem,) = trial.problems
    assert "other weights: optimizer.safetensors" in problem
