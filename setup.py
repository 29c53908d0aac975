"""Put documentation and examples into the wheel, where `overt docs` and `overt examples` look."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithPages(build_py):
    """Copy docs/ and examples/ beside the modules; an editable install reads them in place."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("docs", "examples"):
            target = Path(self.build_lib, "overt", "shipped", name)
            ignored = shutil.ignore_patterns("__pycache__", "runs", "*.egg-info")
            shutil.copytree(ROOT / name, target, ignore=ignored, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithPages})
