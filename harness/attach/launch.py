"""Runs a person's script in this process, under watch. Imports torch only where the script does.

The script keeps its standard streams, its signals, its exit code and its `sys.argv`.
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.attach.active import activate, deactivate
from harness.attach.descriptors import keeping_files_open
from harness.attach.ending import ScriptStopped, ending_of
from harness.attach.git import read_commit
from harness.attach.guard import EndingGuard, ScriptGuard
from harness.attach.imports import after_import
from harness.attach.main_module import (
    attributes_from_the_start,
    find_main,
    is_container,
    path_of,
    run_as_main,
)
from harness.attach.script_threads import reporting_threads, wait_for_threads
from harness.closing import Closing
from harness.errors import INTERRUPTED_CODE, UsageError
from harness.identity import identify_self, write_identity
from harness.notices import print_notice, write_to_stderr
from harness.ranks.place import read_place
from harness.records.ranks import RankPart
from harness.records.run import RunState
from harness.records.script import ScriptOrigin
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.tracebacks import leave_out_own_frames, was_raised_by_runpy

if TYPE_CHECKING:
    from harness.attach.session import Session

# With this variable set to 1, a script runs as without Stepscope.
DISABLED_VARIABLE = "STEPSCOPE_DISABLED"

_BEAT_S = 1.0
_FAILURE_CODE = 1
# Of an interrupted script, for which Python ends its process by the signal: then a shell's loop ends, too.
ENDS_BY_SIGINT = -signal.SIGINT


class Script(NamedTuple):
    """A script or a module, and its arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool

    @property
    def command(self) -> str:
        """The command as typed."""
        return f"-m {self.target}" if self.is_module else self.target

    def check(self) -> None:
        """Raise UsageError when there is no such script."""
        path = Path(self.target)
        if self.is_module:
            return
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            problem = f"There is no script {self.target!r} in {os.getcwd()}; check the path."
            raise UsageError(problem) from None
        except OSError as error:  # Of a folder that may not be entered, or a name that is too long.
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"The script {self.target!r} cannot be read: {reason}.") from None
        if is_container(path) and find_main(path_of(self.target)) is None:
            kind = "folder" if path.is_dir() else "archive"
            raise UsageError(f"The {kind} {self.target!r} has no __main__.py; name a script in it.")
        if not os.access(path, os.R_OK):
            raise UsageError(f"The script {self.target!r} cannot be read; check its permissions.")


class Heartbeat(Closing):
    """A thread that updates the run's heartbeat until the watch does."""

    def __init__(self, alive: Liveness) -> None:
        self._alive = alive
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="stepscope-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            with suppress(OSError):  # Such as of a script that closes all files, as a daemon does.
                self._alive.beat()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_BEAT_S)


