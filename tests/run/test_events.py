"""overt/run/events.py: what happened, as values: plain fields for the file, words for people."""

import dataclasses
import json
import math

import pytest

from overt.health.phases import Phases
from overt.run import events
from overt.run.events import (
    Finished,
    LossSpike,
    LostPeer,
    NonFiniteWeights,
    Saved,
    SkippedStep,
    SlowRank,
    SpeedChosen,
    SpeedGivenUp,
    Started,
    StopRequested,
)

SAMPLES = [(0, 3), (1, 4)]
EVENTS = [
    SkippedStep(3, math.nan, SAMPLES, None, False, None),
    LossSpike(3, 9.5, 2.0),
    SlowRank(4, "node7", 2, "waiting for data", 0.75, 0.25),
    Started(1, {"imports": 2.0, "first step": 0.5}, "start took 2.5 s: imports 2.0"),
    Finished(5, "enough"),
    StopRequested(5, 12, "SIGTERM"),
    LostPeer(5, "Connection closed by peer"),
    Saved(5, "step_00000005"),
    NonFiniteWeights(5, ["head.weight"]),
    SpeedChosen(0, "blocks", True, "compile=blocks (a long run)"),
    SpeedGivenUp(0, "training.compile", "none", "OSError: no compiler"),
]


def test_every_event_is_in_this_list_and_has_a_name_of_its_own() -> None:
    kinds = [value for value in vars(events).values() if dataclasses.is_dataclass(value)]
    assert {type(event) for event in EVENTS} == set(kinds)
    assert len({event.kind for event in EVENTS}) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_is_a_value_whose_fields_are_json_with_the_step(event: events.Event) -> None:
    assert json.loads(json.dumps(event.fields()))["step"] == event.step  # type: ignore[attr-defined]
    assert "kind" not in event.fields()
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.step = 7  # type: ignore[attr-defined]


def test_the_samples_of_a_skipped_step_are_a_rank_s_own_and_in_no_event() -> None:
    spike = SkippedStep(3, 50.0, SAMPLES, None, False, 2.0)
    assert spike.fields() == {"step": 3, "module": None, "spike": True}
    assert EVENTS[0].fields() == {"step": 3, "module": None, "spike": False}


@pytest.mark.parametrize(
    ("module", "searched", "limit", "said"),
    [
        (None, False, None, "training.name_nonfinite_module=true names the module"),
        ("first (Linear, forward)", True, None, "first appeared in: first (Linear, forward)."),
        (None, True, None, "In a replay everything was finite"),
        (None, False, 2.0, "its loss is a spike, above 2 "),
    ],
)
def test_a_skipped_step_says_what_is_known(
    module: str | None, searched: bool, limit: float | None, said: str
) -> None:
    text = str(SkippedStep(3, 50.0, SAMPLES, module, searched, limit))
    assert text.startswith("step 3 was skipped: ")
    assert "(loss of this rank: 50)" in text
    assert said in text
    assert ("non-finite" in text) == (limit is None)


def test_a_slow_rank_is_said_with_its_seconds() -> None:
    assert str(EVENTS[2]) == (
        "rank 2 on node7 holds up the others: 0.75 s per step waiting for data, the others 0.25 s"
    )


def test_a_start_closes_its_phases_with_the_first_step() -> None:
    phases = Phases()
    phases.end("imports")
    event = Started.after(phases, 4)
    assert phases.told
    assert list(event.seconds) == ["imports", "first step"]
    assert event.fields() == {"step": 4, **event.seconds}
    assert str(event) == str(phases)


def test_what_auto_gave_up_says_what_to_set() -> None:
    assert str(EVENTS[-2]) == "auto: compile=blocks (a long run)"
    assert "(OSError: no compiler); training continues with training.compile=none" in str(
        EVENTS[-1]
    )


def test_a_finished_run_says_where_and_why() -> None:
    assert str(EVENTS[4]) == "finished at step 5: enough"
