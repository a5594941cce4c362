"""Does everything run: the tests that are marked gpu, one item each.

The tests of a file run in a process of their own, beside those of other files; those marked `alone` run one
after the other, behind them.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.context import Context
from tests.gpu.journal import ResultsFile
from tests.gpu.stage import TIME_IS_OVER

ROOT = Path(__file__).parents[3]
TARGETS = ("tests/gpu", "tests/unit/test_device_contract.py")
"""Where tests marked gpu are."""
KEY = "tests"
_BESIDE, _ALONE = "gpu and not alone", "gpu and alone"
_CORES_EACH, _MOST_PROCESSES = 2, 8
_ALONE_SHARE = 0.4
"""Of the stage's time: what the tests marked `alone` have at least."""
_END_S = 20.0
_REASON, _DETAIL = 400, 4000
"""The most characters of a failed test's message, and of the end of its traceback."""


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
            text = "" if report.passed else _explanation(report)
            row = {
                "outcome": report.outcome,
                "figures": [[name, str(value)] for name, value in report.user_properties],
                "reason": _reason(text)[:_REASON],
            }
            if report.failed:
                row["detail"] = text[-_DETAIL:]
            self._context.put(report.nodeid, row)


def measure(context: Context) -> None:
    """Run the tests. Raises RuntimeError when pytest could not run them."""
    seconds = context.left_s * (1 - _ALONE_SHARE)
    processes = max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // _CORES_EACH))
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda file: run_file(context, file, _BESIDE, seconds), test_files()))
    run_tests(context, [str(ROOT / target) for target in TARGETS], _ALONE)


def _explanation(report: pytest.TestReport) -> str:
    """The traceback of a failed test, or why a test was skipped, with paths relative to the root."""
    error = report.longrepr
    text = str(error[-1]) if isinstance(error, tuple) else report.longreprtext
    return text.strip().replace(f"{ROOT}/", "")


def _reason(text: str) -> str:
    """The message of the error in a traceback as pytest writes it, or its last line."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
    return errors[0] if errors else text.rpartition("\n")[2]


def test_files() -> list[str]:
    """The files with tests marked gpu, relative to the root."""
    paths = [path for target in TARGETS for path in (ROOT / target).glob("test_*.py")]
    paths += [ROOT / target for target in TARGETS if target.endswith(".py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def run_file(context: Context, file: str, marks: str, seconds: float) -> None:
    """Run the tests of a file with these marks in processes of their own, until none of them is left or the
    time is over: one that ends its process is left out in the next. Raises RuntimeError as `run_tests`."""
    end_s = context.left_s - seconds
    while (left_s := context.left_s - end_s) > 0:
        command = [sys.executable, "-m", "tests.gpu.measures.suite", file, "--marks", marks]
        command += ["--results", str(context.path), "--seconds", f"{left_s:.1f}"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=left_s + _END_S
            )
        except subprocess.TimeoutExpired:
            break
        if done.returncode == TIME_IS_OVER:
            break
        if done.returncode == 0:
            return
        lines = done.stderr.strip().splitlines()
        reason = f"exit code {done.returncode}: {' / '.join(lines[-3:])}"
        begun = [item for item in context.open_items() if file.endswith(item.partition("::")[0])]
        if not begun:
            raise RuntimeError(f"{file}: {reason}")
        context.fail(begun[-1], reason[:_REASON])  # Others are of a call that was cut short.
    context.has_time = False


def run_tests(context: Context, targets: Sequence[str], marks: str) -> None:
    """Run the tests in `targets` with these marks."""
    arguments = ["-m", marks, "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-q", *targets]
    code = pytest.main(arguments, plugins=[Collector(context)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        if context.has_time:
            raise RuntimeError(f"pytest ended with code {int(code)}")
        print("The time of the tests was over.", file=sys.stderr)


def main() -> int:
    """Run the tests of one file; 0 also if some of them failed, `TIME_IS_OVER` if some are left."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measures.suite")
    parser.add_argument("file")
    parser.add_argument("--marks", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    context = Context(KEY, ResultsFile(options.results), seconds=options.seconds)
    run_tests(context, [str(ROOT / options.file)], options.marks)
    return 0 if context.has_time else TIME_IS_OVER


if __name__ == "__main__":
    sys.exit(main())
