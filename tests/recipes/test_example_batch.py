"""`example_batch` of every recipe: what training gives, made up without a file."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import SMALL
from torch import Tensor

from overt.config import CONF, build_recipe, load
from overt.data.rng import sample_rng
from overt.nested import tensors_in

RECIPES = sorted(file.stem for file in (CONF / "recipe").glob("*.yaml"))
TINY = [name for name in RECIPES if name.endswith("_tiny")]
SIZE = 2
# Few synthetic samples.
FEW = {
    "cotracker3": ["data.synthetic.count=4", "data.held_out=1"],
    "lbm": ["data.synthetic.count=4", "data.held_out=1"],
    "hjepa": ["data.synthetic.per_class=2"],
    "pcdiff": ["data.synthetic.count=2"],
    "blade": ["data.synthetic.train=3", "data.synthetic.test=1"],
}
ON_DEVICE = ("data.augment=true", "data.augment_on_device=true")
VARIANTS: list[tuple[str, tuple[str, ...]]] = [
    *((name, ()) for name in TINY),
    ("cotracker3_tiny", ("data.augment=true",)),
    ("cotracker3_tiny", ON_DEVICE),
    ("cotracker3_tiny", ("data.query_sampling=first", "data.sample_vis_last_frame=false")),
    ("cotracker3_online_tiny", ON_DEVICE),
    ("lbm_tiny", ("data.augment=true",)),
    ("lbm_tiny", ON_DEVICE),
    ("hjepa_tiny", ("data.masking.fixed_shapes=true",)),
    ("hjepa_tiny", ("data.masking.kind=multiblock", "data.masking.predict=union")),
    ("hjepa_tiny", ("data.masking.kind=hierarchical",)),
    ("hjepa_tiny", ("data.masking.ijepa_compat=true",)),
    ("hjepa_tiny", ("data.masking.num_context_masks=2",)),
    ("hjepa_tiny", ("model.hidden_tokens=zero",)),
    ("hjepa_tiny", ("model.pooling=sequence",)),
    ("hjepa_tiny", ("loss.type=cjepa",)),
    ("pcdiff_tiny", ("data.augment=true",)),
]


def make(name: str, root: Path | str, *overrides: str) -> Any:
    family = name.partition("_")[0]
    few = FEW[family] if name.endswith("_tiny") else []
    # Smaller still, all patches of an image may be hidden.
    small = SMALL[name].sizes("data", "model") if few and family not in ("hjepa", "blade") else []
    return build_recipe(load([f"recipe={name}", f"data.root={root}", *small, *few, *overrides]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("example_batch")


def real_batch(name: str, folder: Path, overrides: tuple[str, ...]) -> Any:
    """The first samples of the recipe's synthetic data."""
    # The base estimator has PoseNet's data, and asks for no stage before it.
    alone = ["model.tz_conditioning=false"] if "posenet" in name else []
    recipe = make(name, folder / name, *overrides, *alone)
    data = recipe.build_dataset()
    return recipe.collate([data.sample(index, sample_rng(0, 0, index)) for index in range(SIZE)])


def tree(value: Any) -> Any:
    """Types of everything in a batch; dtypes and numbers of dimensions of its tensors."""
    if isinstance(value, Tensor):
        return value.dtype, value.ndim
    if not any(True for _ in tensors_in(value)):
        return type(value)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), {field.name: tree(getattr(value, field.name)) for field in fields}
    return type(value), [tree(item) for item in value]


def shapes(batch: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_in(batch)]


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_it_is_like_a_batch_of_training(
    name: str, overrides: tuple[str, ...], folder: Path
) -> None:
    example = make(name, "absent", *overrides).example_batch(SIZE)
    real = real_batch(name, folder, overrides)
    assert tree(example) == tree(real)
    assert all(tensor.device.type == "cpu" for tensor in tensors_in(example))
    if name.startswith("hjepa") and "data.masking.fixed_shapes=true" not in overrides:
        assert example.images.shape == real.images.shape  # all else follows the masks
    else:
        assert shapes(example) == shapes(real)
    assert not Path("absent").exists()


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_the_loss_on_it_is_finite_and_teaches_something(
    name: str, overrides: tuple[str, ...]
) -> None:
    once = ["model.train_iters=1"] if "cotracker3" in name else []
    recipe = make(name, "absent", *overrides, *once)
    batch = recipe.example_batch(SIZE)
    if hasattr(recipe, "begin"):
        recipe.begin(100, 10)
    model = recipe.build_model().train()
    counts = {"samples": torch.tensor(float(SIZE))}
    counts |= recipe.counts(batch) if hasattr(recipe, "counts") else {}
    assert all((count > 0).all() for count in counts.values())
    batch = recipe.on_device(batch) if hasattr(recipe, "on_device") else batch
    output = recipe.loss(model, batch, counts, 1)
    output.total.backward()
    for term in output.losses.values():
        assert term.isfinite()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)


# The others have an example batch of these, in other sizes.
@pytest.mark.parametrize("name", [*TINY, "cotracker3_small", "ijepa_vitb16", "simclr_cifar"])
def test_it_has_the_size_asked_for_and_is_the_same_each_time(name: str) -> None:
    recipe = make(name, "absent")
    batches = [recipe.example_batch(3) for _ in range(2)]
    assert len(next(tensors_in(batches[0]))) == 3
    for first, second in zip(*map(tensors_in, batches), strict=True):
        assert torch.equal(first, second)
        assert not first.is_floating_point() or first.isfinite().all()


def test_clips_are_as_long_as_training_draws_them(folder: Path) -> None:
    words = ("data.random_sequence_len=4", "data.sequence_len=7")
    (example,) = make("cotracker3_tiny", "absent", *words).example_batch(1).video
    data = make("cotracker3_tiny", folder / "cotracker3_tiny", *words).build_dataset()
    lengths = {len(data.sample(0, sample_rng(0, 0, number)).video) for number in range(30)}
    assert len(example) == max(lengths) == 6


def test_some_points_are_hidden_and_most_are_not() -> None:
    for name in ("cotracker3_offline", "cotracker3_online", "lbm"):
        visible = make(name, "absent").example_batch(1).visibility.float().mean()
        assert 0.3 < visible < 0.98


def test_masks_are_large_ones(folder: Path) -> None:
    recipe = make("hjepa_tiny", folder / "hjepa_tiny")
    data = recipe.build_dataset()
    drawn = [
        recipe.collate([data.sample(0, sample_rng(0, epoch, number)) for number in range(4)])
        for epoch in range(50)
    ]
    patches = sorted(len(batch.layout.visible.patches) for batch in drawn)
    example = recipe.example_batch(4).layout
    assert len(example.visible.patches) > patches[len(patches) // 2]
    assert len(example.prediction.positions) > 0
