"""Does everything run: the tests that are marked gpu, one item each."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gpu.context import Context

ROOT = Path(__file__).parents[3]
TARGETS = ("tests/gpu", "tests/unit/test_device_contract.py")
"""Where tests marked gpu are."""


class Collector:
    """A pytest plugin: leaves out what has been run, keeps each outcome as soon as it is there, and stops
    when the time is over."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the tests that an earlier call ran."""
        done = [item for item in items if item.nodeid in self._context.done]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item not in done]

    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Note that a test begins; without time, end the session instead."""
        if not list(self._context.pending([item.nodeid])):
            item.session.shouldstop = "the time is over"
            return True
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the call's outcome, or that of a set-up or teardown that did not pass."""
        if report.when == "call" or not report.passed:
            text = report.longreprtext.strip().splitlines()
            reason = "" if report.passed or not text else text[-1][:400]
            figures = [[name, str(value)] for name, value in report.user_properties]
            self._context.put(
                report.nodeid, {"outcome": report.outcome, "figures": figures, "reason": reason}
            )


def measure(context: Context) -> None:
    """Run the tests. Raises RuntimeError when pytest could not run them."""
    run_tests(context, [str(ROOT / target) for target in TARGETS], "gpu")


def run_tests(context: Context, targets: Sequence[str], marks: str) -> None:
    """Run the tests in `targets` with these marks."""
    arguments = ["-m", marks, "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-q", *targets]
    code = pytest.main(arguments, plugins=[Collector(context)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        if context.has_time:
            raise RuntimeError(f"pytest ended with code {int(code)}")
        print("The time of the tests was over.", file=sys.stderr)
