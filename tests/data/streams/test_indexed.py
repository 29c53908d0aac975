"""Tar shards by index: the promises of any source, exact after resumes and on other ranks."""

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overt.config.batch import BatchPlan
from overt.data.mixture import InterleavedMixture
from overt.data.streams import TarSamples
from overt.data.streams import indexed as indexed_module
from overt.data.streams.shards import open_shard
from overt.distributed import World
from overt.engine.loader import StepLoader
from overt.engine.order import Position
from overt.errors import DataError

from .shard_files import number_of, write_shards, write_tar

COUNTS = (7, 12, 1, 9, 10)  # 39 samples
RNG = np.random.default_rng(0)


def source(pattern: str, **options: Any) -> TarSamples:
    return TarSamples(pattern, transform=number_of, **{"window": 8, "lanes": 3} | options)


def loader(
    samples: Any, batch: int, accumulation: int = 1, size: int = 1, rank: int = 0, workers: int = 0
) -> StepLoader:
    plan, world = BatchPlan(batch, accumulation, size), World(rank, size, rank, torch.device("cpu"))
    return StepLoader(samples, list, plan, world, seed=6, drop_last=False, num_workers=workers)


def steps_of(loader: StepLoader, steps: int) -> list[list[Any]]:
    batches = [loader.next_step() for _ in range(steps)]
    return [
        [sample for micro in batch.micro_batches if not micro.is_padding for sample in micro.batch]
        for batch in batches
    ]


def test_every_sample_is_read_by_its_index(tmp_path: Path) -> None:
    samples = source(write_shards(tmp_path, COUNTS))
    assert len(samples) == 39
    assert [samples.sample(index, RNG)[0] for index in range(39)] == list(range(39))
    assert [samples.sample(index, RNG)[0] for index in (38, 0, 19, 20, 7)] == [38, 0, 19, 20, 7]
    for index in (-1, 39):
        with pytest.raises(IndexError):
            samples.sample(index, RNG)


def test_only_the_fields_asked_for_are_read(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [3])
    assert set(TarSamples(pattern, fields=["cls"]).sample(1, RNG)) == {
        "__key__",
        "__shard__",
        "cls",
    }
    everything = TarSamples(pattern).sample(1, RNG)
    assert everything["__key__"] == "000001"
    assert everything["__shard__"].endswith("train-000.tar")
    assert everything["json"]["number"] == 1
    with pytest.raises(
        DataError, match=r"train-000\.tar: the sample 000001 has no jpg; it has cls"
    ):
        TarSamples(pattern, fields=["jpg"]).sample(1, RNG)


