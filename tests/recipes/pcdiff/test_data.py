"""overt/recipes/pcdiff/data.py: samples follow from their generator; bad data are named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.config import load
from overt.data.rng import sample_rng
from overt.data.skulls.lists import item_of
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.volumes import Volume
from overt.errors import ConfigError, DataError
from overt.recipes.pcdiff.data import (
    HeldOutCases,
    TrainingClouds,
    draw_noise,
    noised,
    open_list,
    training_spacing,
    voxel_size,
)
from overt.recipes.pcdiff.sampling import base_arrays


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pcdiff")
    SMALL_PCDIFF.recipe(root).build_dataset()  # writes the skulls
    return root


@pytest.mark.parametrize("name", ["pcdiff", "pcdiff_published", "pcdiff_medium", "pcdiff_large"])
def test_the_noisiest_clouds_do_not_tell_where_the_implant_is(name: str) -> None:
    """Their mean would: separate noise of many points averages out."""
    settings = load([f"recipe={name}", "data.root=somewhere"]).settings
    diffusion = settings.model.diffusion
    signal = float(base_arrays(diffusion).sqrt_alphas_cumprod[-1])
    count = settings.data.num_implant_points
    means = torch.stack(
        [draw_noise(sample_rng(0, 0, i), count, diffusion.shared_noise).mean(0) for i in range(200)]
    )
    # Centers of implants are some 2.4 units from the middle of the skull, so 1.4 along an axis.
    assert float(means.std()) / signal > 1.4


def test_shared_noise_is_the_same_for_all_points_of_a_cloud() -> None:
    noise = draw_noise(sample_rng(0, 0, 0), 4000, 5.0)
    assert float(noise.mean(0).norm()) > 1.0
    torch.testing.assert_close(noise.std(0), torch.ones(3), atol=0.05, rtol=0)


def test_a_missing_root_says_where_to_get_the_data(tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(tmp_path, "data.synthetic=null", "data.root=null")
    with pytest.raises(ConfigError, match="overt data prepare"):
        recipe.build_dataset()


def test_data_problems_show_before_training(root: Path, tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root, "data.num_points=1000", "data.num_implant_points=500")
    with pytest.raises(DataError, match="400 points, expected at least 500"):
        recipe.build_dataset()
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\n")
    recipe = SMALL_PCDIFF.recipe(root, f"data.root={tmp_path}", "data.synthetic=null")
    with pytest.raises(DataError, match="10 of 10 clouds are missing"):
        recipe.build_dataset()


def test_a_sample_is_a_function_of_its_generator(root: Path) -> None:
    dataset = SMALL_PCDIFF.recipe(root, "data.augment=true").build_dataset()
    first, second = (dataset.sample(3, sample_rng(0, 1, 3)) for _ in range(2))
    assert first.time == second.time
    for name in ("known", "implant", "noise"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.known.shape == (128, 3)
    assert first.implant.shape == first.noise.shape == (32, 3)
    later = dataset.sample(3, sample_rng(0, 2, 3))
    assert not torch.equal(first.noise, later.noise)


def test_close_ups_show_the_bone_around_the_implant(root: Path) -> None:
    """The implant fills a fixed part of a close-up, and none of it is lost."""
    close_ups = "{fraction: 1.0, side: 1.3, side_jitter: 0.0, shift: 0.0}"
    whole = SMALL_PCDIFF.recipe(root, "data.augment=false").build_dataset()
    close = SMALL_PCDIFF.recipe(
        root, "data.augment=false", f"data.close_ups={close_ups}"
    ).build_dataset()

    def extents(data: TrainingClouds) -> torch.Tensor:
        clouds = [data.sample(index, sample_rng(1, 0, index)).implant for index in range(len(data))]
        return torch.stack([(cloud.amax(0) - cloud.amin(0)).max() for cloud in clouds])

    # The longest side of a cube is 6 units; its known points do not always reach all of it, and
    # the 32 points do not reach the implant's ends.
    assert ((extents(close) > 0.7 * 6 / 1.3) & (extents(close) < 1.4 * 6 / 1.3)).all()
    assert extents(close).mean() > 1.15 * extents(whole).mean()
    assert close.sample(0, sample_rng(1, 0, 0)).known.shape == (128, 3)


def test_a_time_power_prefers_little_noise(root: Path) -> None:
    def times(power: float) -> list[int]:
        settings = SMALL_PCDIFF.recipe(root, f"model.diffusion.time_power={power}").settings
        diffusion, few = settings.model.diffusion, np.eye(3, dtype=np.float32)
        return [
            noised(few, few, settings.data, diffusion, 0, sample_rng(1, 0, index), "").time
            for index in range(300)
        ]

    steps = load(["recipe=pcdiff_tiny"]).settings.model.diffusion.steps
    even, low = times(1.0), times(3.0)
    assert max(low) < steps
    assert min(low) >= 0
    # Half of u ** 3 are below an eighth.
    assert sum(time < steps / 8 for time in even) < 60 < 120 < sum(time < steps / 8 for time in low)


def test_at_time_0_an_item_always_has_the_same_noise(root: Path) -> None:
    dataset = SMALL_PCDIFF.recipe(root).build_dataset()
    dataset.diffusion.steps = 1  # every time step is 0
    first, second = (dataset.sample(2, sample_rng(0, epoch, 2)) for epoch in range(2))
    assert torch.equal(first.noise, second.noise)
    assert not torch.equal(first.known, second.known)
    assert not torch.equal(first.noise, dataset.sample(1, sample_rng(0, 0, 1)).noise)
    free = SMALL_PCDIFF.recipe(root, "data.fixed_noise_at_t0=false").build_dataset()
    free.diffusion.steps = 1
    first, second = (free.sample(2, sample_rng(0, epoch, 2)) for epoch in range(2))
    assert not torch.equal(first.noise, second.noise)


def test_an_assumed_voxel_size_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    items = [item_of(tmp_path, "skullbreak", "bilateral", name) for name in ("000", "001")]
    assert [voxel_size(item, "skullbreak") for item in items] == [0.4, 0.4]
    (record,) = caplog.records
    assert "no volume beside the clouds: voxels of 0.4 mm assumed" in record.getMessage()


def test_the_voxels_of_training_clouds_are_read_from_volumes_beside_them(
    root: Path, tmp_path: Path
) -> None:
    settings = SMALL_PCDIFF.recipe(root, "data.synthetic=null").settings.data
    items = open_list(settings, settings.train_list).items
    assert training_spacing(settings, items) == pytest.approx((200 / 24,) * 3)
    for number, size in enumerate((0.4, 0.5, 0.9)):
        made = item_of(tmp_path, "skullbreak", "bilateral", f"00{number}")
        made.skull.parent.mkdir(parents=True, exist_ok=True)
        volume = Volume.of(np.ones((2, 2, 2), np.uint8), (size, size, 2 * size))
        write_nrrd(made.volume("skull"), volume)
        items.append(made)
    assert training_spacing(settings, items[-3:]) == pytest.approx((0.5, 0.5, 1.0))
    # Clouds alone, as from the published scripts, do not tell; neither does a broken volume.
    elsewhere = [item_of(tmp_path / "clouds", "skullbreak", "bilateral", "000")]
    assert training_spacing(settings, elsewhere) is None
    elsewhere[0].skull.parent.mkdir(parents=True)
    elsewhere[0].volume("skull").write_bytes(b"")
    assert training_spacing(settings, elsewhere) is None
    settings.dataset = "skullfix"
    assert training_spacing(settings, elsewhere) == (0.45, 0.45, 0.45)


def test_held_out_cases_are_spread_over_the_list_and_always_the_same(root: Path) -> None:
    settings = SMALL_PCDIFF.recipe(root, "evaluation.cases=3").settings
    cases = HeldOutCases(settings.data, settings.evaluation)
    assert cases.numbers == [0, 2, 4]
    first, second = (cases.case(1) for _ in range(2))
    np.testing.assert_array_equal(first.cloud.points, second.cloud.points)
    assert torch.equal(first.implant, second.implant)
    assert np.abs(first.cloud.points).max() == pytest.approx(3.0)
    assert first.voxel_mm == pytest.approx(200 / 24)
    # The true implant in voxels is within the volume, as its file has it.
    voxels = first.to_cloud(first.implant)
    stored = np.load(first.item.implant)
    assert (voxels >= stored.min(axis=0) - 1e-3).all()
    assert (voxels <= stored.max(axis=0) + 1e-3).all()
