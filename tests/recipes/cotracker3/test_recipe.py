"""The CoTracker3 recipes through the engine: they compose, learn, and resume bit for bit."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL, first_batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toy_runs import losses_by_step, read_rows

from overt.config import build_recipe, load
from overt.data.rng import sample_rng
from overt.data.tracking.clips import TrackBatch
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.errors import ConfigError
from overt.recipes.cotracker3.recipe import CoTracker3OfflineRecipe, CoTracker3OnlineRecipe

Recipe = CoTracker3OfflineRecipe | CoTracker3OnlineRecipe
TINY = ["cotracker3_tiny", "cotracker3_online_tiny"]
LOSS = "train/loss"


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequences")


def one_sample(batch: TrackBatch, number: int) -> TrackBatch:
    tensors = ("video", "tracks", "visibility", "valid", "queries", "redrawn")
    own = {name: getattr(batch, name)[number : number + 1] for name in tensors}
    return TrackBatch(**own, names=batch.names[number : number + 1])


@pytest.mark.parametrize("name", ["cotracker3_offline", "cotracker3_online"])
def test_the_official_recipes_compose_with_the_official_numbers(name: str) -> None:
    config = load([f"recipe={name}", "data.root=somewhere"])
    model, data = config.settings.model, config.settings.data
    online = name == "cotracker3_online"
    assert model.window_len == (16 if online else 60)
    assert data.sequence_len == (64 if online else 60)
    assert data.traj_per_sample == (384 if online else 512)
    assert data.query_sampling == ("first" if online else "random")
    assert data.sample_vis_last_frame == (not online)
    assert data.random_frame_rate == (not online)
    assert data.random_sequence_len == (None if online else 30)
    assert (model.train_iters, model.eval_iters, model.bf16_inputs) == (4, 6, False)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (5e-4, 5e-4)
    assert (config.training.num_steps, config.training.grad_clip_norm) == (50_000, 1.0)
    assert config.training.precision == "bf16"


@pytest.mark.parametrize("name", TINY)
def test_shares_of_single_samples_add_up_to_the_loss_of_the_batch(
    name: str, data_root: Path
) -> None:
    recipe = SMALL[name].recipe(data_root)
    torch.manual_seed(0)
    model = recipe.build_model()
    batch = first_batch(recipe, 2)
    counts = recipe.counts(batch)
    whole = recipe.loss(model, batch, counts, 0)
    parts = [recipe.loss(model, one_sample(batch, n), counts, 0) for n in range(2)]
    for term, value in (whole.losses | whole.metrics).items():
        shares = [(part.losses | part.metrics)[term] for part in parts]
        torch.testing.assert_close(sum(shares), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [TINY[0], pytest.param(TINY[1], marks=pytest.mark.long)])
def test_clips_thrown_away_reach_the_log(name: str, data_root: Path, tmp_path: Path) -> None:
    """Most sequences have fewer tracks than a sample asks for, so that most clips are replaced."""
    recipe = SMALL[name].recipe(data_root)
    recipe.build_dataset()  # writes the sequences
    shutil.copytree(data_root, tmp_path / "set")
    for sequence in ("0001", "0002"):
        file = tmp_path / "set" / sequence / f"{sequence}.npy"
        content = np.load(file, allow_pickle=True).item()
        few = {key: content[key][:2] for key in ("coords", "visibility")}
        np.save(file, np.array(few, dtype=object), allow_pickle=True)
    config = SMALL[name].config(
        data_root,
        f"data.root={tmp_path / 'set'}",
        "data.synthetic=null",
        f"output_dir={tmp_path}",
        "data.repeat=1",
        "training.num_steps=1",
        "training.global_batch_size=3",  # by accumulation: all sequences that are trained on
        "logging.every_steps=1",
    )
    recipe = build_recipe(config)
    expected = [
        recipe.build_dataset().sample(n, sample_rng(config.seed, 0, n)).redrawn for n in range(3)
    ]
    assert sum(count > 0 for count in expected) == 2
    Trainer(config, recipe, init_distributed("cpu")).train()
    (logged,) = (row["train/redrawn_clips"] for row in read_rows(tmp_path / name) if LOSS in row)
    assert logged == pytest.approx(sum(expected) / 3)


def test_online_positions_are_learned_from_the_query_on(data_root: Path) -> None:
    recipe = SMALL["cotracker3_online_tiny"].recipe(data_root)
    batch = first_batch(recipe, 1)
    targets = recipe.targets(batch)
    assert [target.valid.shape[1] for target in targets] == [8, 8]
    for start, target in zip((0, 4), targets, strict=True):
        time = start + torch.arange(8)[:, None]
        assert torch.equal(target.valid[0].bool(), batch.queries[0, :, 0] <= time)
        assert torch.equal(target.tracks_xy, batch.tracks[:, start : start + 8])
        assert torch.equal(target.visible.bool(), batch.visibility[:, start : start + 8])
    assert (batch.queries[..., 0] > 0).any()


def test_an_online_model_with_a_second_pass_is_refused(data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.fine_resolution=\[64, 64\]"):
        SMALL["cotracker3_online_tiny"].recipe(data_root, "evaluation.fine_resolution=[64,64]")


def test_online_clips_of_random_length_are_refused(data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.random_sequence_len=null"):
        SMALL["cotracker3_online_tiny"].recipe(data_root, "data.random_sequence_len=10")


RANDOM_LENGTH = ["data.random_sequence_len=4", "data.root=nowhere", "data.synthetic=null"]


@pytest.mark.parametrize(
    "sizes",
    [
        ["training.batch_size=2"],
        ["training.batch_size=null", "training.global_batch_size=2"],
    ],
)
def test_micro_batches_of_clips_of_random_length_are_refused_before_the_start(
    sizes: list[str], data_root: Path, tmp_path: Path
) -> None:
    """Before the data set is looked for, too."""
    words = [f"output_dir={tmp_path}", *RANDOM_LENGTH, *sizes]
    config = SMALL["cotracker3_tiny"].config(data_root, *words)
    with pytest.raises(ConfigError) as error:
        Trainer(config, build_recipe(config), init_distributed("cpu"))
    for words in ("data.random_sequence_len=4", "null", "training.batch_size=1", "accumulation"):
        assert words in str(error.value)
    assert "2 samples in a micro-batch" in str(error.value)


def test_clips_of_one_length_are_stacked(data_root: Path) -> None:
    for words in ([], ["data.random_sequence_len=7"]):  # from 7 to below 8
        assert SMALL["cotracker3_tiny"].recipe(data_root, *words).stackable is True
    batch = first_batch(SMALL["cotracker3_tiny"].recipe(data_root, *words), 2)
    assert batch.video.shape[:2] == (2, 7)


@pytest.mark.parametrize("rounded", [False, True])
def test_bf16_inputs_round_the_queries(rounded: bool, data_root: Path) -> None:
    recipe = SMALL["cotracker3_tiny"].recipe(data_root, f"model.bf16_inputs={rounded}")
    torch.manual_seed(0)
    model = recipe.build_model()
    seen: list[tuple[Tensor, ...]] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(given))
    batch = first_batch(recipe, 1)
    recipe.loss(model, batch, recipe.counts(batch), 0)
    video, queries = seen[0][:2]
    assert video.dtype == (torch.bfloat16 if rounded else torch.uint8)
    assert queries.dtype == torch.float32
    assert torch.equal(queries, batch.queries) != rounded
    torch.testing.assert_close(queries, batch.queries, rtol=2**-8, atol=0)


class HostNeverWaits(TorchDispatchMode):
    """Refuses what makes the host wait for a device: reading values, copying constants over."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func.overloadpacket.__name__ not in self.WAITING, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", TINY)
