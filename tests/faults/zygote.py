"""Forks training processes: torch is imported once, each run starts within milliseconds.

A request is a `Case` on one line; see `tests.faults.forking`. The process has no tensor of its own.
"""

import os
import signal
import sys
from pathlib import Path

import harness.run
import harness.watch.steps
from harness.errors import StepscopeError
from harness.store.folder import RunFolder
from harness.watch.context import Progress
from harness.watch.dispatch import Dispatcher, StepListener
from harness.watch.guard import FailureGuard
from tests.faults import shim
from tests.faults.case import Case
from tests.faults.forking import fork_per_line
from tests.faults.keeper import CurveKeeper


def _train(line: str) -> int:
    """Be the training process of the run, in a session of its own and with its output in its folder."""
    case = Case.from_line(line)
    folder = RunFolder(Path(case.folder))
    os.setsid()
    # A suite started under nohup has hangups ignored, one in the background interrupts; a run would stay so.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    keeper = CurveKeeper(case.curve, lambda step: _after_step(case, step))

    def keeping(listeners: dict[str, StepListener], guard: FailureGuard, progress: Progress) -> Dispatcher:
        return Dispatcher({**listeners, "curve": keeper}, guard, progress)

    vars(harness.watch.steps)["Dispatcher"] = keeping  # Every step passes through there.
    if case.error:
        shim.fail_writes(case.first_write, case.failing_writes, case.error)
    try:
        code = harness.run.execute(folder)
    except StepscopeError as error:
        print(f"stepscope: {error}", file=sys.stderr)
        code = error.exit_code
    if case.error:
        case.report.write_text(f"{shim.failed_writes()} {shim.write_calls()}", encoding="ascii")
    return code


def _after_step(case: Case, step: int) -> None:
    if case.clock_shift_s and step == case.at_step:
        shim.shift_clock(case.clock_shift_s)


if __name__ == "__main__":
    fork_per_line(_train)
