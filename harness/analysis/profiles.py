"""Time of a profile by kind of work, operator, module or stack, and the difference of two. Pure functions.

Time is that of kernels where they were recorded, else of operators on the CPU.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow

# Smallest difference of two steps in percent, as in `harness.analysis.effect`, which has far more steps.
SAME_PERCENT = 1.0

_MAX_KINDS = 3


class Grouping(StrEnum):
    """Key by which time is summed."""

    KIND = "kind"
    OPERATOR = "operator"
    MODULE = "module"
    STACK = "stack"


class ProfilePart(NamedTuple):
    """Time of one kind of work, operator, kernel, module or stack over all steps of a profile."""

    name: str
    # Self time, without callees.
    time_ns: float
    # Share of the steps' wall time, 0 to 1; None where it was not measured.
    share: float | None
    calls: int


class ProfileChange(NamedTuple):
    """Time of one part per step, before and after; None where it did not occur."""

    name: str
    before_ns: float | None
    after_ns: float | None
    # Difference in percent of before; None without a before.
    percent: float | None

    @property
    def difference_ns(self) -> float:
        """Difference per step; negative when it got faster."""
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)


class ProfileComparison(NamedTuple):
    """Comparison of two profiles."""

    # The whole step.
    step: ProfileChange
    # The largest difference first. By kind, they sum to the difference of the step, including idle time.
    changes: list[ProfileChange]
    # One sentence.
    verdict: str


def self_ns(row: ProfileOpRow, profile: ProfileRow) -> int | None:
    """Self time of `row` that counts toward the steps' time; None for operators where kernels were recorded,
    since they only launch work."""
    if bool(row.is_kernel) != bool(profile.on_device):
        return None
    return row.self_device_ns if row.is_kernel else row.self_cpu_ns


def own_ns(row: ProfileOpRow | ProfileModuleRow | ProfileStackRow, profile: ProfileRow) -> int:
    """Self time of `row` on the device's clock if it was recorded, else on the CPU's."""
    return (row.self_device_ns or 0) if profile.on_device else row.self_cpu_ns


def share(part_ns: float, profile: ProfileRow) -> float | None:
    """Share of the steps' wall time, 0 to 1; None where it was not measured."""
    return part_ns / profile.wall_ns if profile.wall_ns else None


