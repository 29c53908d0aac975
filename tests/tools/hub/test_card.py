"""The card says what is missing instead of hiding it."""

from overt.tools.hub.card import model_card
from overt.tools.hub.facts import Facts


def card(scores: dict[str, float], bases: list[str]) -> str:
    facts = Facts("mine", "", {"data": {"root": "x"}}, 7, scores, "a test", {}, None, {}, bases)
    return model_card(facts, "name", "unknown", "model")


def test_missing_scores_baselines_and_license_are_said() -> None:
    assert "None were recorded" in card({}, [])
    assert "No baseline was recorded" in card({"accuracy": 0.5}, [])
    assert "Not stated by the author" in card({}, [])
    assert "frozen weights of `base`" in card({}, ["base"])
