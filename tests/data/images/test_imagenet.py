"""ImageNet in the layouts in which it is distributed, with files of four pixels."""

import io
import shutil
from pathlib import Path

import pytest
from PIL import Image

from overt.commands.data import main
from overt.data.images.imagenet import list_imagenet
from overt.data.images.packed import PackedImages
from overt.errors import DataError

XML = "<annotation><object><name>n02</name></object></annotation>"
WNIDS = ("n01", "n02")


def put(path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (10, 20, 30)).save(stream, "JPEG")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stream.getvalue())


def by_folders(root: Path) -> None:
    for wnid in WNIDS:
        put(root / "train" / wnid / f"{wnid}_0.JPEG")
    put(root / "val" / "n02" / "ILSVRC2012_val_1.JPEG")


def by_table(root: Path) -> None:
    inner = root / "ILSVRC" / "Data" / "CLS-LOC"
    by_folders(inner)
    shutil.move(inner / "val" / "n02" / "ILSVRC2012_val_1.JPEG", inner / "val")
    (inner / "val" / "n02").rmdir()
    text = "ImageId,PredictionString\nILSVRC2012_val_1,n02 1 2 3 4 n02 5 6 7 8\n"
    (root / "LOC_val_solution.csv").write_text(text)


def by_xml(root: Path) -> None:
    by_table(root)
    (root / "LOC_val_solution.csv").unlink()
    folder = root / "ILSVRC" / "Annotations" / "CLS-LOC" / "val"
    folder.mkdir(parents=True)
    (folder / "ILSVRC2012_val_1.xml").write_text(XML)


def hundred(root: Path) -> None:
    for part, wnid in enumerate(WNIDS, 1):
        put(root / f"train.X{part}" / wnid / f"{wnid}_0.JPEG")
    put(root / "val.X" / "n02" / "ILSVRC2012_val_1.JPEG")


@pytest.mark.parametrize("write", [by_folders, by_table, by_xml, hundred])
def test_every_layout_holds_the_same(write, tmp_path, capsys):
    source = tmp_path / "source"
    write(source)
    assert main(["imagenet", str(source), str(tmp_path / "out")]) == 0
    train, test = (PackedImages(tmp_path / "out" / part) for part in ("train", "test"))
    assert train.classes == test.classes == WNIDS
    assert [train.read(index)[1] for index in range(2)] == [0, 1]
    assert (len(test), test.read(0)[1]) == (1, 1)
    assert "1 images" in capsys.readouterr().out


@pytest.mark.parametrize("write", [by_folders, by_table])
def test_hidden_folders_are_no_classes_and_hidden_files_no_images(write, tmp_path):
    write(tmp_path)
    known = list_imagenet(tmp_path)
    for part in ("train", "val"):
        root = next(tmp_path.rglob(part))
        put(next(root.rglob("*_*.JPEG")).parent / "._n02_9.JPEG")  # as macOS writes
        put(root / ".ipynb_checkpoints" / "n01_0.JPEG")
    for part, listed in list_imagenet(tmp_path).items():
        assert (listed.names, listed.classes) == (known[part].names, known[part].classes)
        assert listed.labels.tolist() == known[part].labels.tolist()


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="not ImageNet"):
        list_imagenet(tmp_path)
    by_table(tmp_path)
    table = tmp_path / "LOC_val_solution.csv"
    table.write_text("ImageId,PredictionString\nILSVRC2012_val_1,n03 1 2 3 4\n")
    with pytest.raises(DataError, match="class 'n03' is not one of the 2"):
        list_imagenet(tmp_path)
    table.unlink()
    with pytest.raises(DataError, match=r"LOC_val_solution.csv or the publisher's XML"):
        list_imagenet(tmp_path)
