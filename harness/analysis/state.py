"""What state a run is in, derived from what is seen from outside: its log, lock, process and exit.

Nothing here asks anything: `derive_state` is a total, pure function from `Evidence` to one state and one
plain sentence. What is stored is facts; the state is worked out each time it is asked for.
"""

import signal
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.log_health import LogHealth, crash, lost_rows, missing_sentence, unwritten_sentence
from harness.records import RunState

# The harness touches its lock file every second; after this long without, it is not responding.
HEARTBEAT_LIMIT_S = 15.0

# How long a run folder may wait for its process to appear.
LAUNCH_GRACE_S = 10.0

# How long a process may take from its start to its lock (torch's import, on a cold disk).
IMPORT_LIMIT_S = 120.0

# The exit code of a training process that ran out of memory.
OUT_OF_MEMORY_CODE = 3


# How a line begins that says, in a sentence for a person, why the process gave up.
OWN_WORDS = "stepscope: "


class Evidence(NamedTuple):
    """Everything that is known about one run from outside its process."""

    log_state: str | None = None
    """The log's own last word, None when there is no readable log or it has none."""
    log_message: str = ""
    is_alive: bool = False
    """Whether the run's lock is held."""
    heartbeat_age_s: float | None = None
    is_process_running: bool = False
    """Whether the process named in process.json (or our own child) still runs."""
    returncode: int | None = None
    """How the process ended, as its parent saw it; negative: the signal. None: nobody saw it."""
    age_s: float = 0.0
    """Time since the run's folder was made."""
    is_simulated: bool = False
    is_stop_asked: bool = False
    """Whether a stop command was sent."""
    last_step: int | None = None
    output_tail: Sequence[str] = ()
    """The last lines of harness.log, oldest first."""
    log_problem: str | None = None
    """Why the log cannot be read, in one sentence."""
    health: LogHealth | None = None
    """What the process left about its steps and its log; None where it left nothing."""


class RunStatus(NamedTuple):
    """A run's state and one sentence that says what it means. `is_warning`: the sentence needs attention,
    although the state does not say so."""

    state: RunState
    message: str
    is_warning: bool = False


def derive_state(evidence: Evidence) -> RunStatus:
    """The state that the evidence amounts to. Never raises."""
    said = _known_state(evidence.log_state)
    if said is not None and (said.is_over or evidence.is_simulated):
        message = evidence.log_message or _own_words(said, evidence)
        return RunStatus(said, f"{message}{_missing(evidence)}" if said.is_over else message)
    if evidence.is_alive:
        return _of_live(said, evidence)
    if evidence.is_process_running:
        return _of_unlocked(said, evidence)
    if evidence.returncode is not None:
        return _of_exit(evidence.returncode, evidence)
    if said is None and evidence.age_s < LAUNCH_GRACE_S and evidence.log_problem is None:
        return RunStatus(RunState.LAUNCHING, "The training process is being started.")
    return RunStatus(RunState.LOST, _lost(said, evidence))


def _known_state(text: str | None) -> RunState | None:
    try:
        return None if text is None else RunState(text)
    except ValueError:
        return None


def _own_words(state: RunState, evidence: Evidence) -> str:
    where = _at_step(evidence)
    return {
        RunState.FINISHED: f"Finished{where}.",
        RunState.STOPPED: f"Stopped on request{where}.",
        RunState.OUT_OF_MEMORY: f"Ran out of memory{where}.",
        RunState.FAILED: f"Failed{where}.{_last_words(evidence)}",
        RunState.KILLED: f"Killed{where}.",
        RunState.LOST: f"The process vanished{where} without a word.",
        RunState.STALLED: f"No step has ended for a while{where}.",
    }.get(state, f"{state.value.capitalize()}{where}.")


def _of_live(said: RunState | None, evidence: Evidence) -> RunStatus:
    age_s = evidence.heartbeat_age_s
    if age_s is not None and age_s > HEARTBEAT_LIMIT_S:
        return RunStatus(
            RunState.STALLED,
            f"Not responding: the process is there, but gave its last sign of life {words.ago(age_s)}"
            f"{_at_step(evidence)}. Its output shows where it hangs; a stop escalates to SIGKILL.",
        )
    if evidence.is_stop_asked or said is RunState.STOPPING:
        return RunStatus(
            RunState.STOPPING, f"Stopping{_at_step(evidence)}: it ends after the step under way."
        )
    if evidence.log_problem is not None:
        return RunStatus(RunState.RUNNING, f"The process is there, but: {evidence.log_problem}")
    if evidence.health is not None and evidence.health.is_unwritten:
        state = said or (RunState.RUNNING if evidence.health.finished_step else RunState.LAUNCHING)
        return RunStatus(state, unwritten_sentence(evidence.health), is_warning=True)
    if said is None or said is RunState.LAUNCHING:
        return RunStatus(
            RunState.LAUNCHING, evidence.log_message or "The model and its data are being prepared."
        )
    plain = {
        RunState.PAUSED: f"Paused{_at_step(evidence)}; it keeps its memory until resumed or stopped.",
        RunState.STALLED: f"No step has ended for a while{_at_step(evidence)}; the stacks are in its output.",
    }.get(said, f"Training{_at_step(evidence)}.")
    return RunStatus(said, evidence.log_message or plain)


