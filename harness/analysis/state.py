"""State of a run, derived from evidence outside of its process: log, lock, process and exit code.

`derive_state` is a total, pure function from `StateEvidence` to one state and one sentence. Only evidence is
stored; the state is derived on each request.
"""

import signal
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.log_health import (
    LogHealth,
    crash,
    lost_rows,
    missing_sentence,
    signal_sent,
    unwritten_sentence,
)
from harness.records.run import RunState

# The harness touches its lock file every second; without a heartbeat for longer, it is not responding.
HEARTBEAT_LIMIT_S = 15.0

# Time for the process of a new run folder to appear.
LAUNCH_GRACE_S = 10.0

# Time from the start of a process to its lock: torch's import, on a cold disk.
IMPORT_LIMIT_S = 120.0

# A script that handles no signals ends by each of them as by kill -9.
_SIGNAL = "a signal (kill, docker stop, the time limit of a batch system)"
# The state of a script that has opened no log yet.
_BEFORE_TRAINING = "The script has not trained yet."
# Beginning of the sentence of a run in which no step ends, stalled or not.
NO_STEP_ENDED = "No step has ended for"
# Prefix of an output line with the reason for a failed start.
ERROR_PREFIX = "stepscope: "


class StateEvidence(NamedTuple):
    """Evidence about one run from outside of its process."""

    # The state recorded in the log; None without a readable log or a state.
    log_state: str | None = None
    log_message: str = ""
    # True while the run's lock is taken.
    is_alive: bool = False
    heartbeat_age_s: float | None = None
    # True while the process of process.json, or our child process, runs.
    is_process_running: bool = False
    # Exit code as seen by the parent process; negative: the signal; None: no parent.
    returncode: int | None = None
    # Time since the run's folder was created.
    age_s: float = 0.0
    is_simulated: bool = False
    # True after a stop command was sent.
    is_stop_requested: bool = False
    last_step: int | None = None
    # The last lines of harness.log, oldest first.
    output_tail: Sequence[str] = ()
    # Reason for an unreadable log, in one sentence.
    log_problem: str | None = None
    # State of the log as recorded by the process; None without it.
    health: LogHealth | None = None
    # True for a run of a person's script, which starts by itself and prints into its own terminal.
    is_script: bool = False
    # The final state that the process recorded outside of the log; None: it did not come to its end.
    reported_state: str | None = None
    reported_message: str = ""
    # True if the script caught the newest stop, the first that it caught, and goes on.
    is_stop_caught: bool = False


class RunStatus(NamedTuple):
    """A run's state with an explanation in one sentence. `is_warning`: the sentence needs attention although
    the state is regular; `is_notice`: it says more than the state, and nothing is wrong."""

    state: RunState
    message: str
    is_warning: bool = False
    is_notice: bool = False


def derive_state(evidence: StateEvidence) -> RunStatus:
    """Derive the state from the evidence. Never raises."""
    logged = parse_state(evidence.log_state)
    if logged is not None and (logged.is_over or evidence.is_simulated):
        message = evidence.log_message or _default_message(logged, evidence)
        return RunStatus(logged, f"{_sentence(message)}{_missing(evidence)}" if logged.is_over else message)
    if evidence.is_alive:
        return _of_live(logged, evidence)
    if evidence.is_process_running:
        return _of_unlocked(logged, evidence)
    if (reported := _reported(evidence)) is not None:
        return reported
    if evidence.returncode is not None:
        return _of_exit(evidence.returncode, evidence)
    if logged is None and evidence.age_s < LAUNCH_GRACE_S and evidence.log_problem is None:
        return RunStatus(RunState.LAUNCHING, "Starting the training process.")
    if evidence.is_stop_requested and (name := signal_sent(evidence.output_tail)) is not None:
        return RunStatus(RunState.KILLED, _killed(signal.Signals[name], evidence))
    return RunStatus(RunState.LOST, _lost(logged, evidence))


def parse_state(text: str | None) -> RunState | None:
    """Return the state of this name; None for an unknown one."""
    try:
        return None if text is None else RunState(text)
    except ValueError:
        return None


