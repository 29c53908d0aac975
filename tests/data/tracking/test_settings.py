"""overt/data/tracking/settings.py: both trackers have the same keys, and refuse the same values."""

import dataclasses

import pytest

from overt.config import load
from overt.data.tracking.settings import KubricSettings, ScoringSettings
from overt.errors import ConfigError

RECIPES = ("cotracker3_tiny", "lbm_tiny")
REFUSED = [
    ("data.crop_size=[32]", r"data\.crop_size=\[32\]; give \[height, width\]"),
    ("data.held_out=-1", r"data\.held_out=-1; it must be at least 0"),
    ("data.root=null", r"data\.root; add data\.root=FOLDER"),
    ("evaluation.frames=0", r"evaluation\.frames=0; it must be at least 1"),
    ("evaluation.points_per_sequence=0", r"points_per_sequence=0; it must be at least 1"),
    ("evaluation.dataset=davis", r"did you mean tapvid_davis\?"),
    ("evaluation.dataset=tapvid_davis", r"needs evaluation\.dataset_root=FOLDER"),
    ("evaluation.query_mode=last", r"use one of first, strided"),
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("word", "message"), REFUSED, ids=[word for word, _ in REFUSED])
def test_both_trackers_refuse_it_alike(recipe: str, word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load([f"recipe={recipe}", "data.root=x", word])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_shared_key_has_its_value_in_the_yaml(recipe: str) -> None:
    settings = load([f"recipe={recipe}", "data.root=x"]).settings
    for section, shared in (
        (settings.data, KubricSettings),
        (settings.evaluation, ScoringSettings),
    ):
        assert isinstance(section, shared)
        assert {field.name for field in dataclasses.fields(shared)} <= set(vars(section))


def test_a_missing_folder_says_what_should_be_in_it() -> None:
    for recipe in RECIPES:
        with pytest.raises(ConfigError, match=r"one subfolder or one packed file per sequence$"):
            load([f"recipe={recipe}", "data.root=null"])
