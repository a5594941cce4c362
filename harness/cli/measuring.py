"""`measure`: the effect of a change of settings, measured in a live run."""

import argparse
import json
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from harness import words
from harness.analysis.effect.measured import MeasuredFigure
from harness.cli.arguments import parse_assignments
from harness.cli.parser import Parser, add_command
from harness.cli.progress import InterruptCounter
from harness.cli.shell import Shell, find_run
from harness.cli.steering import SOURCE
from harness.errors import LogError, RunStateError
from harness.records.measurement import (
    DEFAULT_PAIRS,
    LEAST_PAIRS,
    MOST_PAIRS,
    ConclusiveRequest,
    MeasurementEnd,
    MeasureRequest,
)
from harness.records.run import CommandKind, CommandRow, CommandState, RunState
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.measuring import (
    Measurement,
    long_measurement,
    measurement_json,
    read_measurement,
    read_measurements,
)

JUDGE_COMMAND = "_judge"
_POLL_S = 0.25
_PLAIN_LINE_S = 5.0
# The judge's process waits this long for the last rows.
_JUDGE_WAIT_S = 20.0
# The judge of a change that is kept decides within this time.
_KEEP_WAIT_S = 30.0


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "measure what a change of settings does to a live run, in randomized pairs of blocks"
    measure = add_command(commands, "measure", summary, measure_change, is_json=True)
    measure.add_argument("run", metavar="RUN", help="id, name, an unambiguous beginning, or 'latest'")
    measure.add_argument(
        "assignments", metavar="NAME=VALUE", nargs="+", help="the change, see `stepscope settings`"
    )
    measure.add_argument(
        "--pairs",
        metavar="N",
        type=int,
        default=DEFAULT_PAIRS,
        help=f"pairs of blocks at most, {LEAST_PAIRS} to {MOST_PAIRS} (default {DEFAULT_PAIRS}); it ends "
        "after a quarter or half of them if the result is conclusive",
    )
    measure.add_argument("--keep-if-better", action="store_true", help="keep the change if it is faster")
    measure.add_argument("--no-wait", action="store_true", help="request it and return at once")
    judge = add_command(commands, JUDGE_COMMAND, None, judge_measurement)
    judge.add_argument("folder")
    judge.add_argument("number", type=int)


