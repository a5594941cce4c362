"""Makes sure the browser tests have a Chromium: the system's, Debian's package, or Playwright's own build.

The headless shell comes first: it starts faster and takes less of the processor than a browser with a window,
and Debian's package needs 20 others instead of 115.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PACKAGES = ("chromium-headless-shell", "fonts-liberation")


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine, or None."""
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def install_debian_package() -> None:
    """Install Debian's browser where there is none, and leave everything as it is where that cannot be done.
    Any Python can run this; the packages of the tests are not needed."""
    if find_chromium() is not None or shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    for command in (["apt-get", "update", "-qq"], [*install, *_PACKAGES]):
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)


def main(arguments: Sequence[str]) -> int:
    """Install Debian's browser alone with `--debian`, else Playwright's own where there is none; return the
    exit code."""
    if "--debian" in arguments:
        install_debian_package()
        return 0
    browser = find_chromium()
    if browser is not None:
        print(f"Browser: {browser}")
        return 0
    command = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
