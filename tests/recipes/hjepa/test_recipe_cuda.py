"""On CUDA: packed attention is the padded one, a step waits for nothing, bf16 follows float32."""

from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_HJEPA, curve, first_batch

from overt.distributed import init_distributed
from overt.metrics.probes import linear_probe_accuracy
from overt.nested import map_tensors
from overt.ops.attention.api import attend, attend_padded
from overt.ops.attention.packing import Packing
from overt.recipes.hjepa import evaluation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("width", [8, 24, 64, 80])  # of a head: 80 is that of ViT-H
def test_packed_attention_is_the_padded_one(width: int) -> None:
    torch.manual_seed(0)
    lengths = [3, 17, 1, 40]
    packing = map_tensors(Packing.of(lengths, bound=64), lambda tensor: tensor.cuda())
    tokens = [torch.randn(sum(lengths), 4, width, device="cuda") for _ in range(3)]
    exact = [one.clone().requires_grad_() for one in tokens]
    fast = [one.to(torch.bfloat16).requires_grad_() for one in tokens]
    expected, found = attend_padded(*exact, packing), attend(*fast, packing)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)
    for result in (expected, found):
        result.float().square().sum().backward()
    for one, other in zip(fast, exact, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.float(), other.grad, atol=8e-2, rtol=8e-2)


@pytest.mark.parametrize("extra", ["smoothl1", "combined", "hjepa_sigreg"])
def test_loss_and_target_update_wait_for_nothing(extra: str, tmp_path: Path) -> None:
    recipe = SMALL_HJEPA.recipe(
        tmp_path, f"loss.type={extra}", "loss.sigreg_num_slices=8", "training.precision=bf16"
    )
    recipe.begin(10, 5)
    model = recipe.build_model().cuda()
    host = first_batch(recipe)
    counts = map_tensors(recipe.counts(host) | {"samples": torch.tensor(4.0)}, torch.Tensor.cuda)
    batch = map_tensors(host, torch.Tensor.cuda)
    applied = torch.ones((), device="cuda")

    def step(number: int) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            output = recipe.loss(model, batch, counts, number)
        output.total.backward()
        recipe.after_step(model, number, applied, {})

    step(0)  # the monitor looks, which waits, and kernels are chosen
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_fifty_steps_in_bf16_follow_those_in_float32(tmp_path: Path) -> None:
    curves = []
    for dtype in (None, torch.bfloat16):
        recipe = SMALL_HJEPA.recipe(tmp_path, "evaluation.collapse.every_steps=null")
        recipe.begin(50, 5)
        torch.manual_seed(0)
        model = recipe.build_model().cuda()
        optimizer = torch.optim.AdamW(
            [value for value in model.parameters() if value.requires_grad], 1e-3
        )
        applied, curve = torch.ones((), device="cuda"), []
        for number in range(50):
            host = first_batch(recipe, 8, start=8 * (number % 3))
            counts = map_tensors(
                recipe.counts(host) | {"samples": torch.tensor(8.0)}, torch.Tensor.cuda
            )
            batch = map_tensors(host, torch.Tensor.cuda)
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = recipe.loss(model, batch, counts, number).total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recipe.after_step(model, number, applied, {})
            curve.append(loss.item())
        curves.append(curve)
    assert curves[1] == pytest.approx(curves[0], rel=0.05)


def test_features_are_scored_where_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    def note(*pairs: torch.Tensor, **settings: object) -> dict[str, float]:
        devices.extend(tensor.device.type for tensor in pairs)
        return linear_probe_accuracy(*pairs, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluation, "linear_probe_accuracy", note)
    recipe = SMALL_HJEPA.recipe(
        tmp_path, *(f"evaluation.{probe}.{setting}"
                    for probe in ("linear_probe", "attentive_probe")
                    for setting in ("enabled=true", "epochs=2")),
    )  # fmt: skip
    world = init_distributed("cuda")
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        scores = recipe.evaluate(recipe.build_model().to(world.device).eval(), world)
    assert devices == ["cuda"] * 4
    assert {"knn_top1", "linear_top1", "attentive_top1"} <= scores.keys()


GRAPHED = {
    "official masks": ("data.masking.style=official", "data.masking.weigh=blocks"),
    "views on the device": (
        "data.augmentation.device=true", "data.augmentation.color_distortion=1",
    ),
    "two views": (
        "loss.type=cjepa", "data.augmentation.device=true", "model.use_target_encoder=true",
    ),
    "simclr": (
        "recipe._target_=overt.recipes.hjepa.baselines.SimCLRRecipe", "loss.type=cjepa",
        "data.masking.fixed_shapes=false", "data.augmentation.device=true",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHED)
def test_a_graph_trains_as_single_launches_do(name: str, tmp_path: Path) -> None:
    curves = []
    for graph in ("false", "true"):
        fixed = f"data.masking.fixed_shapes={graph}"
        run = SMALL_HJEPA.train(
            tmp_path, fixed, *GRAPHED[name], f"training.cuda_graph={graph}", f"exp_name={graph}",
            "training.device=cuda", "training.num_steps=12", "evaluation.collapse.every_steps=null",
            "training.evaluate_every_steps=null",
        )  # fmt: skip
        curves.append(curve(run))
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
