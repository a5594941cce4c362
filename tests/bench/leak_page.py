"""Writes docs/leaks.md from what was measured."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import words
from tests.bench.figures import HEADER, Figure, machine, row
from tests.bench.leak_runs import Ran
from tests.bench.leak_series import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "leaks.md"

_INTRODUCTION = """# Accuracy of the leak detector

Written by `python -m tests.bench leak` on {machine}; every number here was measured, none is typed in.

The detector (`harness/analysis/leak/growth.py`) judges four series of a run: memory in live tensors, reserved
and unused memory, the process's memory on the host, and that of the loader's workers. Seeded series have a
length of 300 to 12,000 steps, every other one a leak of 1 KiB to 10 MiB per step. It was tuned on other
seeds; these figures are of seed {seed}, not used for tuning. *Precision* and *recall* refer to the verdict
at the end. *Above the stated limit* are leaks larger than the detection limit that the detector itself states
at that moment.

The real runs are processes of 20 s each with one torch thread. They are not held out: earlier rounds of the
same list showed errors of the detector, which were then corrected. If losses are kept with their graphs, or
the heap fills with holes, malloc manages so many small blocks that its statistics are read rarely: until
there are the 96 readings required for a verdict, the memory of the whole process is judged in place of live
tensors. If steps differ in size, as with batches of varying length, a verdict requires 384 readings, except
for the live tensors of a GPU, which are counted exactly. Steps differ by their samples or tokens, or by the
memory at the end of the forward pass; where that is not measured, by their peaks.

There is no verdict "leak" while transient memory grows at least half as fast as what is retained, as with
growing inputs, unless it is a copy of what is retained (`x = torch.cat([x, …])`), or while the forward pass
on the CPU needs a third more than at first, unless a snapshot of its steps has found that each retains as
much, nor for a rise that does not exceed an earlier one that was freed, as with a list cleared after each
epoch.

On the CPU holes in the heap, and growth of the process that is not certainly outside the heap, are no leak
before they exceed three times the largest transient memory of a step, or half of what live memory has grown
by: a heap settles for some hundred steps, and under a buffer with a limit until its items have been replaced
some times.

Memory that fills once (a cache, the first of such lists) cannot be distinguished from a leak before it is
full: if that takes longer than 96 readings, the verdict is "leak" and is withdrawn after about an eighth of
the time that filling took. The column *for a while* counts these cases.

A run counts as called a leak if any of its series is; the next figure is how often it was exactly the series
that leaks: if losses are kept with their graphs, holes in the heap may grow too, and be called.

"""


def write(figures: Sequence[Figure], outcomes: Sequence[Outcome], runs: Sequence[Ran], seed: int) -> None:
    """Write the page anew."""
    text = _INTRODUCTION.format(machine=machine(), seed=seed)
    text += "\n".join([HEADER, *map(row, figures)])
    text += "\n\n## Series, by what is in them\n\n" + "\n".join(_families(outcomes))
    text += "\n\n## Real runs\n\n" + "\n".join(_runs(runs)) + "\n"
    PAGE.write_text(text, encoding="utf-8")


def _families(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| series | leaks found | above the limit | healthy called a leak at the end | for a while |"
    yield "|---|---:|---:|---:|---:|"
    for name in dict.fromkeys(outcome.case.name for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.case.name == name]
        leaking = [outcome for outcome in mine if outcome.leaks]
        above = [outcome for outcome in leaking if outcome.is_above_limit]
        healthy = [outcome for outcome in mine if not outcome.leaks]
        wrong = sum(outcome.is_called for outcome in healthy)
        while_ = sum(outcome.called_at is not None for outcome in healthy) - wrong
        yield (
            f"| {name} | {sum(o.is_called for o in leaking)} of {len(leaking)} "
            f"| {sum(o.is_called for o in above)} of {len(above)} "
            f"| {wrong} of {len(healthy)} | {while_} of {len(healthy)} |"
        )


def _runs(runs: Sequence[Ran]) -> Iterator[str]:
    yield "| run | steps | leaks | called | slope | stated limit | first called at step |"
    yield "|---|---:|---|---|---:|---:|---:|"
    for ran in runs:
        settings = ", ".join(f"{name}={value}" for name, value in ran.plan.settings.items() if name != "seed")
        message = ran.last.get(ran.plan.leaks) if ran.plan.leaks else None
        slope = "" if message is None else words.size(message.bytes_per_step)
        limit = "" if message is None else words.size(message.detection_limit)
        called = ", ".join(sorted(ran.called))
        yield (
            f"| {settings} | {words.count(ran.steps)} | {ran.plan.leaks or ''} | {called} "
            f"| {slope} | {limit} | {'' if ran.called_at is None else words.count(ran.called_at)} |"
        )
