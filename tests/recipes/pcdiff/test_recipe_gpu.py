"""PCDiff on a CUDA device: room for neighbours, no waiting, graphs, and low precision."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_PCDIFF, first_batch
from torch import Tensor, nn

from overt.config import build_recipe, load
from overt.ops.dispatch import HAS_TRITON
from overt.recipes.pcdiff.data import CloudBatch
from overt.recipes.pcdiff.recipe import PCDiffRecipe
from overt.recipes.pcdiff.sampling import make_plan, sample_implants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton"
    ),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pcdiff_gpu")


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
        monkeypatch.setattr(part, "allow_tf32", False)


def with_room(root: Path, pairs_per_center: int | None) -> PCDiffRecipe:
    recipe = SMALL_PCDIFF.recipe(root)
    for level in recipe.settings.model.down:
        level.pairs_per_center = pairs_per_center
    return PCDiffRecipe(recipe.settings)


def on_device(batch: CloudBatch) -> CloudBatch:
    parts = (batch.known, batch.implant, batch.noise, batch.times)
    return CloudBatch(*(part.cuda() for part in parts), batch.names)


def without_dropout(recipe: PCDiffRecipe) -> nn.Module:
    torch.manual_seed(0)
    return recipe.build_model().cuda().eval()


def loss_and_gradients(recipe: PCDiffRecipe, batch: CloudBatch) -> list[Tensor]:
    model = without_dropout(recipe)
    samples = {"samples": torch.tensor(len(batch.times), device=batch.known.device)}
    total = recipe.loss(model, batch, samples, 0).total
    return [total.detach(), *torch.autograd.grad(total, list(model.parameters()))]


def test_room_for_neighbours_changes_nothing_and_the_cpu_agrees(root: Path) -> None:
    batch = first_batch(SMALL_PCDIFF.recipe(root), 4)
    exact = loss_and_gradients(with_room(root, None), on_device(batch))
    roomy = loss_and_gradients(with_room(root, 24), on_device(batch))
    for one, other in zip(exact, roomy, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
    recipe = SMALL_PCDIFF.recipe(root)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    expected = recipe.loss(model, batch, {"samples": torch.tensor(4)}, 0).total
    torch.testing.assert_close(exact[0].cpu(), expected.detach(), atol=1e-4, rtol=1e-4)


def test_too_little_room_gives_no_loss(root: Path) -> None:
    loss, *_ = loss_and_gradients(
        with_room(root, 2), on_device(first_batch(SMALL_PCDIFF.recipe(root), 2))
    )
    assert loss.isnan()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_step_never_waits_for_the_device(dtype: torch.dtype | None, root: Path) -> None:
    recipe = with_room(root, 24)
    assert recipe.replayable is True
    batch = on_device(first_batch(recipe, 2))
    model = recipe.build_model().cuda().train()
    samples = {"samples": torch.tensor(2, device="cuda")}

    def step() -> Tensor:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            total = recipe.loss(model, batch, samples, 0).total
        total.backward()
        return total

    step()  # compiles the kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        total = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_a_recorded_step_samples_what_the_plain_one_does(sampler: str, root: Path) -> None:
    recipe = with_room(root, 24)
    settings = recipe.settings
    settings.evaluation.sampler = sampler
    settings.model.diffusion.steps = 12
    settings.evaluation.steps = 6
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    model = without_dropout(recipe)
    known = on_device(first_batch(recipe, 2)).known

    def sample(graph: bool) -> Tensor:
        generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(2)]
        return sample_implants(model, known, 32, plan, generators, cuda_graph=graph)

    with torch.inference_mode():
        torch.testing.assert_close(sample(True), sample(False), atol=1e-2, rtol=1e-2)


def test_a_large_batch_gives_each_cloud_the_loss_it_has_alone(root: Path) -> None:
    recipe = with_room(root, 24)
    one = on_device(first_batch(recipe, 1))
    many = CloudBatch(
        *(part.repeat(64, *[1] * (part.ndim - 1)) for part in
          (one.known, one.implant, one.noise, one.times)),
        one.names * 64,
    )  # fmt: skip
    alone, *_ = loss_and_gradients(recipe, one)
    together, *_ = loss_and_gradients(recipe, many)
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-4)


def test_fifty_steps_at_full_size_in_bf16_follow_those_in_float32() -> None:
    """8 clouds of 30,720 points, the published network and learning rate, dropout included."""
    config = load(["recipe=pcdiff", "data.root=none"])
    example = build_recipe(config)
    assert isinstance(example, PCDiffRecipe)
    clouds = on_device(example.example_batch(8))
    samples = {"samples": torch.tensor(8, device="cuda")}
    curves = []
    for dtype in (None, torch.bfloat16):
        recipe = build_recipe(config)
        torch.manual_seed(0)
        model = recipe.build_model().cuda().train()
        optimizer = torch.optim.Adam(model.parameters(), config.optimizer.lr, betas=(0.5, 0.999))
        draws = torch.Generator("cuda").manual_seed(1)
        curve = []
        for step in range(50):
            batch = replace(
                clouds,
                noise=torch.randn(clouds.noise.shape, generator=draws, device="cuda"),
                times=torch.randint(1000, (8,), generator=draws, device="cuda"),
            )
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = recipe.loss(model, batch, samples, step).total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.detach())
        curves.append(torch.stack(curve).cpu())
    exact, fast = curves
    noise = exact[10:].std()  # of the loss from batch to batch, behind the first fall
    difference = (fast - exact)[10:]
    print(f"float32: {exact[0]:.3f} at first, then {exact[10:].mean():.3f} +- {noise:.3f}")
    print(f"bf16 differs by {difference.abs().mean():.4f}, on average {difference.mean():+.4f}")
    assert difference.abs().mean() < 0.5 * noise
    assert difference.mean().abs() < 0.2 * noise
