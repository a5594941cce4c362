"""The context shared by the parts of a watch: device, log, clock, guard and progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from harness.device.protocol import Device
from harness.records.run import AckRow, CommandState, EventKind, EventRow, RunState, Severity, StepFlag
from harness.store.inserts import Row
from harness.watch.guard import FailureGuard
from harness.watch.recent_changes import RecentChanges


class Journal(Protocol):
    """A sink for rows and states, such as `harness.store.writer.LogWriter`. From any thread."""

    def put(self, row: Row) -> None:
        """Record a row. Never waits."""
        ...

    def put_durable(self, row: Row) -> bool:
        """Record a row so that it survives a power cut; whether the disk has it."""
        ...

    def set_state(self, state: RunState, message: str, timeout_s: float = ...) -> bool:
        """Record that the run is now in `state`; waits at most `timeout_s` for the disk."""
        ...

    def finish(self, state: RunState, message: str, ended_unix_ns: int, *, has_event: bool = False) -> bool:
        """Record the run's final state, and an event unless there is one that says so."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far can be read; whether it can."""
        ...


@dataclass
class Marks:
    """The marks of every step: the version of the settings in effect, and its flags."""

    settings_version: int = 1
    flags: int = int(StepFlag.WARM_UP)
    # Another one is in effect only while a measurement switches between two known versions.
    newest_version: int = 1
    # The step since which the loss is not finite; None: it is, or unknown.
    not_finite_since: int | None = None

    def begin_version(self) -> int:
        """Return the number of a new version of the settings, which is in effect from now on."""
        self.newest_version += 1
        self.settings_version = self.newest_version
        return self.newest_version


@dataclass(slots=True)
class Progress:
    """The newest step, except of a block that goes on: its number, and its times on a clock on which the run
    started at `zero_ns`."""

    zero_ns: int = 0
    last_step: int = 0
    times_ns: tuple[int, ...] = ()
    # While steps go unobserved: when the first of them began, and when each ended.
    unobserved_ns: list[int] | None = None
    # Sums over those of them that have ended; without text there are no tokens.
    unobserved_samples: int = 0
    unobserved_tokens: int = 0

    def unobserve(self, ends_ns: list[int] | None) -> None:
        """Append the ends of unobserved steps to `ends_ns` from now on, and sum up their samples and tokens
        anew; None: steps are observed again."""
        steps, before_ns = self.unobserved_steps, self.unobserved_ns
        self.unobserved_ns, self.unobserved_samples, self.unobserved_tokens = ends_ns, 0, 0
        if before_ns is not None and steps:
            self.times_ns = tuple(before_ns[-2:])
            self.last_step += steps

    @property
    def unobserved_steps(self) -> int:
        """The number of unobserved steps that have ended since the newest observed one."""
        ends_ns, times_ns = self.unobserved_ns, self.times_ns
        return len(ends_ns) - 1 if ends_ns and times_ns and ends_ns[-1] > times_ns[-1] else 0

    @property
    def last_end_ns(self) -> int:
        """End of the newest step, observed or not, from the run's start; 0 before the first."""
        ends_ns = self.unobserved_ns or self.times_ns
        return ends_ns[-1] - self.zero_ns if ends_ns else 0

    @property
    def last_step_ns(self) -> int:
        """Duration of the newest observed step; 0 before the first."""
        return self.times_ns[-1] - self.times_ns[0] if self.times_ns else 0


@dataclass(frozen=True)
class RunContext:
    """Arguments common to the parts of a watch. `clock_ns` counts from the run's start."""

    device: Device
    journal: Journal
    clock_ns: Callable[[], int]
    guard: FailureGuard
    progress: Progress
    marks: Marks
    changes: RecentChanges = field(default_factory=RecentChanges)

    @property
    def last_step(self) -> int:
        """The number of the newest step, observed or not; 0 before the first."""
        return self.progress.last_step + self.progress.unobserved_steps

    def warn(self, label: str, message: str) -> None:
        """Write a warning at the newest step."""
        self.journal.put(warning(self.clock_ns(), self.last_step, label, message))

    def answer(self, command_id: str, state: CommandState, step: int, message: str) -> None:
        """Answer a command with its state before `step`."""
        self.journal.put(AckRow(command_id, state, step, self.clock_ns(), message))


def warning(t_ns: int, step: int, label: str, message: str) -> EventRow:
    """The event of a warning."""
    return EventRow(t_ns, step, EventKind.WARNING, Severity.WARNING, label, message, "{}", None)
