"""Documentation and examples are there in a checkout and in a wheel."""

from pathlib import Path

import pytest

from overt.errors import DataError
from overt.files import shipped as module


def test_a_checkout_has_them_beside_the_package() -> None:
    for name in ("docs", "examples"):
        assert module.shipped(name) == module.PACKAGE.parent / name


def test_a_wheel_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "overt"
    (package / "shipped" / "docs").mkdir(parents=True)
    (tmp_path / "site-packages" / "examples").mkdir()  # of another package
    monkeypatch.setattr(module, "PACKAGE", package)
    assert module.shipped("docs") == package / "shipped" / "docs"
    with pytest.raises(DataError, match="has no examples"):
        module.shipped("examples")
