"""Programs that some tests need, from Debian's packages, where root allows it.

python3 tests/debian_packages.py chromium     a browser for tests/tools/report/test_page_browser.py
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

SECONDS = 300  # for each try


def install(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install the packages unless all programs are there."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(
            f"{', '.join(missing)} can be installed by root on Debian only; tests that need it "
            "will be skipped"
        )
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (["true"], ["apt-get", "update"]):  # package lists may be old or absent
        subprocess.run(attempt, check=False, stdout=sys.stderr, timeout=SECONDS)
        done = subprocess.run(
            command, check=False, stdout=sys.stderr, env=environment, timeout=SECONDS
        )
        if done.returncode == 0:
            return
    raise RuntimeError(
        f"apt-get could not install {', '.join(packages)}, see above; tests that need it will be "
        "skipped"
    )


if __name__ == "__main__":
    try:
        install(sys.argv[1:], sys.argv[1:])
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(str(error))
