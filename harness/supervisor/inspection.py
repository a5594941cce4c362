"""Inspection of one run from outside: its lock, process, exit, commands and log, as evidence of its state.

Order matters. A run that ends first writes its final state, then releases its lock, then exits; so the lock
and the process are read first and the log last. A run that ended in order is never classified as lost.
"""

import signal
from typing import NamedTuple

from harness.analysis.log_health import LogHealth
from harness.analysis.ranks.states import state_of_ranks
from harness.analysis.state import RunStatus, StateEvidence, derive_state
from harness.errors import LogError
from harness.records.run import CommandKind, ExitRow, RunState
from harness.store.control import ControlLog
from harness.store.folder import RunFolder, RunRequest
from harness.store.liveness import heartbeat_age_s, is_alive
from harness.store.vital_signs import VitalSigns, read_vital_signs
from harness.supervisor.children import OwnView
from harness.supervisor.logs import LogCache, LogFacts
from harness.supervisor.processes import find_process
from harness.supervisor.ranks import read_ranks
from harness.words import printable

# A crash in native code writes every thread's stack after the line that names it.
_TAIL_LINES = 400
_NO_CHILD = OwnView(is_child=False, is_stopping=False, is_stop_requested=False, unrecorded_exit=None)


class RunInspection(NamedTuple):
    """The result of an inspection: the evidence, and the state derived from it."""

    request: RunRequest
    status: RunStatus
    log: LogFacts
    # True when a process of this run exists.
    has_process: bool
    is_locked: bool
    heartbeat_age_s: float | None
    exit: ExitRow | None


def inspect_run(
    folder: RunFolder,
    cache: LogCache,
    now_unix_s: float,
    own: OwnView = _NO_CHILD,
) -> RunInspection:
    """Gather the evidence on a run and derive its state. `own` is the view of its parent."""
    locked = is_alive(folder.alive)
    running = locked or own.is_child
    log = cache.unchanged(folder)
    if log is None or not _has_outcome(log):
        process = find_process(folder)
        locked = process is not None and process.is_locked
        running = process is not None or own.is_child
        log = cache.read(folder)
    ended, requested_unix_ns = (None, None) if _has_outcome(log) else _read_control(folder)
    if not _has_outcome(log):
        ended = own.unrecorded_exit or ended
    request = folder.request()
    if log.run is None and log.problem is None:
        log = log._replace(problem=request.problem)
    age_s = heartbeat_age_s(folder.alive, now_unix_s)
    signs = read_vital_signs(folder.alive)
    caught = caught_stops(signs, requested_unix_ns)
    evidence = StateEvidence(
        log_state=log.run.state if log.run is not None else None,
        log_message=log.run.state_message if log.run is not None else "",
        is_alive=locked,
        heartbeat_age_s=age_s,
        is_process_running=running,
        returncode=ended.returncode if ended is not None else None,
        # A creation time far in the future is invalid: such a run does not wait for its process either.
        age_s=abs(now_unix_s - request.created_unix_ns / 1e9),
        is_simulated=log.run is not None and bool(log.run.simulated),
        is_stop_requested=(requested_unix_ns is not None or own.is_stop_requested)
        # A script that has caught two is terminated.
        and caught != 1,
        is_stop_caught=caught == 1,
        last_step=log.last_step,
        output_tail=() if running or _has_outcome(log) else tuple(folder.output_tail(_TAIL_LINES)),
        log_problem=log.problem,
        health=None if signs is None else _health(signs, log, now_unix_s, age_s),
        is_script=request.script is not None,
        reported_state=None if signs is None else signs.state,
        reported_message="" if signs is None else printable(signs.message),
    )
    status = derive_state(evidence)
    is_unexplained = status.state in (RunState.KILLED, RunState.LOST) and not evidence.is_stop_requested
    if is_unexplained and log.last_step is not None:
        may_be_killed = ended is None or ended.returncode == -signal.SIGKILL
        causes = cache.end_causes(folder, log.last_step, may_be_killed=may_be_killed)
        status = status._replace(message=f"{status.message} {causes}".rstrip())
    if request.part.ranks > 1:
        status = state_of_ranks(status, read_ranks([folder], now_unix_s))
    return RunInspection(request, status, log, running, locked, age_s, ended)


def _health(signs: VitalSigns, log: LogFacts, now_unix_s: float, heartbeat_age_s: float | None) -> LogHealth:
    """Return the process's figures about its steps and its log, as of its last heartbeat: a process that
    hangs is not a problem of its log."""
    since_unix_ns, unwritten_s = signs.unwritten_since_unix_ns, None
    if since_unix_ns is not None and heartbeat_age_s is not None:
        unwritten_s = now_unix_s - heartbeat_age_s - since_unix_ns / 1e9
    return LogHealth(
        signs.finished_step, log.logged_step, log.logged_steps, since_unix_ns, unwritten_s, signs.reason
    )


def _has_outcome(log: LogFacts) -> bool:
    """Return whether the log contains the outcome of the run, so that no other evidence is needed."""
    return log.run is not None and (log.run.simulated == 1 or log.run.state in _OVER)


_OVER = frozenset(state.value for state in RunState if state.is_over)


def _read_control(folder: RunFolder) -> tuple[ExitRow | None, int | None]:
    """Return the exit of the process, and the time of the last stop command; None without one, and both from
    a damaged file."""
    try:
        with ControlLog(folder) as control:
            return control.last_exit(), stop_requested_unix_ns(control)
    except LogError:
        return None, None


def stop_requested_unix_ns(control: ControlLog) -> int | None:
    """Return the time of the last stop command, None without one. Raises LogError."""
    requested = [c.created_unix_ns for c in control.newest_commands() if c.kind == CommandKind.STOP]
    return max(requested, default=None)


def caught_stops(signs: VitalSigns | None, requested_unix_ns: int | None) -> int:
    """Return how many stops the script has caught and gone on after; 0 if the last one, requested at this
    time, is not among them."""
    if signs is None or signs.stop_caught_unix_ns is None or requested_unix_ns is None:
        return 0
    return signs.stops_caught if signs.stop_caught_unix_ns > requested_unix_ns else 0
