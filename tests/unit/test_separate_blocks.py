"""Large blocks that glibc's malloc maps individually, by a call or by the environment, leave no holes."""

import os
import subprocess
import sys

import pytest

from harness import words

pytestmark = pytest.mark.slow

# The request fits into the limit, and into no hole.
HOLES = """
import resource
import torch
from harness.device.cpu.heap import separate_large_blocks, separates_large_blocks
from harness.device.host.rss import status_bytes
MIB = 2**20
{first}
print(separates_large_blocks(), flush=True)
torch.empty(30 * MIB, dtype=torch.uint8)  # Freed: raises glibc's own threshold.
limit = status_bytes("VmData") + 200 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
blocks = [torch.empty(10 * MIB, dtype=torch.uint8) for _ in range(16)]
del blocks[::2]
torch.empty(60 * MIB, dtype=torch.uint8)
"""


def printed_and_fits(first: str = "", **variables: str) -> tuple[str, bool]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", HOLES.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode or "can't allocate memory" in done.stderr
    return done.stdout.strip(), done.returncode == 0


@pytest.mark.long
def test_by_default_holes_keep_a_larger_request_from_fitting() -> None:
    assert printed_and_fits() == ("False", False)


def test_the_variable_that_a_report_names_keeps_the_heap_free_of_holes() -> None:
    name, _, value = words.SEPARATE_BLOCKS.partition("=")
    assert printed_and_fits(**{name: value}) == ("True", True)


@pytest.mark.long
def test_so_does_the_same_as_a_tunable() -> None:
    assert printed_and_fits(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=131072") == ("True", True)


@pytest.mark.long
def test_so_does_the_call() -> None:
    assert printed_and_fits("separate_large_blocks()") == ("True", True)