def by_kind(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> list[ProfilePart]:
    """Time by kind of work, the longest first and idle time last; they sum to the wall time.

    Overlapping kernels, and operators on several threads, count in proportion to the busy time.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in operators:
        time_ns = self_ns(row, profile)
        if time_ns is not None:
            sums[row.kind] += time_ns
            calls[row.kind] += row.calls
    total_ns = sum(sums.values())
    scale = 1.0 if profile.busy_ns is None or total_ns <= 0 else profile.busy_ns / total_ns
    parts = [
        ProfilePart(kind, time_ns * scale, share(time_ns * scale, profile), calls[kind])
        for kind, time_ns in sorted(sums.items(), key=lambda pair: -pair[1])
    ]
    idle = idle_ns(profile)
    if idle is not None:
        parts.append(ProfilePart(OperatorKind.IDLE.value, float(idle), share(idle, profile), 0))
    return parts


def idle_ns(profile: ProfileRow) -> int | None:
    """Wall time without any kernel or operator; None where it was not measured."""
    if profile.wall_ns is None or profile.busy_ns is None:
        return None
    return max(0, profile.wall_ns - profile.busy_ns)


def by_operator(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> list[ProfilePart]:
    """Time by kernel, or by operator on the CPU, the longest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in operators:
        time_ns = self_ns(row, profile)
        if time_ns is not None:
            sums[row.name] += time_ns
            calls[row.name] += row.calls
    parts = [
        ProfilePart(name, time_ns, share(time_ns, profile), calls[name]) for name, time_ns in sums.items()
    ]
    return sorted(parts, key=lambda part: -part.time_ns)


def by_module(modules: Sequence[ProfileModuleRow], profile: ProfileRow) -> list[ProfilePart]:
    """Self time by module over all phases, the longest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in modules:
        sums[row.module] += (row.self_device_ns if profile.on_device else row.self_cpu_ns) or 0
        calls[row.module] = max(calls[row.module], row.calls)
    parts = [
        ProfilePart(name, time_ns, share(time_ns, profile), calls[name]) for name, time_ns in sums.items()
    ]
    return sorted(parts, key=lambda part: -part.time_ns)


def by_stack(stacks: Sequence[ProfileStackRow], profile: ProfileRow) -> list[ProfilePart]:
    """Time by stack, the longest first."""
    parts = []
    for row in stacks:
        time_ns = (row.self_device_ns if profile.on_device else row.self_cpu_ns) or 0
        parts.append(ProfilePart(row.stack, float(time_ns), share(time_ns, profile), row.calls))
    return sorted(parts, key=lambda part: -part.time_ns)


def sentence(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> str:
    """The kinds of work and the operator with most time, in one sentence."""
    parts = by_kind(operators, profile)
    work = [part for part in parts if part.name != OperatorKind.IDLE]
    listed = work[:_MAX_KINDS] + [part for part in parts if part.name == OperatorKind.IDLE]
    kinds = ", ".join(f"{part.name} {_percent(part.share)}" for part in listed)
    text = f"{words.plural(profile.steps, 'step')} took {words.duration(profile.wall_ns)}: {kinds}."
    longest = by_operator(operators, profile)
    if longest:
        text += f" Longest: {longest[0].name[:80]} ({_percent(longest[0].share)})."
    return text


def _percent(part: float | None) -> str:
    return words.percent(None if part is None else 100 * part)


def compare(
    before: Sequence[ProfilePart],
    after: Sequence[ProfilePart],
    profiles: tuple[ProfileRow, ProfileRow],
    what: str = "",
) -> ProfileComparison:
    """Compare two profiles per step. `what` names the change of settings between them ("AMP bf16").

    Raises ValueError when only one of them has kernels of the device, or one has no steps.
    """
    old, new = profiles
    if not old.steps or not new.steps:
        raise ValueError("One of these profiles failed and has no steps; choose two complete profiles.")
    if old.on_device != new.on_device:
        raise ValueError(
            "One of these profiles has kernels on the device, the other operators on the CPU; choose two of "
            "the same device."
        )
    earlier = {part.name: part.time_ns / old.steps for part in before}
    later = {part.name: part.time_ns / new.steps for part in after}
    changes = [_change(name, earlier.get(name), later.get(name)) for name in {**earlier, **later}]
    changes.sort(key=lambda change: (-abs(change.difference_ns), change.name))
    step = _change("step", _per_step(old), _per_step(new))
    return ProfileComparison(step, changes, _verdict(step, changes, what))


def _per_step(profile: ProfileRow) -> float | None:
    return None if profile.wall_ns is None else profile.wall_ns / profile.steps


def _change(name: str, before_ns: float | None, after_ns: float | None) -> ProfileChange:
    percent = None
    if before_ns:
        percent = 100.0 * ((after_ns or 0.0) / before_ns - 1.0)
    return ProfileChange(name, before_ns, after_ns, percent)


def signed(percent: float | None) -> str:
    """A change in percent with its sign: "−62 %", "+4.1 %"; "new" without a before."""
    if percent is None:
        return "new"
    return f"{'+' if percent > 0 else ''}{words.percent(percent)}"


def _verdict(step: ProfileChange, changes: Sequence[ProfileChange], what: str) -> str:
    after = f"After {what} a" if what else "A"
    if step.percent is None:
        return f"{after} step's time was not measured in both profiles."
    if abs(step.percent) < SAME_PERCENT:
        return f"{after} step takes as long as before ({words.duration(step.after_ns)})."
    direction = "less" if step.percent < 0 else "more"
    times = f"{words.duration(step.before_ns)} → {words.duration(step.after_ns)}"
    text = f"{after} step takes {words.percent(abs(step.percent))} {direction} time ({times})"
    if not changes or not changes[0].difference_ns:
        return f"{text}."
    most = changes[0].name[:80] or "the model itself"
    return f"{text}; most of the difference is in {most} ({signed(changes[0].percent)})."
