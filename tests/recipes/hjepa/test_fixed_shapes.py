"""overt/recipes/hjepa/fixed_shapes.py: all batches in one shape, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import SMALL_HJEPA, curve, first_batch

from overt.config import load
from overt.distributed import init_distributed
from overt.errors import ConfigError
from overt.nested import map_tensors
from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.fixed_shapes import Sizes, fill_up
from overt.recipes.hjepa.recipe import HJEPARecipe

FIXED = "data.masking.fixed_shapes=true"
OWN_SHAPES = "data.masking.fixed_shapes=false"  # the default on a machine without CUDA
MODES = {
    "blocks": ["data.masking.predict=blocks"],
    "union": ["data.masking.predict=union", "model.class_token=true"],
    "two contexts": ["data.masking.num_context_masks=2"],
    "one level": ["model.num_hierarchies=1", "loss.hierarchy_weights=[1.0]"],
    "pyramid": ["model.projection=shared", "model.fpn.use_fpn=true"],
    "official": [
        "data.masking.style=official",
        "data.masking.weigh=blocks",
        "data.masking.predict=blocks",
    ],
    "zeros": ["model.hidden_tokens=zero"],
    "no target encoder": ["model.use_target_encoder=false"],
    "two views": ["loss.type=cjepa"],
}

# These differ from the others in what is predicted, not in how a batch is filled up.
LONG = {"two contexts", "one level", "zeros", "no target encoder"}
TRIED = [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in MODES]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


def shapes_of(batch: Batch) -> list[torch.Size]:
    found: list[torch.Size] = []
    map_tensors(batch, lambda tensor: found.append(tensor.shape) or tensor)  # type: ignore[func-returns-value]
    return found


def learn(recipe: HJEPARecipe, batch: Batch) -> dict[str, torch.Tensor]:
    """Losses, what the monitor sees, and the gradients."""
    torch.manual_seed(0)
    model = recipe.build_model()
    counts = recipe.counts(batch) | {"samples": torch.tensor(float(len(batch.images)))}
    output = recipe.loss(model, batch, counts, 0)
    output.total.backward()
    gradients = {
        name: value.grad for name, value in model.named_parameters() if value.grad is not None
    }
    return gradients | {"total": output.total.detach(), "counts": counts["tokens"]} | output.metrics


@pytest.mark.parametrize("name", TRIED)
def test_what_fills_a_batch_up_counts_nowhere(name: str, root: Path) -> None:
    plain, fixed = (
        SMALL_HJEPA.recipe(root, *MODES[name]),
        SMALL_HJEPA.recipe(root, FIXED, *MODES[name]),
    )
    batch = first_batch(fixed, 8)
    assert batch.layout.filling
    expected, found = learn(plain, first_batch(plain, 8)), learn(fixed, batch)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", TRIED)
def test_all_batches_have_one_shape(name: str, root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, FIXED, *MODES[name])
    batches = [first_batch(recipe, 8, start=8 * number) for number in range(4)]
    assert all(batch.layout.filling for batch in batches)
    first, *others = map(shapes_of, batches)
    assert all(shapes == first for shapes in others)
    packings = [batch.layout.prediction.packing for batch in batches]
    assert len({(packing.bound, packing.longest) for packing in packings}) == 1


def test_a_batch_that_does_not_fit_stays_as_it_is(root: Path) -> None:
    layout = first_batch(SMALL_HJEPA.recipe(root, OWN_SHAPES), 4).layout
    own = Sizes.of(layout)
    assert fill_up(layout, replace(own, hidden=own.hidden - 1)) is layout
    assert fill_up(layout, own) is layout  # not one region is left for what would fill up
    assert not layout.filling


def test_the_replay_pauses_where_the_monitor_looks(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, FIXED, "evaluation.collapse.every_steps=3")
    assert recipe.replayable is True
    assert [recipe.replays_at(step) for step in range(5)] == [False, True, True, False, True]
    assert "data.masking.fixed_shapes=false" in str(SMALL_HJEPA.recipe(root, OWN_SHAPES).replayable)


@pytest.mark.parametrize(
    "setting", ["model.pooling=sequence", "loss.type=combined", "model.projection_norm=batchnorm"]
)
def test_filling_is_refused_where_it_would_count(setting: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=rf"fixed_shapes=true with {setting}.*cuda_graph=false"):
        SMALL_HJEPA.recipe(root, FIXED, setting)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replayed_run_is_the_run_without_a_graph(precision: str, tmp_path: Path) -> None:
    settings = (FIXED, "training.device=cuda", f"training.precision={precision}")
    run: dict[str, Any] = {}
    for name, graph in (("plain", "false"), ("graph", "true")):
        trainer = SMALL_HJEPA.trainer(
            tmp_path / name,
            *settings,
            f"training.cuda_graph={graph}",
            "training.num_epochs=null",
            "training.num_steps=12",
            "evaluation.collapse.every_steps=5",
            f"data.root={tmp_path / 'images'}",
            world=init_distributed("cuda"),
        )
        trainer.train()
        run[name] = curve(trainer.config.run_dir)
    assert trainer.graphed is not None
    assert trainer.graphed.recordings
    assert run["graph"] == pytest.approx(run["plain"], rel=1e-5 if precision == "fp32" else 1e-2)


def test_shapes_are_fixed_where_a_graph_is_asked_for() -> None:
    for graph in ("false", "true"):
        config = load(["recipe=hjepa", "data.root=none", f"training.cuda_graph={graph}"])
        assert config.settings.data.masking.fixed_shapes is config.training.cuda_graph
        assert f"fixed_shapes: {graph}" in config.text
