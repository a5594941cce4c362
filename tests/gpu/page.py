"""The page of a report, as Markdown, from its results alone."""

from collections.abc import Callable, Iterable, Mapping

from tests.gpu import sections
from tests.gpu.journal import Results, StageResults, StageState
from tests.gpu.stages import STAGES, Stage
from tests.gpu.worth_table import worth_table

Section = Callable[[StageResults], Iterable[str]]

SECTIONS: Mapping[str, Section] = {
    "tests": sections.suite,
    "overflow": sections.overflow,
    "refcount": sections.refcount,
    "texts": sections.texts,
    "phases": sections.phases,
    "prediction": sections.prediction,
    "events": sections.events,
    "lists": sections.lists,
    "nvml": sections.nvml,
    "worth": sections.comparisons,
    "transfers": sections.comparisons,
    "compile": sections.comparisons,
    "recordings": sections.recordings,
}
"""The lines of each stage that has results."""


def page(results: Results) -> str:
    """The whole page: the machine, a summary, then each question in its order."""
    lines = [*_head(results), *_summary(results)]
    for number, stage in enumerate(STAGES, 1):
        result = results.stage(stage.key)
        lines += ["", f"## {number}. {stage.title}", "", f"{state_words(result)}.", ""]
        if result.values:
            lines += SECTIONS[stage.key](result)
        lines += [f"- **{item} ended its process**: {reason}" for item, reason in result.failures.items()]
    lines += ["", "## For the README", ""]
    lines += worth_table(results) or ["unverified: nothing was measured."]
    return "\n".join(_without_double_blanks(lines)) + "\n"


def state_words(result: StageResults) -> str:
    """Return how far a stage came, in a clause."""
    failures = len(result.failures)
    died = f"; {failures} of its items ended the process" if failures else ""
    match result.state:
        case None:
            began = f" (the call was cut short during {result.open_item})" if result.open_item else ""
            return f"unverified: not run{began}" if not result.values else f"unfinished{began}{died}"
        case StageState.FINISHED:
            return f"n/a: {result.reason}" if result.reason else f"measured in {result.seconds:.0f} s{died}"
        case StageState.UNFINISHED:
            return f"unfinished, {len(result.values)} items measured: {result.reason}{died}"
        case StageState.DIED:
            return f"**died**, {len(result.values)} items measured: {result.reason}{died}"


def _head(results: Results) -> list[str]:
    if not results.sessions:
        return ["# No session"]
    first, last = results.sessions[0], results.sessions[-1]
    lines = [f"# {first['card']}, {first['when'].partition(' ')[0]}", ""]
    lines += [f"Written by `make gpu-check`, seed {first.get('seed')}. {_software(last)}", ""]
    signs = last["container"]
    lines.append(
        f"This is a container: {'; '.join(signs)}." if signs else "No sign of a container was found."
    )
    if len(results.sessions) > 1:
        calls = "; ".join(
            f"{session['when']} UTC at commit {session['commit'] or 'n/a'} ({', '.join(session['stages'])})"
            for session in results.sessions
        )
        lines += ["", f"Calls: {calls}."]
    return lines


def _software(facts: Mapping[str, object]) -> str:
    memory = facts["memory_bytes"]
    gib = f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else "memory n/a"
    parts = [
        f"torch {facts['torch']}",
        f"CUDA {facts['cuda'] or 'n/a'}",
        f"cuDNN {facts['cudnn'] or 'n/a'}",
        f"driver {facts['driver'] or 'n/a'}",
        f"Python {facts['python']}",
        f"kernel {facts['kernel']}",
        f"{facts['multiprocessors'] or 'n/a'} multiprocessors",
        gib,
        f"commit {facts['commit'] or 'n/a'}",
    ]
    return f"{', '.join(parts)}."


def _summary(results: Results) -> list[str]:
    rows = [f"| {stage.title} | {_short(stage, results)} |" for stage in STAGES]
    return ["", "| question | state |", "|---|---|", *rows]


def _short(stage: Stage, results: Results) -> str:
    return sections.cell(state_words(results.stage(stage.key)))


def _without_double_blanks(lines: Iterable[str]) -> Iterable[str]:
    before = None
    for line in lines:
        if line or before:
            yield line
        before = line
