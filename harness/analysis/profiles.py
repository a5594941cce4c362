"""What a profile says: its time by kind of work, operator or module, and what changed between two. Pure.

Time is taken on the clock of what does the work: of kernels where they were recorded, of operators on the CPU
otherwise.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.profile_records import Kind, ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow

# Steps that differ by less than this take as long, as in `harness.analysis.effect`, which has far more steps
# to tell by.
SAME_PERCENT = 1.0

_KINDS_TOLD = 3


class Grouping(StrEnum):
    """What time is summed up by."""

    KIND = "kind"
    OPERATOR = "operator"
    MODULE = "module"
    STACK = "stack"


class Part(NamedTuple):
    """What one kind of work, operator, kernel, module or stack took in all steps of a profile."""

    name: str
    time_ns: float
    """Its own, without what it called."""
    share: float | None
    """Of the steps' wall time, 0 to 1; None where that was not measured."""
    calls: int


class Change(NamedTuple):
    """What one part takes a step, before and after; None where it did not occur at all."""

    name: str
    before_ns: float | None
    after_ns: float | None
    percent: float | None
    """Of before; None where there is no before."""

    @property
    def difference_ns(self) -> float:
        """How much more it takes now."""
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)


class Comparison(NamedTuple):
    """Two profiles side by side."""

    step: Change
    """The whole step."""
    changes: list[Change]
    """What differs most first; together they are the difference of the whole, idle time included, when they
    are by kind."""
    verdict: str
    """One sentence."""


def own_ns(row: ProfileOpRow, profile: ProfileRow) -> int | None:
    """The time of `row` that counts towards the steps' time; None for what only issued work: operators, where
    kernels were recorded."""
    if bool(row.is_kernel) != bool(profile.on_device):
        return None
    return row.self_device_ns if row.is_kernel else row.self_cpu_ns


def share(part_ns: float, profile: ProfileRow) -> float | None:
    """The share of the steps' wall time, 0 to 1; None where that was not measured."""
    return part_ns / profile.wall_ns if profile.wall_ns else None


