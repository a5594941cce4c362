"""`list`, `tag`, `note`: the runs of a home, and their labels.

`list` imports neither torch nor pydantic: a thousand runs that have ended are listed in half a second.
"""

import argparse
from argparse import Namespace
from functools import cache

from harness import words
from harness.analysis.run_list import STATES, RunFilter, state_of
from harness.cli.parser import Parser, add_command
from harness.cli.shell import RUN_HELP, Shell, find_run
from harness.errors import UsageError
from harness.records.entry import RunEntry
from harness.store.folder import RunFolder
from harness.store.labels import Labels, change_tags, read_labels, set_note
from harness.store.run_index import RunIndex

_LONGEST_CELL = 80
_HEADINGS = (
    "NAME", "ID", "STATE", "MODEL", "DEVICE", "STEPS>", "STEP TIME>", "SAMPLES/S>", "PEAK>", "CREATED",
    "TAGS",
)  # fmt: skip


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    runs = add_command(commands, "list", "all runs, newest first", list_runs, is_json=True)
    for flag, text in (
        ("state", "in this state, as in finished or out_of_memory; repeat for several"),
        ("model", "of this model or script; repeat for several"),
        ("device", "on this device, as in cuda:0; repeat for several"),
        ("tag", "with this tag; repeat for several, all of which a run must have"),
    ):
        runs.add_argument(f"--{flag}", metavar=flag.upper(), action="append", default=[], help=f"only {text}")
    search = "only with these words in name, id, model, device, tags or note"
    runs.add_argument("--search", metavar="TEXT", default="", help=search)
    runs.add_argument("--limit", metavar="N", type=int, help="at most N runs")
    tag = add_command(commands, "tag", "add and remove tags of a run: +a -b", tag_run, is_json=True)
    tag.add_argument("run", metavar="RUN", help=RUN_HELP)
    tag.add_argument("changes", metavar="+TAG|-TAG", nargs=argparse.REMAINDER, help="none: print the tags")
    note = add_command(commands, "note", "write a note on a run", note_run, is_json=True)
    note.add_argument("run", metavar="RUN", help=RUN_HELP)
    note.add_argument("text", metavar="TEXT", nargs="?", help="one line; empty: remove it; none: print it")


def list_runs(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope list`."""
    home = shell.home(arguments)
    supervisor = cache(lambda: shell.supervisor(arguments))
    everything = RunIndex(home).entries(lambda folder: supervisor().entry(folder))
    runs = _filter(arguments).select(everything)[: arguments.limit]
    if arguments.is_json:
        shell.print_json_lines([run._asdict() for run in runs])
    elif runs:
        shell.print_table(_HEADINGS, [_line(run) for run in runs])
    elif everything:
        shell.print_status(f"None of {words.plural(len(everything), 'run')} meets these criteria.")
    else:
        shell.print_status(f"No runs in {home.path} yet; start one with `stepscope run`.")
    return 0


def _filter(arguments: Namespace) -> RunFilter:
    """Return the criteria of the command line. Raises UsageError."""
    states = [state.lower().replace(" ", "_") for state in arguments.state]
    unknown = next((state for state in states if state not in STATES), None)
    if unknown is not None:
        raise UsageError(f"There is no state {unknown!r}; choose from: {', '.join(STATES)}.")
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit cannot be {arguments.limit}; it takes a whole number, at least 1.")
    return RunFilter(states, arguments.model, arguments.device, arguments.tag, arguments.search)


def _line(run: RunEntry) -> tuple[str, ...]:
    state = state_of(run).replace("_", " ")
    if run.problem is None:
        state += " (simulated)" if run.is_simulated else ""
        state += " (imported)" if run.imported is not None else ""
        state += " (see `stepscope show`)" if run.is_warning else ""
    return (
        run.name,
        run.run_id,
        state,
        words.NOT_AVAILABLE if run.subject is None else words.clip(run.subject, _LONGEST_CELL),
        words.NOT_AVAILABLE if run.device_name is None else words.clip(run.device_name, _LONGEST_CELL),
        words.count(run.steps),
        words.duration(run.step_ns),
        words.rate(run.samples_per_s, None),
        words.size(run.peak_allocated_bytes),
        words.moment(run.created_unix_ns),
        " ".join(run.tags),
    )


def tag_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope tag RUN [+a] [-b]`."""
    folder = find_run(shell.home(arguments), arguments.run)
    for word in arguments.changes:
        if word[:1] not in ("+", "-") or len(word) < 2:
            tag = word.strip("+-") or "tag"
            raise UsageError(f"{word!r} does not change a tag; write +{tag} or -{tag}.")
    added = [word[1:] for word in arguments.changes if word.startswith("+")]
    removed = [word[1:] for word in arguments.changes if word.startswith("-")]
    labels = change_tags(folder, added, removed) if arguments.changes else read_labels(folder)
    return _print_labels(arguments, shell, folder, labels, " ".join(labels.tags) or "No tags.")


def note_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope note RUN [TEXT]`."""
    folder = find_run(shell.home(arguments), arguments.run)
    labels = read_labels(folder) if arguments.text is None else set_note(folder, arguments.text)
    return _print_labels(arguments, shell, folder, labels, labels.note or "No note.")


def _print_labels(arguments: Namespace, shell: Shell, folder: RunFolder, labels: Labels, text: str) -> int:
    if arguments.is_json:
        shell.print_json({"run_id": folder.run_id} | labels._asdict())
    else:
        shell.print_line(text)
    return 0
