"""Runs scripts of training loops, bare and under watch, and compares the log with the record of the truth.

Each runs in a process of its own, a copy of this one, which has imported torch: a script of a second is not
worth an import of three. Its clock stands still, but for what the record of the truth spends, so that times
are exact on a busy machine too.
"""

import json
import math
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # Each script's optimizer would import it.

from harness.attach import plain_step
from harness.attach.launch import Script, execute, exit_code, run_script
from harness.errors import LogError
from harness.records.run import StepRow
from harness.store.home import Home
from tests.attach_factories import Recorded, recorded
from tests.bench.loop_families import LoopScript

_TIMEOUT_S = 120
_RECORD = Path(__file__).with_name("loop_record.py")
# Each reading of the clock advances it by so much, and all of a step by less than the tolerance.
_TICK_NS, _TOLERANCE_NS = 100, 500_000


class Clock:
    """Takes the place of `time.perf_counter_ns`, and advances when it is read, and on request."""

    def __init__(self) -> None:
        self._now_ns = time.perf_counter_ns()

    def __call__(self) -> int:
        """Return the time."""
        self._now_ns += _TICK_NS
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass."""
        self._now_ns += duration_ns


class Outcome(NamedTuple):
    """A loop, and the differences between its log and the truth: the kind of each, and the details."""

    draw: LoopScript
    differences: dict[str, str]


def run_loops(draws: Sequence[LoopScript], folder: Path, at_a_time: int) -> Iterator[Outcome]:
    """Run each loop, bare and under watch, so many processes at a time, and yield its outcome."""
    waiting: deque[tuple[LoopScript, bool]] = deque(
        (draw, watched) for draw in draws for watched in (False, True)
    )
    live: dict[int, tuple[LoopScript, bool]] = {}
    codes: dict[tuple[int, bool], int] = {}
    while waiting or live:
        while waiting and len(live) < at_a_time:
            draw, watched = waiting.popleft()
            live[_start(draw, folder, watched)] = draw, watched
        pid, status = os.wait()
        draw, watched = live.pop(pid)
        codes[draw.seed, watched] = os.waitstatus_to_exitcode(status)
        if (draw.seed, not watched) in codes:
            bare, other = codes.pop((draw.seed, False)), codes.pop((draw.seed, True))
            yield Outcome(draw, compare(_place(draw, folder), bare, other))


def _place(draw: LoopScript, folder: Path) -> Path:
    return folder / f"loop_{draw.seed}"


def _start(draw: LoopScript, folder: Path, watched: bool) -> int:
    place = _place(draw, folder)
    place.mkdir(exist_ok=True)
    path = place / "train.py"
    if not path.exists():
        path.write_text(draw.text, encoding="utf-8")
        shutil.copy(_RECORD, place)
    name = "watched" if watched else "bare"
    script = Script(str(path), (str(place / f"{name}.json"),), is_module=False)
    return _in_copy(place / f"{name}.txt", lambda: _run(script, place, watched))


def _in_copy(output: Path, call: Callable[[], int]) -> int:
    """Start a copy of this process, which ends with the exit code that `call` returns; return its id."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.alarm(_TIMEOUT_S)
        with output.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = call()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _run(script: Script, place: Path, watched: bool) -> int:
    torch.set_num_threads(1)
    time.perf_counter_ns = clock = Clock()
    vars(plain_step)["perf_counter_ns"] = clock
    if watched:
        return run_script(script, Home(place / "home"), None, {})
    return exit_code(execute(script))


def compare(place: Path, bare: int, watched: int) -> dict[str, str]:
    """Return the differences of the loop in `place`, with the exit codes of its two processes."""
    if not (place / "bare.json").exists():
        return {"script": f"exit code {bare} without a record"}
    if bare != watched or not (place / "watched.json").exists():
        return {"exit code": f"{watched} instead of {bare}"}
    truth, record = (json.loads((place / f"{name}.json").read_text()) for name in ("bare", "watched"))
    if truth["weights"] != record["weights"] or _content(truth) != _content(record):
        return {"weights": "other weights or losses than bare"}
    (folder,) = Home(place / "home").runs()
    try:
        log = recorded(folder)
    except LogError as error:
        return {"log": str(error)}
    return dict(_differences(log, record["steps"]))


def _content(record: dict[str, Any]) -> str:
    return json.dumps([[step["samples"], step["losses"]] for step in record["steps"]])


def _differences(log: Recorded, truth: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    rows = log.steps
    for event in log.events:
        if event.label == "no longer followed":
            yield "watch", event.message
    if len(rows) != len(truth):
        yield "steps", f"{len(rows)} instead of {len(truth)}; {_misplaced(rows, truth)}"
        return
    pairs = list(zip(rows, truth, strict=True))
    checks: dict[str, Callable[[StepRow, dict[str, Any]], str | None]] = {
        "samples": _samples_differ,
        "loss": _loss_differs,
        "evaluation": _has_evaluation,
        "time": _time_differs,
    }
    for kind, check in checks.items():
        found = [f"step {row.step}: {text}" for row, step in pairs if (text := check(row, step)) is not None]
        if found:
            yield kind, f"{len(found)} of {len(rows)} steps; {'; '.join(found[:3])}"
    for before, (row, step) in zip(rows, pairs[1:], strict=False):
        left_out_ns = row.t_ns - before.t_ns - row.step_ns
        if left_out_ns > _TOLERANCE_NS and step["is_clear"] and not step["evaluated_ns"]:
            yield "gap", f"step {row.step} without {left_out_ns / 1e6:.1f} ms"
            return


def _misplaced(rows: Sequence[StepRow], truth: Sequence[dict[str, Any]]) -> str:
    """Describe the first step with another loss."""
    for row, step in zip(rows, truth, strict=False):
        if (text := _loss_differs(row, step)) is not None:
            samples = f"{row.samples} samples instead of {step['samples']}"
            return f"step {row.step} has a loss of {text}, and {samples}"
    return "the last ones are missing" if len(rows) < len(truth) else "the last ones are too many"


def _samples_differ(row: StepRow, step: dict[str, Any]) -> str | None:
    return None if step["samples"] in (None, row.samples) else f"{row.samples} instead of {step['samples']}"


def _loss_differs(row: StepRow, step: dict[str, Any]) -> str | None:
    if None in step["losses"]:
        return None
    for loss in step["losses"]:
        if row.loss is not None and math.isclose(row.loss, loss, rel_tol=1e-5, abs_tol=1e-9):
            return None
    return f"{row.loss} instead of {step['losses']}"


def _has_evaluation(row: StepRow, step: dict[str, Any]) -> str | None:
    most_ns = step["gap_ns"] - step["evaluated_ns"] + _TOLERANCE_NS
    if not step["is_clear"] or row.step == 1 or row.step_ns <= most_ns:
        return None
    return f"{row.step_ns / 1e6:.1f} instead of {most_ns / 1e6:.1f} ms"


def _time_differs(row: StepRow, step: dict[str, Any]) -> str | None:
    phases_ns = row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns + row.optimizer_ns
    if phases_ns > row.step_ns:
        return f"phases of {phases_ns} in {row.step_ns} ns"
    least_ns = step["trained_ns"] - _TOLERANCE_NS
    if not step["is_clear"] or row.step == 1 or row.step_ns >= least_ns:
        return None
    return f"{row.step_ns / 1e6:.1f} instead of {least_ns / 1e6:.1f} ms"