def by_kind(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> list[Part]:
    """The time of each kind of work, the most first, idle time last; together they are the wall time.

    Where kernels overlap, or operators on several threads, each counts for its part of the busy time.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in operators:
        time_ns = own_ns(row, profile)
        if time_ns is not None:
            sums[row.kind] += time_ns
            calls[row.kind] += row.calls
    seen_ns = sum(sums.values())
    scale = 1.0 if profile.busy_ns is None or seen_ns <= 0 else profile.busy_ns / seen_ns
    found = [
        Part(kind, time_ns * scale, share(time_ns * scale, profile), calls[kind])
        for kind, time_ns in sorted(sums.items(), key=lambda one: -one[1])
    ]
    idle = idle_ns(profile)
    if idle is not None:
        found.append(Part(Kind.IDLE.value, float(idle), share(idle, profile), 0))
    return found


def idle_ns(profile: ProfileRow) -> int | None:
    """Wall time in which nothing ran; None where it is not known."""
    if profile.wall_ns is None or profile.busy_ns is None:
        return None
    return max(0, profile.wall_ns - profile.busy_ns)


def by_operator(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> list[Part]:
    """The time of each kernel, or of each operator on the CPU alone, the most first."""
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in operators:
        time_ns = own_ns(row, profile)
        if time_ns is not None:
            sums[row.name] += time_ns
            calls[row.name] += row.calls
    found = [Part(name, time_ns, share(time_ns, profile), calls[name]) for name, time_ns in sums.items()]
    return sorted(found, key=lambda part: -part.time_ns)


def by_module(modules: Sequence[ProfileModuleRow], profile: ProfileRow) -> list[Part]:
    """The time of each module of its own, all phases together, the most first."""
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in modules:
        sums[row.module] += (row.self_device_ns if profile.on_device else row.self_cpu_ns) or 0
        calls[row.module] = max(calls[row.module], row.calls)
    found = [Part(name, time_ns, share(time_ns, profile), calls[name]) for name, time_ns in sums.items()]
    return sorted(found, key=lambda part: -part.time_ns)


def by_stack(stacks: Sequence[ProfileStackRow], profile: ProfileRow) -> list[Part]:
    """The time of each stack of lines, the most first."""
    found = []
    for row in stacks:
        time_ns = (row.self_device_ns if profile.on_device else row.self_cpu_ns) or 0
        found.append(Part(row.stack, float(time_ns), share(time_ns, profile), row.calls))
    return sorted(found, key=lambda part: -part.time_ns)


def sentence(operators: Sequence[ProfileOpRow], profile: ProfileRow) -> str:
    """What takes most, for people."""
    parts = by_kind(operators, profile)
    work = [part for part in parts if part.name != Kind.IDLE]
    told = work[:_KINDS_TOLD] + [part for part in parts if part.name == Kind.IDLE]
    kinds = ", ".join(f"{part.name} {_percent(part.share)}" for part in told)
    text = f"{words.plural(profile.steps, 'step')} took {words.duration(profile.wall_ns)}: {kinds}."
    longest = by_operator(operators, profile)
    if longest:
        text += f" Most is in {longest[0].name[:80]} ({_percent(longest[0].share)})."
    return text


def _percent(part: float | None) -> str:
    return words.percent(None if part is None else 100 * part)


def compare(
    before: Sequence[Part],
    after: Sequence[Part],
    profiles: tuple[ProfileRow, ProfileRow],
    what: str = "",
) -> Comparison:
    """What changed from one profile to the other, a step. `what` says what was changed ("AMP bf16").

    Raises ValueError when one was taken on the device's clock and the other was not, or one holds no steps.
    """
    old, new = profiles
    if not old.steps or not new.steps:
        raise ValueError("One of these profiles failed; there is nothing to compare.")
    if old.on_device != new.on_device:
        raise ValueError(
            "One of these profiles is of kernels on the device, the other of operators on the CPU."
        )
    earlier = {part.name: part.time_ns / old.steps for part in before}
    later = {part.name: part.time_ns / new.steps for part in after}
    changes = [_change(name, earlier.get(name), later.get(name)) for name in {**earlier, **later}]
    changes.sort(key=lambda one: (-abs(one.difference_ns), one.name))
    step = _change("step", _per_step(old), _per_step(new))
    return Comparison(step, changes, _verdict(step, changes, what))


def _per_step(profile: ProfileRow) -> float | None:
    return None if profile.wall_ns is None else profile.wall_ns / profile.steps


def _change(name: str, before_ns: float | None, after_ns: float | None) -> Change:
    percent = None
    if before_ns:
        percent = 100.0 * ((after_ns or 0.0) / before_ns - 1.0)
    return Change(name, before_ns, after_ns, percent)


def signed(percent: float | None) -> str:
    """A change in per cent with its sign: "−62 %", "+4.1 %"; "new" where there was nothing before."""
    if percent is None:
        return "new"
    return f"{'+' if percent > 0 else ''}{words.percent(percent)}"


def _verdict(step: Change, changes: Sequence[Change], what: str) -> str:
    after = f"After {what} a" if what else "A"
    if step.percent is None:
        return f"{after} step's time is not known in both profiles."
    if abs(step.percent) < SAME_PERCENT:
        return f"{after} step takes as long as before ({words.duration(step.after_ns)})."
    direction = "less" if step.percent < 0 else "more"
    times = f"{words.duration(step.before_ns)} → {words.duration(step.after_ns)}"
    text = f"{after} step takes {words.percent(abs(step.percent))} {direction} time ({times})"
    if not changes or not changes[0].difference_ns:
        return f"{text}."
    most = changes[0].name[:80] or "the model itself"
    return f"{text}; most of the difference is in {most} ({signed(changes[0].percent)})."