class Attachment:
    """The session of a script, which begins when torch is imported."""

    def __init__(
        self,
        folder: RunFolder,
        handle: FolderHandle,
        alive: Liveness,
        heartbeat: Heartbeat,
        environ: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._handle = handle
        self._alive = alive
        self._heartbeat = heartbeat
        self._guard = ScriptGuard()
        self._session: Session | None = None

    def attach(self, *, has_tensors: bool = True) -> None:
        """Follow torch from now on. `has_tensors`: the script may have some already."""
        self._guard.run(self._open_session, has_tensors)

    def _open_session(self, has_tensors: bool) -> None:
        import torch  # noqa: F401  # Its first import attaches by itself: here, for a script without torch.

        if self._session is not None:
            return
        from harness.attach.session import Session
        from harness.watch.watch import RunFiles

        files = RunFiles(self._folder.path, self._handle, self._alive)
        place, member = read_place(self._environ), None
        if place is not None:
            from harness.ranks.member import RankMember

            member = RankMember.join(place, self._handle.steady, self._environ)
        self._session = Session(
            self._folder, files, self._guard, self._heartbeat.close, member, has_tensors=has_tensors
        )

    @property
    def session(self) -> "Session | None":
        """The session; None before torch is imported, and where it could not be opened."""
        return self._session

    @property
    def folder_path(self) -> Path:
        """The folder of the run."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._folder.request().name

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._folder.run_id

    def warn_of_unused(self, name: str | None, home: str | None) -> None:
        """Warn in the run where `stepscope.watch` was given another name or home than it has."""
        self._guard.run(self._warn_of_unused, name, home)

    def _warn_of_unused(self, name: str | None, home: str | None) -> None:
        unused = [] if name in (None, self.name) else [f"name={name!r}"]
        if home is not None and Path(home).resolve() != self.folder_path.parents[1].resolve():
            unused.append(f"home={home!r}")
        if unused and self._session is not None:
            self._session.remarks.warn_once(
                "watch",
                "watch joined this run",
                f"Under stepscope run {' and '.join(unused)} of stepscope.watch has no effect; name the run "
                "with stepscope run --name, and its home with STEPSCOPE_HOME.",
            )

    def trains_in(self, thread: threading.Thread | None) -> bool:
        """Return whether `thread` is the one that trains."""
        return self._guard.is_claimed_by(thread)

    def end(self, error: BaseException | None) -> None:
        """Record the end of the script, also of one that has not imported torch, or without a session
        because it could not be opened."""
        if self._session is None:
            self.attach()
        if self._session is None:
            self.report_end(error)
        else:
            self._session.end(error)

    def report_end(self, error: BaseException | None) -> None:
        """Leave the outcome of a script among its process's vital signs, unless there is one: the end of the
        session could not be recorded."""
        signs = self._alive.signs
        if not signs.has_outcome:
            ending = ending_of(error, 0, self._guard.message)
            state = RunState.OUT_OF_MEMORY if isinstance(error, MemoryError) else ending.state
            signs.set_outcome(state, ending.message or type(error).__name__)


def run_script(script: Script, home: Home, name: str | None, environ: Mapping[str, str]) -> int:
    """Run `script` under watch, as a new run of `home`, and return its `exit_code`.

    Raises UsageError when there is no such script or the name is taken, HomeError when no run can be created.
    """
    script.check()
    if environ.get(DISABLED_VARIABLE) == "1":
        return exit_code(execute(script))
    place = read_place(environ)

    def create(part: RankPart) -> RunFolder:
        return home.create_for_script(name, origin_of(script), time.time_ns(), part=part)

    if place is None:
        return _run_watched(script, create(RankPart()), environ)
    from harness.ranks.member import common_folder  # Imports torch, as a script of several ranks does.

    return _run_watched(script, common_folder(place, environ, create), environ)


def run_script_into(script: Script, folder: RunFolder, environ: Mapping[str, str]) -> int:
    """Run `script` under watch, as the run of `folder` and in the working folder that its request names, and
    return its `exit_code`.

    Raises UsageError when there is no such run or script.
    """
    origin = folder.request().script
    if origin is None:
        raise UsageError(f"There is no run of a script in {folder.path}.")
    try:
        os.chdir(origin.folder)
    except OSError as error:
        raise UsageError(f"The script cannot run in {origin.folder}: {error.strerror}.") from None
    script.check()
    place = read_place(environ)
    return _run_watched(script, RunFolder(folder.path, 0 if place is None else place.local_rank), environ)


def print_begin(training: str, name: str, run_id: str) -> None:
    """Print the run that watches `training`, and the command that shows it."""
    print_notice(f"{training} is run {name} ({run_id}); see it with: stepscope dashboard")


def _run_watched(script: Script, folder: RunFolder, environ: Mapping[str, str]) -> int:
    pid = os.getpid()
    with ExitStack() as stack:
        attachment = stack.enter_context(attaching(folder, environ))
        if not folder.rank:
            print_begin(script.command, attachment.name, folder.run_id)
        after_import("torch", partial(attachment.attach, has_tensors=False))
        with reporting_threads(attachment.end):
            error = execute(script)
            if os.getpid() == pid and (error is None or isinstance(error, SystemExit)):
                error = wait_for_threads() or error
        if os.getpid() != pid:  # A child that the script forked ends here too, and owns none of this.
            stack.pop_all()
            return exit_code(error)
        # A log that cannot be closed is no reason to lose the script's exit code, nor are files that the
        # script has closed.
        guard = EndingGuard()
        guard.run(attachment.end, error)
        if guard.message is not None:
            EndingGuard().run(attachment.report_end, error)
        EndingGuard().run(_close, stack)
    return exit_code(error)


def _close(stack: ExitStack) -> None:
    try:
        stack.close()
    except OSError as error:
        print_notice(f"The files of this run could not be closed: {error.strerror or error}.")


@contextmanager
def attaching(folder: RunFolder, environ: Mapping[str, str]) -> Iterator[Attachment]:
    """The attachment of this process to the run of `folder`, until the context ends."""
    with ExitStack() as stack:
        handle = stack.enter_context(FolderHandle(folder))
        alive = stack.enter_context(Liveness.hold(handle.steady.alive))
        stack.enter_context(keeping_files_open(handle.locate))
        write_identity(handle.steady.process, identify_self(environ))
        attachment = Attachment(folder, handle, alive, stack.enter_context(Heartbeat(alive)), environ)
        activate(attachment)
        stack.callback(deactivate, attachment)
        yield attachment


def execute(script: Script) -> BaseException | None:
    """Run `script` as `python` would, and return what it raised, without the frames of this package."""
    sys.argv = [script.target, *script.arguments]
    path = Path(script.target)
    if script.is_module:
        folder = os.getcwd()
    else:
        folder = path_of(script.target) if is_container(path) else str(path.resolve().parent)
    if sys.flags.safe_path:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder
    try:
        if script.is_module:
            runpy.run_module(script.target, attributes_from_the_start(), "__main__", alter_sys=True)
        else:
            run_as_main(script.target)
    except BaseException as error:  # noqa: BLE001  # every end of the script is recorded and reported
        if was_raised_by_runpy(error):  # As Python says it: there is no such module, or nothing to run in it.
            return SystemExit(f"{sys.executable}: {error}")
        return leave_out_own_frames(error)
    return None


def exit_code(error: BaseException | None) -> int:
    """Return the exit code that Python gives a script that raised `error`, or ENDS_BY_SIGINT; prints the
    traceback, or the message of `sys.exit`."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        write_to_stderr(f"{error.code}\n")
        return _FAILURE_CODE
    report(error, sys.excepthook)
    if isinstance(error, ScriptStopped):
        return INTERRUPTED_CODE
    return ENDS_BY_SIGINT if isinstance(error, KeyboardInterrupt) else _FAILURE_CODE


def report(error: BaseException, print_error: Callable[..., object]) -> None:
    """Report the error that ends the process by `print_error`, an excepthook; a stop in one line, unless that
    hook may do more than print."""
    if isinstance(error, ScriptStopped) and _only_prints(print_error):
        print_notice(str(error))
        return
    leave_out_own_frames(error)  # The end of the watch has added some.
    print_error(type(error), error, error.__traceback__)


def _only_prints(hook: Callable[..., object]) -> bool:
    """Return whether an excepthook is Python's own, or one of torch.distributed or rich, which print the
    traceback in other ways. A script's own may do more."""
    package = str(getattr(hook, "__module__", "")).partition(".")[0]
    return hook is sys.__excepthook__ or package in ("torch", "rich")


def origin_of(script: Script) -> ScriptOrigin:
    """Return the origin of a run that starts now in this process."""
    folder = os.getcwd()
    commit, is_dirty = read_commit(Path(folder) if script.is_module else Path(script.target).resolve().parent)
    return ScriptOrigin(script.command, script.arguments, folder, sys.executable, commit, is_dirty)