def _of_unlocked(said: RunState | None, evidence: Evidence) -> RunStatus:
    """The process is there without its lock: on its way in, or on its way out."""
    if said not in (None, RunState.LAUNCHING):
        return RunStatus(RunState.STOPPING, f"The process is ending{_at_step(evidence)}.")
    if evidence.age_s > IMPORT_LIMIT_S:
        return RunStatus(
            RunState.STALLED,
            f"Not responding: started {words.ago(evidence.age_s)}, and not ready yet. "
            "See its output, or stop it.",
        )
    return RunStatus(RunState.LAUNCHING, "The training process is starting: it is importing torch.")


def _of_exit(returncode: int, evidence: Evidence) -> RunStatus:
    where = _at_step(evidence)
    if returncode < 0:
        return RunStatus(RunState.KILLED, _killed(-returncode, evidence))
    if returncode == 0:
        state = RunState.STOPPED if evidence.is_stop_asked else RunState.FINISHED
        rows = lost_rows(evidence.output_tail)
        why = "; is the disk full?" if rows is None else f": {rows} are lost."
        return RunStatus(
            state, f"The process ended in order{where}, but its log has no ending{why}{_missing(evidence)}"
        )
    if returncode == OUT_OF_MEMORY_CODE:
        message = f"Ran out of memory{where}.{_last_words(evidence)}{_missing(evidence)}"
        return RunStatus(RunState.OUT_OF_MEMORY, message)
    line = _last_line(evidence) or ""
    if line.startswith(OWN_WORDS) and evidence.last_step is None:
        return RunStatus(RunState.FAILED, f"Could not start: {line.removeprefix(OWN_WORDS)}")
    message = f"Failed with exit code {returncode}{where}.{_last_words(evidence)}{_missing(evidence)}"
    return RunStatus(RunState.FAILED, message)


def signal_name(number: int) -> str:
    """The name of a signal: "SIGKILL", or "signal 77" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed(number: int, evidence: Evidence) -> str:
    name = signal_name(number)
    if evidence.is_stop_asked and name in ("SIGKILL", "SIGTERM"):
        why = "it did not stop by itself in time"
    else:
        why = {
            "SIGKILL": "the kernel's OOM killer or somebody's kill -9",
            "SIGTERM": "somebody's kill, or the machine shutting down",
            "SIGSEGV": "a crash in native code; the stacks, if any, are in its output",
            "SIGABRT": "native code gave up; its last words are in its output",
            "SIGBUS": "memory it had mapped went away; is /dev/shm or the disk full?",
            "SIGINT": "somebody's Ctrl-C",
            "SIGHUP": "its terminal was closed",
        }.get(name, "see its output")
    fault = crash(evidence.output_tail)
    if fault is not None and name != "SIGKILL":
        why = f"a crash in native code ({fault}); the stacks are in its output"
    return f"Killed by {name}{_at_step(evidence)}; {why}. {_kept(evidence)}"


def _lost(said: RunState | None, evidence: Evidence) -> str:
    if evidence.log_problem is not None:
        return evidence.log_problem
    if said is None and evidence.last_step is None:
        return f"The training process never came up, or left no log.{_last_words(evidence)}"
    where = _at_step(evidence)
    if (fault := crash(evidence.output_tail)) is not None:
        return f"Native code crashed{where} ({fault}); the stacks are in the run's output. {_kept(evidence)}"
    if (rows := lost_rows(evidence.output_tail)) is not None:
        return (
            f"The process ended{where}, but its log could not be written to its end: {rows} are lost; was "
            f"the disk full? {_kept(evidence)}"
        )
    return (
        f"The process vanished{_at_step(evidence)} and nobody saw it end: a kill -9, a reboot, or a folder "
        f"copied while it ran. {_kept(evidence)}"
    )


def _missing(evidence: Evidence) -> str:
    """How many steps the log of an ended run lacks, where that is known."""
    if evidence.health is None or not evidence.health.counts or evidence.log_problem is not None:
        return ""
    return f" {missing_sentence(evidence.health)}"


def _kept(evidence: Evidence) -> str:
    if missing := _missing(evidence).strip():
        return missing
    if evidence.last_step is None:
        return "No step had been logged."
    return f"Everything up to step {words.count(evidence.last_step)} is in the log."


def _at_step(evidence: Evidence) -> str:
    return "" if evidence.last_step is None else f" at step {words.count(evidence.last_step)}"


def _last_words(evidence: Evidence) -> str:
    """The last line of the output in a sentence: for a Python error that is the error itself."""
    line = _last_line(evidence)
    return " It left no output." if line is None else f" Its last words: {line.removeprefix(OWN_WORDS)}"


def _last_line(evidence: Evidence) -> str | None:
    """The last line the process itself wrote; the supervisor's own notes begin with "[stepscope]"."""
    lines = [line.strip() for line in evidence.output_tail]
    lines = [line for line in lines if line and not line.startswith("[stepscope]")]
    return lines[-1] if lines else None