def _reported(evidence: StateEvidence) -> RunStatus | None:
    """State of a process that ended in order while its log could not be written."""
    state = parse_state(evidence.reported_state)
    was_killed = evidence.returncode is not None and evidence.returncode < 0
    if state is None or not state.is_over or was_killed:
        return None
    rows, health = lost_rows(evidence.output_tail), evidence.health
    parts = [evidence.reported_message]
    if rows is not None:
        cause = "; was the disk full?" if evidence.log_problem is None else "."
        parts.append(f"Its log is incomplete: {rows} are lost{cause}")
    if evidence.log_problem is not None:
        parts.append(evidence.log_problem)
    elif health is not None and health.missing_steps:
        parts.append(missing_sentence(health))
    if len(parts) == 1 and evidence.log_state is not None:
        parts.append("This is not in its log.")
    return RunStatus(state, " ".join([*map(_sentence, filter(None, parts[:-1])), parts[-1]]))


def _default_message(state: RunState, evidence: StateEvidence) -> str:
    where = _at_step(evidence)
    return {
        RunState.FINISHED: f"Finished{where}.",
        RunState.STOPPED: f"Stopped on request{where}.",
        RunState.OUT_OF_MEMORY: f"Ran out of memory{where}.",
        RunState.FAILED: f"Failed{where}.{_last_output(evidence)}",
        RunState.KILLED: f"Killed{where}.",
        RunState.LOST: f"The process vanished{where} without an exit status.",
        RunState.STALLED: f"No step has finished for a while{where}.",
    }.get(state, f"{state.value.capitalize()}{where}.")


def _of_live(logged: RunState | None, evidence: StateEvidence) -> RunStatus:
    age_s = evidence.heartbeat_age_s
    if age_s is not None and age_s > HEARTBEAT_LIMIT_S:
        return RunStatus(
            RunState.STALLED,
            f"Not responding: the process is running, but its last heartbeat was {words.ago(age_s)}"
            f"{_at_step(evidence)}. {_where_it_hangs(evidence)}; stopping it escalates to SIGKILL.",
        )
    if evidence.is_stop_requested or logged is RunState.STOPPING:
        return RunStatus(
            RunState.STOPPING, f"Stopping{_at_step(evidence)}: the run ends after the current step."
        )
    if evidence.log_problem is not None:
        return RunStatus(RunState.RUNNING, f"The process is running, but: {evidence.log_problem}")
    if evidence.health is not None and evidence.health.is_unwritten:
        state = logged or (RunState.RUNNING if evidence.health.finished_step else RunState.LAUNCHING)
        return RunStatus(state, unwritten_sentence(evidence.health), is_warning=True)
    if logged is None or logged is RunState.LAUNCHING:
        preparing = _BEFORE_TRAINING if evidence.is_script else "Preparing the model and its data."
        reported = evidence.reported_message if evidence.reported_state == RunState.LAUNCHING else ""
        return RunStatus(RunState.LAUNCHING, evidence.log_message or reported or preparing)
    if evidence.is_stop_caught and logged is RunState.RUNNING:
        return RunStatus(
            logged,
            f"Training{_at_step(evidence)}: the script caught the KeyboardInterrupt of the stop. Stop it "
            "again: if it catches that too, its process is terminated.",
            is_warning=True,
        )
    default = {
        RunState.PAUSED: f"Paused{_at_step(evidence)}; its memory stays allocated.",
        RunState.STALLED: f"No step has finished for a while{_at_step(evidence)}; stacks are in its output.",
    }.get(logged, f"Training{_at_step(evidence)}.")
    is_notice = logged is RunState.RUNNING and evidence.log_message.startswith(NO_STEP_ENDED)
    return RunStatus(logged, evidence.log_message or default, is_notice=is_notice)


def _of_unlocked(logged: RunState | None, evidence: StateEvidence) -> RunStatus:
    """State of a process without its lock: it is starting or ending."""
    if logged not in (None, RunState.LAUNCHING):
        return RunStatus(RunState.STOPPING, f"The process is ending{_at_step(evidence)}.")
    if evidence.age_s > IMPORT_LIMIT_S:
        return RunStatus(
            RunState.STALLED,
            f"Not responding: started {words.ago(evidence.age_s)} and not ready yet. "
            "See its output, or stop it.",
        )
    return RunStatus(RunState.LAUNCHING, "The training process is starting: importing torch.")


def _of_exit(returncode: int, evidence: StateEvidence) -> RunStatus:
    where = _at_step(evidence)
    if returncode < 0:
        return RunStatus(RunState.KILLED, _killed(-returncode, evidence))
    if returncode == 0:
        state = RunState.STOPPED if evidence.is_stop_requested else RunState.FINISHED
        rows = lost_rows(evidence.output_tail)
        why = "; is the disk full?" if rows is None else f": {rows} are lost."
        return RunStatus(
            state, f"The process exited normally{where}, but its log is incomplete{why}{_missing(evidence)}"
        )
    line = _last_line(evidence) or ""
    if line.startswith(ERROR_PREFIX) and evidence.last_step is None:
        return RunStatus(RunState.FAILED, f"Could not start: {line.removeprefix(ERROR_PREFIX)}")
    message = f"Failed with exit code {returncode}{where}.{_last_output(evidence)}{_missing(evidence)}"
    return RunStatus(RunState.FAILED, message)


