"""A disk that does not take what the log's writer gives it."""

import errno
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import LogMissingError, StepscopeError
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.faults.scenario import (
    Bench,
    Measurement,
    Scenario,
    UnmeasurableError,
    log_faults,
    training_faults,
)
from tests.faults.trainer import FaultyRun
from tests.supervision import until

_SHORT: dict[str, Any] = {"max_steps": 60, "slow_loader_ms": 10.0}
_PACED: dict[str, Any] = {"max_steps": 400, "slow_loader_ms": 10.0}
"""About four seconds: long enough for a fault to come and go."""
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
_FOR_GOOD = 1_000_000_000
_BURSTS = (1, 7, _FOR_GOOD)
_AT_ONCE = 6
_REFUSAL = re.compile(
    r"stepscope: The log .* could not be created: (database or disk is full|disk I/O error)"
)
_END_S = 40.0
_REFUSED = 256
"""The exit code 1, as `waitpid` has it."""


class _Tally:
    """Outcome of the runs with failing writes."""

    def __init__(self, losses: list[float]) -> None:
        self._losses = losses
        self.trained = self.refused = self.struck = self.complete = 0
        self.broken: list[str] = []

    def add(self, run: FaultyRun) -> None:
        """Wait for the end of a run and judge it."""
        case, steps = run.case, _SHORT["max_steps"]
        is_for_good = case.failing_writes == _FOR_GOOD
        count = "for good" if is_for_good else f"{case.failing_writes} times"
        status, wrong = _end_of(run, self._losses)
        self.trained += len(run.losses) == steps
        self.refused += status == _REFUSED and not run.losses
        self.struck += run.failed_calls > 0
        if not wrong and run.losses and not is_for_good:
            logged = len(run.rows())
            self.complete += logged == steps
            wrong = [] if logged == steps else [f"{logged} of {steps} steps are in the log"]
        where = f"{errno.errorcode[case.error]} at call {case.first_write}, {count}"
        self.broken += [f"{where}: {text}" for text in wrong]


