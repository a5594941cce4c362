"""Run the tests in several processes: `pytest --workers 4`.

They are forked when the tests have been collected: importing and collecting them is done once. Workers that
are started afresh, as those of pytest-xdist, each do it for themselves.
"""

import os
import signal
import sys
import time
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import pytest

from tests.scheduling import FilesLeft, Positions
from tests.worker import run_worker

# Between two looks at whether the workers live.
_LOOK_S = 1.0
# An interrupted worker ends its servers, browsers and runs.
_PATIENCE_S = 20.0


class _Worker:
    """A worker, seen from the process that collected the tests.

    Attributes:
        number: its number, from 0 on.
        connection: where it reports.
        running: the test that it runs, as its place in the session; None between two tests.
        given: the tests that it has to run after that one.
    """

    def __init__(self, number: int, session: pytest.Session, others: "list[_Worker]") -> None:
        """Forks it. `others` are those that there are already."""
        self.number = number
        self.running: int | None = None
        self.given: deque[int] = deque()
        self.connection, its_end = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            for other in (self, *others):
                other.connection.close()
            run_worker(session, number, its_end)
        its_end.close()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def give(self, file: Positions) -> None:
        """Answer its request for a file; an empty one lets it end."""
        self.given.extend(file)
        self.connection.send(file)

    def begin(self) -> None:
        """Note that it begins with the next test."""
        self.running = self.given.popleft()

    def end(self) -> None:
        """Interrupt it where it still runs, and wait for its end."""
        deadline = time.monotonic() + _PATIENCE_S
        if self.poll() is None:
            os.kill(self._pid, signal.SIGINT)
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)
        self.connection.close()


class Workers:
    """A plugin that gives the tests to workers, and reports on them as if they ran here."""

    def __init__(self, config: pytest.Config, count: int) -> None:
        self._config = config
        self._count = count
        self._workers: list[_Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests in workers."""
        if session.config.option.collectonly or session.testsfailed:
            return None  # As without workers.
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # Those of several workers would alternate.
        left = FilesLeft([item.nodeid for item in session.items])
        try:
            for number in range(self._count):
                self._start(number, session)
            while self._workers:
                self._listen(session, left)
        finally:
            for worker in self._workers:
                worker.end()
        return True

    def _start(self, number: int, session: pytest.Session) -> None:
        self._workers.append(_Worker(number, session, self._workers))

    def _listen(self, session: pytest.Session, left: FilesLeft) -> None:
        heard = wait([worker.connection for worker in self._workers], _LOOK_S)
        for worker in tuple(self._workers):
            if worker.connection in heard:
                try:
                    message = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    self._note_end(worker, session, left)
                else:
                    self._answer(worker, message, left)
            # Processes that it forked may hold the connection open.
            elif worker.poll() is not None and not worker.connection.poll():
                self._note_end(worker, session, left)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _answer(self, worker: _Worker, message: Any, left: FilesLeft) -> None:
        hook = self._config.hook
        match message:
            case None:
                worker.give(left.take(worker.number))
            case "pytest_runtest_logstart", _:
                worker.begin()
            case "pytest_runtest_logfinish", arguments:
                worker.running = None
                hook.pytest_runtest_logfinish(**arguments)
            case "pytest_runtest_logreport", data:
                report = hook.pytest_report_from_serializable(config=self._config, data=data)
                hook.pytest_runtest_logreport(report=report)
            case "pytest_warning_recorded", arguments:
                hook.pytest_warning_recorded.call_historic(kwargs=arguments)

    def _note_end(self, worker: _Worker, session: pytest.Session, left: FilesLeft) -> None:
        self._workers.remove(worker)
        worker.end()
        code = worker.poll()
        if worker.running is None:
            if code or worker.given:
                session.shouldfail = f"worker {worker.number} ended with {code} between two tests"
            return
        item = session.items[worker.running]
        text = f"The process that ran this test ended with {code}."
        crash = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._config.hook.pytest_runtest_logreport(report=crash)
        left.put_back(tuple(worker.given))
        self._start(worker.number, session)
