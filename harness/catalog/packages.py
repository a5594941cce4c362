"""The packages that models of the catalog need, and the versions from which on they work with them."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# With transformers 4.48 to 5.0 some of the models cannot be built, or have other parameters
# (tests/unit/test_models.py).
LEAST_VERSIONS = {"transformers": (5, 1)}


def obstacle(package: str) -> str | None:
    """Return why `package` cannot be used and what to do, as the rest of a sentence after what needs it; None
    if it can be."""
    if find_spec(package) is None:
        return f"needs the package {package!r}: pip install 'stepscope[hf]'"
    installed, least = installed_version(package), LEAST_VERSIONS[package]
    if installed is None or tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) >= least:
        return None
    number = ".".join(map(str, least))
    return f"needs {package} {number} or newer, not {installed}: pip install -U 'stepscope[hf]'"


@cache  # The page asks for it with every model that it offers.
def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None for a copy without its metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
