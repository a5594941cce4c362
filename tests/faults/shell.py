"""The shell on closed and full streams, and interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.store.home import Home
from harness.store.reader import LogReader
from tests.faults.forks import ROOT
from tests.faults.scenario import Bench, Measurement, Scenario
from tests.supervision import until

_COMMAND = [sys.executable, "-m", "harness"]
_FULL = "stepscope: The output could not be written: no space left on device.\n"
_CLOSED = "stepscope: The output could not be written: bad file descriptor.\n"
_LINES = (
    ("$S settings >/dev/full", 1, _FULL),
    ("$S settings <&- >&-", 1, _CLOSED),
    ("$S settings <&- >&- 2>&-", 1, ""),
    ("$S lst 2>&-", 2, ""),
    ("$S settings | head -c 4", 0, "FLAG"),
    ("$S --version >/dev/full", 1, _FULL),
    ("$S show nobody 2>/dev/full", 2, ""),
)
_QUICK_LINES = 5
_COMMANDS = (
    ["doctor"],
    ["demo", "steady", "--steps", "2000000"],
    ["predict", "mlp"],
    ["list"],
    ["settings"],
)


def _shell(line: str, environ: dict[str, str]) -> tuple[int, str]:
    """Carry out a line of bash in which `$S` is the command; the code and what was printed anywhere."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=ROOT,
        env=os.environ | {"S": " ".join(_COMMAND)} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def _streams(bench: Bench) -> Measurement:
    home = bench.new_home("streams")
    broken, tried = [], 0
    for line, code, printed in _LINES[:_QUICK_LINES] if bench.is_quick else _LINES:
        for unbuffered in ("",) if bench.is_quick else ("", "1"):
            environ = {"STEPSCOPE_HOME": str(home.path), "PYTHONUNBUFFERED": unbuffered}
            answer, tried = _shell(line, environ), tried + 1
            if answer != (code, printed):
                broken.append(f"{line}: {answer}")
    text = (
        f"{tried} shells on closed, full and broken streams: the promised code and at most one sentence each"
    )
    return Measurement(text, tuple(broken))


def _closed_descriptors(bench: Bench) -> Measurement:
    """The three descriptors closed: what is opened first would get their numbers, and be printed into."""
    home = Home(bench.new_folder("closed"))
    steps = 20
    line = f"$S run mlp --max-steps {steps} --device cpu --no-measure-overhead <&- >&- 2>&-"
    code, printed = _shell(line, {"STEPSCOPE_HOME": str(home.path), "PYTHONUNBUFFERED": ""})
    with LogReader(home.runs()[0].log) as log:
        log.check()
        logged, state = log.extent().steps, log.run().state
    is_right = (logged, state, printed) == (steps, "finished", "")
    wrong = [] if is_right else [f"{state}, {logged} steps, {printed!r}"]
    text = f"{logged} of {steps} steps are in the log, which is sound; the shell ended with {code}"
    return Measurement(text, tuple(wrong))


def _interrupted(words: list[str], home: Home, after_s: float) -> tuple[int, str]:
    """Interrupt a command so long after it began to import; its code and what it complained."""
    process = subprocess.Popen(
        [*_COMMAND, *words],
        cwd=ROOT,
        env=os.environ | {"STEPSCOPE_HOME": str(home.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell in the background has its children ignore would be ignored here, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The first 20 ms are Python's own, with a handler of its own.
    until(lambda: _imports(process.pid), bool)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    return process.returncode, complaint


def _imports(pid: int) -> bool:
    """Return whether the process has begun to import the commands, or has ended."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except ProcessLookupError:
        return True
    return "_pydantic_core" in maps or not maps


def _interrupts(bench: Bench) -> Measurement:
    home, broken, answers = bench.new_home("interrupts"), [], []
    delays_s = (0.3,) if bench.is_quick else (0.0, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
    for words in _COMMANDS[: bench.count(len(_COMMANDS), 2)]:
        for after_s in delays_s:
            code, complaint = _interrupted(words, home, after_s)
            answers.append(code)
            # One that was done before it could be interrupted has done its work.
            if code not in (0, 130) or "Traceback" in complaint or (code and complaint):
                broken.append(f"{' '.join(words)} after {after_s} s: {code}, {complaint[-200:]!r}")
    if answers.count(130) < len(answers) / 3:
        broken.append(f"only {answers.count(130)} of {len(answers)} were interrupted in time")
    text = (
        f"{len(answers)} interrupts from the first import on: {answers.count(130)} ended with 130, the "
        "others were done before"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "broken-streams",
        "stdin, stdout or stderr is closed, full, or a pipe that nobody reads",
        "Exit code 1 and one sentence where output is lost (0 for a pipe), and no traceback.",
        _streams,
        is_long=True,
    ),
    Scenario(
        "closed-descriptors",
        "A run is started by a shell without descriptors 0, 1 and 2",
        "Nothing is printed into a file that happens to get their numbers.",
        _closed_descriptors,
        is_in_tests=False,
    ),
    Scenario(
        "interrupts",
        "Ctrl-C at any moment of a command, also while modules are imported",
        "Exit code 130 and no traceback, once the first of our modules is imported. Before that (20 to 60 ms,"
        " by the load) Python itself answers.",
        _interrupts,
    ),
)
