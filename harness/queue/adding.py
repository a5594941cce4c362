"""Additions to the queue, and the start of its worker by whoever adds."""

import os
import threading
import time
import uuid

from harness.device.selector import kind_of, refuse_absent
from harness.errors import StepscopeError, UsageError
from harness.identity import new_nonce
from harness.queue.files import queue_log, worker_lock, worker_output
from harness.queue.starting import QueuedWork, check_work
from harness.records import json as row_json
from harness.records.queue import QueueRequest, QueueState
from harness.records.script import ScriptOrigin
from harness.settings import Settings
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.supervisor.launch import Spawn, child_environment, queue_command, spawn

# Longer ones could not be read again.
_MOST_SCRIPT_CHARACTERS = 16_000


def add_model(
    home: Home,
    settings: Settings,
    name: str | None = None,
    *,
    is_forced: bool = False,
    request_id: str | None = None,
) -> int:
    """Append a run of a model of the catalog and return the id of the entry. The same `request_id` is added
    once. Raises UsageError as the start of a run does, HomeError, LogError."""
    refuse_absent(settings.device)
    work = QueuedWork(settings, None)
    return _add(home, work, name, settings.device, is_forced=is_forced, request_id=request_id)


def add_script(
    home: Home, origin: ScriptOrigin, name: str | None, device: str, *, is_forced: bool = False
) -> int:
    """Append a run of a script, which sees one device. Raises as `add_model`."""
    kind_of(device)
    refuse_absent(device)
    return _add(home, QueuedWork(None, origin), name, device, is_forced=is_forced)


def _add(
    home: Home,
    work: QueuedWork,
    name: str | None,
    device: str,
    *,
    is_forced: bool,
    request_id: str | None = None,
) -> int:
    check_work(work)
    home.check_writable()
    if name is not None:
        home.check_name(name)
    script = None if work.script is None else row_json.to_json(work.script)
    if script is not None and len(script) > _MOST_SCRIPT_CHARACTERS:
        raise UsageError(
            f"The command has {len(script):,} characters, and the queue takes {_MOST_SCRIPT_CHARACTERS:,}; "
            "put the arguments into a file."
        )
    request = QueueRequest(
        request_id or uuid.uuid4().hex,
        time.time_ns(),
        name,
        "{}" if work.settings is None else work.settings.model_dump_json(),
        script,
        device,
        int(is_forced),
    )
    return queue_log(home).add(request)


def needs_worker(home: Home) -> bool:
    """Return whether an entry waits and no worker is there to start it. Raises HomeError, LogError."""
    log = queue_log(home)
    is_waiting = any(row.state == QueueState.WAITING for row in log.entries())
    return is_waiting and not log.is_paused() and not is_alive(worker_lock(home))


def ensure_worker(home: Home, start: Spawn = spawn) -> bool:
    """Start a worker if one is needed, in a process that outlives this one; return whether one was started.
    Raises StepscopeError."""
    if not needs_worker(home):
        return False
    try:
        command = queue_command(home.path)
        process = start(command, child_environment(os.environ, new_nonce()), worker_output(home))
    except OSError as error:
        raise StepscopeError(
            f"No process could be started for the queue: {error.strerror or error}; close other programs, "
            "and start it with `stepscope queue run`."
        ) from error
    threading.Thread(target=process.wait, name="stepscope-queue-reaper", daemon=True).start()
    return True
