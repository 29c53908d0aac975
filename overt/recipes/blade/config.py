"""Settings of BLADE's recipes: names, types and checks; the values are in the YAML files.

Stage 1 is DepthNet, stage 2 PoseNet; the pretext trains a depth backbone if no pretrained weights
are available. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from omegaconf import MISSING

from overt.checks import each_within, multiple_of, one_of, within
from overt.data.people.conventions import CONVENTIONS
from overt.errors import ConfigError

CUSTOM, CONV = "custom", "conv"
MOST_SCALES = 8  # 918 windows of a square picture


class Backbone(NamedTuple):
    """Sizes of a depth backbone: encoder, tapped blocks, and channels of the DPT head."""

    width: int
    depth: int
    heads: int
    taps: tuple[int, ...]
    features: int
    channels: tuple[int, ...]


ENCODERS = {
    "vits": Backbone(384, 12, 6, (2, 5, 8, 11), 64, (48, 96, 192, 384)),
    "vitb": Backbone(768, 12, 12, (2, 5, 8, 11), 128, (96, 192, 384, 768)),
    "vitl": Backbone(1024, 24, 16, (4, 11, 17, 23), 256, (256, 512, 1024, 1024)),
}


class Protocol(NamedTuple):
    """A test set: annotations and pictures below the data root."""

    annotations: str
    images: str
    layout: str = "humandata"


RENDERED_SETS = ("people_test", "people_p3", "people_p5", "people_far")
PROTOCOLS = {
    "spec_mtp_p3": Protocol("preprocessed_datasets/spec_mtp_p3.npz", "datasets/spec_mtp"),
    "pdhuman_p5": Protocol("preprocessed_datasets/pdhuman_test_p5.npz", "datasets/pdhuman"),
    "humman_p3": Protocol("preprocessed_datasets/humman_test_p3.npz", "datasets/humman"),
    "bedlamcc_eval": Protocol(
        "preprocessed_datasets/bedlamcc_eval.npz", "datasets/bedlamcc", "bedlamcc"
    ),
} | {
    name: Protocol(f"preprocessed_datasets/{name}.npz", f"datasets/{name}")
    for name in RENDERED_SETS
}


# --- model ---------------------------------------------------------------------------------------


@dataclass
class EncoderSettings:
    # features of a token of the vision transformer; with encoder=custom, like all of these
    width: int = MISSING
    # blocks of the vision transformer
    depth: int = MISSING
    # attention heads of a block; divides width
    num_heads: int = MISSING
    # the four blocks whose features are inputs of the DPT head
    taps: list[int] = MISSING
    # channels of the DPT head's output map
    features: int = MISSING
    # channels of the DPT head's four inputs, one for each of taps
    channels: list[int] = MISSING

    def check(self) -> None:
        """Refuse impossible sizes; other encoders leave these unused."""
        if len(self.taps) != 4 or len(self.channels) != 4:
            raise ConfigError("model.depth.custom needs four taps and four channels")
        name = "model.depth.custom"
        each_within(name, self, ("width", "depth", "num_heads"), 1)
        within(f"{name}.features", self.features, 2)  # the tail halves them
        within(f"{name}.channels", min(self.channels), 1)
        multiple_of(f"{name}.width", self.width, f"{name}.num_heads", self.num_heads)
        if not all(0 <= tap < self.depth for tap in self.taps):
            raise ConfigError(
                f"{name}.taps={list(self.taps)}; with {name}.depth={self.depth} its blocks are 0 "
                f"to {self.depth - 1}"
            )


@dataclass
class HeadSettings:
    # attention heads; divides model.depth.channels
    num_heads: int = MISSING
    # hidden features of the feed-forward layers
    hidden: int = MISSING
    # layers of the transformer decoder that reads the depth from the map
    layers: int = MISSING
    # rate of all dropouts of these layers
    dropout: float = MISSING
    # largest depth that can be predicted, in meters
    max_depth: float = MISSING
    # a learned vector for every position of the map; the published head has none
    places: bool = MISSING
    # initial bias of the last layer; null: torch's initialization
    start_bias: float | None = MISSING

    def __post_init__(self) -> None:
        each_within("model.depth.head", self, ("num_heads", "hidden", "layers"), 1)
        within("model.depth.head.dropout", self.dropout, 0, 1, below=True)
        within("model.depth.head.max_depth", self.max_depth, 0, above=True)


@dataclass
class DepthSettings:
    # vits, vitb or vitl (Depth-Anything-V2), custom (the same with other sizes), or conv (a small
    # convolutional one for small pictures)
    encoder: str = MISSING
    custom: EncoderSettings = MISSING
    # weights of Depth-Anything-V2 (metric), of DINOv2, or of a pretext run; null: random
    # initialization
    backbone_checkpoint: str | None = MISSING
    # freeze the backbone; false trains it too
    freeze_backbone: bool = MISSING
    # precision of a frozen backbone: fp32, bf16, or fp8, which is bf16 with the linear layers of
    # the vision transformer's blocks in 8-bit floats
    backbone_precision: str = MISSING
    # crops per forward pass of a frozen backbone: bounds the memory; null: all
    backbone_batch: int | None = MISSING
    # side of the feature map that the interface reads; conv: its own
    map_size: int = MISSING
    # channels of the interface and of the head; conv: those of its last layer
    channels: int = MISSING
    head: HeadSettings = MISSING
    # save frozen parts in checkpoints too, which makes them self-contained
    save_frozen: bool = MISSING

    def __post_init__(self) -> None:
        one_of("model.depth.encoder", self.encoder, (*ENCODERS, CUSTOM, CONV))
        one_of("model.depth.backbone_precision", self.backbone_precision, ("fp32", "bf16", "fp8"))
        if self.backbone_precision == "fp8" and not self.freeze_backbone:
            raise ConfigError(
                "model.depth.backbone_precision=fp8 rounds weights that are not trained, but "
                "model.depth.freeze_backbone=false; freeze the backbone, or set "
                "model.depth.backbone_precision=bf16"
            )
        if self.backbone_precision == "fp8" and self.encoder == CONV:
            raise ConfigError(
                "model.depth.backbone_precision=fp8 is for vision transformers, but "
                f"model.depth.encoder={CONV}; set model.depth.backbone_precision=bf16"
            )
        each_within("model.depth", self, ("backbone_batch", "channels"), 1)
        heads = self.head.num_heads
        multiple_of("model.depth.channels", self.channels, "model.depth.head.num_heads", heads)
        if self.encoder == CUSTOM:
            self.custom.check()

    def backbone(self) -> Backbone:
        """Return the sizes of the vision transformer and its DPT head."""
        if self.encoder in ENCODERS:
            return ENCODERS[self.encoder]
        custom = self.custom
        return Backbone(
            custom.width,
            custom.depth,
            custom.num_heads,
            tuple(custom.taps),
            custom.features,
            tuple(custom.channels),
        )


@dataclass
class BodySettings:
    # a licensed file such as body_models/smplx/SMPLX_NEUTRAL.npz; for rendered people the body they
    # are rendered with: anny, a file of `overt data anny-body`, or capsule
    model: str = MISSING
    # the 17 Human3.6M joints from the vertices of that body, .npy (17, V); null: those of the body
    joint_regressor: str | None = MISSING
    # for SMPL labels: its neutral body model, SMPL_NEUTRAL.pkl or .npz; null: no SMPL labels
    smpl: str | None = MISSING
    # for SMPL labels: J_regressor_extra.npy, whose hips define the pelvis
    smpl_regressor: str | None = MISSING
    # to score SMPL labels: SMPL's vertices from those of the body, written by `overt data
    # body-transfer`
    transfer: str | None = MISSING
    # to score SMPL labels: the 17 joints from SMPL's vertices, J_regressor_h36m.npy
    smpl_joint_regressor: str | None = None


@dataclass
class DepthModelSettings:
    depth: DepthSettings = MISSING
    # whose root joint is the pelvis
    body: BodySettings = MISSING

    def saved_files(self) -> list[str]:
        is_saved = self.depth.save_frozen or not self.depth.freeze_backbone
        return ["model.depth.backbone_checkpoint"] if is_saved else []


@dataclass
class BranchSettings:
    # ResNet: channels of its first stage over 4
    width: int = MISSING
    # ResNet: bottleneck blocks of its four stages; [3,4,6,3] is ResNet-50
    blocks: list[int] = MISSING
    # conv7 (stride 4 with a pool, as in ResNet) or conv3 (stride 2, for small pictures)
    stem: str = MISSING
    # group, or frozen (batch norm with the statistics of backbone_checkpoint)
    norm: str = MISSING
    # ImageNet weights with torchvision's keys; null: random initialization
    backbone_checkpoint: str | None = MISSING
    # features of a token of the decoder
    features: int = MISSING
    # attention heads of the decoder; features is a multiple of four times as many
    num_heads: int = MISSING
    # layers of the decoder
    layers: int = MISSING

    def __post_init__(self) -> None:
        one_of("model.branch.stem", self.stem, ("conv7", "conv3"))
        one_of("model.branch.norm", self.norm, ("group", "frozen"))
        each_within("model.branch", self, ("width", "features", "num_heads", "layers"), 1)
        four_per_head = 4 * self.num_heads
        multiple_of("model.branch.features", self.features, "4 x num_heads", four_per_head)
        if len(self.blocks) != 4:
            raise ConfigError(f"model.branch.blocks={self.blocks}; give four numbers")


@dataclass
class PoseModelSettings:
    depth: DepthSettings = MISSING
    # the checkpoint of stage 1: runs/blade_depthnet/checkpoints/best, or the published file
    depthnet_checkpoint: str | None = MISSING
    # condition PoseNet on the predicted depth; false trains the base estimator, which needs no
    # stage 1
    tz_conditioning: bool = MISSING
    # a base estimator (a run with tz_conditioning=false) that stays frozen next to a trained copy;
    # null: only the conditioned branch is trained
    base_checkpoint: str | None = MISSING
    # how the copy's tokens are added to those of the base: zero (through a zero-initialized layer)
    # or sum (as published)
    control_output: str = MISSING
    branch: BranchSettings = MISSING
    body: BodySettings = MISSING
    # also locate the twelve limb joints in the picture, from which `overt estimate` starts
    keypoint_head: bool = MISSING
    # also predict which limb joints are inside the crop: only these count for the camera
    keypoint_visibility: bool = False
    # also predict the silhouette of the body in the crop, from which `overt estimate` refines the
    # camera where no mask is given
    silhouette_head: bool = False

    def __post_init__(self) -> None:
        one_of("model.control_output", self.control_output, ("zero", "sum"))
        if self.base_checkpoint is not None and not self.tz_conditioning:
            raise ConfigError(
                "model.base_checkpoint is for model.tz_conditioning=true: the base itself is "
                "trained without a base"
            )
        if self.keypoint_visibility and (not self.keypoint_head or self.base_checkpoint):
            raise ConfigError(
                "model.keypoint_visibility=true needs model.keypoint_head=true and "
                "model.base_checkpoint=null: it is trained together with the keypoints"
            )
        if self.silhouette_head and self.base_checkpoint:
            raise ConfigError(
                "model.silhouette_head=true needs model.base_checkpoint=null: the camera would be "
                "refined by the silhouette of a branch that predicts no keypoints"
            )

    def saved_files(self) -> list[str]:
        # Not that of the base: without its name the model is built without one.
        keys = ["model.branch.backbone_checkpoint"]
        if self.depth.save_frozen or not self.tz_conditioning:
            keys += ["model.depthnet_checkpoint", "model.depth.backbone_checkpoint"]
        return keys


# --- data ----------------------------------------------------------------------------------------


@dataclass
class SourceSettings:
    # name of the data set, for messages; of h36m, the folder images/ in annotated paths is dropped
    name: str = MISSING
    # annotation file, below data.root or absolute
    annotations: str = MISSING
    # folder of the pictures, below data.root or absolute
    images: str = MISSING
    # fraction of the samples
    weight: float = MISSING
    # humandata (.npz of MMHuman3D) or bedlamcc
    layout: str = "humandata"
    # use the whole picture as the person's box
    whole_image: bool = False

    def __post_init__(self) -> None:
        one_of(f"layout of data.sources {self.name}", self.layout, ("humandata", "bedlamcc"))


@dataclass
class PhotographSettings:
    """How live people are seen with data.synthetic.live_framing=photograph."""

    # fraction of people whom a border of the photograph cuts off
    cut: float = 0.5
    # side of the crop over the longer side of the visible person: smallest and largest
    margin: list[float] = field(default_factory=lambda: [1.0, 1.7])
    # largest distance of the crop's center from that of the visible person, in sides
    shift: float = 0.1
    # fraction of whole photographs, with the person anywhere
    whole: float = 0.2
    # largest margin of whole photographs; the smallest is that of margin
    whole_margin: float = 3.0
    # fraction of crops that reach beyond a border next to the person
    border: float = 0.4
    # fraction of pictures of low resolution
    coarse: float = 0.25
    # fraction of pictures compressed as JPEG
    compressed: float = 0.3

    def __post_init__(self) -> None:
        name = "data.synthetic.photograph"
        for key in ("cut", "whole", "border", "coarse", "compressed"):
            within(f"{name}.{key}", getattr(self, key), 0, 1)
        within(f"{name}.shift", self.shift, 0, 0.5)
        within(f"{name}.whole_margin", self.whole_margin, 1)
        if len(self.margin) != 2 or not 0.5 <= self.margin[0] <= self.margin[1]:
            raise ConfigError(
                f"{name}.margin={list(self.margin)}: give smallest and largest side of a crop over "
                "that of the person, at least 0.5, such as [1.0,1.7]"
            )


@dataclass
class SyntheticSettings:
    # pictures for training
    train: int = MISSING
    # pictures of the test set, people_test
    test: int = MISSING
    # side of a picture in pixels
    size: int = MISSING
    # random seed of the people, independent of the run's
    seed: int = MISSING
    # camera or portrait; see `overt data people --help`
    framing: str = MISSING
    # orthographic projection: a control whose pictures carry no depth information
    orthographic: bool = MISSING
    # capsules: the same colors in all pictures
    fixed_colors: bool = MISSING
    # also render the depth of every pixel, for the pretext
    depth_maps: bool = MISSING
    # body that people are rendered with; null: model.body.model
    body: str | None = None
    # folder of background photographs for dressed people; null: synthetic backgrounds
    backgrounds: str | None = None
    # rendering device of the files: cpu or cuda; null: cpu
    device: str | None = None
    # worker processes that render the files; null: none
    workers: int | None = None
    # render a new person for every training sample on the training device, instead of files; for
    # dressed people. An epoch has `train` samples; the test set is written as usual
    live: bool = False
    # camera, portrait, or photograph (crops of photographs: cut off, off-center, coarse); null: as
    # the written ones. Only of live people, so the test set stays the same
    live_framing: str | None = None
    photograph: PhotographSettings = field(default_factory=PhotographSettings)
    # folder of background photographs of live people; null: backgrounds
    live_backgrounds: str | None = None
    # fraction of live people in front of a photograph; the others have synthetic backgrounds
    live_background_fraction: float = 0.8

    @property
    def is_photographic(self) -> bool:
        """Return whether live people are seen as in crops of photographs."""
        return self.live and self.live_framing == "photograph"

    @property
    def is_portrait(self) -> bool:
        """Return whether training people fill the picture, in its middle."""
        return (self.live_framing or self.framing) == "portrait"

    def __post_init__(self) -> None:
        each_within("data.synthetic", self, ("train", "test", "size"), 1)
        each_within("data.synthetic", self, ("workers",), 0)
        one_of("data.synthetic.framing", self.framing, ("camera", "portrait"))
        framings = ("camera", "portrait", "photograph")
        one_of("data.synthetic.live_framing", self.live_framing or self.framing, framings)
        within("data.synthetic.live_background_fraction", self.live_background_fraction, 0, 1)
        one_of("data.synthetic.device", self.device or "cpu", ("cpu", "cuda"))
        for key in ("live_framing", "live_backgrounds"):
            if getattr(self, key) is not None and not self.live:
                raise ConfigError(
                    f"data.synthetic.{key}={getattr(self, key)} is for people rendered during "
                    "training; set data.synthetic.live=true, or leave it null"
                )


@dataclass
class AugmentationSettings:
    """Strengths; see `overt.data.people.crops.Augmentation`."""

    # each color channel is multiplied by 1 - noise to 1 + noise
    noise: float = MISSING
    # probability of a mirror image
    mirror: float = MISSING
    # standard deviation of the angle in degrees, limited to twice that
    rotation: float = MISSING
    # probability of a rotation
    rotation_probability: float = MISSING
    # standard deviation of the crop's side, relative to it and limited to once that
    scale: float = MISSING
    # constant added to this factor of the side
    scale_added: float = MISSING
    # standard deviation of the crop's center in sides, limited to once that
    shift: float = MISSING
    # probability of a shift
    shift_probability: float = MISSING

    def check(self, section: str) -> None:
        """Refuse impossible probabilities, and sides that would turn a crop upside down."""
        fractions = ("noise", "mirror", "rotation_probability", "shift_probability")
        each_within(section, self, fractions, 0, 1)
        each_within(section, self, ("rotation", "scale_added", "shift"), 0)
        within(f"{section}.scale", self.scale, 0, 1, below=True)


@dataclass
class DataSettings:
    # folder with datasets/NAME (pictures) and preprocessed_datasets (annotations); may be a link
    root: str = MISSING
    # data sets to train on: [{name, annotations, images, weight, layout, whole_image}]
    sources: list[SourceSettings] = MISSING
    # people to render on first use; null: none
    synthetic: SyntheticSettings | None = MISSING
    # cache annotation columns as .npy files next to them, shared by all workers
    cache_annotations: bool = MISSING
    # skip rows with empty boxes or people behind the camera, instead of rejecting the file
    drop_bad_rows: bool = MISSING
    # pixels of DepthNet's crop
    depth_size: int = MISSING
    depth_augmentation: AugmentationSettings = MISSING
    # side of PoseNet's crop in pixels, around the image center
    pose_size: int = MISSING
    # sides in pixels to which a training step resizes it; each step takes one at random
    pose_step_sizes: list[int] = MISSING
    # factor of this crop's side in training: the smallest, and its largest increase
    pose_side: list[float] = MISSING
    pose_augmentation: AugmentationSettings = MISSING
    # which joints the columns of keypoints2d are: human_data, smplx, agora, smpl, smpl_45, smpl_54,
    # coco, openpose_25, h36m or people; null: as stated in the file, or inferred from the number of
    # columns
    keypoint_convention: str | None = None
    # for files without a known convention: the columns of shoulders, elbows, wrists, hips, knees,
    # ankles, left first; null: by the convention
    limb_keypoints: list[int] | None = None

    @property
    def is_live(self) -> bool:
        return self.synthetic is not None and self.synthetic.live

    @property
    def is_photographic(self) -> bool:
        return self.synthetic is not None and self.synthetic.is_photographic

    @property
    def is_portrait(self) -> bool:
        return self.synthetic is not None and self.synthetic.is_portrait

    def __post_init__(self) -> None:
        each_within("data", self, ("depth_size", "pose_size"), 1)
        self.depth_augmentation.check("data.depth_augmentation")
        self.pose_augmentation.check("data.pose_augmentation")
        if not self.pose_step_sizes:
            raise ConfigError("data.pose_step_sizes is empty; name a size, such as [512]")
        within("the smallest of data.pose_step_sizes", min(self.pose_step_sizes), 1)
        if len(self.pose_side) != 2 or not (self.pose_side[0] > 0 and self.pose_side[1] >= 0):
            raise ConfigError(
                f"data.pose_side={list(self.pose_side)}; give the smallest factor, above 0, and "
                "the largest increase, at least 0, such as [0.7,1.3]"
            )
        if self.keypoint_convention is not None:
            one_of("data.keypoint_convention", self.keypoint_convention, tuple(CONVENTIONS))
        if self.limb_keypoints is not None and len(self.limb_keypoints) != 12:
            raise ConfigError(f"data.limb_keypoints={self.limb_keypoints}; give twelve")
        if not self.sources:
            raise ConfigError("data.sources is empty; name at least one data set")
        if self.is_live and len(self.sources) > 1:
            raise ConfigError(
                f"data.synthetic.live=true with {len(self.sources)} data.sources: all training "
                "people are rendered then; leave one entry, or set data.synthetic.live=false"
            )


@dataclass
class CameraSettings:
    # steps of the silhouette refinement; 0: closed-form camera only
    iterations: int = MISSING
    # longer side, in pixels, of the picture in which silhouettes are compared
    size: int = MISSING
    # weight of the keypoints relative to the silhouette
    keypoint_weight: float = MISSING
    # also optimize the depth
    optimize_depth: bool = MISSING
    # also optimize the pose: rotations of the body's joints
    optimize_pose: bool = MISSING
    # standard deviation, in pixels, of noise on the ground-truth keypoints that replace a detector
    keypoint_noise: float = MISSING
    # what cameras are scored with: truth (masks of files or of the true mesh, keypoints of the true
    # joints) or model (PoseNet's own keypoints and silhouette, as in `overt estimate`)
    source: str = "truth"

    def __post_init__(self) -> None:
        one_of("evaluation.camera.source", self.source, ("truth", "model"))
        not_negative = ("iterations", "keypoint_weight", "keypoint_noise")
        each_within("evaluation.camera", self, not_negative, 0)
        within("evaluation.camera.size", self.size, 1)
        freed = [name for name in ("optimize_depth", "optimize_pose") if getattr(self, name)]
        if freed and self.iterations == 0:
            raise ConfigError(
                f"evaluation.camera.{freed[0]}=true with evaluation.camera.iterations=0 would "
                "optimize nothing; set evaluation.camera.iterations, such as 100"
            )


@dataclass
class EvaluationSettings:
    # spec_mtp_p3, pdhuman_p5, humman_p3, bedlamcc_eval; people_test, _p3, _p5, _far (synthetic)
    dataset: str = MISSING
    # folder with datasets and preprocessed_datasets; null: data.root
    dataset_root: str | None = MISSING
    # people per forward pass and rank; affects memory and speed, not scores
    batch_size: int = MISSING
    # score only the first rows, this many; null: all
    max_samples: int | None = MISSING
    camera: CameraSettings = MISSING
    # number of people drawn after an evaluation
    drawn: int = MISSING
    # sizes of the windows in which `overt estimate` looks for a person without a box, each 0.7 of
    # the one before; 1: only the whole picture. For models trained on crops of photographs
    search_scales: int = 5

    def __post_init__(self) -> None:
        one_of("evaluation.dataset", self.dataset, tuple(PROTOCOLS))
        each_within("evaluation", self, ("batch_size", "max_samples", "drawn"), 1)
        within("evaluation.search_scales", self.search_scales, 1, MOST_SCALES)


@dataclass
class DepthLossSettings:
    # weight of the relative depth error
    weight: float = MISSING


@dataclass
class PoseLossSettings:
    # weight of the error of the body's orientation, an angle in radians
    root_weight: float = MISSING
    # weight of the mean error of the joint rotations, angles in radians
    body_pose_weight: float = MISSING
    # weight of the mean absolute error of the ten shape parameters
    shape_weight: float = MISSING
    # weight of the mean absolute error of the joints relative to the pelvis, in meters
    body_joint_weight: float = MISSING
    # weight of the mean absolute error of the vertices relative to the pelvis, in meters
    vert_weight: float = MISSING
    # weight of the limb joints in the picture; with model.keypoint_head
    keypoint_weight: float = MISSING
    # weight of whether they are inside the crop; with model.keypoint_visibility
    visibility_weight: float = 0.1
    # weight of the silhouette's pixels; with model.silhouette_head
    silhouette_weight: float = 0.5


def _name_rendered_body(data: DataSettings, body: BodySettings) -> None:
    """Render people with the body of the model, unless the settings name one."""
    if data.synthetic is None:
        return
    if data.synthetic.body is None:
        data.synthetic.body = body.model
    if data.is_live and data.synthetic.body == "capsule":
        raise ConfigError(
            "data.synthetic.live=true with the body capsule: only dressed people are rendered "
            "during training; set model.body.model to anny, or to a file of `overt data anny-body`"
        )
    named = (data.synthetic.body, body.model)
    if named[0] != named[1] and all(name in ("anny", "capsule") for name in named):
        raise ConfigError(
            f"data.synthetic.body={named[0]}, but model.body.model={named[1]}: people are rendered "
            "with the body that the model predicts; set model.body.model alone"
        )


@dataclass
class DepthNetSettings:
    model: DepthModelSettings = MISSING
    data: DataSettings = MISSING
    loss: DepthLossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        _name_rendered_body(self.data, self.model.body)


@dataclass
class PoseNetSettings:
    model: PoseModelSettings = MISSING
    data: DataSettings = MISSING
    loss: PoseLossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        _name_rendered_body(self.data, self.model.body)