def signal_name(number: int) -> str:
    """The name of a signal: "SIGKILL", or "signal 77" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed(number: int, evidence: StateEvidence) -> str:
    name = signal_name(number)
    if evidence.is_stop_requested and name in ("SIGKILL", "SIGTERM"):
        why = "it did not stop by itself in time"
    else:
        why = {
            "SIGKILL": "likely by the kernel's OOM killer or kill -9",
            "SIGTERM": "likely by kill or a shutdown of the machine",
            "SIGSEGV": "a crash in native code; the stacks, if any, are in its output",
            "SIGABRT": "native code aborted; its message is in its output",
            "SIGBUS": "mapped memory became unavailable; is /dev/shm or the disk full?",
            "SIGINT": "by Ctrl-C",
            "SIGHUP": "its terminal was closed",
        }.get(name, "see its output")
    fault = crash(evidence.output_tail)
    if fault is not None and name != "SIGKILL":
        why = f"a crash in native code ({fault}); the stacks are in its output"
    return f"Killed by {name}{_at_step(evidence)}; {why}. {_log_state(evidence)}"


def _lost(logged: RunState | None, evidence: StateEvidence) -> str:
    if evidence.log_problem is not None:
        return evidence.log_problem
    if logged is None and evidence.last_step is None and evidence.is_script:
        return f"The script ended before it trained, without an exit status: {_SIGNAL}, os._exit or a reboot."
    if logged is None and evidence.last_step is None:
        return f"The training process did not start, or left no log.{_last_output(evidence)}"
    where = _at_step(evidence)
    if (fault := crash(evidence.output_tail)) is not None:
        crashed = f"Native code crashed{where} ({fault}); the stacks are in the run's output."
        return f"{crashed} {_log_state(evidence)}"
    if (rows := lost_rows(evidence.output_tail)) is not None:
        return (
            f"The process ended{where}, but its log is incomplete: {rows} are lost; was the disk full? "
            f"{_log_state(evidence)}"
        )
    causes = f"{_SIGNAL}, os._exit" if evidence.is_script else "kill -9"
    return (
        f"The process vanished{_at_step(evidence)} without an exit status: {causes}, a reboot, or a folder "
        f"copied while it ran. {_log_state(evidence)}"
    )


def _missing(evidence: StateEvidence) -> str:
    """The number of steps missing in the log of a finished run, where it is known."""
    if evidence.health is None or not evidence.health.counts or evidence.log_problem is not None:
        return ""
    return f" {missing_sentence(evidence.health)}"


def _sentence(message: str) -> str:
    """A message of an error as a sentence, which another one can follow."""
    return message if message.endswith((".", "!", "?")) else f"{message}."


def _log_state(evidence: StateEvidence) -> str:
    if missing := _missing(evidence).strip():
        return missing
    if evidence.last_step is None:
        return "No step is in the log."
    return f"Everything up to step {words.count(evidence.last_step)} is in the log."


def _at_step(evidence: StateEvidence) -> str:
    """The newest step that is known: the process counts those that its log does not have yet."""
    health = evidence.health
    counted = health.finished_step if health is not None and health.counts else None
    steps = [step for step in (evidence.last_step, counted) if step is not None]
    return f" at step {words.count(max(steps))}" if steps else ""


def _where_it_hangs(evidence: StateEvidence) -> str:
    return "See its terminal" if evidence.is_script else "Its output shows where it hangs"


def _last_output(evidence: StateEvidence) -> str:
    """The last line of the output in a sentence; for a Python error this is the error itself."""
    line = _last_line(evidence)
    if line is None:
        return "" if evidence.is_script else " It left no output."
    return f" Last line of its output: {line.removeprefix(ERROR_PREFIX)}"


def _last_line(evidence: StateEvidence) -> str | None:
    """The last line written by the process; lines of the supervisor begin with "[stepscope]"."""
    lines = [line.strip() for line in evidence.output_tail]
    lines = [line for line in lines if line and not line.startswith("[stepscope]")]
    return lines[-1] if lines else None
