"""Settings of the PCDiff recipe: names, types and checks; the values are in the YAML files.

Sizes are those of Friedrich et al., arXiv:2303.08061. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, one_of, within
from overt.data.skulls.grids import HEAD_MM
from overt.data.skulls.synthetic import KINDS
from overt.data.skulls.volumes import SKULLFIX_SPACING, axes_matrix
from overt.errors import ConfigError

DATASETS = ("skullbreak", "skullfix")
SCHEDULES = ("linear", "warm0.1", "warm0.2", "warm0.5", "cosine")
VARIANCES = ("fixedsmall", "fixedlarge")
LOSSES = ("mse", "mse_minsnr", "kl")
LEAST_SIDE = 8  # voxels; coarser skulls have no surface
SAMPLERS = ("ddpm", "ddim", "dpm_solver", "sa_solver")


@dataclass
class ConvolutionSettings:
    # width of the point-voxel convolutions
    channels: int = MISSING
    # number of convolutions; on the way down, levels after the first always build one
    count: int = MISSING
    # voxels along a side of the grid
    resolution: int = MISSING


@dataclass
class DownSettings:
    # point-voxel convolutions of the level; null: none
    convolutions: ConvolutionSettings | None = MISSING
    # furthest points that form the next level
    centers: int = MISSING
    # radius of the ball around a center; the longest axis of a cloud measures 6
    radius: float = MISSING
    # slots of a neighborhood; unused slots repeat the first neighbor
    neighbours: int = MISSING
    # widths of the MLP applied to every neighbor
    widths: list[int] = MISSING
    # on CUDA: neighbors per center that fit, on average over the batch; null: as many as there are,
    # which synchronizes with the host in every step
    pairs_per_center: int | None = MISSING


@dataclass
class UpSettings:
    # widths of the layers after the interpolation
    widths: list[int] = MISSING
    convolutions: ConvolutionSettings = MISSING


@dataclass
class DiffusionSettings:
    # linear, warm0.1, warm0.2, warm0.5 or cosine
    schedule: str = MISSING
    # variance of the first step; the cosine schedule has its own
    beta_start: float = MISSING
    # variance of the last step; the cosine schedule has its own
    beta_end: float = MISSING
    # number of steps T
    steps: int = MISSING
    # variance of the reverse step: fixedsmall (the posterior's) or fixedlarge (beta)
    variance: str = MISSING
    # standard deviation of a noise component shared by all points of a cloud. With 0, as published,
    # the mean of the noisy points reveals the implant's position
    shared_noise: float = 0.0
    # training steps are sampled as steps * u ** time_power, u uniform: 1, as published, all equally
    # often; 2 those with little noise, which place the surface, more often
    time_power: float = 1.0

    def __post_init__(self) -> None:
        one_of("model.diffusion.schedule", self.schedule, SCHEDULES)
        one_of("model.diffusion.variance", self.variance, VARIANCES)
        if not 0 < self.beta_start < self.beta_end < 1:
            raise ConfigError(
                f"model.diffusion.beta_start={self.beta_start} and beta_end={self.beta_end}; "
                "expected 0 < beta_start < beta_end < 1"
            )
        within("model.diffusion.steps", self.steps, 2)
        within("model.diffusion.shared_noise", self.shared_noise, 0)
        within("model.diffusion.time_power", self.time_power, 0, above=True)


@dataclass
class ModelSettings:
    # levels on the way down, from the finest
    down: list[DownSettings] = MISSING
    # levels on the way up, from the coarsest; the same number
    up: list[UpSettings] = MISSING
    # width of the embedding of the time step
    embed_dim: int = MISSING
    # attention over the coarsest centers and in the voxels of odd levels
    attention: bool = MISSING
    # dropout rate in the voxels, after the first convolution; null: no such layer, which renumbers
    # the keys
    dropout: float | None = MISSING
    # factor of all widths; results are rounded down and must be multiples of 8
    width_multiplier: float = MISSING
    # factor of all voxel resolutions; results are rounded down
    resolution_multiplier: float = MISSING
    diffusion: DiffusionSettings = MISSING
    # a fourth channel that is 1 for the implant's points; false, as published: the network has to
    # distinguish them from the skull by position
    marked_points: bool = False

    def __post_init__(self) -> None:
        if not self.down or len(self.down) != len(self.up):
            raise ConfigError(
                f"model.down has {len(self.down)} levels and model.up {len(self.up)}; expected "
                "equally many"
            )
        within("model.embed_dim", self.embed_dim, 4)
        multipliers = ("width_multiplier", "resolution_multiplier")
        each_within("model", self, multipliers, 0, above=True)
        self._check_width("the last layer's 128", 128)
        within("model.dropout", self.dropout, 0, 1, below=True)
        for index, level in enumerate(self.down):
            self._check_widths(f"model.down[{index}]", level)
        for index, step in enumerate(self.up):
            self._check_widths(f"model.up[{index}]", step)
        positive = ("centers", "radius", "neighbours", "pairs_per_center")
        for index, level in enumerate(self.down):
            each_within(f"model.down[{index}]", level, positive, 0, above=True)

    def _check_widths(self, where: str, level: DownSettings | UpSettings) -> None:
        block = level.convolutions
        widths = {f"{where}.widths": list(level.widths)}
        if block is not None:
            widths[f"{where}.convolutions.channels"] = [block.channels]
            within(
                f"{where}.convolutions.resolution x model.resolution_multiplier",
                int(block.resolution * self.resolution_multiplier),
                1,
            )
            within(f"{where}.convolutions.count", block.count, 1)
        for key, values in widths.items():
            for value in values:
                self._check_width(f"{key}={value}", value)

    def _check_width(self, key: str, value: int) -> None:
        width = int(value * self.width_multiplier)
        if width < 8 or width % 8:
            raise ConfigError(
                f"{key} times model.width_multiplier={self.width_multiplier} is {width}; it is "
                "normalized in 8 groups and must be a multiple of 8"
            )


@dataclass
class SyntheticSettings:
    # number of skulls, each with five defects
    count: int = MISSING
    # voxels along a side of the volumes
    side: int = MISSING
    # points of a cloud on disk
    points: int = MISSING
    # random seed of the skulls, independent of the run's
    seed: int = MISSING
    # worker processes that generate them; null: none
    workers: int | None = None
    # skulls, or null, shells: coarse and quick, for tests
    kind: str | None = None

    def __post_init__(self) -> None:
        one_of("data.synthetic.kind", self.kind or "shells", tuple(KINDS))
        within("data.synthetic.side", self.side, LEAST_SIDE)
        each_within("data.synthetic", self, ("count", "points"), 1)
        each_within("data.synthetic", self, ("seed", "workers"), 0)


@dataclass
class CloseUpSettings:
    # fraction of the training clouds that are close-ups; the others show the whole skull
    fraction: float = MISSING
    # side of the cube, relative to the longest side of the implant's box
    side: float = MISSING
    # in training, the side varies by this fraction
    side_jitter: float = MISSING
    # in training, the center varies by this fraction of the longest side of the implant's box
    shift: float = MISSING

    def __post_init__(self) -> None:
        within("data.close_ups.fraction", self.fraction, 0, 1)
        within("data.close_ups.side", self.side, 1, above=True)
        within("data.close_ups.side_jitter", self.side_jitter, 0, 1, below=True)
        within("data.close_ups.shift", self.shift, 0)


@dataclass
class DataSettings:
    # skullbreak (five defects for each skull) or skullfix (one)
    dataset: str = MISSING
    # folder with complete_skull, defective_skull and implant, prepared by `overt data prepare`
    root: str | None = MISSING
    # axis orientation of the training data, three letters such as RAS; null: LPS (left, posterior,
    # superior). `overt complete` converts scans to it; `overt evaluate` does not, and needs test
    # data of the same orientation
    axes: str | None = None
    # CSV list of the skulls for training; a relative path is below root
    train_list: str = MISSING
    # CSV list of the skulls for evaluation; a relative path is below root
    test_list: str = MISSING
    # total points of a cloud
    num_points: int = MISSING
    # how many of these belong to the implant
    num_implant_points: int = MISSING
    # rotate training clouds by up to rotation_degrees about each axis
    augment: bool = MISSING
    # largest angle of this rotation about each axis, in degrees
    rotation_degrees: float = MISSING
    # normalize training clouds by the box of the known points only, as in sampling; false: of all
    # points, as published
    known_box: bool = MISSING
    # also train on the bone in a cube around the implant, for evaluation.close_up; null, as
    # published: only on whole skulls
    close_ups: CloseUpSettings | None = None
    # at t = 0 an item always gets the same noise, as published
    fixed_noise_at_t0: bool = MISSING
    # synthetic skulls to write to root if they do not exist; null: none
    synthetic: SyntheticSettings | None = MISSING

    def __post_init__(self) -> None:
        one_of("data.dataset", self.dataset, DATASETS)
        axes_matrix(self.axes or "LPS")
        within("data.num_implant_points", self.num_implant_points, 1)
        if self.num_points <= self.num_implant_points:
            raise ConfigError(
                f"data.num_points={self.num_points} counts the {self.num_implant_points} of "
                "data.num_implant_points; it must be larger"
            )
        within("data.rotation_degrees", self.rotation_degrees, 0)
        if self.synthetic is not None and self.dataset != "skullbreak":
            raise ConfigError(
                "data.synthetic writes the layout of skullbreak; set data.dataset=skullbreak"
            )
        if self.synthetic is not None and (self.axes or "LPS").upper() != "LPS":
            raise ConfigError(
                f"data.axes={self.axes}, but data.synthetic writes skulls with the axes LPS; set "
                "data.axes=null, or data.synthetic=null for existing skulls"
            )

    @property
    def voxel_mm(self) -> float | None:
        """Return the size of the voxels that clouds were made in, where the settings tell."""
        if self.dataset == "skullfix":
            return SKULLFIX_SPACING
        return None if self.synthetic is None else HEAD_MM / self.synthetic.side

    @property
    def num_known_points(self) -> int:
        return self.num_points - self.num_implant_points


@dataclass
class LossSettings:
    # mse; mse_minsnr (weighted by min(SNR, gamma) / SNR); kl (of the reverse steps, in bits)
    type: str = MISSING
    # gamma of mse_minsnr
    min_snr_gamma: float = MISSING

    def __post_init__(self) -> None:
        one_of("loss.type", self.type, LOSSES)
        within("loss.min_snr_gamma", self.min_snr_gamma, 0, above=True)


@dataclass
class EvaluationSettings:
    # ddpm (all T steps), ddim, or of second order, for fewer steps: dpm_solver (DPM-Solver++) where
    # eta is 0, sa_solver (SA-Solver) where it is above
    sampler: str = MISSING
    # steps of all samplers but ddpm, which ignores this, step_power and eta
    steps: int = MISSING
    # spacing of the steps: 1, as published, even; 2 denser where little noise is left. The solvers
    # of second order need denser ones, and take 2 where this is 1
    step_power: float = 1.0
    # randomness of all samplers but ddpm: 0 none, 1 as much as ddpm
    eta: float = MISSING
    # clamp a predicted implant to the box of the known points, enlarged by this fraction of its
    # sides, so that errors of the noisiest steps do not accumulate. null: no limit, as published
    box_margin: float | None = None
    # sample twice: for the whole skull, then for a close-up of the bone around the first implants
    # (data.close_ups), where the points are denser. false, as published: once
    close_up: bool = False
    # implants sampled per skull; scores are those of their mean, a volume is what at least half of
    # them fill
    ensemble: int = MISSING
    # number of scored skulls, evenly spaced in the test list; null: all
    cases: int | None = MISSING
    # skulls per sampling batch
    batch_size: int = MISSING
    # seed of the initial noise and of the points sampled from the skulls
    seed: int = MISSING
    # evenly spaced time steps for the loss on held-out skulls; 0: skip it
    loss_times: int = MISSING
    # also score volumes: the sampled implant as a solid against the true one
    volumes: bool = MISSING
    # radius in mm of the ball rolled around the points: regions it cannot enter are solid. Larger
    # than half the thickest wall, smaller than the dents of a skull; increased automatically for
    # sparse clouds. Points that would need a surface above 1000 cm² enclose no solid
    solid_mm: float = MISSING
    # distance to the skull for border Dice, in mm
    border_mm: float = MISSING
    # points closer than this, in mm, count as matched in the F-score
    found_mm: float = MISSING
    # on CUDA: record one reverse step as a graph and replay it
    cuda_graph: bool = MISSING

    def __post_init__(self) -> None:
        one_of("evaluation.sampler", self.sampler, SAMPLERS)
        each_within("evaluation", self, ("ensemble", "batch_size", "cases"), 1)
        each_within("evaluation", self, ("loss_times", "seed"), 0)
        within("evaluation.eta", self.eta, 0, 1)
        within("evaluation.box_margin", self.box_margin, 0)
        within("evaluation.step_power", self.step_power, 0, above=True)
        each_within("evaluation", self, ("border_mm", "found_mm", "solid_mm"), 0, above=True)


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        steps, total = self.evaluation.steps, self.model.diffusion.steps
        if not 2 <= steps <= total:
            raise ConfigError(
                f"evaluation.steps={steps}; allowed: 2 to model.diffusion.steps={total}"
            )
        if self.evaluation.loss_times > total:
            raise ConfigError(
                f"evaluation.loss_times={self.evaluation.loss_times}; there are only {total} steps"
            )
        if self.evaluation.close_up and self.data.close_ups is None:
            raise ConfigError(
                "evaluation.close_up=true needs data.close_ups, the close-ups that the model was "
                "trained on"
            )
        if self.loss.type == "kl" and self.model.diffusion.shared_noise > 0:
            raise ConfigError(
                "loss.type=kl is that of separate noise for every point; use mse or mse_minsnr, or "
                "model.diffusion.shared_noise=0"
            )
