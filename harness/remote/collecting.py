"""The collector: the process of a remote run at its home. It copies log and output, and passes commands on.

It holds the run's lock and beats while the node answers, so that everything that judges a run by its folder
(state, pages, stop and its escalation) needs no case for remote runs.
"""

import errno
import faulthandler
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from types import FrameType

from harness import words
from harness.errors import HomeFullError, LogError, StepscopeError
from harness.identity import identify_self, write_identity
from harness.records.run import CommandKind, RunState
from harness.remote.protocol import News, NodeLostError, NodeRequest, NodeSilentError, Pull, RemoteNode
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.liveness import Liveness
from harness.store.replica import LogReplica

# A row waits for its transaction at the node (0.1 s), and for the next transfer.
PERIOD_S = 0.5
_TIMEOUT_S = 5.0
# While it waits for a machine, it must notice a stop.
_WAITING_S = 1.0
_EXIT_OK, _EXIT_FAILED = 0, 1

StartNode = Callable[[NodeRequest], RemoteNode]


class Collector:
    """Collects one run."""

    def __init__(
        self,
        folder: RunFolder,
        start_node: StartNode,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._start_node = start_node
        self._sleep = sleep
        self._signals: list[int] = []
        self._commands_read = 0
        self._output_bytes = 0
        self._unwritten_since_unix_ns = 0
        self._host = "the node"

    def run(self) -> int:
        """Collect the run until it ends, and return the exit code of its process. Raises StepscopeError when
        it cannot start, and NodeLostError after recording that as the outcome."""
        request, script = self._folder.request(), self._folder.script()
        with ExitStack() as stack:
            handle = stack.enter_context(FolderHandle(self._folder))
            alive = stack.enter_context(Liveness.hold(handle.steady.alive))
            write_identity(handle.steady.process, identify_self(os.environ))
            control = stack.enter_context(ControlLog(self._folder))
            replica = stack.enter_context(LogReplica(self._folder.log))
            node = stack.enter_context(
                closing(
                    self._start_node(
                        NodeRequest(
                            request.run_id,
                            request.name,
                            request.created_unix_ns,
                            request.settings_json,
                            script,
                        )
                    )
                )
            )
            try:
                return self._collect(node, alive, control, replica)
            except NodeLostError as error:
                raise self._record_loss(replica, error) from None

    def stop_on_signals(self) -> None:
        """Pass SIGTERM and SIGINT on to the training process."""

        def forward(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, forward)

    def _collect(self, node: RemoteNode, alive: Liveness, control: ControlLog, replica: LogReplica) -> int:
        news = self._wait_for_machine(node, alive, control, replica)
        if news is None:
            return _EXIT_OK
        alive.signs.set_outcome(RunState.LAUNCHING, f"Starting on {news.host}.")
        while True:
            if news is not None:
                alive.beat()  # Without a beat for a while the run shows as not responding.
                alive.signs.step_finished(news.finished_step)
                if news.returncode is not None and not _has_more(news):
                    return self._finish(news, replica)
            is_behind = news is not None and news.rows is not None and not news.rows.is_complete
            self._sleep(0.0 if is_behind else PERIOD_S)
            while self._signals:
                node.signal(self._signals.pop(0))
            news = self._pull(node, alive, control, replica, _TIMEOUT_S)

    def _wait_for_machine(
        self, node: RemoteNode, alive: Liveness, control: ControlLog, replica: LogReplica
    ) -> News | None:
        """Return the first news; None if the run was stopped before a machine was free for it."""
        alive.signs.set_outcome(RunState.LAUNCHING, "Waits for a machine of the cluster that is free for it.")
        while not self._signals and not _is_stopped(control):
            if (news := self._pull(node, alive, control, replica, _WAITING_S)) is not None:
                return news
            alive.beat()
            self._sleep(PERIOD_S)
        alive.signs.set_outcome(RunState.STOPPED, "Stopped on request, before a machine was free for it.")
        return None

    def _pull(
        self, node: RemoteNode, alive: Liveness, control: ControlLog, replica: LogReplica, timeout_s: float
    ) -> News | None:
        """Pass the commands on, and write what is new; None: the node has not answered in time, or the disk
        is full and the next request brings the same again."""
        commands = control.commands(self._commands_read)
        last = commands[-1][0] if commands else self._commands_read
        rows = [command for _, command in commands]
        try:
            news = node.pull(Pull(replica.marks, self._output_bytes, rows, last), timeout_s)
        except NodeSilentError:
            return None
        # Those of a later request than the answered one are sent again.
        self._commands_read = news.commands_read
        self._host = news.host
        try:
            self._write(news, replica)
        except HomeFullError as error:
            self._unwritten_since_unix_ns = self._unwritten_since_unix_ns or time.time_ns()
            alive.signs.set_unwritten(self._unwritten_since_unix_ns, error.reason)
            alive.beat()
            return None
        self._unwritten_since_unix_ns = 0
        alive.signs.set_unwritten(0, "")
        return news

    def _write(self, news: News, replica: LogReplica) -> None:
        """Write new rows and output. Raises as `LogReplica.apply`."""
        if news.rows is not None:
            replica.apply(news.rows)
        if news.output:
            try:
                with self._folder.output.open("ab") as file:
                    file.write(news.output)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise HomeFullError(self._folder.output, str(error.strerror).lower()) from None
            self._output_bytes += len(news.output)

    def _finish(self, news: News, replica: LogReplica) -> int:
        """Record the outcome of a process that could not, and return an exit code."""
        assert news.returncode is not None
        if news.returncode >= 0:
            return news.returncode
        name = signal.Signals(-news.returncode).name
        replica.end(RunState.KILLED, f"Killed by {name} on {news.host}.", time.time_ns())
        return _EXIT_FAILED

    def _record_loss(self, replica: LogReplica, error: NodeLostError) -> NodeLostError:
        last = replica.last_step
        arrived = f"everything up to step {words.count(last)} had arrived" if last else "no step had arrived"
        message = f"{self._host} was lost while it trained ({error}); {arrived}."
        replica.end(RunState.LOST, message, time.time_ns())
        return NodeLostError(message)


def _is_stopped(control: ControlLog) -> bool:
    """Return whether the run was requested to stop."""
    return any(command.kind == CommandKind.STOP for _, command in control.commands(0))


def _has_more(news: News) -> bool:
    """Return whether more may have been written before the process ended."""
    return bool(news.output) or (news.rows is not None and not news.rows.is_complete)


def collect(folder: RunFolder, start_node: StartNode, retry: Callable[[RunFolder, int], str | None]) -> int:
    """Run the collector of `folder` in this process and return its exit code. `retry` starts another run with
    the remaining number of retries, and returns its name."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    collector = Collector(folder, start_node)
    collector.stop_on_signals()
    try:
        return collector.run()
    except NodeLostError as error:
        print(f"stepscope: {error}", flush=True)
        remote = folder.request().remote
        if remote is not None and remote.retries > 0:
            name = retry(folder, remote.retries - 1)
            print(f"stepscope: retried as {name}", flush=True)
        return _EXIT_FAILED
    except LogError as error:
        raise StepscopeError(str(error)) from None
