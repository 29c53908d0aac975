"""`overt data images` and `overt data pack`: what they make, say and refuse."""

import subprocess
import sys

import pytest

from overt.commands.data import main
from overt.data.images.folder import ImageFolder
from overt.data.images.packed import PackedImages
from overt.errors import DataError

SMALL = ["--classes", "2", "--per-class", "2", "--size", "16"]


def test_images_then_pack(tmp_path, capsys):
    root, out = tmp_path / "new" / "set", tmp_path / "packs" / "set"
    assert main(["images", str(root), *SMALL]) == 0
    assert "2 classes of 2 images, 16x16: disc_stripes" in capsys.readouterr().out
    (root / "disc_stripes" / "broken.jpg").touch()
    assert main(["pack", str(root), str(out)]) == 0
    said = capsys.readouterr().out
    assert "4 images of 2 classes" in said
    assert "1 skipped\n" in said
    assert "broken.jpg: not a readable image" in said
    assert len(PackedImages(out)) == 4
    with pytest.raises(DataError, match="exists"):
        main(["pack", str(root), str(out)])
    with pytest.raises(DataError, match="exists"):
        main(["images", str(root), *SMALL])


def test_pack_options(tmp_path, capsys):
    main(["images", str(tmp_path / "set"), *SMALL])
    options = ["--side", "8", "--raw", "--unlabelled"]
    main(["pack", str(tmp_path), str(tmp_path / "pack"), *options])
    images = PackedImages(tmp_path / "pack")
    assert images.is_raw
    assert images.read(0)[0].shape == (3, 8, 8)
    assert images.read(0)[1] == -1
    assert (tmp_path / "pack" / "data.bin").stat().st_size == 4 * 8 * 8 * 3


def test_seeds_make_other_images_of_the_same_classes(tmp_path):
    for seed in ("0", "1"):
        main(["images", str(tmp_path / seed), *SMALL, "--seed", seed])
    one, other = ImageFolder(tmp_path / "0"), ImageFolder(tmp_path / "1")
    assert one.classes == other.classes
    assert not (one.read(0)[0] == other.read(0)[0]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["images", "set", "--classes", "0"], "at least 1"),
        (["images", "set", "--size", "3"], "at least 16"),
        (["pack", "set", "pack", "--side", "0"], "at least 1"),
        (["pack", "set"], "OUT"),
    ],
)
def test_impossible_numbers(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_pack_of_nothing_says_how_to_get_images(tmp_path):
    with pytest.raises(DataError, match="overt data images"):
        main(["pack", str(tmp_path / "none"), str(tmp_path / "pack")])


def test_torch_is_not_imported(tmp_path):
    program = (
        "import sys; from overt.commands.data import main; "
        f"main(['images', {str(tmp_path / 'set')!r}, *{SMALL!r}]); "
        f"main(['pack', {str(tmp_path / 'set')!r}, {str(tmp_path / 'pack')!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
