"""CoTracker3's predictor against recorded runs of the published evaluation."""

from unittest.mock import patch

from tracker_cases import Case, Tensors, assert_within, build_model

from overt.recipes.cotracker3.predictor import Predictor


def check_predictor(case: Case, tensors: Tensors) -> None:
    given = dict(case["predictor_kwargs"])
    predictor = Predictor(
        build_model(case),
        resolution=tuple(given.pop("interp_shape")),
        iters=given.pop("n_iters"),
        **given,
    )
    # The published predictor takes any queries; ours refuses those outside the frame.
    with patch("overt.recipes.cotracker3.predictor.check_queries"):
        prediction = predictor(tensors["video"], tensors["queries"])
    assert_within(prediction.tracks_xy, tensors["tracks"], 1e-3)
    assert_within(prediction.score, tensors["visibility_times_confidence"], 1e-4)