def _failing_writes(bench: Bench) -> Measurement:
    """Every n-th call fails once: alone, in a burst of seven, or with all that follow, by turns."""
    count = bench.count(200, 3)
    places = range(200 // count, 201, 200 // count)
    cases = [(n, _ERRORS[i % 3], _BURSTS[(i + i // 3) % 3]) for i, n in enumerate(places)]
    home, tally = bench.new_home("failing-writes"), _Tally(bench.losses)
    for start in range(0, len(cases), _AT_ONCE):
        runs = [
            bench.trainer.train(home, _SHORT, first_write=n, failing_writes=burst, error=error)
            for n, error, burst in cases[start : start + _AT_ONCE]
        ]
        for run in runs:
            tally.add(run)
    text = (
        f"{len(cases)} runs, {tally.struck} of them struck: {tally.trained} trained to the end, their loss "
        f"curves identical to the last bit, {tally.complete} of these have every step in the log; "
        f"{tally.refused} were refused before the first step, with a sentence"
    )
    return Measurement(text, tuple(tally.broken))


def _end_of(run: FaultyRun, losses: list[float]) -> tuple[int | None, list[str]]:
    """Return how a struck run ended, and what is wrong with that."""
    try:
        status = run.wait(_END_S)
    except TimeoutError as error:
        return None, [str(error)]
    output = run.folder.output_tail(40)
    if status == _REFUSED and not run.losses:
        is_sentence = any(_REFUSAL.match(line) for line in output)
        has_traceback = any(line.startswith("Traceback") for line in output)
        return status, [] if is_sentence and not has_traceback else [f"refused without a sentence: {output}"]
    if status != 0:
        return status, [f"ended with status {status}: {output[-3:]}"]
    try:
        return status, training_faults(run, losses) + log_faults(run, losses)
    except LogMissingError:
        return status, training_faults(run, losses)


@contextmanager
def _small_disk(bench: Bench, size: str) -> Iterator[Path]:
    folder = bench.new_folder("disk")
    if os.geteuid() != 0:
        raise UnmeasurableError("a small disk is mounted, which only root may do")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "stepscope-faults", folder],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise UnmeasurableError(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(path: Path) -> int:
    """Write until nothing more fits; how many bytes did."""
    size = 0
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                size += file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return size


def _wait_until_blind(run: FaultyRun, steps: int = 40) -> None:
    """Wait until the log is so many steps behind."""

    def behind() -> int:
        with LogReader(run.folder.log) as log:
            return run.steps - (log.extent().last or 0)

    until(behind, lambda result: result >= steps or run.status is not None)


def _full_disk(bench: Bench) -> Measurement:
    losses = bench.losses
    with _small_disk(bench, "4m") as disk:
        run = bench.trainer.train(Home(disk / "home"), _PACED)
        run.wait_for_step(30)
        filler = disk / "filler"
        _fill(filler)
        _wait_until_blind(run)
        at = run.steps
        run.wait_for_step(at + 60)
        blind = run.steps - at
        filler.unlink()
        status = run.wait()
        rows = run.rows()
        with LogReader(run.folder.log) as log:
            state = log.run().state
        broken = training_faults(run, losses) + log_faults(run, losses)
    if status != 0 or state != RunState.FINISHED:
        broken.append(f"ended with status {status} as {state}")
    if len(rows) != _PACED["max_steps"]:
        broken.append(f"{len(rows)} of {_PACED['max_steps']} steps are in the log")
    text = (
        f"full for {blind} steps, then freed: the run finished, {len(rows)} of {_PACED['max_steps']} steps "
        "are in the log, the loss curve is identical to the last bit"
    )
    return Measurement(text, tuple(broken))


def _full_to_the_end(bench: Bench) -> Measurement:
    """The disk is never freed, and the run is stopped by the supervisor."""
    settings = _PACED | {"max_steps": 100_000}
    with _small_disk(bench, "4m") as disk:
        home = Home(disk / "home")
        run = bench.trainer.train(home, settings)
        run.wait_for_step(30)
        _fill(disk / "filler")
        _wait_until_blind(run)
        sentence: list[str] = []
        broken: list[str] = []
        try:
            Supervisor(home).stop(run.folder, announce=sentence.append)
        except (sqlite3.Error, StepscopeError) as error:
            broken.append(f"`stop` gave {type(error).__name__}: {error}")
            run.send(signal.SIGKILL)
        status = run.wait()
        lost = run.steps - len(run.rows())
        ended = Supervisor(home).status(run.folder)
    if ended.state is not RunState.STOPPED or f"{lost:,} steps" not in ended.message:
        broken.append(f"it is called {ended.state}: {ended.message}")
    message = (" ".join(sentence) or "nothing").replace(str(home.path), "…")
    text = f"`stop` ended the run with status {status}; it said: {message}. Afterwards: {ended.message}"
    return Measurement(text, tuple(broken))


def _locked(bench: Bench) -> Measurement:
    losses = bench.losses
    run = bench.trainer.train(bench.new_home("locked"), _PACED)
    run.wait_for_step(30)
    other = sqlite3.connect(run.folder.log, isolation_level=None, timeout=10)
    try:
        other.execute("BEGIN IMMEDIATE")
        at = run.steps
        run.wait_for_step(at + 100)
        blind = run.steps - at
        other.execute("ROLLBACK")
    finally:
        other.close()
    status = run.wait()
    rows = run.rows()
    broken = training_faults(run, losses) + log_faults(run, losses)
    if status != 0 or len(rows) != _PACED["max_steps"]:
        broken.append(f"ended with status {status}, {len(rows)} of {_PACED['max_steps']} steps in the log")
    text = (
        f"locked for {blind} steps: {len(rows)} of {_PACED['max_steps']} steps are in the log, the loss "
        "curve is identical to the last bit"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "failing-writes",
        "The n-th call that writes, syncs or resizes the log fails, for every n up to 200: no space, an I/O "
        "error or a read-only disk, once, seven times or for good",
        "Training is not disturbed: every loss is the undisturbed run's to the last bit, and the process "
        "ends in order. A fault that passes loses no row. A log that cannot be begun is refused with a "
        "sentence.",
        _failing_writes,
        is_long=True,
    ),
    Scenario(
        "full-disk",
        "The disk is full for a while, then freed",
        "Training goes on, and every step is in the log afterwards.",
        _full_disk,
        is_long=True,
    ),
    Scenario(
        "full-disk-stop",
        "The disk is full for good, and the run is stopped",
        "`stop` ends the run, by signals where no command can be written, and says why; the run is called "
        "stopped, with the number of steps that the log lacks.",
        _full_to_the_end,
        is_in_tests=False,
    ),
    Scenario(
        "locked-log",
        "Another program locks the log",
        "Training goes on, and every step is in the log once the lock is gone.",
        _locked,
        is_in_tests=False,
    ),
)
