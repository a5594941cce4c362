"""`tune`: the fastest settings of a model on this device, within a time budget."""

import argparse
import json
import os
import re
import time
from argparse import Namespace
from pathlib import Path

from harness import words
from harness.cli.arguments import settings_of
from harness.cli.parser import Parser, add_command
from harness.cli.progress import InterruptCounter
from harness.cli.setting_flags import add_setting_flags
from harness.cli.shell import Shell
from harness.errors import INTERRUPTED_CODE, HomeError, UsageError
from harness.predict.answer import Prediction, Target
from harness.predict.asking import Predictor
from harness.settings import Settings
from harness.settings.resolve import check_fit
from harness.store.home import Home
from harness.tune.candidates import selectable
from harness.tune.document import tune_json
from harness.tune.folder import TuneFolder, create_tune, find_tune
from harness.tune.launch import needs_budget
from harness.tune.planning import LEAST_BUDGET_S
from harness.tune.results import (
    NOT_COMPARED,
    FigureEstimate,
    RankedRow,
    baseline_sentence,
    batch_sentence,
    command_line,
    ranking,
    waterfall,
    winner_settings,
)
from harness.tune.rows import Goal, Tune, TuneState
from harness.tune.snippet import snippet
from harness.tune.tuning import TuneInterface, Tuner

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_DEFAULT_BUDGET = "10m"
_PLAIN_LINE_S = 5.0


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "search the fastest settings of a model on this device"
    command = add_command(commands, "tune", summary, tune_settings, is_json=True)
    command.add_argument("model_word", metavar="MODEL", nargs="?", help="as --model")
    command.add_argument(
        "--budget",
        metavar="TIME",
        help=f"time for the search, as in 90s, 10m or 1h (default {_DEFAULT_BUDGET})",
    )
    command.add_argument(
        "--for",
        dest="goal",
        choices=[goal.value for goal in Goal],
        default=Goal.THROUGHPUT.value,
        help="improve samples/s (default), or the peak of allocated memory",
    )
    command.add_argument(
        "--only",
        dest="selected",
        metavar="NAME,…",
        help=f"compare these settings alone, of: {', '.join(selectable())}",
    )
    command.add_argument(
        "--on", dest="engine", choices=["ray"], help="train on another machine, which the engine chooses"
    )
    command.add_argument("--resume", metavar="ID", help="continue an earlier tune, or 'latest'")
    command.add_argument(
        "-o", dest="output", metavar="FILE.json", type=Path, help="also write the result as JSON"
    )
    add_setting_flags(command)


