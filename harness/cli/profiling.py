"""`profile`: the time of a few steps by kind, operator, module or stack, and a comparison of two profiles."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.profiles import (
    Grouping,
    ProfileChange,
    ProfilePart,
    by_kind,
    by_module,
    by_operator,
    by_stack,
    compare,
    own_ns,
    share,
    signed,
)
from harness.analysis.slowdown import slowdown_of
from harness.analysis.timing.phases import part_label
from harness.cli.parser import Parser, add_command
from harness.cli.shell import RUN_HELP, Shell, find_run
from harness.errors import LogError, UsageError
from harness.records.profile import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.settings.spec import change_title
from harness.store.folder import RunFolder
from harness.store.reader import LogReader

_MOST_ROWS = 25
_MODEL = "(the model)"
_NO_PROFILE = "This run has no profile; while it trains, `stepscope do RUN profile` takes one."


class _Profile(NamedTuple):
    """A profile with all of its rows."""

    row: ProfileRow
    operators: list[ProfileOpRow]
    modules: list[ProfileModuleRow]
    stacks: list[ProfileStackRow]


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "show which operators and modules take the time of a step, or compare two profiles"
    parser = add_command(commands, "profile", summary, show_profile, is_json=True)
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("of", metavar="ID", nargs="?", type=int, help="the profile (default: the newest)")
    parser.add_argument("other", metavar="OTHER", nargs="?", type=int, help="a later one to compare it with")
    parser.add_argument(
        "--by", choices=list(Grouping), default=Grouping.KIND, help="group time by (default kind)"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"show every row instead of the first {_MOST_ROWS}"
    )


def show_profile(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope profile RUN [ID [OTHER]]`."""
    folder = find_run(shell.home(arguments), arguments.run)
    with LogReader(folder.log) as log:
        profiles = log.profiles.all()
        if arguments.other is not None:
            return _show_changes(arguments, shell, log, profiles)
        is_choice = bool(profiles) or arguments.of is not None
        chosen = _chosen(profiles, arguments.of) if is_choice else None
        profile = None if chosen is None else _read(log, chosen)
    if arguments.is_json:
        shell.print_json(_json(profiles, profile))
        return 0
    if profile is None:
        shell.print_status(_NO_PROFILE)
        return 0
    shell.print_table(_HEADINGS, [_cells(row) for row in profiles])
    shell.print_line("")
    shell.print_line(f"Profile {profile.row.profile_id}: {profile.row.message}")
    if profile.row.steps:
        _print_parts(arguments, shell, profile)
    if profile.row.left_out:
        shell.print_line(f"Left out: {profile.row.left_out}")
    if profile.row.file is not None:
        shell.print_line(f"Trace: {folder.captures / profile.row.file} (open it at ui.perfetto.dev).")
    return 0


def _chosen(profiles: Sequence[ProfileRow], number: int | None) -> ProfileRow:
    """Return the profile `number`; without one, the newest that did not fail, else the newest."""
    if number is None:
        return next((row for row in reversed(profiles) if row.steps), profiles[-1])
    for row in profiles:
        if row.profile_id == number:
            return row
    numbers = ", ".join(str(row.profile_id) for row in profiles)
    if not numbers:
        raise UsageError(f"There is no profile {number}. {_NO_PROFILE}")
    raise UsageError(f"There is no profile {number} in this run; it has {numbers}.")


def _read(log: LogReader, row: ProfileRow) -> _Profile:
    number = row.profile_id
    rows = log.profiles.operators(number), log.profiles.modules(number), log.profiles.stacks(number)
    return _Profile(row, *rows)


def _json(profiles: Sequence[ProfileRow], profile: _Profile | None) -> dict[str, Any]:
    document: dict[str, Any] = {"profiles": [row._asdict() for row in profiles]}
    if profile is None:
        return document | {"of": None, "kinds": [], "operators": [], "modules": [], "stacks": []}
    return document | {
        "of": profile.row.profile_id,
        "kinds": [part._asdict() for part in by_kind(profile.operators, profile.row)],
        "operators": [row._asdict() for row in profile.operators],
        "modules": [row._asdict() for row in profile.modules],
        "stacks": [row._asdict() for row in profile.stacks],
    }


_HEADINGS = ("ID>", "STEPS", "STEP TIME>", "IDLE>", "SLOWDOWN>", "WAIT>", "")


def _cells(row: ProfileRow) -> tuple[str, ...]:
    if not row.steps:
        return (str(row.profile_id), words.count(row.first_step), *[words.NOT_AVAILABLE] * 4, row.message)
    idle = None if row.busy_ns is None else share(max(0, (row.wall_ns or 0) - row.busy_ns), row)
    slowdown = slowdown_of(row.slowdown)
    return (
        str(row.profile_id),
        f"{words.count(row.first_step)} to {words.count(row.first_step + row.steps - 1)}",
        words.duration(_per_step(row.wall_ns, row)),
        _percent(idle),
        words.NOT_AVAILABLE if slowdown is None else signed(100 * (slowdown - 1)),
        words.duration(row.took_ns),
        row.message,
    )


def _per_step(value_ns: float | None, row: ProfileRow) -> float | None:
    return None if value_ns is None else value_ns / row.steps


def _percent(value: float | None) -> str:
    return words.percent(None if value is None else 100 * value)


def _print_parts(arguments: Namespace, shell: Shell, profile: _Profile) -> None:
    by = Grouping(arguments.by)
    headings, rows = _table(by, profile)
    if not rows:
        shell.print_line("Stacks were not recorded; record them with `stepscope do RUN profile --stacks`.")
        return
    shell.print_line("")
    listed = rows if arguments.all else rows[:_MOST_ROWS]
    shell.print_table(headings, listed)
    if len(rows) > len(listed):
        shell.print_line(f"{words.plural(len(rows) - len(listed), 'smaller row')} more; --all shows them.")


