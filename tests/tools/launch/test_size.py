"""overt/tools/launch/size.py: devices, processes and the run's own settings must agree."""

from pathlib import Path

import pytest
from toy_runs import toy_config

from overt.errors import ConfigError
from overt.tools.launch.size import Size, check_size, make_size


def test_one_process_per_gpu() -> None:
    assert make_size(8, 8) == Size(8, 8, 8)
    assert make_size(8, 8).world_size == 64
    assert make_size(2, 0, 3) == Size(2, 0, 3)
    assert make_size(1, 0).world_size == 1


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0, 8, None), "1 or more nodes"),
        ((1, -1, None), "0 or more GPUs"),
        ((1, 8, 0), "1 or more nodes and processes"),
        ((1, 8, 16), "share a GPU; drop --processes"),
        ((1, 8, 4), "leave GPUs idle; drop --processes .* --gpus 4"),
    ],
)
def test_numbers_that_cannot_work_are_refused(
    numbers: tuple[int, int, int | None], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        make_size(*numbers)


@pytest.mark.parametrize(
    ("size", "override", "expected"),
    [
        (Size(1, 0, 1), "training.device=auto", "--gpus 0, but training.device=auto"),
        (Size(2, 4, 4), "training.device=cpu", "leave 2 x 4 GPU.s. idle; .*--processes 4"),
        (Size(1, 0, 2), "training.strategy=single", "takes one process"),
        (Size(1, 0, 1), "training.strategy=ddp", "takes several processes"),
        (Size(1, 0, 1), "training.strategy=fsdp", "fsdp takes several processes"),
    ],
)
def test_settings_that_contradict_the_size_are_refused(
    size: Size, override: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_size(toy_config(tmp_path, override), size)


def test_a_global_batch_that_does_not_divide_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    config = toy_config(tmp_path, "training.global_batch_size=30", "training.device=cuda")
    with pytest.raises(ConfigError, match=r"global_batch_size=30 .* use 16 or 32|32"):
        check_size(config, Size(1, 8, 8))
    check_size(toy_config(tmp_path, "training.global_batch_size=32", "training.device=cuda"),
               Size(1, 8, 8))  # fmt: skip
