"""Forks training processes: torch is imported once, each run starts within milliseconds.

Reads a case per line of stdin; says "PID started" and "PID ended STATUS" on stdout, the status as `waitpid`
has it. It has one thread and no tensor of its own, so that a fork is as good as a fresh process.
"""

import gc
import os
import select
import signal
import sys
import traceback
from pathlib import Path

import harness.run
from harness.errors import StepscopeError
from harness.observers.dispatch import Dispatcher, Guard, Progress
from harness.store.folder import RunFolder
from harness.train.loop import StepListener
from tests.faults import shim
from tests.faults.case import Case
from tests.faults.keeper import CurveKeeper

_POLL_S = 0.01


def main() -> None:
    """Fork until stdin ends and every child has ended."""
    gc.collect()
    gc.freeze()
    rest, children, is_open = b"", set[int](), True
    while is_open or children:
        ready, _, _ = select.select([0] if is_open else [], [], [], _POLL_S)
        if ready:
            data = os.read(0, 65_536)
            is_open = bool(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                children.add(_fork(Case.from_line(line.decode())))
        for child in list(children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                children.discard(child)
                _say(f"{child} ended {status}")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _fork(case: Case) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _train(case)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    _say(f"{child} started")
    return child


def _train(case: Case) -> int:
    """Be the training process of the run, in a session of its own and with its output in its folder."""
    folder = RunFolder(Path(case.folder))
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    keeper = CurveKeeper(case.curve, lambda step: _after_step(case, step))

    def keeping(listeners: dict[str, StepListener], guard: Guard, progress: Progress) -> Dispatcher:
        return Dispatcher({**listeners, "curve": keeper}, guard, progress)

    vars(harness.run)["Dispatcher"] = keeping  # Every step passes through there.
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
    main()
