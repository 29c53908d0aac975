"""DINOv2's transformer: taps, and the position table for other grids."""

import torch

from overt.nn.dinov2 import DinoVisionTransformer


def small() -> DinoVisionTransformer:
    model = DinoVisionTransformer((70, 70), 24, 3, 2)
    torch.nn.init.normal_(model.pos_embed)
    return model.eval()


def test_taps_are_what_the_model_gives_at_these_blocks() -> None:
    model, images = small(), torch.rand(2, 3, 70, 70)
    last = model.taps(images, (0, 2))[1]
    whole = model(images)
    torch.testing.assert_close(last.patches, whole[:, 1:])
    torch.testing.assert_close(last.summary, whole[:, 0])
    first = model.taps(images, (0,))[0]
    torch.testing.assert_close(first.patches, model.taps(images, (0, 2))[0].patches)
    assert not torch.allclose(first.patches, last.patches)


def test_other_grids_stretch_the_table() -> None:
    model = small()
    assert model.positions((5, 5)) is model.pos_embed
    for grid in ((6, 4), (2, 9), (37, 37)):
        table = model.positions(grid)
        assert table.shape == (1, 1 + grid[0] * grid[1], 24)
        assert torch.equal(table[:, 0], model.pos_embed[:, 0])
