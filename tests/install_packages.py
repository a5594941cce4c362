"""Install the package with its development tools, as pinned, into the environment of this interpreter.

By uv, which fetches and unpacks several packages at once and takes a third of pip's time. It reads none of
pip's configuration, so what decides where packages come from is handed over. Where it fails, pip installs
them.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = ("-c", "constraints.txt", "-e", ".[dev]")

_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "no-index": "UV_OFFLINE",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""By option of pip, the variable that uv reads."""
_SEPARATED_BY_COMMAS = frozenset({"UV_FIND_LINKS"})
# Later ones take precedence, as in pip.
_SECTIONS = ("global", "install", ":env:")


def uv_environment(configuration: Sequence[str]) -> dict[str, str]:
    """Return uv's variables for what `pip config list` prints, lines as `global.index-url='https://…'`."""
    # The best of all indexes and the certificates of the system, as pip has it.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}
    for section in _SECTIONS:
        for line in configuration:
            key, _, value = line.partition("=")
            name = _VARIABLES.get(key.removeprefix(f"{section}."))
            if name is not None:
                separator = "," if name in _SEPARATED_BY_COMMAS else " "
                variables[name] = separator.join(ast.literal_eval(value).split())
    return variables


def main() -> int:
    """Return the exit code of the installation."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    listed = subprocess.run((*pip, "config", "list"), stdout=subprocess.PIPE, text=True, check=True)
    # On the file system of the environment, where packages are linked instead of copied.
    cache = {"UV_CACHE_DIR": str(Path(sys.prefix) / "uv-cache")}
    environment = uv_environment(listed.stdout.splitlines()) | cache | os.environ
    _run(
        (*pip, "install", "--quiet", "--no-compile", "--only-binary", ":all:", "-c", "constraints.txt", "uv")
    )
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable)
    if _run((*uv, *PACKAGES), environment) == 0:
        return 0
    print("uv could not install the packages; pip does it, which takes longer.", file=sys.stderr)
    return _run((*pip, "install", "--quiet", "--no-compile", *PACKAGES))


def _run(command: tuple[str, ...], environment: Mapping[str, str] | None = None) -> int:
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
