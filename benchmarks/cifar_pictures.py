"""Pictures of what an encoder of benchmarks/cifar.py has learned."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import overt
from overt.data.images.decode import as_tensor, decode_image, read_file
from overt.data.images.transforms import EvaluationTransform
from overt.distributed import World
from overt.engine.trainer import Trainer
from overt.recipes.hjepa import evaluation
from overt.recipes.hjepa.encoder import FeatureModel
from overt.recipes.hjepa.encoder_recipe import EncoderRecipe
from overt.recipes.hjepa.further_sets import patch_pixels
from overt.viz.features import attention_picture, pca_picture

QUERIES, NEIGHBORS = 8, 7  # the first test images: none is chosen by its result
PHOTOGRAPHS = Path(overt.__file__).parent / "photographs"
SIDE = 96  # pixels of a photograph; three times those of training


def parts(trainer: Trainer) -> tuple[EncoderRecipe, FeatureModel]:
    recipe, model = trainer.recipe, trainer.model
    assert isinstance(recipe, EncoderRecipe)
    assert isinstance(model, FeatureModel)
    return recipe, model.eval()


def save(path: Path, rows: list[Tensor], scale: int) -> None:
    """Write rows (3, H, W) uint8 below each other, enlarged, as WebP without loss."""
    sheet = Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy())
    size = scale * sheet.width, scale * sheet.height
    sheet.resize(size, Image.Resampling.NEAREST).save(path, lossless=True, method=6)


def draw_neighbors(path: Path, trainer: Trainer, world: World) -> None:
    """Write test images, their features as colors, and the nearest training images."""
    recipe, model = parts(trainer)
    training, held_out = recipe.scored_sets()
    queries = [held_out.try_read(index) for index in range(QUERIES)]
    pixels = torch.stack([sample[0] for sample in queries if sample is not None])
    settings = recipe.settings.evaluation
    with torch.inference_mode(), trainer.autocast():
        bank = evaluation.collect_features(
            lambda images: evaluation.pooled_features(model, 1, images), training, settings, world
        )
        features = evaluation.pooled_features(model, 1, pixels.to(world.device)).cpu()
        maps = pca_picture(model.extract_features(pixels.to(world.device)).float(), recipe.grid, 4)
    bank_rows, query_rows = (F.normalize(x, dim=1) for x in (bank.values, features))
    nearest = (query_rows @ bank_rows.T).topk(NEIGHBORS, dim=1).indices  # (QUERIES, NEIGHBORS)
    rows = []
    for number in range(len(pixels)):
        neighbors = [training.try_read(int(bank.ids[index])) for index in nearest[number]]
        tiles = [pixels[number], maps[number].cpu()]
        tiles += [neighbor[0] for neighbor in neighbors if neighbor]
        rows.append(torch.cat(tiles, dim=2))
    save(path, rows, 2)


def draw_photographs(path: Path, trainer: Trainer) -> None:
    """Write photographs that come with overt, in four columns.

    The photograph; raw patches as colors, the baseline; features as colors; and how similar each
    patch is to the one in the middle.
    """
    recipe, model = parts(trainer)
    device = next(model.parameters()).device
    middle = EvaluationTransform((SIDE, SIDE), margin=1.0)
    files = sorted(PHOTOGRAPHS.glob("*.jpg"))
    pictures = [middle(as_tensor(decode_image(read_file(file), str(file)))) for file in files]
    pixels = torch.stack(pictures)  # (B, 3, SIDE, SIDE)
    patch = recipe.settings.model.patch()
    grid = SIDE // patch, SIDE // patch
    with torch.inference_mode(), trainer.autocast():
        vit = model.scored_encoder().vit
        tokens = vit(model.pixels(pixels.to(device)))[:, vit.prefix :].float().cpu()  # (B, N, D)
    unit = F.normalize(tokens - tokens.mean((0, 1)), dim=2)
    center = unit[:, (grid[0] // 2) * grid[1] + grid[1] // 2]
    similar = (unit @ center[:, :, None])[..., 0].clamp(min=0)  # (B, N)
    columns = [
        pixels,
        pca_picture(patch_pixels(pixels, patch), grid, patch),
        pca_picture(tokens, grid, patch),
        attention_picture(similar[:, None], grid, patch),
    ]
    save(path, list(torch.cat(columns, dim=3)), 2)
