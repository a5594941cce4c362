"""Test what limits of other processes leave to them, with real processes."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from harness.device.host.process_limits import left_to_all
from tests.leak_factories import GIB, MIB

# Takes no memory in between: the first line means that the limit is in effect.
CODE = """
import resource, sys
for kind in sys.argv[1].split():
    resource.setrlimit(getattr(resource, kind), (int(sys.argv[2]), resource.RLIM_INFINITY))
kept = bytearray(int(sys.argv[3]))
print(flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are read on Linux")


@contextmanager
def a_process(kinds: str, kept_bytes: int = 0) -> Iterator[int]:
    """The id of a process with limits of 2 GiB."""
    command = [sys.executable, "-c", CODE, kinds, str(2 * GIB), str(kept_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


@pytest.mark.parametrize("kinds", ["RLIMIT_DATA", "RLIMIT_AS", "RLIMIT_DATA RLIMIT_AS"])
def test_processes_can_take_what_the_fullest_of_them_has_left_each(kinds: str) -> None:
    with ExitStack() as stack:
        pids = [stack.enter_context(a_process(kinds, kept)) for kept in (0, 512 * MIB)]
        alone, both = left_to_all(pids[:1]), left_to_all(pids)
    assert alone is not None
    assert both is not None
    assert GIB < alone < 2 * GIB
    assert abs(2 * (alone - 512 * MIB) - both) < 64 * MIB


def test_processes_without_a_limit_or_that_are_gone_have_nothing_left_to_state() -> None:
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        pytest.skip("this shell has a limit")
    with a_process("") as pid:
        assert left_to_all([pid]) is None
    assert left_to_all([pid]) is None
    assert left_to_all([]) is None
