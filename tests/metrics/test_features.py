"""Features of a set on any number of processes, k-NN against its definition, and export."""

import errno
import math

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from overt.distributed import World, init_distributed
from overt.errors import DataError
from overt.metrics import features as module
from overt.metrics.features import (
    Features,
    export_features,
    gather_features,
    knn_accuracies,
    knn_accuracy,
    late_export_errors,
    load_features,
)

ALONE = World(0, 1, 0, torch.device("cpu"))
CLASSES = 4


def clusters(count, seed, spread=1.0):
    """Points around one centre for each class, (n, 8), and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % CLASSES
    return centres[labels] + spread * torch.randn(count, 8, generator=generator), labels


def knn_by_definition(train, train_labels, test, test_labels, k, temperature):
    correct = 0
    for query, label in zip(test.numpy(), test_labels.tolist(), strict=True):
        cosine = train.numpy() @ query
        cosine = cosine / np.linalg.norm(train.numpy(), axis=1) / np.linalg.norm(query)
        votes = np.zeros(CLASSES)
        for place in np.argsort(-cosine)[:k]:
            votes[train_labels[place]] += math.exp(cosine[place] / temperature)
        correct += int(votes.argmax() == label)
    return correct / len(test)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_knn_is_its_definition(monkeypatch, temperature):
    monkeypatch.setattr(module, "_QUERIES", 16)  # several pieces, the last one short
    sets = (*clusters(120, 0), *clusters(50, 1))
    found = knn_accuracies(*sets, ks=(1, 5, 20, 120), temperature=temperature)
    for k, accuracy in found.items():
        assert accuracy == pytest.approx(knn_by_definition(*sets, k, temperature))
        assert knn_accuracy(*sets, k=k, temperature=temperature) == accuracy
    assert found[20] > 0.5


def test_knn_does_not_see_the_length_of_features():
    train, labels, test, truth = (*clusters(80, 0), *clusters(40, 1))
    lengths = torch.rand(80, 1, generator=torch.Generator().manual_seed(0)) + 0.1
    assert knn_accuracy(train * lengths, labels, test * 7, truth) == knn_accuracy(
        train, labels, test, truth
    )


def test_knn_needs_no_more_neighbours_than_there_are():
    train, labels, test, truth = (*clusters(10, 0), *clusters(4, 1))
    with pytest.raises(DataError, match=r"20 neighbors among 10"):
        knn_accuracy(train, labels, test, truth)
    with pytest.raises(DataError, match="use 1 to 10"):
        knn_accuracy(train, labels, test, truth, k=0)


def test_broken_features_have_no_score():
    train, labels, test, truth = (*clusters(40, 0), *clusters(4, 1))
    test[1, 2] = torch.nan
    assert math.isnan(knn_accuracy(train, labels, test, truth))


def test_knn_is_exact_inside_a_model_of_lower_precision():
    """Features nearly alike: what tells them apart is lost in sixteen bits."""
    train, labels, test, truth = (*clusters(200, 0), *clusters(100, 1))
    near = (train * 1e-2 + 1, labels, test * 1e-2 + 1, truth)
    expected = knn_accuracy(*near)
    torch.set_float32_matmul_precision("high")
    with torch.autocast("cpu", torch.bfloat16):
        assert knn_accuracy(*near) == expected
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_knn_on_a_gpu_is_that_of_the_cpu():
    both = (*clusters(200, 0), *clusters(100, 1))
    assert knn_accuracy(*(x.cuda() for x in both)) == knn_accuracy(*both)


def test_collapsed_features_score_as_chance():
    """All alike: the vote is decided by the order of the bank, never by the query."""
    train, labels, test, truth = (*clusters(40, 0), *clusters(40, 1))
    ones = torch.ones_like
    assert knn_accuracy(ones(train), labels, ones(test), truth) == 1 / CLASSES


def computed(indices):
    """Stand-in for a model: features that depend on the whole batch, as rounding does."""
    ids = torch.tensor([index for index in indices if index % 7 != 3])
    values = torch.sin(ids[:, None] * torch.arange(1, 5)) + 1e-3 * len(ids)
    return Features(ids, values, ids % CLASSES)


def test_every_sample_once_and_in_order():
    found = gather_features(ALONE, 30, 4, computed)
    assert found.ids.tolist() == [index for index in range(30) if index % 7 != 3]
    assert torch.equal(found.labels, found.ids % CLASSES)
    seen = []
    gather_features(ALONE, 10, 4, lambda indices: seen.append(indices) or computed(indices))
    assert seen == [range(4), range(4, 8), range(8, 10)]


def test_a_sample_twice_is_caught():
    with pytest.raises(AssertionError, match="twice"):
        gather_features(ALONE, 8, 4, lambda _: computed(range(4)))


def test_no_sample_at_all():
    with pytest.raises(DataError, match="none of the 0"):
        gather_features(ALONE, 0, 4, computed)


def share_the_work(count, batch_size):
    world = init_distributed("cpu")
    found = gather_features(world, count, batch_size, computed)
    module._QUERIES = 16
    accuracies = knn_accuracies(*clusters(120, 0), *clusters(90, 1), ks=(1, 20), world=world)
    return [column.numpy() for column in found], accuracies


@pytest.mark.parametrize(("processes", "count", "batch_size"), [(2, 30, 4), (3, 7, 4), (2, 4, 3)])
def test_any_number_of_processes_has_the_same_bits(
    run_processes, monkeypatch, processes, count, batch_size
):
    """In the second case one process has no batch, in the third one has no readable sample."""
    monkeypatch.setattr(module, "_QUERIES", 16)
    alone = [column.numpy() for column in gather_features(ALONE, count, batch_size, computed)]
    accuracies = knn_accuracies(*clusters(120, 0), *clusters(90, 1), ks=(1, 20))
    for columns, shared in run_processes(share_the_work, processes, count, batch_size):
        assert all(np.array_equal(*pair) for pair in zip(columns, alone, strict=True))
        assert shared == accuracies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_export(tmp_path, dtype):
    values, labels = clusters(3, 0)
    names = ["a/1.png", 'ü "quoted"\n', ""]
    path = tmp_path / "new" / "features.safetensors"
    export_features(path, values.to(dtype).T.contiguous().T, labels, names)
    found = load_features(path)
    assert torch.equal(found[0], values.to(dtype))
    assert torch.equal(found[1], labels)
    assert found[2] == names
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_file_of_features(tmp_path):
    with pytest.raises(DataError, match="not a readable file of features"):
        load_features(tmp_path / "none")
    (tmp_path / "broken").write_bytes(b"12345678")
    with pytest.raises(DataError, match="not a readable file of features"):
        load_features(tmp_path / "broken")


def fill_the_disk(monkeypatch):
    def save_file(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(module, "save_file", save_file)


def test_a_full_disk_is_an_error_of_the_file(tmp_path, monkeypatch):
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left on device") as caught:
        export_features(tmp_path / "f.safetensors", *clusters(2, 0), ["a", "b"])
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "f.safetensors")
    assert not list(tmp_path.iterdir())


def test_an_export_may_fail_when_the_scores_are_kept(tmp_path, monkeypatch):
    fill_the_disk(monkeypatch)
    reached = []

    @late_export_errors()
    def evaluate():
        for name in ("first", "second"):
            export_features(tmp_path / f"{name}.safetensors", *clusters(2, 0), ["a", "b"])
            reached.append(name)

    with pytest.raises(OSError, match=r"first\.safetensors"):
        evaluate()
    assert reached == ["first", "second"]
    with pytest.raises(OSError, match="third"):  # and again at once
        export_features(tmp_path / "third.safetensors", *clusters(2, 0), ["a", "b"])
