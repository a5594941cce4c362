"""`compare`: two or more runs by their figures and settings, with gates for CI."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import words
from harness.analysis.compare.facts import FIGURES, RunFacts
from harness.analysis.compare.gates import GateResult, judge, parse_gate
from harness.analysis.compare.pairs import (
    RunPair,
    SettingDifference,
    common_figures,
    compare_pair,
    settings_that_differ,
)
from harness.analysis.compare.parts import parts_side_by_side
from harness.analysis.timing.phases import ClockTimes, StepPart, part_label
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.errors import StepscopeError, UsageError
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.supervisor.comparing import read_facts
from harness.supervisor.equal_losses import with_equal_losses

GATE_CODE = 4
MOST_RUNS = 8
RUN_HELP = "id, name, an unambiguous beginning, 'latest', or the path of a run's folder"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(
        commands,
        "compare",
        "two or more runs by their figures and settings; the first is the baseline",
        compare_runs,
        is_json=True,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument(
        "--fail-if",
        metavar="GATE",
        action="append",
        default=[],
        help="exit with code 4 if a run exceeds a limit, as 'step_time>+5%%' of the baseline or "
        f"'peak_allocated>8GiB'; figures: {', '.join(FIGURES)}; may be repeated",
    )


def compare_runs(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope compare A B [C…]`."""
    gates = [parse_gate(text) for text in arguments.fail_if]
    folders = distinct_runs(shell.home(arguments), arguments.runs)
    if len(folders) < 2:
        raise UsageError("One run is no comparison; name two or more: stepscope compare A B.")
    supervisor = Supervisor(shell.home(arguments), is_read_only=True)
    read = [read_facts(folder, supervisor.summary(folder)) for folder in folders]
    runs = with_equal_losses(folders, read)
    if not common_figures(runs):
        without = ", ".join(repr(run.name) for run in runs if run.timing is None)
        reason = f": {without} has no step" if without else ""
        raise StepscopeError(
            f"These runs have no figure in common{reason}; compare runs that trained, or scalars on the "
            "Compare page."
        )
    pairs = [compare_pair(runs[0], other) for other in runs[1:]]
    differing = settings_that_differ(runs)
    names = [run.name for run in runs]
    results = [
        judge(gate, pair, (names[0], names[at])) for gate in gates for at, pair in enumerate(pairs, start=1)
    ]
    if arguments.is_json:
        shell.print_json(_json(runs, pairs, differing, results))
    else:
        _print(shell, runs, pairs, differing)
        for result in results:
            shell.print_line(f"gate {result.sentence}")
    return GATE_CODE if any(result.has_failed for result in results) else 0


def distinct_runs(home: Home, keys: Sequence[str]) -> list[RunFolder]:
    """Return the runs that `keys` name, in order. Raises UsageError for too many and for one named twice."""
    if len(keys) > MOST_RUNS:
        raise UsageError(f"{len(keys)} runs are too many to compare; name at most {MOST_RUNS}.")
    folders: list[RunFolder] = []
    for key in keys:
        folder = find_run_or_folder(home, key)
        if any(folder.path.resolve() == other.path.resolve() for other in folders):
            raise UsageError(f"The run {folder.request().name!r} is named twice; name different runs.")
        folders.append(folder)
    return folders


def find_run_or_folder(home: Home, key: str) -> RunFolder:
    """Return the run `key`, or the one in the folder `key`. Raises UnknownRunError."""
    path = Path(key).expanduser()
    if len(path.parts) > 1 and path.is_dir():
        return RunFolder(path.absolute())
    return find_run(home, key)