def test_nothing_in_a_step_waits_for_the_device(name: str, data_root: Path) -> None:
    recipe = SMALL[name].recipe(data_root)
    model = recipe.build_model()
    batch = first_batch(recipe, 1)
    counts = recipe.counts(batch)
    with HostNeverWaits():
        recipe.loss(model, batch, counts, 0).total.backward()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), HostNeverWaits():
        torch.ones(1).item()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.train_iters=0", "model.train_iters=0; it must be at least 1"),
        ("model.corr_levels=0", "at least 1"),
        ("model.corr_radius=-1", "at least 0"),
        ("model.latent_dim=3", "model.latent_dim=3; it must be at least 4"),
        ("model.mlp_ratio=0.001", "model.mlp_ratio=0.001; it must be at least 0.0"),
        ("model.corr_out=7", "times model.corr_out=7 is odd; one of them must be even"),
        ("loss.huber_delta=0", "above 0"),
        ("loss.visible_weight=-1", "at least 0"),
        ("data.synthetic.frames=0", "data.synthetic.frames=0; it must be at least 1"),
        ("data.synthetic.height=-4", "at least 1"),
        ("data.synthetic.speed=-1", "data.synthetic.speed=-1.0; it must be at least 0"),
        ("evaluation.visible_threshold=7", "at least 0 and at most 1"),
        ("data.crop_size=[63,64]", "data.crop_size=[63, 64]: height and width must be multiples"),
        ("evaluation.resolution=[65,64]", "evaluation.resolution=[65, 64]: height and width"),
    ],
)
def test_impossible_settings_are_refused_with_their_key(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(["recipe=cotracker3_tiny", override])


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_clips_augmented_on_the_device_are_those_of_the_loader(
    device: str, data_root: Path, tmp_path: Path
) -> None:
    """On the CPU to the last bit; several samples, loader processes, the steps of a run.

    On CUDA but for rounding, and with recorded steps.
    """
    on_cuda = device == "cuda"
    losses, batches = [], []
    for where in ("false", "true"):
        settings = [
            f"training.device={device}",
            f"training.cuda_graph={str(on_cuda).lower()}",
            "data.random_sequence_len=null",
            "data.augment=true",
            f"data.augment_on_device={where}",
            "training.batch_size=2",
            f"training.num_steps={6 if on_cuda else 3}",
            "training.num_workers=1",
            "training.evaluate_every_steps=null",
            "logging.every_steps=1",
            "logging.use_tensorboard=false",
            f"output_dir={tmp_path}",
            f"exp_name=on_device_{where}",
        ]
        config = SMALL["cotracker3_tiny"].config(data_root, *settings)
        recipe = SMALL["cotracker3_tiny"].recipe(data_root, *settings)
        batches.append(first_batch(recipe, 2))
        Trainer(config, recipe, init_distributed(device)).train()
        losses.append(losses_by_step(tmp_path / f"on_device_{where}"))
    in_loader, to_be_done = batches
    assert in_loader.renderings is None
    assert to_be_done.video.shape[-2:] == (40, 40)  # whole frames go to the device
    done = recipe.on_device(to_be_done)
    assert torch.equal(done.video, in_loader.video)
    assert torch.equal(done.tracks, in_loader.tracks)
    assert torch.equal(done.visibility, in_loader.visibility)
    expected = {step: pytest.approx(loss, rel=1e-2) for step, loss in losses[0].items()}
    assert losses[1] == (expected if on_cuda else losses[0])


def test_recomputation_follows_the_memory_at_hand() -> None:
    """Nothing where everything fits, then what costs the least: a clip of 60 frames."""
    config = load(["recipe=cotracker3_offline", "data.root=none"])
    chosen = []
    for gib in (80.0, 24.0, 8.0):
        recipe: Any = build_recipe(config)
        assert "recompute=[" in recipe.fit_memory(1, gib)
        chosen.append(recipe.recompute)
    few, most = ("hidden", "normed", "correlation"), ("correlation", "features", "update")
    assert chosen == [(), few, most]
    config = load(["recipe=cotracker3_offline", "data.root=none", "model.recompute=[update]"])
    assert build_recipe(config).fit_memory(1, 80.0) is None
