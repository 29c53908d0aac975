r"""What `model.depth.backbone_precision` changes: features of the frozen encoder, and depths.

    python benchmarks/backbone_precision.py recipe=blade_depthnet data=blade_people \
        data.synthetic.size=518 data.synthetic.test=32 data.depth_size=518 \
        evaluation.dataset=people_test \
        model.depth.backbone_checkpoint=depth_anything_v2_metric_hypersim_vitl.pth
    python benchmarks/backbone_precision.py --checkpoint runs/blade_depthnet/checkpoints/best

Crops of the evaluation set go through the same weights in fp32, bf16 and fp8. The error of features
is a norm over all numbers of a crop, relative to that of the reference; that of a depth is relative
as well. A checkpoint brings its own configuration and a trained head; without one, the head is
random, and so are its depths.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
from command import guarded, need_device, positive
from torch import Tensor

from overt.checkpoint.trained import configure, load_model
from overt.config import build_recipe, load
from overt.errors import ConfigError
from overt.recipes.blade.data import depth_crop, make_evaluation_data, open_evaluation
from overt.recipes.blade.depth_recipe import DepthNetRecipe
from overt.recipes.blade.depthnet import DepthNet

PRECISIONS = ("fp32", "bf16", "fp8")


class Predicted(NamedTuple):
    """What a model says of crops, on the CPU."""

    features: Tensor  # (B, numbers)
    depth: Tensor  # (B,) meters


def predict(precision: str, options: argparse.Namespace) -> Predicted:
    """Predict the first crops of the evaluation set in one precision."""
    words = [*options.words, f"model.depth.backbone_precision={precision}"]
    config = load(words) if options.checkpoint is None else configure(options.checkpoint, words, [])
    recipe = build_recipe(config)
    if not isinstance(recipe, DepthNetRecipe):
        raise ConfigError("expected a recipe of DepthNet, such as recipe=blade_depthnet")
    torch.manual_seed(0)  # where weights are random, they are the same in every precision
    model = (
        recipe.build_model().eval()
        if options.checkpoint is None
        else load_model(recipe, options.checkpoint)[0]
    )
    assert isinstance(model, DepthNet)
    model.require_weights("Set model.depth.backbone_checkpoint.")
    model.to(options.device)
    settings = recipe.settings
    make_evaluation_data(settings.data, settings.evaluation)
    people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
    features, depth = [], []
    for row in range(min(options.crops, len(people))):
        crop = depth_crop(people, row, people.picture(row), settings.data.depth_size)
        with torch.no_grad():
            maps = model.features(crop[None].to(options.device))
            depth.append(model.from_features(maps)[:, 0].float().cpu())
        features.append(maps.float().flatten(1).cpu())
    return Predicted(torch.cat(features), torch.cat(depth))


def compare(found: Predicted, reference: Predicted) -> list[float]:
    """Return relative errors of features and depths (means, largest), and a correlation."""
    difference = (found.features - reference.features).norm(dim=1)
    features = difference / reference.features.norm(dim=1)
    depth = (found.depth - reference.depth).abs() / reference.depth.abs()
    both = torch.stack([found.features.flatten(), reference.features.flatten()])
    numbers = (features.mean(), features.max(), torch.corrcoef(both)[0, 1], depth.mean())
    return [float(number) for number in (*numbers, depth.max())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="recipe=blade_depthnet, ...")
    parser.add_argument("--checkpoint", type=Path, help="of a DepthNet")
    parser.add_argument("--crops", type=positive, default=32)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_intermixed_args()
    need_device(options.device)
    predicted = {precision: predict(precision, options) for precision in PRECISIONS}
    print(f"{len(predicted['fp32'].depth)} crops")
    print(
        "| precision | reference | features: mean | largest | correlation | depth: mean | largest |"
    )
    print("|---|---|---|---|---|---|---|")
    for reference, precision in combinations(PRECISIONS, 2):
        numbers = compare(predicted[precision], predicted[reference])
        print(
            "|", " | ".join([precision, reference, *(f"{number:.3g}" for number in numbers)]), "|"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
