"""LBM's frame step as ONNX: the same tracks over a whole clip, points coming in later too."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_LBM

from overt.cli import main
from overt.errors import ConfigError, DataError
from overt.files import onnx_file
from overt.recipes.lbm.clip import track_clip
from overt.recipes.lbm.export import make_step
from overt.recipes.lbm.model import LBM

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra: pip install 'overt[onnx]'")
FRAMES, MEMORY = 5, 3
QUERY_FRAMES = [0, 0, 2, 1]


def make_model() -> LBM:
    torch.manual_seed(0)
    model = SMALL_LBM.recipe("x").build_model()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith(("running_mean", "sampling_offsets.weight")):
                value.normal_(std=0.2)
    return model.eval()


def make_clip() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    video = torch.randint(256, (FRAMES, 3, 32, 32), generator=generator).to(torch.uint8)
    places = torch.rand(len(QUERY_FRAMES), 2, generator=generator) * 31
    return video, torch.cat([torch.tensor(QUERY_FRAMES)[:, None].float(), places], dim=1)


def follow(step, video: torch.Tensor, queries: torch.Tensor):  # type: ignore[no-untyped-def]
    """Run a step function over a clip, its state passed from frame to frame as arrays."""
    count = len(queries)
    entries = np.zeros((1, count, MEMORY, 16), np.float32)
    state = [
        np.zeros((1, count, 16), np.float32),
        entries,
        entries,
        np.ones((1, count, MEMORY), bool),
    ]
    tracks = []
    for time, frame in enumerate(video):
        new = (queries[:, 0] == time).numpy()[None]
        inputs = [frame[None].float().numpy(), queries[None, :, 1:].numpy(), new, *state]
        points, visibility, rho, *state = step(inputs)
        tracks.append((points[0], visibility, rho))
    return [np.stack(parts) for parts in zip(*tracks, strict=True)]


def compare(
    found: list[np.ndarray], model: LBM, video: torch.Tensor, queries: torch.Tensor
) -> None:
    wanted = track_clip(model, video, queries, MEMORY, 0.5)
    after = (torch.arange(FRAMES)[:, None] >= queries[:, 0]).numpy()
    for part, truth in zip(found, (wanted.points_xy, wanted.visibility, wanted.rho), strict=True):
        np.testing.assert_allclose(part[after], truth.numpy()[after], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("cpu_points", [None, 4])
def test_the_step_repeats_the_online_tracker(cpu_points: int | None) -> None:
    """Without ONNX: the function that is exported is right."""
    model = make_model()
    video, queries = make_clip()
    step = make_step(model, MEMORY, 0.5, cpu_points=cpu_points).module

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [part.numpy() for part in step(*map(torch.from_numpy, inputs))]

    compare(follow(run, video, queries), model, video, queries)


def test_the_example_has_the_shapes_that_are_promised() -> None:
    exported = make_step(make_model(), MEMORY, 0.5, points=6)
    assert len(exported.example) == len(exported.input_names)
    with torch.no_grad():
        results = exported.module(*exported.example)
    assert len(results) == len(exported.output_names)
    named = dict(zip(exported.output_names, results, strict=True))
    named |= dict(zip(exported.input_names, exported.example, strict=True))
    for name, axis in exported.points_axis.items():
        assert named[name].shape[axis] == 6
    assert set(named) - set(exported.points_axis) == {"frame"}


def test_a_step_of_another_input_size_has_the_weights_with_resized_positions() -> None:
    recipe = SMALL_LBM.recipe("x", "evaluation.export_input_size=[64,32]")
    model = recipe.build_model().eval()
    exported = recipe.export_step(model)
    assert exported.example[0].shape == (1, 3, 64, 32)
    resized = exported.module.model
    before, after = (each.backbone.frame_pos_embedding for each in (model, resized))
    # A new row lies a quarter of a cell from the closest old one.
    torch.testing.assert_close(after[0, :, 1], 0.75 * before[0, :, 0] + 0.25 * before[0, :, 1])
    for name, value in model.named_parameters():
        if name != "backbone.frame_pos_embedding":
            assert torch.equal(resized.get_parameter(name), value)
    assert resized.transformer.spatial_shapes[0].tolist() == [16, 8]
    assert not resized.training


def test_an_8_bit_step_is_measured_on_photographs(tmp_path: Path) -> None:
    words = ["evaluation.export_cpu_points=4", f"evaluation.export_int8={tmp_path}"]
    recipe = SMALL_LBM.recipe("x", *words)
    model = make_model()
    with pytest.raises(DataError, match=r"export_int8=.* holds no picture .* null for float32"):
        recipe.export_step(model)
    noise = np.random.default_rng(0).integers(256, size=(64, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "one.png")
    exported = recipe.export_step(model)
    assert "measured on 2 pictures" in exported.note
    exact = make_step(model, MEMORY, 0.5, cpu_points=4).module
    frame = torch.from_numpy(noise[:32, :32]).permute(2, 0, 1).float().unsqueeze(0)
    with torch.no_grad():
        rounded, wanted = exported.module.encoder(frame), exact.encoder(frame)
    assert not torch.equal(rounded, wanted)
    torch.testing.assert_close(rounded, wanted, atol=0.1, rtol=0.1)


@needs_onnx
@pytest.mark.long
@pytest.mark.timeout(900)  # the exporter takes most of a minute
@pytest.mark.parametrize("cpu_points", ["null", "4"])
def test_onnx_runtime_repeats_the_tracks_of_a_clip(tmp_path: Path, cpu_points: str) -> None:
    import onnxruntime

    model = make_model()
    video, queries = make_clip()
    torch.save(model.state_dict(), tmp_path / "lbm.pt")
    words = [*SMALL_LBM.sizes("model", "evaluation"), "training.device=cpu"]
    words += [f"evaluation.export_cpu_points={cpu_points}"]
    settings = [part for word in words for part in ("--set", word)]
    file = tmp_path / "step.onnx"
    source = ["ckpt", "export", str(tmp_path / "lbm.pt"), "--to", "onnx", "--output", str(file)]
    assert main([*source, "--recipe", "lbm_tiny", *settings]) == 0
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, inputs, strict=True)))

    # Four points, though the example had three: their number is free.
    compare(follow(run, video, queries), model, video, queries)


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "NEEDED", ("a_package_that_is_not_there",))
    exported = make_step(make_model(), MEMORY, 0.5)
    with pytest.raises(ConfigError, match=r"pip install 'overt\[onnx\]'"):
        onnx_file.write_onnx(
            tmp_path / "x.onnx", exported.module, exported.example, exported.input_names,
            exported.output_names, exported.points_axis, "points",
        )  # fmt: skip


def test_a_recipe_without_a_step_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    words = ["ckpt", "export", str(tmp_path / "w.pt"), "--to", "onnx"]
    words += ["--output", str(tmp_path / "x.onnx"), "--recipe", "cotracker3_tiny"]
    assert main(words) != 0
    assert "cotracker3_tiny cannot do this: it has no export_step" in capsys.readouterr().err
    words = ["ckpt", "export", str(tmp_path / "w.pt"), "--to", "torch"]
    assert main([*words, "--output", str(tmp_path / "x.pt"), "--recipe", "lbm_tiny"]) != 0
    assert "--recipe is for --to onnx" in capsys.readouterr().err
