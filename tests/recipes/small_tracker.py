"""A CoTracker3 small enough for tests whose numbers nevertheless move, and something to track."""

from typing import TypeVar

import torch
from torch import Tensor

from overt.recipes.cotracker3.model import CoTracker3

Tracker = TypeVar("Tracker", bound=CoTracker3)

SIZES = {
    "window_len": 6,
    "corr_radius": 1,
    "corr_levels": 2,
    "num_virtual_tracks": 4,
    "model_resolution": (320, 400),  # with a smaller one rounding grows from window to window
    "latent_dim": 16,
    "hidden_size": 32,
    "num_heads": 4,
    "time_depth": 2,
    "space_depth": 1,
    "mlp_ratio": 2.0,
    "corr_hidden": 24,
    "corr_out": 16,
}


# A tiny recipe made smaller still: less data, a narrower model, fewer points.
SMALL = [
    "data.synthetic.count=4",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.crop_size=[32,32]",
    "data.held_out=1",
    "data.traj_per_sample=8",
    "model.latent_dim=16",
    "model.corr_radius=1",
    "model.hidden_size=32",
    "model.corr_hidden=32",
    "model.train_iters=2",
    "model.eval_iters=2",
    "training.num_workers=0",
    "training.device=cpu",
]


def small(model_class: type[Tracker], **changed: object) -> Tracker:
    torch.manual_seed(0)
    model = model_class(**(SIZES | changed))
    # The heads start almost at zero; larger, the iterations have something to disagree about.
    with torch.no_grad():
        model.updateformer.flow_head.weight.mul_(20)
        model.updateformer.vis_conf_head.weight.mul_(20)
    return model.eval()


def inputs(batch: int = 2, frames: int = 6, points: int = 5) -> tuple[Tensor, Tensor]:
    """A video of noise (B, T, 3, 32, 40) and queries in all its frames, (B, N, 3)."""
    generator = torch.Generator().manual_seed(1)
    video = torch.randint(0, 256, (batch, frames, 3, 32, 40), generator=generator)
    queries = torch.rand(batch, points, 3, generator=generator)
    queries *= torch.tensor([frames, 39.0, 31.0])
    queries[..., 0].floor_()
    return video.to(torch.uint8), queries