def measure_change(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope measure RUN name=value…`."""
    values = parse_assignments(arguments.assignments)
    if not LEAST_PAIRS <= arguments.pairs <= MOST_PAIRS:
        arguments.parser.error(f"--pairs is {arguments.pairs}; give {LEAST_PAIRS} to {MOST_PAIRS}")
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    request = MeasureRequest(values, arguments.pairs, arguments.keep_if_better)
    announcement = long_measurement(supervisor.summary(folder).step_ns, arguments.pairs)
    if announcement is not None:
        shell.print_status(announcement)
    command_id = supervisor.send(folder, CommandKind.MEASURE, request._asdict(), source=SOURCE)
    if arguments.no_wait:
        if arguments.is_json:
            shell.print_json({"command_id": command_id})
        else:
            shell.print_line(f"Requested; `stepscope show {folder.run_id}` lists the result.")
        return 0
    follower = _Follower(supervisor, folder, shell, command_id, is_quiet=arguments.is_json)
    measurement = follower.follow()
    if arguments.is_json:
        shell.print_json(measurement_json(measurement))
    else:
        print_measurement(shell, measurement)
    return 0 if measurement.end is not None and measurement.effect.main.effect is not None else 1


def print_measurement(shell: Shell, measurement: Measurement) -> None:
    """Print the table of figures, the verdict and the reasons not to trust it."""
    shell.print_line(f"{measurement.title}, {words.plural(measurement.effect.pairs, 'pair')} of blocks")
    headings = ("FIGURE", "A>", "B>", "EFFECT>", "95 % INTERVAL>", "VERDICT")
    shell.print_table(headings, [figure_cells(figure) for figure in measurement.effect.figures])
    shell.print_line(measurement.sentence)


def figure_cells(figure: MeasuredFigure) -> Sequence[str]:
    """Return the row of a figure: name, both arms, effect, interval, verdict."""
    kind, effect = figure.kind, figure.effect
    if effect is None or figure.low is None or figure.high is None:
        missing = words.NOT_AVAILABLE
        return kind.name, missing, missing, missing, missing, figure.verdict
    text = words.relative if kind.is_ratio else words.figure
    interval = f"{text(figure.low)} to {text(figure.high)}"
    before, after = kind.text(figure.before), kind.text(figure.after)
    return kind.name, before, after, text(effect), interval, figure.verdict


def measurement_facts(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Return a line for each measurement, for `stepscope show`."""
    return [(f"measured {one.title}", one.sentence) for one in measurements]


def measurements_of(folder: RunFolder, is_over: bool) -> list[Measurement]:
    """Return the newest measurements of a run; empty if the log cannot be read."""
    try:
        with LogReader(folder.log) as reader:
            return read_measurements(reader, is_over)
    except LogError:
        return []


def judge_measurement(arguments: Namespace, shell: Shell) -> int:
    """Run `_judge FOLDER NUMBER` for the training process: end a measurement that is conclusive, and apply
    the change of a completed one if it is kept and better."""
    del shell
    folder = RunFolder(Path(os.path.abspath(arguments.folder)))
    with ControlLog(folder) as control:

        def send(command_id: str, kind: CommandKind, values: dict[str, Any]) -> None:
            control.send(CommandRow(command_id, time.time_ns(), kind, json.dumps(values), "measurement"))

        measurement = _read_judged(folder, arguments.number)
        if measurement is not None and measurement.end is None:
            effect, plan = measurement.effect, measurement.plan
            if not effect.is_conclusive:
                return 0
            request = ConclusiveRequest(plan.number, effect.pairs)
            send(f"conclusive-{plan.command_id}", CommandKind.END_MEASUREMENT, request._asdict())
            measurement = _read_ended(folder, arguments.number)
        if measurement is None or measurement.end is None:
            return 1
        is_complete = measurement.end.state == MeasurementEnd.COMPLETED
        if is_complete and measurement.plan.keeps_if_better and measurement.effect.is_better:
            send(measurement.plan.keep_command_id, CommandKind.SET, measurement.after)
    return 0


def _read_judged(folder: RunFolder, number: int) -> Measurement | None:
    with LogReader(folder.log) as reader:
        return read_measurement(reader, number)


def _read_ended(folder: RunFolder, number: int) -> Measurement | None:
    """Wait for the end of a measurement."""
    deadline_s = time.monotonic() + _JUDGE_WAIT_S
    while time.monotonic() < deadline_s:
        measurement = _read_judged(folder, number)
        if measurement is not None and measurement.end is not None:
            return measurement
        time.sleep(_POLL_S)
    return None


class _Follower:
    """Follows one measurement until its end. Ctrl-C ends it with what it has."""

    def __init__(
        self, supervisor: Supervisor, folder: RunFolder, shell: Shell, command_id: str, *, is_quiet: bool
    ) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._shell = shell
        self._command_id = command_id
        self._is_quiet = is_quiet
        self._interrupts = InterruptCounter()
        self._is_ending = False

    def follow(self) -> Measurement:
        """Return the measurement once it has ended. Raises RunStateError when the run rejects it or ends
        before it begins."""
        with self._interrupts.counting(), self._progress() as show:
            while True:
                self._end_if_interrupted()
                state = self._supervisor.status(self._folder).state
                measurement = self._read(state.is_over)
                if measurement is not None:
                    show(measurement, state)
                    if measurement.is_over:
                        return self._judged(measurement)
                else:
                    self._check_answer(state.is_over)
                time.sleep(_POLL_S)

    def _read(self, is_over: bool) -> Measurement | None:
        try:
            with LogReader(self._folder.log) as reader:
                plans = reader.measurements.plans()
                number = next((p.number for p in plans if p.command_id == self._command_id), None)
                return None if number is None else read_measurement(reader, number, is_over)
        except LogError:
            if is_over:
                raise
            return None

    def _check_answer(self, is_over: bool) -> None:
        answer = self._supervisor.answer(self._folder, self._command_id)
        if answer is not None and answer.state in (CommandState.REJECTED, CommandState.EXPIRED):
            raise RunStateError(f"Not measured: {answer.message}")
        if is_over:
            raise RunStateError("Not measured: the run ended before it began.")
        if self._is_ending:
            raise RunStateError("Not measured: interrupted before the run began to measure.")

    def _end_if_interrupted(self) -> None:
        if self._interrupts.count and not self._is_ending:
            self._is_ending = True
            self._shell.print_status("Ending the measurement; the settings before it return.")
            try:
                self._supervisor.send(self._folder, CommandKind.END_MEASUREMENT, source=SOURCE)
            except RunStateError:
                return  # The run has ended, and the measurement with it.

    def _judged(self, measurement: Measurement) -> Measurement:
        """Wait for the change to be kept, if it is to be."""
        deadline_s = time.monotonic() + _KEEP_WAIT_S
        end = measurement.end
        is_complete = end is not None and end.state == MeasurementEnd.COMPLETED
        is_expected = measurement.plan.keeps_if_better and is_complete and measurement.effect.is_better
        while is_expected and not measurement.is_kept and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            is_over = self._supervisor.status(self._folder).state.is_over
            measurement = self._read(is_over) or measurement
            if is_over:
                break
        return measurement

    @contextmanager
    def _progress(self) -> Iterator[Any]:
        """Yield a function that shows the progress of a measurement."""
        if self._is_quiet:
            yield lambda _measurement, _state: None
            return
        if not self._shell.err.is_terminal:
            yield _PlainProgress(self._shell)
            return
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=self._shell.err, refresh_per_second=5) as progress:
            task = progress.add_task("", total=None)

            def show(measurement: Measurement, state: RunState) -> None:
                progress.update(
                    task,
                    total=measurement.next_judgment,
                    completed=measurement.pairs,
                    description=progress_line(measurement, state),
                )

            yield show


class _PlainProgress:
    """Prints a line now and then."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._due_s = 0.0

    def __call__(self, measurement: Measurement, state: RunState) -> None:
        if time.monotonic() >= self._due_s and not measurement.is_over:
            self._due_s = time.monotonic() + _PLAIN_LINE_S
            self._shell.print_status(progress_line(measurement, state))


def progress_line(measurement: Measurement, state: RunState) -> str:
    """Return the progress of a measurement of a run in `state` in one line."""
    remaining = measurement.remaining_text(state)
    eta = "" if remaining is None else f", {remaining}"
    return f"measuring {measurement.title}: {measurement.progress}{eta}"
