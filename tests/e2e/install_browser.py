"""Makes sure the browser tests have a Chromium: the system's, Debian's package, or Playwright's own build."""

import os
import shutil
import subprocess
import sys


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def main() -> int:
    """Install a browser where there is none; 0 when one is there in the end."""
    found = find_chromium()
    if found is not None:
        print(f"Browser: {found}")
        return 0
    if shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
        found = find_chromium()
        if found is not None:
            print(f"Browser: {found}, from Debian's package")
            return 0
    return subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