def _table(by: Grouping, profile: _Profile) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    row = profile.row
    match by:
        case Grouping.OPERATOR:
            return _operator_headings(row), [_operator(one, row) for one in profile.operators]
        case Grouping.MODULE:
            own = sorted(profile.modules, key=lambda one: -own_ns(one, row))
            return _MODULES, [_module(one, row) for one in own]
        case Grouping.STACK:
            parts = by_stack(profile.stacks, row)
            return _PARTS, [_part(one._replace(name=_line(one.name)), row) for one in parts]
        case Grouping.KIND:
            return _PARTS, [_part(one, row) for one in by_kind(profile.operators, row)]


_PARTS = ("PER STEP", "TIME>", "SHARE>", "CALLS>")
_MEMORY = ("ALLOCATED>",)
_MODULES = ("PER STEP", "CLASS", "PHASE", "CALLS>", "SELF>", "TOTAL>", "SHARE>")


def _part(part: ProfilePart, row: ProfileRow) -> tuple[str, ...]:
    times = _times(row, part.time_ns)
    return (part.name, *times, _percent(part.share), _calls(part.calls, row) if part.calls else "")


def _operator_headings(row: ProfileRow) -> tuple[str, ...]:
    """Return the headings of the recorded columns."""
    device = ("SELF DEVICE>", "TOTAL DEVICE>") if row.on_device else ()
    return ("PER STEP", "KIND", "CALLS>", "SELF CPU>", "TOTAL CPU>", *device, *_MEMORY[: row.with_memory])


def _operator(one: ProfileOpRow, row: ProfileRow) -> tuple[str, ...]:
    cpu = ("", "") if one.is_kernel else _times(row, one.self_cpu_ns, one.total_cpu_ns)
    device = _times(row, one.self_device_ns, one.total_device_ns) if row.on_device else ()
    memory = (words.size(_per_step(one.self_bytes, row)),) if row.with_memory else ()
    return (one.name, one.kind, _calls(one.calls, row), *cpu, *device, *memory)


def _calls(calls: int, row: ProfileRow) -> str:
    return words.figure(calls / row.steps)


def _times(row: ProfileRow, *values_ns: float | None) -> tuple[str, ...]:
    return tuple(words.duration(_per_step(value, row)) for value in values_ns)


def _module(one: ProfileModuleRow, row: ProfileRow) -> tuple[str, ...]:
    total_ns = (one.total_device_ns if row.on_device else one.total_cpu_ns) or 0
    times = _times(row, own_ns(one, row), total_ns)
    calls = _calls(one.calls, row)
    place = (one.module or _MODEL, one.class_name, part_label(one.phase))
    return (*place, calls, *times, _percent(share(own_ns(one, row), row)))


def _line(stack: str) -> str:
    return stack.replace("\n", " › ")


def _show_changes(arguments: Namespace, shell: Shell, log: LogReader, profiles: Sequence[ProfileRow]) -> int:
    pair = [_read(log, _chosen(profiles, number)) for number in (arguments.of, arguments.other)]
    before, after = pair
    by = Grouping(arguments.by)
    try:
        comparison = compare(
            _parts(by, before), _parts(by, after), (before.row, after.row), _changed(log, before, after)
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.is_json:
        shell.print_json(
            {
                "before": before.row.profile_id,
                "after": after.row.profile_id,
                "by": by,
                "step": comparison.step._asdict(),
                "changes": [one._asdict() for one in comparison.changes],
                "verdict": comparison.verdict,
            }
        )
        return 0
    shell.print_line(comparison.verdict)
    shell.print_line("")
    changes = [comparison.step, *comparison.changes]
    listed = changes if arguments.all else changes[: _MOST_ROWS + 1]
    shell.print_table(_CHANGES, [_change(one) for one in listed])
    if len(changes) > len(listed):
        shell.print_line(
            f"{words.plural(len(changes) - len(listed), 'smaller change')} more; --all shows them."
        )
    return 0


_CHANGES = ("PER STEP", "BEFORE>", "AFTER>", "DIFFERENCE>", "CHANGE>")


def _change(one: ProfileChange) -> tuple[str, ...]:
    sign = "+" if one.difference_ns > 0 else ""
    difference = f"{sign}{words.duration(one.difference_ns)}"
    times = (words.duration(one.before_ns), words.duration(one.after_ns))
    return (_line(one.name) or _MODEL, *times, difference, signed(one.percent))


def _parts(by: Grouping, profile: _Profile) -> list[ProfilePart]:
    match by:
        case Grouping.KIND:
            return by_kind(profile.operators, profile.row)
        case Grouping.OPERATOR:
            return by_operator(profile.operators, profile.row)
        case Grouping.MODULE:
            return by_module(profile.modules, profile.row)
        case Grouping.STACK:
            return by_stack(profile.stacks, profile.row)


def _changed(log: LogReader, before: _Profile, after: _Profile) -> str:
    """Return the settings changed between the two, as in a chart's marker."""
    changed: dict[str, Any] = {}
    for version in log.settings_history():
        if before.row.settings_version < version.version <= after.row.settings_version:
            changed |= version.changes
    return change_title(changed)


def profiles_of(folder: RunFolder) -> list[ProfileRow]:
    """Read the profiles of a run; empty if its log cannot be read."""
    try:
        with LogReader(folder.log) as log:
            return log.profiles.all()
    except LogError:
        return []


def profile_facts(profiles: Sequence[ProfileRow]) -> list[tuple[str, str]]:
    """Return the lines of `stepscope show` on a run's profiles."""
    return [(f"profile {row.profile_id}", row.message) for row in profiles]
