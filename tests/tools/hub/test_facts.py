"""What a card is filled from: scores beside their baselines, text without private paths."""

from overt.tools.hub.facts import Facts, without_paths


def test_absolute_paths_are_cut_to_their_last_part() -> None:
    settings = {"data": {"root": "/home/me/data/kubric", "ratio": 0.5}, "list": ["~/x/y", "a/b"]}
    expected = {"data": {"root": "kubric", "ratio": 0.5}, "list": ["y", "a/b"]}
    assert without_paths(settings) == expected
    assert without_paths("overt train data.root=/mnt/fast/set exp_name=a/b") == (
        "overt train data.root=set exp_name=a/b"
    )
    assert without_paths("https://arxiv.org/abs/1") == "https://arxiv.org/abs/1"


def test_a_baseline_is_a_score_with_a_name_before_it() -> None:
    scores = {"jaccard": 0.5, "static_jaccard": 0.1, "flow_jaccard": 0.4, "loss": 1.0}
    facts = Facts("r", "", {}, 1, scores, "", {}, None, {})
    assert facts.baselines("jaccard") == {"static": 0.1, "flow": 0.4}
    assert facts.own_scores() == {"jaccard": 0.5, "loss": 1.0}