def test_an_epoch_holds_every_sample_once(tmp_path: Path) -> None:
    steps = loader(source(write_shards(tmp_path, COUNTS)), 8)
    epochs = [sum(steps_of(steps, 5), []) for _ in range(3)]  # noqa: RUF017
    for epoch in epochs:
        assert sorted(number for number, _ in epoch) == list(range(39))
    assert len({tuple(number for number, _ in epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 9])
def test_a_resume_reads_the_same_samples(steps: int, tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, COUNTS)
    walked, jumped = loader(source(pattern), 8), loader(source(pattern), 8)
    steps_of(walked, steps)
    jumped.seek(walked.position)
    assert steps_of(jumped, 7) == steps_of(walked, 7)


@pytest.mark.parametrize(("accumulation", "size"), [(4, 1), (2, 2), (1, 4)])
def test_a_step_holds_the_same_samples_for_any_split(
    accumulation: int, size: int, tmp_path: Path
) -> None:
    pattern = write_shards(tmp_path, COUNTS)
    expected = steps_of(loader(source(pattern), 8), 11)
    ranks = [steps_of(loader(source(pattern), 2, accumulation, size, r), 11) for r in range(size)]
    for step in range(11):
        assert sorted(s for rank in ranks for s in rank[step]) == sorted(expected[step])


def steps_here(pattern: str, steps: int, position: tuple[int, int]) -> list[list[Any]]:
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    own = loader(source(pattern), 2, 4 // world.world_size, world.world_size, world.rank, workers=2)
    own.seek(Position(*position))
    samples = steps_of(own, steps)
    own.close()
    return samples


def test_two_processes_continue_with_the_samples_of_one(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """They index the shards together, load with workers, and start in the middle of an epoch."""
    pattern = write_shards(tmp_path, COUNTS)
    ranks = run_processes(steps_here, 2, pattern, 6, (0, 8))
    whole = loader(source(pattern), 8)
    steps_of(whole, 1)
    expected = steps_of(whole, 6)
    for step in range(6):
        assert sorted(ranks[0][step] + ranks[1][step]) == sorted(expected[step])


def test_shards_mix_with_other_sources(tmp_path: Path) -> None:
    one = source(write_shards(tmp_path / "a", [6, 6]))
    other = source(write_shards(tmp_path / "b", [30]))
    mixture = InterleavedMixture([one, other], [2.0, 1.0], samples=36)
    walked, jumped = loader(mixture, 9), loader(mixture, 9)
    epochs = [sum(steps_of(walked, 4), []) for _ in range(2)]  # noqa: RUF017
    for epoch in epochs:
        assert len(epoch) == 36
    jumped.seek(Position(1, 9))
    assert sum(steps_of(jumped, 3), []) == epochs[1][9:]  # noqa: RUF017


# --- the index ------------------------------------------------------------------------------------


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built: list[str] = []
    build = indexed_module.build_index
    monkeypatch.setattr(
        indexed_module,
        "build_index",
        lambda shard, opener: (built.append(shard), build(shard, opener))[1],
    )
    return built


def test_shards_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, built = write_shards(tmp_path, COUNTS), count_builds(monkeypatch)
    source(pattern)
    assert len(built) == 5
    again = source(pattern)
    assert [again.sample(index, RNG)[0] for index in range(39)] == list(range(39))
    assert len(built) == 5
    os.utime(tmp_path / "train-003.tar", ns=(0, 99))
    source(pattern)
    assert [Path(shard).name for shard in built[5:]] == ["train-003.tar"]


def test_indexes_go_where_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = write_shards(tmp_path / "data", COUNTS)
    source(pattern, index_folder=tmp_path / "indexes")
    assert len(list((tmp_path / "indexes").iterdir())) == 5
    assert not list((tmp_path / "data").glob("*.json"))
    monkeypatch.setattr(indexed_module, "save_index", lambda index, path: False)  # read-only
    in_memory = pickle.loads(pickle.dumps(source(pattern)))
    assert [in_memory.sample(index, RNG)[0] for index in range(39)] == list(range(39))


def in_memory(shard: str) -> Any:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number in range(3):
            info = tarfile.TarInfo(f"{shard}/{number}.cls")
            info.size = 1
            archive.addfile(info, io.BytesIO(str(number).encode()))
    return io.BytesIO(stream.getvalue())


def test_any_opener_that_seeks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    samples = TarSamples(["one", "two"], opener=in_memory)
    assert [samples.sample(i, RNG)["__key__"] for i in range(6)] == [
        f"{shard}/{number}" for shard in ("one", "two") for number in range(3)
    ]
    assert os.listdir(tmp_path) == []
    TarSamples(["one"], opener=in_memory, index_folder="indexes")
    (index,) = os.listdir(tmp_path / "indexes")
    assert index.startswith("one.")


def test_urls_are_read_through_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    write_shards(tmp_path, [4, 5])
    for name in ("train-000.tar", "train-001.tar"):
        with fsspec.open(f"memory://shards/{name}", "wb") as file:
            file.write((tmp_path / name).read_bytes())
    samples = source("memory://shards/train-{000..001}.tar")
    assert [samples.sample(index, RNG)[0] for index in range(9)] == list(range(9))


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_shard_is_refused_at_the_start(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [4, 5])
    path = tmp_path / "train-001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"train-001\.tar, byte \d+: .*truncated|ends at 3000"):
        source(pattern)


def rewrite(path: Path, content: bytes) -> None:
    """Change a file behind the back of its index."""
    stat = os.stat(path)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_shard_that_changes_later_is_noticed(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [4])
    path = tmp_path / "train-000.tar"
    content = path.read_bytes()
    samples = source(pattern)
    assert samples.sample(0, RNG)[0] == 0
    # The same sizes and the same time, but other members.
    other = {
        f"{9 - n:06d}.{s}": v for n in range(4) for s, v in {"cls": b"1", "json": b"1"}.items()
    }
    rewrite(path, write_tar(tmp_path / "other", other).read_bytes()[: len(content)])
    with pytest.raises(DataError, match=r"train-000\.tar, byte 0: not the header of 000000\.cls"):
        source(pattern).sample(0, RNG)
    rewrite(path, content[:2048])
    with pytest.raises(DataError, match=r"train-000\.tar, byte 2048: .* it is truncated"):
        source(pattern)
    samples._files.clear()  # as after many others; the index is still there
    with pytest.raises(DataError, match=r"train-000\.tar, byte \d+: \d+ bytes expected, but the"):
        samples.sample(3, RNG)


def test_a_sample_of_a_damaged_shard_arrives_as_one_message(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [4])
    path = tmp_path / "train-000.tar"
    source(pattern)
    rewrite(path, path.read_bytes().replace(b'{"number": 2', b'["number": 2'))
    steps = loader(source(pattern), 4, workers=1)
    with pytest.raises(
        DataError, match=r"sample 2 of the training data .*train-000\.tar: 000002\.json: not valid"
    ):
        steps.next_step()
    steps.close()


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [2])
    for options in ({"window": 0}, {"window": 2**20 + 1}, {"lanes": 0}, {"lanes": 5000}):
        (name, value), = options.items()  # fmt: skip
        with pytest.raises(DataError, match=rf"{name}={value}; expected 1 to"):
            source(pattern, **options)
    with pytest.raises(DataError, match=r"fields='jpg'; expected a list of suffixes"):
        TarSamples(pattern, fields="jpg")


def test_small_shards_are_opened_once_in_an_epoch(tmp_path: Path) -> None:
    """A window of 8 holds four shards of two, and they all stay open."""
    opened: list[str] = []

    def opener(shard: str) -> Any:
        opened.append(shard)
        return open_shard(shard)

    pattern = write_shards(tmp_path, [2] * 20)
    samples = TarSamples(pattern, window=8, lanes=2)
    samples.opener = opener
    for index in samples.order(epoch=0, seed=0)[:]:
        samples.sample(int(index), RNG)
    assert len(opened) <= 24  # 20 shards, and those on both sides of the border of two lanes
    samples._files.clear()


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    open_files: set[Any] = set()

    class Counted(io.FileIO):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            open_files.add(self)
            assert len(open_files) <= 4  # the window of two, its neighbors, and one that is opened

        def close(self) -> None:
            open_files.discard(self)
            super().close()

    pattern = write_shards(tmp_path, [2] * 20)
    samples: Any = TarSamples(pattern, window=2, lanes=1, opener=Counted)  # type: ignore[arg-type]
    for index in samples.order(epoch=0, seed=0)[:]:
        samples.sample(int(index), RNG)
