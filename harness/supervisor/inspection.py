"""Looks at one run from outside: its lock, its process, its exit, its commands and its log, as evidence.

Order matters. A run that ends while it is looked at first writes its last word, then lets go of its lock,
then dies; so the lock and the process are looked at first and the log last. Whatever the moment, a run that
ended in order is never taken for lost.
"""

from typing import NamedTuple

from harness.analysis.log_health import LogHealth
from harness.analysis.state import Evidence, RunStatus, derive_state
from harness.errors import LogError
from harness.records import CommandKind, ExitRow, RunState
from harness.store.control import ControlLog
from harness.store.folder import Request, RunFolder
from harness.store.liveness import heartbeat_age_s, is_alive
from harness.store.vital_signs import read_vital_signs
from harness.supervisor.children import OwnView
from harness.supervisor.logs import LogCache, LogFacts
from harness.supervisor.processes import find_process

# A crash in native code writes every thread's stack behind the line that names it.
_TAIL_LINES = 400
_NOT_OURS = OwnView(is_child=False, is_stopping=False, is_stop_requested=False, unrecorded_exit=None)


class Look(NamedTuple):
    """One look at a run: what was found, and the state it amounts to."""

    request: Request
    status: RunStatus
    log: LogFacts
    # Whether a process of this run exists.
    has_process: bool
    is_locked: bool
    heartbeat_age_s: float | None
    exit: ExitRow | None


def look(
    folder: RunFolder,
    cache: LogCache,
    now_unix_s: float,
    own: OwnView = _NOT_OURS,
) -> Look:
    """Gather the evidence on a run and derive its state. `own` is what we know as its parent."""
    locked = is_alive(folder.alive)
    running = locked or own.is_child
    log = cache.unchanged(folder)
    if log is None or not _is_told(log):
        process = find_process(folder)
        locked = process is not None and process.is_locked
        running = process is not None or own.is_child
        log = cache.read(folder)
    ended, stop_asked = (None, False) if _is_told(log) else _read_control(folder)
    if not _is_told(log):
        ended = own.unrecorded_exit or ended
    request = folder.request()
    if log.run is None and log.problem is None:
        log = log._replace(problem=request.problem)
    age_s = heartbeat_age_s(folder.alive, now_unix_s)
    evidence = Evidence(
        log_state=log.run.state if log.run is not None else None,
        log_message=log.run.state_message if log.run is not None else "",
        is_alive=locked,
        heartbeat_age_s=age_s,
        is_process_running=running,
        returncode=ended.returncode if ended is not None else None,
        # A time far ahead is no time at which this run was created: it does not wait for its process either.
        age_s=abs(now_unix_s - request.created_unix_ns / 1e9),
        is_simulated=log.run is not None and bool(log.run.simulated),
        is_stop_asked=stop_asked or own.is_stop_requested,
        last_step=log.last_step,
        output_tail=() if running or _is_told(log) else tuple(folder.output_tail(_TAIL_LINES)),
        log_problem=log.problem,
        health=_health(folder, log, now_unix_s, age_s),
    )
    return Look(request, derive_state(evidence), log, running, locked, age_s, ended)


def _health(
    folder: RunFolder, log: LogFacts, now_unix_s: float, heartbeat_age_s: float | None
) -> LogHealth | None:
    """What the process left about its steps and its log. It counts up to its last heartbeat: a process that
    hangs is no matter of its log."""
    signs = read_vital_signs(folder.alive)
    if signs is None:
        return None
    since_unix_ns, unwritten_s = signs.unwritten_since_unix_ns, None
    if since_unix_ns is not None and heartbeat_age_s is not None:
        unwritten_s = now_unix_s - heartbeat_age_s - since_unix_ns / 1e9
    return LogHealth(
        signs.finished_step, log.logged_step, log.logged_steps, since_unix_ns, unwritten_s, signs.reason
    )


def _is_told(log: LogFacts) -> bool:
    """Whether the log itself says how the run ended, so that nothing else need be asked."""
    return log.run is not None and (log.run.simulated == 1 or log.run.state in _OVER)


_OVER = frozenset(state.value for state in RunState if state.is_over)


def _read_control(folder: RunFolder) -> tuple[ExitRow | None, bool]:
    """How the process ended, and whether it was asked to stop. A damaged control file knows neither."""
    try:
        with ControlLog(folder) as control:
            return control.last_exit(), stop_asked_unix_ns(control) is not None
    except LogError:
        return None, False


def stop_asked_unix_ns(control: ControlLog) -> int | None:
    """When the run was last asked to stop; None: never. Raises LogError."""
    asked = [c.created_unix_ns for _, c in control.commands() if c.kind == CommandKind.STOP]
    return max(asked, default=None)
