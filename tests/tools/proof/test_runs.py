"""overt/tools/proof/runs.py: when a run is killed."""

from overt.tools.proof.runs import choose_kill


def test_the_kill_follows_from_the_seed_and_leaves_something_to_resume() -> None:
    kills = [choose_kill("random", 12, 3, 4, seed) for seed in range(200)]
    assert kills == [choose_kill("random", 12, 3, 4, seed) for seed in range(200)]
    assert {step for step, _ in kills} == set(range(4, 12))
    assert {victim for _, victim in kills} == {0, 1, 2, 3}
