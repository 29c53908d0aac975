"""overt/recipes/lbm/transformer.py: folded correlation, and maps that do not depend on the clip."""

import torch
from small_recipes import small_lbm
from torch.nn import functional as F

from overt.recipes.lbm.pyramid import normalize
from overt.recipes.lbm.transformer import FrameMaps


def test_integer_buffers_describe_the_pyramid() -> None:
    transformer = small_lbm(input_size=(64, 96)).transformer
    assert transformer.spatial_shapes.tolist() == [[16, 24], [8, 12], [4, 6]]
    assert transformer.start_levels.tolist() == [0, 384, 480]


def test_the_folded_correlation_is_that_of_every_level_resized() -> None:
    transformer = small_lbm(input_size=(32, 64)).transformer
    features, query = torch.randn(2, 8, 16, 16), torch.randn(2, 5, 16)
    guide = transformer.frame_maps(features).guides[0]
    conv = transformer.layers[0].corr_conv
    maps = []
    for level, (height, width) in enumerate(transformer.sizes):
        tokens = F.avg_pool2d(features.permute(0, 3, 1, 2), 2**level)
        unit = F.normalize(tokens, dim=1)
        product = torch.einsum("bnc,bchw->bnhw", F.normalize(query, dim=-1), unit)
        assert product.shape[2:] == (height, width)
        maps.append(F.interpolate(product, (8, 16), mode="bilinear", align_corners=False))
    stacked = torch.stack(maps, dim=2).flatten(0, 1)  # (B * N, L, h, w)
    wanted = (conv(stacked)[:, 0] + stacked[:, 0]).view(2, 5, -1)
    found = normalize(query) @ guide.mT + conv.bias
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_maps_of_a_clip_are_those_of_its_frames() -> None:
    model = small_lbm().eval()
    features = torch.randn(6, 8, 8, 16)
    whole = model._maps_of_clip(features, batch=2)
    assert len(whole) == 3
    single = model.transformer.frame_maps(features.view(2, 3, 8, 8, 16)[:, 1])
    assert isinstance(whole[1], FrameMaps)
    for one, other in zip(
        whole[1].values + whole[1].guides, single.values + single.guides, strict=True
    ):
        torch.testing.assert_close(one, other)
