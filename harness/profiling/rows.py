"""Conversion of a profile's sums to rows, up to a number of rows. Pure."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from harness import words
from harness.profiling.kinds import classify
from harness.profiling.nesting import ModulePhase, OperatorKey, OperatorSum, ProfileSums, SelfSum
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileOpRow, ProfileStackRow
from harness.records.run import Phase

# The most operators, and the most kernels; the rest are one row per kind, so that sums are complete.
MOST_OPERATORS = 250
# The most rows of modules; beyond that the deepest modules are merged into their parents.
MOST_MODULES = 1_500
MOST_STACKS = 300
# Measured with torch 2.6, 2.11 and 2.13, on the CPU.
NO_LINES = "The lines of Python in its stacks: torch recorded none, as versions before 2.13 do."
# "file:line function", as `frames.frame_name` formats it; other frames are nodes of autograd.
_LINE = re.compile(r":\d+ ")
# Characters of a name; those of templates can have thousands.
_MOST_NAME = 300


class ProfileRows(NamedTuple):
    """The rows of a profile, and sentences about missing data."""

    operators: list[ProfileOpRow]
    modules: list[ProfileModuleRow]
    stacks: list[ProfileStackRow]
    left_out: list[str]


def rows(
    number: int,
    sums: ProfileSums,
    classes: Mapping[str, str],
    is_on_device: bool,
    with_memory: bool,
    with_stacks: bool,
) -> ProfileRows:
    """Return the rows of the profile `number`. `classes` has the class of every module by path."""
    left_out: list[str] = []
    operators = [
        *_operators(number, sums.operators, False, is_on_device, with_memory, left_out),
        *_operators(number, sums.kernels, True, is_on_device, False, left_out),
    ]
    operators.sort(
        key=lambda row: (-((row.self_device_ns or 0) if is_on_device else row.self_cpu_ns), row.name)
    )
    ranked = [row._replace(rank=rank) for rank, row in enumerate(operators, 1)]
    modules = _modules(number, sums.modules, classes, is_on_device, left_out)
    stacks = _stacks(number, sums.stacks, is_on_device, left_out) if with_stacks else []
    return ProfileRows(ranked, modules, stacks, left_out)


def _operators(
    number: int,
    sums: Mapping[OperatorKey, OperatorSum],
    is_kernel: bool,
    is_on_device: bool,
    with_memory: bool,
    left_out: list[str],
) -> list[ProfileOpRow]:
    """Return one row per name, and one row per kind for the smallest operators."""
    named: defaultdict[tuple[str, OperatorKind], OperatorSum] = defaultdict(OperatorSum)
    weight = _self_device if is_on_device else _self_cpu
    ordered = sorted(sums.items(), key=lambda one: (-weight(one[1]), -_self_cpu(one[1]), one[0]))
    for (name, is_update), operator_sum in ordered[:MOST_OPERATORS]:
        _add(named[name[:_MOST_NAME], _kind(name, is_update)], operator_sum)
    rest = ordered[MOST_OPERATORS:]
    for (name, is_update), operator_sum in rest:
        kind = _kind(name, is_update)
        _add(named[f"({kind.value}: smaller ones)", kind], operator_sum)
    if rest:
        what = "kernels" if is_kernel else "operators"
        left_out.append(f"The {len(rest):,} {what} with the least self time are summed by kind.")
    return [
        ProfileOpRow(
            profile_id=number,
            rank=0,
            name=name,
            kind=kind.value,
            is_kernel=int(is_kernel),
            calls=operator_sum.calls,
            self_cpu_ns=operator_sum.self_cpu_ns,
            total_cpu_ns=operator_sum.total_cpu_ns,
            self_device_ns=operator_sum.self_device_ns if is_on_device else None,
            total_device_ns=operator_sum.total_device_ns if is_on_device else None,
            self_bytes=operator_sum.size_bytes if with_memory else None,
        )
        for (name, kind), operator_sum in named.items()
    ]


def _kind(name: str, is_update: bool) -> OperatorKind:
    """Classify an operator; all operators of the optimizer are of its kind, except communication."""
    kind = classify(name)
    return OperatorKind.OPTIMIZER if is_update and kind is not OperatorKind.COMMUNICATION else kind


def _self_device(sums: OperatorSum | SelfSum) -> int:
    return sums.self_device_ns


def _self_cpu(sums: OperatorSum | SelfSum) -> int:
    return sums.self_cpu_ns


def _add(to: OperatorSum, more: OperatorSum) -> None:
    to.calls += more.calls
    to.self_cpu_ns += more.self_cpu_ns
    to.total_cpu_ns += more.total_cpu_ns
    to.self_device_ns += more.self_device_ns
    to.total_device_ns += more.total_device_ns
    to.size_bytes += more.size_bytes


def _modules(
    number: int,
    sums: Mapping[ModulePhase, SelfSum],
    classes: Mapping[str, str],
    is_on_device: bool,
    left_out: list[str],
) -> list[ProfileModuleRow]:
    """Return a row per module and phase, with totals that include children."""
    own, depth = _folded(sums)
    if depth is not None:
        left_out.append(f"Modules deeper than {words.plural(depth, 'level')} are merged into their parents.")
    totals: defaultdict[ModulePhase, list[int]] = defaultdict(lambda: [0, 0])
    for (module, phase), self_sum in own.items():
        for path in around(module):
            total = totals[path, phase]
            total[0] += self_sum.self_cpu_ns
            total[1] += self_sum.self_device_ns
    made = []
    for (module, phase), (cpu_ns, device_ns) in sorted(totals.items()):
        mine = own.get((module, phase), SelfSum())
        calls = own.get((module, Phase.FORWARD.value), mine).calls if phase == Phase.BACKWARD else mine.calls
        times = (mine.self_cpu_ns, cpu_ns)
        device = (mine.self_device_ns, device_ns) if is_on_device else (None, None)
        made.append(ProfileModuleRow(number, module, phase, classes.get(module, ""), calls, *times, *device))
    return made


def _folded(sums: Mapping[ModulePhase, SelfSum]) -> tuple[Mapping[ModulePhase, SelfSum], int | None]:
    """Merge the deepest modules into their parents if there are too many; return the sums and the depth."""
    depth = max((module.count(".") + 1 for module, _ in sums), default=0)
    merged, cut_depth = sums, None
    while len(merged) > MOST_MODULES and depth > 1:
        depth -= 1
        cut_depth = depth
        folded: defaultdict[ModulePhase, SelfSum] = defaultdict(SelfSum)
        for (module, phase), one in sums.items():
            is_whole = module.count(".") < depth
            parent = folded[module if is_whole else ".".join(module.split(".")[:depth]), phase]
            parent.calls += one.calls if is_whole else 0
            parent.self_cpu_ns += one.self_cpu_ns
            parent.self_device_ns += one.self_device_ns
        merged = folded
    return merged, cut_depth


def around(module: str) -> list[str]:
    """Return the paths of the module and its parents; of a place in angle brackets, only itself."""
    if module.startswith("<"):
        return [module]
    parts = module.split(".") if module else []
    return [".".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _stacks(
    number: int, sums: Mapping[tuple[str, ...], SelfSum], is_on_device: bool, left_out: list[str]
) -> list[ProfileStackRow]:
    weight = _self_device if is_on_device else _self_cpu
    if sums and not any(_LINE.search(frame) for *frames, _operator in sums for frame in frames):
        left_out.append(NO_LINES)
    ordered = sorted(sums.items(), key=lambda one: (-weight(one[1]), -_self_cpu(one[1]), one[0]))
    rest = sum(weight(stack_sum) for _, stack_sum in ordered[MOST_STACKS:])
    total = sum(weight(stack_sum) for _, stack_sum in ordered)
    if rest:
        share = words.percent(100 * rest / total)
        count = words.count(len(ordered) - MOST_STACKS)
        left_out.append(f"{count} stacks with {share} of the time in total.")
    return [
        ProfileStackRow(
            number,
            rank,
            "\n".join(frame[:_MOST_NAME] for frame in frames),
            stack_sum.calls,
            stack_sum.self_cpu_ns,
            stack_sum.self_device_ns if is_on_device else None,
        )
        for rank, (frames, stack_sum) in enumerate(ordered[:MOST_STACKS], 1)
    ]
