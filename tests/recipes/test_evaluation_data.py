"""Evaluation data that is not there is noticed before the first step, by every recipe."""

from pathlib import Path

import pytest
from small_recipes import SMALL, Small

from overt.errors import OvertError

# What makes the evaluation data of each recipe a file or folder that is not there.
MISSING = {
    "cotracker3_tiny": ("evaluation.dataset=tapvid_davis", "evaluation.dataset_root=gone"),
    "cotracker3_online_tiny": (
        "evaluation.dataset=tapvid_davis", "evaluation.dataset_root=gone",
    ),
    "cotracker3_pseudo_tiny": (
        "evaluation.dataset=tapvid_davis", "evaluation.dataset_root=gone",
    ),
    "lbm_tiny": ("evaluation.dataset=tapvid_davis", "evaluation.dataset_root=gone"),
    "hjepa_tiny": ("data.val_root=gone",),
    "pcdiff_tiny": ("data.test_list=gone.csv",),
    "pcdiff_voxels_tiny": ("data.test_list=gone.csv",),
    "pcdiff_refine_tiny": ("data.test_list=gone.csv",),
    "blade_depthnet_tiny": ("evaluation.dataset_root=gone",),
    "blade_posenet_tiny": ("evaluation.dataset_root=gone",),
    "blade_pretext_tiny": ("evaluation.dataset_root=gone",),
}  # fmt: skip


@pytest.mark.parametrize("small", SMALL.values(), ids=list(SMALL))
def test_missing_evaluation_data_is_refused_at_the_start(small: Small, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, *MISSING[small.name])
    with pytest.raises(OvertError, match="gone"):
        recipe.check_evaluation_data()
