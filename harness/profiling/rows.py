"""Makes the rows of a profile out of its sums, and cuts what is too much to keep. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from harness import words
from harness.profile_records import Kind, ProfileModuleRow, ProfileOpRow, ProfileStackRow
from harness.profiling.kinds import classify
from harness.profiling.nesting import Name, OperatorSum, OwnSum, Place, Sums
from harness.records import Phase

# Operators that are kept, and as many kernels; those left make one row a kind, so that sums stay.
MOST_OPERATORS = 250
# Rows of modules that are kept; beyond that the deepest count into those around them.
MOST_MODULES = 1_500
MOST_STACKS = 300
# Characters of a name; those of templates run to thousands.
_MOST_NAME = 300


class Kept(NamedTuple):
    """The rows of a profile, and what is not among them, in sentences."""

    operators: list[ProfileOpRow]
    modules: list[ProfileModuleRow]
    stacks: list[ProfileStackRow]
    left_out: list[str]


def rows(
    number: int,
    sums: Sums,
    classes: Mapping[str, str],
    is_on_device: bool,
    with_memory: bool,
    with_stacks: bool,
) -> Kept:
    """The rows of the profile `number`. `classes` names the class of every module by its path."""
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
    return Kept(ranked, modules, stacks, left_out)


def _operators(
    number: int,
    sums: Mapping[Name, OperatorSum],
    is_kernel: bool,
    is_on_device: bool,
    with_memory: bool,
    left_out: list[str],
) -> list[ProfileOpRow]:
    """One row a name; of the many small ones, one a kind."""
    named: defaultdict[tuple[str, Kind], OperatorSum] = defaultdict(OperatorSum)
    weight = _own_device if is_on_device else _own_cpu
    ordered = sorted(sums.items(), key=lambda one: (-weight(one[1]), -_own_cpu(one[1]), one[0]))
    for (name, is_update), found in ordered[:MOST_OPERATORS]:
        _add(named[name[:_MOST_NAME], _kind(name, is_update)], found)
    rest = ordered[MOST_OPERATORS:]
    for (name, is_update), found in rest:
        kind = _kind(name, is_update)
        _add(named[f"({kind.value}: smaller ones)", kind], found)
    if rest:
        what = "kernels" if is_kernel else "operators"
        left_out.append(f"The {len(rest):,} {what} with the least time of their own are summed up by kind.")
    return [
        ProfileOpRow(
            profile_id=number,
            rank=0,
            name=name,
            kind=kind.value,
            is_kernel=int(is_kernel),
            calls=found.calls,
            self_cpu_ns=found.self_cpu_ns,
            total_cpu_ns=found.total_cpu_ns,
            self_device_ns=found.self_device_ns if is_on_device else None,
            total_device_ns=found.total_device_ns if is_on_device else None,
            self_bytes=found.size_bytes if with_memory else None,
        )
        for (name, kind), found in named.items()
    ]


def _kind(name: str, is_update: bool) -> Kind:
    """What the optimizer runs is its work, whatever it is called; gradients may be exchanged within."""
    kind = classify(name)
    return Kind.OPTIMIZER if is_update and kind is not Kind.COMMUNICATION else kind


def _own_device(found: OperatorSum | OwnSum) -> int:
    return found.self_device_ns


def _own_cpu(found: OperatorSum | OwnSum) -> int:
    return found.self_cpu_ns


def _add(to: OperatorSum, more: OperatorSum) -> None:
    to.calls += more.calls
    to.self_cpu_ns += more.self_cpu_ns
    to.total_cpu_ns += more.total_cpu_ns
    to.self_device_ns += more.self_device_ns
    to.total_device_ns += more.total_device_ns
    to.size_bytes += more.size_bytes


def _modules(
    number: int,
    sums: Mapping[Place, OwnSum],
    classes: Mapping[str, str],
    is_on_device: bool,
    left_out: list[str],
) -> list[ProfileModuleRow]:
    """Each module in each phase, and all modules around it, with totals."""
    own, depth = _folded(sums)
    if depth is not None:
        left_out.append(f"Modules deeper than {words.plural(depth, 'level')} count into those around them.")
    totals: defaultdict[Place, list[int]] = defaultdict(lambda: [0, 0])
    for (module, phase), found in own.items():
        for path in around(module):
            total = totals[path, phase]
            total[0] += found.self_cpu_ns
            total[1] += found.self_device_ns
    made = []
    for (module, phase), (cpu_ns, device_ns) in sorted(totals.items()):
        mine = own.get((module, phase), OwnSum())
        calls = own.get((module, Phase.FORWARD.value), mine).calls if phase == Phase.BACKWARD else mine.calls
        times = (mine.self_cpu_ns, cpu_ns)
        device = (mine.self_device_ns, device_ns) if is_on_device else (None, None)
        made.append(ProfileModuleRow(number, module, phase, classes.get(module, ""), calls, *times, *device))
    return made


def _folded(sums: Mapping[Place, OwnSum]) -> tuple[Mapping[Place, OwnSum], int | None]:
    """The sums by module and phase, the deepest modules counted into those around them where there are too
    many; and to which depth."""
    depth = max((module.count(".") + 1 for module, _ in sums), default=0)
    found, cut = sums, None
    while len(found) > MOST_MODULES and depth > 1:
        depth -= 1
        cut = depth
        folded: defaultdict[Place, OwnSum] = defaultdict(OwnSum)
        for (module, phase), one in sums.items():
            is_whole = module.count(".") < depth
            kept = folded[module if is_whole else ".".join(module.split(".")[:depth]), phase]
            kept.calls += one.calls if is_whole else 0
            kept.self_cpu_ns += one.self_cpu_ns
            kept.self_device_ns += one.self_device_ns
        found = folded
    return found, cut


def around(module: str) -> list[str]:
    """The module's path and those of all modules around it; of what is no module, itself."""
    if module.startswith("<"):
        return [module]
    parts = module.split(".") if module else []
    return [".".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _stacks(
    number: int, sums: Mapping[tuple[str, ...], OwnSum], is_on_device: bool, left_out: list[str]
) -> list[ProfileStackRow]:
    weight = _own_device if is_on_device else _own_cpu
    ordered = sorted(sums.items(), key=lambda one: (-weight(one[1]), -_own_cpu(one[1]), one[0]))
    rest = sum(weight(found) for _, found in ordered[MOST_STACKS:])
    total = sum(weight(found) for _, found in ordered)
    if rest:
        share = words.percent(100 * rest / total)
        count = words.count(len(ordered) - MOST_STACKS)
        left_out.append(f"{count} stacks that took {share} of the time together.")
    return [
        ProfileStackRow(
            number,
            rank,
            "\n".join(frame[:_MOST_NAME] for frame in frames),
            found.calls,
            found.self_cpu_ns,
            found.self_device_ns if is_on_device else None,
        )
        for rank, (frames, found) in enumerate(ordered[:MOST_STACKS], 1)
    ]
