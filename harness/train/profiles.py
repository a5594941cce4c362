"""Profiles of a live run: the next few steps under PyTorch's profiler, when that is asked for.

Everything here is done between two steps; while nothing is asked for, the training thread pays nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path

from harness.device.protocol import Device
from harness.errors import StepscopeError
from harness.profiling.summing import by_kind, sentence
from harness.profiling.window import WARM_UP_STEPS, Profiled, ProfilerWindow
from harness.records import (
    AckRow,
    CommandRow,
    CommandState,
    DeviceKind,
    EventKind,
    EventRow,
    Severity,
)
from harness.tracking.blocks import Guarded
from harness.train.journal import Journal

DEFAULT_STEPS = 3
MOST_STEPS = 20
_NAME = "profiles"
_MOST_NAMED = 20
"""Operators or kernels that the event names."""


class Profiles:
    """Takes them, on the training thread. `guarded` runs what must not break training."""

    def __init__(
        self,
        device: Device,
        journal: Journal,
        captures: Path,
        guarded: Guarded,
        clock_ns: Callable[[], int],
    ) -> None:
        self._device = device
        self._journal = journal
        self._captures = captures
        self._guarded = guarded
        self._clock_ns = clock_ns
        self._asked: tuple[int, str] | None = None
        self._window: ProfilerWindow | None = None
        self._taken = 0
        self._step = 0
        self._count = 0

    @property
    def is_busy(self) -> bool:
        """Whether `before_step` wants to be called before the next step."""
        return self._asked is not None

    def ask(self, command: CommandRow, step: int) -> None:
        """Profile the next steps as `command` says ({"steps": 1…20}), or answer why not."""
        try:
            steps = _steps(command.payload)
            if self._asked is not None:
                raise StepscopeError("A profile is being taken already; ask again when it is done.")
        except StepscopeError as error:
            self._answer(command.command_id, CommandState.REJECTED, step, str(error))
            return
        self._asked = (steps, command.command_id)

    def before_step(self, step: int) -> bool:
        """Do what is due before the step numbered `step`; whether that step is profiled."""
        if self._asked is not None and not self._guarded(_NAME, lambda: self._advance(step)):
            self.abort(step, "The profile failed; the run's output says why.", CommandState.REJECTED)
        return self._window is not None

    def abort(self, step: int, why: str, state: CommandState = CommandState.EXPIRED) -> None:
        """Leave everything as it was before, whatever was going on. Idempotent."""
        window, self._window = self._window, None
        asked, self._asked = self._asked, None
        if window is not None:
            self._guarded(_NAME, window.stop)
        if asked is not None:
            self._answer(asked[1], state, step, why)

    def _advance(self, step: int) -> None:
        assert self._asked is not None
        try:
            if self._window is None:
                self._begin(self._asked[0], step)
            elif step == self._step:
                raise StepscopeError("the step that was profiled failed.")
            else:
                self._end_step(self._window, step, *self._asked)
        except (StepscopeError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._unavailable(step, reason)

    def _begin(self, steps: int, step: int) -> None:
        self._count += 1
        path = self._captures / f"profile-{self._count}.json.gz"
        self._window = ProfilerWindow(steps, path, self._device.facts.kind is DeviceKind.CUDA)
        self._taken, self._step = 0, step
        self._window.start()

    def _end_step(self, window: ProfilerWindow, step: int, steps: int, command_id: str) -> None:
        self._taken, self._step = self._taken + 1, step
        if self._taken == WARM_UP_STEPS + steps:
            self._device.synchronize()
        window.end_step()
        if window.found is None:
            return
        self._window = self._asked = None
        window.stop()
        try:
            event = self._event(window.found, step, steps, command_id)
        except StepscopeError:
            self._asked = (steps, command_id)
            raise
        self._journal.put(event)
        self._answer(command_id, CommandState.APPLIED, step, event.message)

    def _event(self, found: Profiled, step: int, steps: int, command_id: str) -> EventRow:
        """What the profile says, also in numbers. Raises StepscopeError when it saw nothing."""
        is_on_device = self._device.facts.kind is DeviceKind.CUDA
        works = found.kernels if is_on_device else found.operators
        if not by_kind(works):
            hint = " (CUPTI is missing, busy with another profiler, or forbidden)" if is_on_device else ""
            raise StepscopeError(f"the profiler recorded no work{hint}.")
        file = None if found.file_bytes is None else f"profile-{self._count}.json.gz"
        kept = f"Its trace is captures/{file} in the run's folder; ui.perfetto.dev opens it."
        message = f"{sentence(works, steps, is_on_device)} {found.cut or kept}"
        longest = sorted(works, key=lambda work: -work.self_us)[:_MOST_NAMED]
        detail = {
            "steps": steps,
            "file": file,
            "kinds": [one._asdict() for one in by_kind(works)],
            "longest": [work._asdict() for work in longest],
        }
        return EventRow(
            self._clock_ns(),
            step - 1,
            EventKind.PROFILE,
            Severity.INFO,
            "profile",
            message,
            json.dumps(detail),
            command_id,
        )

    def _unavailable(self, step: int, reason: str) -> None:
        asked = self._asked
        why = f"The profile is unavailable, because {reason}"
        self.abort(step, why, CommandState.REJECTED)
        command_id = None if asked is None else asked[1]
        kind, severity = EventKind.PROFILE, Severity.WARNING
        self._journal.put(EventRow(self._clock_ns(), step, kind, severity, "profile", why, "{}", command_id))

    def _answer(self, command_id: str, state: CommandState, step: int, message: str) -> None:
        self._journal.put(AckRow(command_id, state, step, self._clock_ns(), message))


def _steps(payload: str) -> int:
    """What a command asks for; raises StepscopeError."""
    try:
        asked = json.loads(payload or "{}")
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"The request is not JSON ({error}); no profile was taken.") from None
    steps = asked.get("steps", DEFAULT_STEPS) if isinstance(asked, dict) else None
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise StepscopeError(f"A profile takes 1 to {MOST_STEPS} steps, not {str(steps)[:40]}.")
    return steps