def _print(
    shell: Shell, runs: Sequence[RunFacts], pairs: Sequence[RunPair], differing: Sequence[SettingDifference]
) -> None:
    for pair in pairs:
        shell.print_line(pair.verdict)
    shell.print_line("")
    shell.print_table(_headings(runs), _figure_rows(runs, pairs))
    names = [run.name for run in runs]
    if differing:
        shell.print_line("")
        rows = [(row.name, *row.values) for row in differing]
        shell.print_table(("SETTING", *names), rows)
    phases = _phase_rows(runs)
    if phases:
        shell.print_line("")
        shell.print_table(("PHASE, SHARE OF STEP", *(f"{name}>" for name in names)), phases)
    memory = _memory_rows(runs)
    if memory:
        shell.print_line("")
        shell.print_table(("MEMORY, NEWEST SAMPLE", *(f"{name}>" for name in names)), memory)
    kinds = _kind_rows(runs)
    if kinds:
        shell.print_line("")
        shell.print_table(("KIND OF WORK, PER STEP", *(f"{name}>" for name in names)), kinds)
    for run in runs:
        if run.change_note is not None:
            shell.print_line(run.change_note)


def _headings(runs: Sequence[RunFacts]) -> list[str]:
    headings = ["FIGURE", f"{runs[0].name}>"]
    for run in runs[1:]:
        headings += [f"{run.name}>", "CHANGE>", "95 % INTERVAL>"]
    return headings


def _figure_rows(runs: Sequence[RunFacts], pairs: Sequence[RunPair]) -> list[list[str]]:
    rows = []
    for figure in FIGURES.values():
        values = [figure.read(run) for run in runs]
        if all(value is None for value in values):
            continue
        row = [figure.label, figure.text(values[0])]
        for pair, value in zip(pairs, values[1:], strict=True):
            change = pair.figure(figure.name)
            ratio = None if change.ratio is None else change.ratio - 1
            interval = ""
            if change.low is not None and change.high is not None:
                interval = f"{words.relative(change.low - 1)} to {words.relative(change.high - 1)}"
            row += [figure.text(value), words.relative(ratio), interval]
        rows.append(row)
    return rows


def _phase_rows(runs: Sequence[RunFacts]) -> list[list[str]]:
    clocks = [None if run.timing is None else run.timing.best for run in runs]
    parts = {part.part: None for clock in clocks if clock is not None for part in clock.parts}
    return [[part_label(part), *(_share_text(clock, part) for clock in clocks)] for part in parts]


def _share_text(clock: ClockTimes | None, part: StepPart) -> str:
    if clock is None or clock.spread(part) is None:
        return words.NOT_AVAILABLE
    return words.percent(100 * clock.share(part))


def _memory_rows(runs: Sequence[RunFacts]) -> list[list[str]]:
    rows = parts_side_by_side([run.memory for run in runs])
    return [[row.name, *map(words.size, row.sizes)] for row in rows]


def _kind_rows(runs: Sequence[RunFacts]) -> list[list[str]]:
    per_step = [
        {}
        if run.profile is None
        else {part.name: part.time_ns / run.profile.steps for part in run.profile.parts}
        for run in runs
    ]
    if sum(bool(parts) for parts in per_step) < 2:
        return []
    kinds = {kind: None for parts in per_step for kind in parts}
    return [[kind, *(words.fine_duration(parts.get(kind)) for parts in per_step)] for kind in kinds]


def _json(
    runs: Sequence[RunFacts],
    pairs: Sequence[RunPair],
    differing: Sequence[SettingDifference],
    results: Sequence[GateResult],
) -> dict[str, Any]:
    return {
        "baseline": runs[0].run_id,
        "runs": [
            {
                "run_id": run.run_id,
                "name": run.name,
                "state": run.state,
                "simulated": run.is_simulated,
                "device": run.device,
                "settings_changes": run.changes,
                "first_step": None if run.span is None else run.span[0],
                "last_step": None if run.span is None else run.span[1],
                "steady_steps": len(run.steady),
                "figures": {name: figure.read(run) for name, figure in FIGURES.items()},
                "equal_samples": run.equal_samples,
                "memory": {} if run.memory is None else {bar.name: bar.size_bytes for bar in run.memory.bars},
            }
            for run in runs
        ],
        "comparisons": [
            {
                "run_id": pair.other,
                "verdict": pair.verdict,
                "figures": {row.name: row._asdict() for row in pair.figures},
            }
            for pair in pairs
        ],
        "settings_that_differ": {
            row.name: {run.run_id: run.settings.get(row.name) for run in runs} for row in differing
        },
        "gates": [result._asdict() for result in results],
    }
