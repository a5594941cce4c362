"""Profiles of a live run: a few steps under PyTorch's profiler, on request or as scheduled.

Everything runs between two steps; without a request there is no overhead on the training thread.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.errors import StepscopeError
from harness.profiling import cupti
from harness.profiling.events import collector_off
from harness.profiling.options import DEFAULT_STEPS, ProfileOptions, parse_options
from harness.profiling.ranges import Ranges
from harness.profiling.window import WARM_UP_STEPS, ProfilerResult, ProfilerWindow
from harness.records.profile import ProfileReason
from harness.records.run import CommandKind, CommandRow, CommandState, DeviceKind, StepFlag
from harness.settings.profile_steps import parse_profile_at
from harness.watch.boundary import NEVER, Boundary, StepAction
from harness.watch.capture.profile_rows import ProfileCapture, failure, profile
from harness.watch.capture.script_profilers import ScriptProfilers
from harness.watch.context import RunContext
from harness.watch.training import Training, WatchSettings

# Steps timed before the profiler starts, as the reference for its slowdown.
_ORDINARY_STEPS = 3
_NAME = "profiles"
# A profiler that starts on another thread than the steps waits for the end of the step under way, but no
# longer than this: the step may wait for that thread. Stopped by that thread, ours stays on for torch: the
# script's next profile on the thread of the steps fails once (torch 2.13).
_MOST_WAIT_S = 10.0
_OTHER_IS_ON = "another profiler is active in this run, or in the warm-up of its schedule; stop it first."
_OTHER_BEGAN = "another profiler was started in this run, and a process can run one; send the request again."


class _Request(NamedTuple):
    """A requested profile; `command_id` is None if no answer is needed."""

    options: ProfileOptions
    reason: ProfileReason
    command_id: str | None


@dataclass
class _Open:
    """A profile in progress."""

    request: _Request
    settings: WatchSettings
    pauses: int
    # Where the step under way and the first one began.
    began_ns: int
    first_ns: int
    # The step under way; when it comes again it has failed.
    step: int
    ordinary: list[int] = field(default_factory=list)
    ordinary_ns: float = 0.0
    window: ProfilerWindow | None = None
    ranges: Ranges | None = None
    steps: int = 0
    # Its window was discarded for a profiler of the training's own.
    has_given_way: bool = False
    thread: int = field(default_factory=threading.get_ident)
    # Set when its window is closed.
    closed: threading.Event = field(default_factory=threading.Event)


class Profiles(StepAction):
    """Records profiles, on the training thread."""

    commands = frozenset({CommandKind.PROFILE})
    capture = "profile"

    def __init__(self, context: RunContext, training: Training, folder: Path) -> None:
        """`folder` is where files go."""
        self._context = context
        self._training = training
        self._device = context.device
        self._journal = context.journal
        self._marks = context.marks
        self._folder = folder
        self._guarded = context.guard.run
        self._clock_ns = context.clock_ns
        self._request: _Request | None = None
        self._open: _Open | None = None
        self._count = 0
        self._profilers = ScriptProfilers(self._give_way)
        self._schedule: str | None = None
        self._due = NEVER
        self._read_schedule(1)

    @property
    def is_busy(self) -> bool:
        """Return whether a profile is requested or in progress."""
        return self._request is not None or self._open is not None

    @property
    def due(self) -> int:
        """The next scheduled step."""
        return self._due

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Profile the next steps as `command` says ({"steps": 1…20, "memory": bool, "stacks": bool}), or
        answer why not."""
        try:
            options = parse_options(command.payload)
            if self.is_busy:
                raise StepscopeError("A profile is already in progress; send the request again after it.")
        except StepscopeError as error:
            self._context.answer(command.command_id, CommandState.REJECTED, boundary.step, str(error))
            return
        self._request = _Request(options, ProfileReason.REQUESTED, command.command_id)

    def before_step(self, boundary: Boundary) -> None:
        """Advance the profile before the next step. It waits for the steady state after a start or a
        change."""
        step = boundary.step
        if self._training.settings.profile_at != self._schedule:
            self._read_schedule(step)
        if step >= self._due and not boundary.is_capturing:
            self._begin_scheduled(step)
        if not self.is_busy:
            return
        self._advance(boundary, boundary.is_settled)
        if self._open is not None and self._open.window is not None:
            boundary.flag(StepFlag.PROFILED)
        elif (
            self._open is None and self._request is None
        ):  # It has ended: the next step starts with cold caches and takes twice as long.
            boundary.unsettle(step)
        boundary.restart()

    def finish(self, boundary: Boundary) -> None:
        """Write a profile that ends with the last step of the run."""
        if self.is_busy:
            self._advance(boundary, is_settled=False)

    def abort(self, step: int, why: str) -> None:
        """Drop requests and restore the training's functions and the profiler's. Idempotent."""
        request = self._leave()
        self._profilers.close()
        if request is not None and request.command_id is not None:
            self._context.answer(request.command_id, CommandState.EXPIRED, step, why)

    def _read_schedule(self, step: int) -> None:
        """Find the first scheduled step from `step` on."""
        self._schedule = self._training.settings.profile_at
        self._due = next((at for at in parse_profile_at(self._schedule) if at >= step), NEVER)

    def _begin_scheduled(self, step: int) -> None:
        """Begin the scheduled profile, unless one is in progress."""
        if not self.is_busy:
            self._request = _Request(ProfileOptions(DEFAULT_STEPS), ProfileReason.SCHEDULE, None)
        self._read_schedule(step + 1)

    def _advance(self, boundary: Boundary, is_settled: bool) -> None:
        if not self._guarded(_NAME, lambda: self._take_turn(boundary, is_settled)):
            self._fail(boundary.step, "of an unexpected error; see the run's output.")

    def _take_turn(self, boundary: Boundary, is_settled: bool) -> None:
        current, step = self._open, boundary.step
        try:
            if current is not None:
                self._check(current, boundary)
                current.step = step
                if current.window is None:
                    self._end_ordinary(current)
                else:
                    self._end_step(current, current.window, step)
            elif self._request is not None and is_settled:
                self._check_others()
                self._device.synchronize()
                settings, now_ns = self._training.settings, self._clock_ns()
                self._open = _Open(self._request, settings, boundary.pauses, now_ns, now_ns, step)
                self._request = None
        except (StepscopeError, RuntimeError) as error:
            self._fail(step, str(error).strip().partition("\n")[0] or type(error).__name__)

    def _check_others(self) -> None:
        if self._profilers.is_on:
            raise StepscopeError(_OTHER_IS_ON)

    def _give_way(self) -> None:
        """Discard a window that is open, as another profiler starts; the next step answers."""
        current = self._open
        if current is not None and current.window is not None:
            self._guarded(_NAME, lambda: self._discard(current))

    def _discard(self, current: _Open) -> None:
        current.has_given_way = True
        is_within_step = threading.get_ident() == current.thread
        if not is_within_step:
            current.closed.wait(_MOST_WAIT_S)
        with self._profilers.ours():
            if is_within_step and current.ranges is not None:
                current.ranges.stop()
            if current.window is not None:
                current.window.stop()
        current.closed.set()

    def _check(self, current: _Open, boundary: Boundary) -> None:
        if current.has_given_way:
            raise StepscopeError(_OTHER_BEGAN)
        if boundary.step == current.step:
            raise StepscopeError("a step failed during it; send the request again.")
        if boundary.pauses != current.pauses:
            raise StepscopeError("the run was paused during it; send the request again.")
        if current.settings is not self._training.settings:
            raise StepscopeError("settings changed during it; send the request again.")

    def _end_ordinary(self, current: _Open) -> None:
        now_ns = self._clock_ns()
        current.ordinary.append(now_ns - current.began_ns)
        current.began_ns = now_ns
        if len(current.ordinary) < _ORDINARY_STEPS:
            return
        self._device.synchronize()
        kind = self._device.facts.kind
        if kind is DeviceKind.CPU:  # Whatever else its processors do only adds to a step.
            current.ordinary_ns = min(current.ordinary)
        else:
            current.ordinary_ns = (self._clock_ns() - current.first_ns) / _ORDINARY_STEPS
        if kind is DeviceKind.CUDA:
            cupti.prepare()
        self._count += 1
        path = self._folder / f"profile-{self._count}.json.gz"
        with self._profilers.ours():
            self._check_others()
            current.window = ProfilerWindow(
                current.request.options, path, kind, ordinal=self._device.facts.ordinal
            )
            current.window.start()
        current.ranges = Ranges(self._training, current.settings.compile)
        current.ranges.start()

    def _end_step(self, current: _Open, window: ProfilerWindow, step: int) -> None:
        current.steps += 1
        is_last = current.steps == WARM_UP_STEPS + current.request.options.steps
        if is_last or current.steps == WARM_UP_STEPS:  # Nothing of other steps, and all of these.
            self._device.synchronize()
        ended_ns = self._clock_ns()
        with self._profilers.ours(), collector_off():
            if current.has_given_way:
                raise StepscopeError(_OTHER_BEGAN)
            window.end_step()
            if window.result is not None:
                self._finish(current, window.result, step, ended_ns)

    def _finish(self, current: _Open, result: ProfilerResult, step: int, ended_ns: int) -> None:
        """Stop the profiler after the last step, and write the result."""
        assert current.ranges is not None
        assert current.window is not None
        current.ranges.stop()
        current.window.stop()
        capture = ProfileCapture(
            self._count,
            result,
            current.request.options,
            step - current.request.options.steps,
            self._marks.settings_version,
            current.request.reason,
            self._device.facts.kind,
            current.ordinary_ns,
            current.settings.compile,
        )
        current.closed.set()
        classes, command_id = current.ranges.classes(), current.request.command_id
        rows, event = profile(capture, classes, self._clock_ns, ended_ns, command_id)
        self._open = None
        for row in rows:
            self._journal.put(row)
        self._journal.put(event)
        if command_id is not None:
            self._context.answer(command_id, CommandState.APPLIED, step, event.message)

    def _leave(self) -> _Request | None:
        """Stop the profiler; return the pending request."""
        current, self._open = self._open, None
        request, self._request = self._request, None
        if current is None:
            return request
        if current.ranges is not None:
            self._guarded(_NAME, current.ranges.stop)
        if current.window is not None:
            with self._profilers.ours():
                self._guarded(_NAME, current.window.stop)
        current.closed.set()
        return current.request

    def _fail(self, step: int, reason: str) -> None:
        is_begun = self._open is not None and self._open.window is not None
        request = self._leave()
        if request is None:
            return
        if not is_begun:
            self._count += 1
        version, now_ns = self._marks.settings_version, self._clock_ns()
        row, event = failure(self._count, step, version, request.reason, now_ns, reason, request.command_id)
        self._journal.put(row)
        self._journal.put(event)
        if request.command_id is not None:
            self._context.answer(request.command_id, CommandState.REJECTED, step, row.message)
