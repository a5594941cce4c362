"""One process of `pytest --workers`, forked after the collection: it runs the tests that it is given, and
hands on what pytest reports of them."""

import os
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from _pytest.capture import FDCapture

from tests.scheduling import Positions

WORKER = pytest.StashKey[int]()
"""The number of the worker, in the stash of its configuration."""


class _Forwarder:
    """Hands what happens in a worker to the process that it was forked from."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self) -> None:
        self._connection.send(("pytest_runtest_logstart", {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("pytest_runtest_logreport", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._connection.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        # Without the object that it is about, which may be one that only this process can have.
        text = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
            line=warning_message.line,
        )
        arguments = {"warning_message": text, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("pytest_warning_recorded", arguments))


def run_worker(session: pytest.Session, number: int, connection: Connection) -> NoReturn:
    """Run what comes over the connection until that is nothing, and end this process: with 0 unless something
    failed that is not part of a test."""
    code = 1
    try:
        _become_worker(session.config, number, connection)
        try:
            _run_tests(session, connection)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Once is enough.
            session._setupstate.teardown_exact(None)
        session.config._ensure_unconfigure()
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001  (of any kind: the process ends here)
        traceback.print_exc(file=sys.__stderr__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become_worker(config: pytest.Config, number: int, connection: Connection) -> None:
    plugins = config.pluginmanager
    reporter = plugins.unregister(name="terminalreporter")
    # Whoever writes to the terminal itself may go on, as pytest-timeout does with the stacks.
    plugins.register(SimpleNamespace(_tw=getattr(reporter, "_tw", None)), "terminalreporter")
    plugins.register(_Forwarder(config, connection))
    _capture_apart(plugins.get_plugin("capturemanager"))
    config.stash[WORKER] = number
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"worker-{number}"
    folders._basetemp.mkdir(mode=0o700, exist_ok=True)


def _capture_apart(manager: Any) -> None:
    # A file into which output is captured has one position, in whatever process it is open.
    for stream in (manager._global_capturing.out, manager._global_capturing.err):
        if isinstance(stream, FDCapture):
            with TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno())


def _run_tests(session: pytest.Session, connection: Connection) -> None:
    file = _ask(connection)
    while file:
        for position in file[:-1]:
            _run_test(session, position, position + 1)
        following = _ask(connection)
        _run_test(session, file[-1], following[0] if following else None)
        file = following


def _ask(connection: Connection) -> Positions:
    connection.send(None)
    return connection.recv()  # type: ignore[no-any-return]


def _run_test(session: pytest.Session, position: int, following: int | None) -> None:
    item = session.items[position]
    nextitem = None if following is None else session.items[following]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    if session.shouldfail or session.shouldstop:
        raise KeyboardInterrupt
