"""TAP-Vid through the CoTracker3 recipes: all formats, both modes, any number of processes."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL, SMALL_COTRACKER3
from torch import Tensor

from overt.cli import main
from overt.config import Config, build_recipe, load
from overt.data.tracking.clips import TrackSample
from overt.data.tracking.synthetic_tapvid import write_videos
from overt.distributed import World, init_distributed
from overt.errors import ConfigError
from overt.evaluation import summarize
from overt.metrics.tracking import COLUMNS
from overt.recipes.cotracker3.data import evaluation_clips
from overt.recipes.cotracker3.predictor import Predictor
from overt.recipes.cotracker3.recipe import CoTracker3OfflineRecipe, CoTracker3OnlineRecipe

ALONE = World(0, 1, 0, torch.device("cpu"))
FORMATS = ("davis", "kinetics", "rgb_stacking", "robotap")
VIDEOS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tapvid")
    for number, dataset in enumerate(FORMATS):
        write_videos(
            root, dataset, VIDEOS, frames=11, height=32, width=40, points=6, seed=number, speed=4
        )
    return root


def tapvid_config(root: Path, *overrides: str, name: str = "cotracker3_tiny") -> Config:
    return SMALL[name].config("x", f"evaluation.dataset_root={root}", *overrides)


def recipe_and_model(config: Config) -> tuple[Any, torch.nn.Module]:
    recipe = build_recipe(config)
    assert isinstance(recipe, CoTracker3OfflineRecipe | CoTracker3OnlineRecipe)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    with torch.no_grad():  # the heads start almost at zero
        model.updateformer.flow_head.weight.mul_(20)
        model.updateformer.vis_conf_head.weight.mul_(200)
    return recipe, model


@torch.inference_mode()
def rows_of(root: Path, *overrides: str, name: str = "cotracker3_tiny") -> list[dict[str, Any]]:
    """The rows as this process, alone or one of several, sees them."""
    recipe, model = recipe_and_model(tapvid_config(root, *overrides, name=name))
    rows: list[dict[str, Any]] = recipe.evaluate_rows(model, init_distributed("cpu"))
    assert recipe.evaluate(model, init_distributed("cpu")) == summarize(rows)
    return rows


@pytest.mark.parametrize("dataset", FORMATS)
def test_each_format_gives_a_row_per_video(dataset: str, root: Path) -> None:
    rows = rows_of(root, f"evaluation=tapvid_{dataset}", "evaluation.single_point=false")
    assert len({row["name"] for row in rows}) == VIDEOS
    for row in rows:
        assert all(0 <= row[key] <= 1 for key in row if key != "name")
    assert len({row["average_pts_within_thresh"] for row in rows}) > 1


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("cotracker3_tiny", "first"),
        pytest.param("cotracker3_online_tiny", "strided", marks=pytest.mark.long),
    ],
)
def test_two_processes_give_the_numbers_of_one(
    name: str, mode: str, root: Path, run_processes: Callable[..., list[Any]]
) -> None:
    words = ("evaluation=tapvid_robotap", f"evaluation.query_mode={mode}")
    alone = rows_of(root, *words, name=name)
    for rows in run_processes(rows_of, 2, root, *words, name=name):
        assert rows == alone  # to the last bit


@pytest.mark.parametrize("mode", ["first", "strided"])
@pytest.mark.parametrize("dataset", ["davis", "kinetics"])
def test_the_truth_scores_one(
    dataset: str, mode: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"evaluation=tapvid_{dataset}", f"evaluation.query_mode={mode}")
    recipe, model = recipe_and_model(tapvid_config(root, *words))

    def oracle(model: object, clip: TrackSample) -> tuple[Tensor, Tensor]:
        return clip.tracks, clip.visibility

    def still(model: object, clip: TrackSample) -> tuple[Tensor, Tensor]:
        return clip.queries[:, 1:].expand_as(clip.tracks), torch.ones_like(clip.visibility)

    monkeypatch.setattr(recipe, "track", oracle)
    scores = recipe.evaluate(model, ALONE)
    assert [scores[key] for key in COLUMNS.values()] == [1.0, 1.0, 1.0]
    monkeypatch.setattr(recipe, "track", still)
    scores = recipe.evaluate(model, ALONE)
    assert all(scores[key] == scores[f"static_{key}"] < 1 for key in COLUMNS.values())


def test_strided_mode_asks_for_a_track_again_and_again(root: Path) -> None:
    asked = {}
    for mode in ("first", "strided"):
        config = tapvid_config(root, "evaluation=tapvid_davis", f"evaluation.query_mode={mode}")
        clips = evaluation_clips(config.settings)
        frames = torch.cat([clips.sample(index).queries[:, 0] for index in range(len(clips))])
        asked[mode] = frames.tolist()
    assert len(asked["strided"]) > len(asked["first"]) > 0
    assert set(asked["strided"]) == {0, 5, 10}


MANNERS = [
    # recipe, overrides, how the predictor must have been run
    ("cotracker3_tiny", [], {"single_point": True, "local_grid_size": 2, "grid_size": 2}),
    ("cotracker3_tiny", ["evaluation.single_point=false"], {"grid_size": 2}),
    (
        "cotracker3_tiny",
        ["evaluation.single_point=false", "evaluation.random_points=9"],
        {"grid_size": 2, "random_points": 9},
    ),
    ("cotracker3_online_tiny", [], {}),
    ("cotracker3_online_tiny", ["evaluation.query_mode=strided"], {"backward_tracking": True}),
]


@pytest.mark.parametrize(("name", "overrides", "manner"), MANNERS)
def test_clips_are_tracked_in_the_manner_of_the_settings(
    name: str, overrides: list[str], manner: dict[str, Any], root: Path
) -> None:
    config = tapvid_config(root, "evaluation=tapvid_davis", *overrides, name=name)
    recipe, model = recipe_and_model(config)
    clip = evaluation_clips(config.settings).sample(0)
    tracks, visible = recipe.track(model, clip)
    found = Predictor(model, (32, 32), iters=2, **manner)(clip.video[None], clip.queries[None])
    assert torch.equal(tracks, found.tracks_xy[0])
    assert torch.equal(visible, found.visible(0.6)[0])
    assert (tracks - clip.queries[:, 1:]).abs().max() > 0.1


def test_other_sets_than_tapvid_are_tracked_without_support_points(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tapvid_config(root, "evaluation=tapvid_davis", "evaluation.random_points=9")
    recipe, model = recipe_and_model(config)
    clip = evaluation_clips(config.settings).sample(0)
    recipe.settings.evaluation.dataset = "point_odyssey"
    counts: list[int] = []
    estimates = model.estimates

    def counted(pyramid: Any, queries: Tensor, *further: Any) -> Any:
        counts.append(queries.shape[1])
        return estimates(pyramid, queries, *further)

    monkeypatch.setattr(model, "estimates", counted)
    recipe.track(model, clip)
    assert max(counts) <= len(clip.queries)


def test_an_online_model_cannot_track_as_the_published_offline_predictor(root: Path) -> None:
    name = "cotracker3_online_tiny"
    config = tapvid_config(root, "evaluation=tapvid_davis", name=name)
    recipe, model = recipe_and_model(config)
    clip = evaluation_clips(config.settings).sample(0)
    with pytest.raises(ConfigError, match=r"--as-hub.* this is the online model; drop it"):
        recipe.track_points(model, clip.video, clip.queries, as_hub=True)


@pytest.mark.parametrize("name", ["cotracker3_tiny", "cotracker3_online_tiny"])
@pytest.mark.parametrize("place", [-0.45, 1.3])
def test_points_a_little_outside_of_the_image_are_scored(
    name: str, place: float, tmp_path: Path
) -> None:
    write_davis(tmp_path, place=place, edge=np.zeros((2, 4), dtype=bool))
    config = tapvid_config(tmp_path, "evaluation=tapvid_davis", name=name)
    recipe, model = recipe_and_model(config)
    (row,) = recipe.evaluate_rows(model, ALONE)
    assert all(math.isfinite(value) for key, value in row.items() if key != "name")


def write_davis(folder: Path, place: float = 0.5, **videos: np.ndarray) -> None:
    """Videos with two still points, of which `videos` says where they are hidden, (2, T)."""
    content = {
        name: {
            "video": np.full((hidden.shape[1], 24, 24, 3), 90, dtype=np.uint8),
            "points": np.full((*hidden.shape, 2), place, dtype=np.float32),
            "occluded": hidden,
        }
        for name, hidden in videos.items()
    }
    (folder / "tapvid_davis").mkdir()
    (folder / "tapvid_davis" / "tapvid_davis.pkl").write_bytes(pickle.dumps(content))


def test_a_video_without_visible_points_is_left_out_and_counted(tmp_path: Path) -> None:
    seen = np.zeros((2, 4), dtype=bool)
    never = np.ones((2, 4), dtype=bool)
    only_queried = never.copy()
    only_queried[:, 1] = False  # the query frame itself does not count
    write_davis(tmp_path, seen=seen, never=never, only_queried=only_queried)
    recipe, model = recipe_and_model(tapvid_config(tmp_path, "evaluation=tapvid_davis"))
    rows = recipe.evaluate_rows(model, ALONE)
    empty = [row for row in rows if math.isnan(row["average_jaccard"])]
    assert [row["name"] for row in empty] == ["never", "only_queried"]
    assert all(math.isnan(row[key]) for row in empty for key in row if key != "name")
    scores = recipe.evaluate(model, ALONE)
    assert scores["left_out"] == 2
    assert scores["average_jaccard"] == rows[0]["average_jaccard"]
    assert "2 skipped" in recipe.score_table(rows, scores)
    assert recipe.visualize(model)["tracks"].dtype == torch.uint8


def test_nothing_is_drawn_of_a_video_without_queries(tmp_path: Path) -> None:
    write_davis(tmp_path, never=np.ones((2, 4), dtype=bool))
    recipe, model = recipe_and_model(tapvid_config(tmp_path, "evaluation=tapvid_davis"))
    assert recipe.visualize(model) == {}
    assert recipe.evaluate(model, ALONE)["left_out"] == 1


@pytest.mark.parametrize(
    "chosen",
    [
        "evaluation=tapvid_davis",
        pytest.param("evaluation.dataset=tapvid_davis", marks=pytest.mark.long),
    ],
)
def test_the_command_writes_table_and_json(
    chosen: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [chosen, "evaluation.single_point=false"]
    config = tapvid_config(root, *words)
    recipe, model = recipe_and_model(config)
    torch.save({"model": model.state_dict()}, tmp_path / "weights.pth")
    own = [f"checkpoint={tmp_path / 'weights.pth'}", f"output={tmp_path / 'out'}"]
    small = [*SMALL_COTRACKER3.all_words("x"), f"evaluation.dataset_root={root}"]
    status = main(["evaluate", *small, *words, *own])
    assert status == 0
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]
    with torch.inference_mode():
        assert rows == recipe.evaluate_rows(model, ALONE)
    assert scores == summarize(rows)
    assert (tmp_path / "out" / "config.yaml").read_text() == config.text
    assert (tmp_path / "out" / "tracks.png").is_file()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["video", "AJ", "delta_avg", "OA"] for line in lines)
    for row in rows:
        percent = [f"{100 * row[key]:.1f}" for key in COLUMNS.values()]
        assert [row["name"], *percent] in [line.split() for line in lines]


REFUSED = [
    (["evaluation.dataset=davis"], "did you mean tapvid_davis"),
    (["evaluation=tapvid_davis", "evaluation.dataset_root=null"], "evaluation.dataset_root=FOLDER"),
    (["evaluation.query_mode=last"], "use one of first, strided"),
    (["evaluation.queries_per_batch=0"], "at least 1"),
    (["evaluation.grid_size=-1"], "at least 0"),
    (["evaluation.resolution=[256]"], "[height, width]"),
    (["data.root=null"], "data.root=FOLDER"),
]


@pytest.mark.parametrize(("overrides", "expected"), REFUSED)
def test_impossible_settings_are_refused(overrides: list[str], expected: str, root: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        tapvid_config(root, *overrides)
    assert expected in str(caught.value)


def test_tapvid_needs_no_training_data_but_training_does(root: Path) -> None:
    config = load(
        ["recipe=cotracker3_offline", "evaluation=tapvid_davis", f"evaluation.dataset_root={root}"]
    )
    assert config.settings.evaluation.resolution == [384, 512]
    recipe = build_recipe(config)
    assert len(evaluation_clips(config.settings)) == VIDEOS
    with pytest.raises(ConfigError, match=r"data\.root=FOLDER"):
        recipe.build_dataset()


@pytest.mark.parametrize("dataset", FORMATS)
def test_the_groups_hold_the_protocol_of_the_paper(dataset: str) -> None:
    config = load(
        ["recipe=cotracker3_online", f"evaluation=tapvid_{dataset}", "evaluation.dataset_root=x"]
    )
    evaluation = config.settings.evaluation
    assert evaluation.dataset == f"tapvid_{dataset}"
    assert (evaluation.query_mode, evaluation.single_point, evaluation.fast) == (
        "first", True, False,
    )  # fmt: skip
    assert (evaluation.grid_size, evaluation.local_grid_size, evaluation.random_points) == (5, 8, 0)
    assert evaluation.resolution == [384, 512]
    assert evaluation.visible_threshold == 0.6
    assert config.settings.model.eval_iters == 6