def tune_settings(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope tune`; exit code 130 if it was interrupted."""
    _check_output(arguments.output)
    home = shell.home(arguments)
    folder, tune = _resumed(arguments, home) if arguments.resume else _new(arguments, shell, home)
    interrupts = InterruptCounter()
    show = _ProgressLines(shell, is_quiet=arguments.is_json)
    interface = TuneInterface(lambda: interrupts.count > 0, show)
    with (
        interrupts.counting(),
        Tuner(shell.supervisor(arguments), folder, tune, interface, _LargestBatch(home)) as tuner,
    ):
        if not arguments.is_json:
            shell.print_status(
                f"Tune {folder.tune_id}, at most {words.span(tune.remaining_s)}. Ctrl-C ends it."
            )
        tune = tuner.run()
    document = tune_json(tune)
    if arguments.output is not None:
        _write(arguments.output, document)
    if arguments.is_json:
        shell.print_json(document)
    else:
        print_tune(shell, tune)
    return INTERRUPTED_CODE if interrupts.count else 0


def print_tune(shell: Shell, tune: Tune) -> None:
    """Print the ranking, the waterfall and the winner."""
    headings = ("SETTINGS", "SAMPLES/S>", "95 % INTERVAL>", "STEP>", "PEAK ALLOCATED>", "VERDICT", "")
    shell.print_table(headings, [row_cells(row) for row in ranking(tune)])
    shell.print_line("")
    for bar in waterfall(tune):
        share = words.relative(bar.after / bar.before - 1)
        rates = f"{words.fine_rate(bar.before)} → {words.fine_rate(bar.after)}"
        shell.print_line(f"{bar.title}: {rates} ({share})")
    shell.print_line(batch_sentence(tune))
    best = winner_settings(tune)
    if best == tune.baseline:
        shell.print_line(baseline_sentence(tune))
    else:
        shell.print_line(f"Best settings: {command_line(best)}")
        if tune.device is not None:
            shell.print_line("In a loop of your own:")
            for line in ("", *snippet(best, tune.device.kind).splitlines(), ""):
                shell.print_line(line)
    shell.print_line(tune.message)
    if any(row.verdict == NOT_COMPARED for row in ranking(tune)):
        shell.print_line(f"To continue: stepscope tune --resume {tune.tune_id} --budget 5m")


def row_cells(row: RankedRow) -> tuple[str, ...]:
    """Return the cells of a row of the ranking."""
    marks = [mark for mark, is_set in (("best", row.is_winner), ("Pareto front", row.is_on_front)) if is_set]
    return (
        row.title,
        words.NOT_AVAILABLE if row.samples_per_s is None else words.fine_rate(row.samples_per_s.value),
        interval_text(row.samples_per_s),
        words.fine_duration(None if row.step_ns is None else row.step_ns.value),
        words.size(None if row.peak_bytes is None else row.peak_bytes.value),
        row.verdict,
        "; ".join([*marks, *filter(None, [row.note])]),
    )


def interval_text(estimate: FigureEstimate | None) -> str:
    """Return the interval of samples/s as text; n/a without one."""
    if estimate is None or estimate.low == estimate.high:
        return words.NOT_AVAILABLE
    low, high = (words.fine_rate(value, None) for value in (estimate.low, estimate.high))
    return f"{low} to {high}"


def parse_budget(text: str) -> float:
    """Return a time in seconds. Raises UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h)?", text.strip())
    if match is None:
        raise UsageError(f"The budget {text!r} is no time; write it as 90s, 10m or 1h.")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds < LEAST_BUDGET_S:
        raise UsageError(
            f"The budget of {text} is too short for one comparison; give {LEAST_BUDGET_S:.0f}s or more."
        )
    return seconds


def parse_selected(text: str) -> tuple[str, ...]:
    """Return names of settings that a tune can compare; none of an empty text. Raises UsageError."""
    names = tuple(word.strip().lower().replace("-", "_") for word in text.split(",") if word.strip())
    for name in names:
        if name not in selectable():
            raise UsageError(f"A tune cannot compare {name!r}; it compares: {', '.join(selectable())}.")
    return names


def _new(arguments: Namespace, shell: Shell, home: Home) -> tuple[TuneFolder, Tune]:
    budget_s = parse_budget(arguments.budget or _DEFAULT_BUDGET)
    settings = settings_of(arguments, shell.environ)
    selected = parse_selected(arguments.selected or "")
    check_fit(settings)
    if arguments.engine is not None:
        from harness.remote.ray_cluster import check_ray

        check_ray()
    now_unix_s = time.time()
    folder = create_tune(home, now_unix_s)
    values = settings.model_dump(mode="json")
    tune = Tune(folder.tune_id, now_unix_s, values, Goal(arguments.goal), budget_s)
    return folder, tune._replace(selected=selected, engine=arguments.engine)


def _resumed(arguments: Namespace, home: Home) -> tuple[TuneFolder, Tune]:
    folder = find_tune(home, arguments.resume)
    tune = folder.view()
    if arguments.engine is not None and arguments.engine != tune.engine:
        raise UsageError(f"The tune {folder.tune_id} trains on this machine; start a new one with --on.")
    if arguments.selected:
        tune = tune._replace(selected=parse_selected(arguments.selected))
    if arguments.budget:
        return folder, tune._replace(budget_s=tune.spent_s + parse_budget(arguments.budget))
    if needs_budget(tune):
        raise UsageError(
            f"The tune {folder.tune_id} has used {words.span(tune.budget_s)}; give more with --budget."
        )
    return folder, tune


def _check_output(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        raise UsageError(f"{path} cannot be written; give -o a file in a folder that exists.")


def _write(path: Path, document: object) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise HomeError(f"{path} cannot be written: {error.strerror}.") from None


class _LargestBatch:
    """Predicts the largest batch in a child process."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def __call__(self, settings: Settings, target: Target, limit_s: float) -> int | None:
        with Predictor(self._home.path) as predictor:
            answer = predictor.wait(settings, target, limit_s / 2)
            if not isinstance(answer, Prediction):
                return None
            advice = predictor.wait_for_advice(settings, target, limit_s / 2)
            return None if advice is None else advice.largest_batch


class _ProgressLines:
    """Prints a line when a comparison begins or ends, and now and then in between."""

    def __init__(self, shell: Shell, *, is_quiet: bool) -> None:
        self._shell = shell
        self._is_quiet = is_quiet
        self._due_s = 0.0
        self._trials = -1
        self._title = ""

    def __call__(self, tune: Tune) -> None:
        if self._is_quiet:
            return
        if 0 <= self._trials < len(tune.trials):
            trial = tune.trials[-1]
            self._shell.print_status(f"{trial.title}: {trial.message}")
        self._trials = len(tune.trials)
        progress = tune.progress
        if progress is None or tune.state is not TuneState.RUNNING:
            return
        if progress.title != self._title or time.monotonic() >= self._due_s:
            self._title, self._due_s = progress.title, time.monotonic() + _PLAIN_LINE_S
            self._shell.print_status(progress_line(tune))


def progress_line(tune: Tune) -> str:
    """Return the comparison in progress and the remaining time as one line."""
    progress = tune.progress
    if progress is None:
        return "starting the baseline" if tune.device is None else "choosing the next comparison"
    pairs = f"pair {progress.pair} of {progress.pairs}"
    return f"comparing {progress.title}: {pairs}, at most {words.span(tune.remaining_s)} left"
