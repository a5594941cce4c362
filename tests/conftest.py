"""Fixtures and options of all tests."""

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from harness.watch.compiler import has_compiled
from tests.scheduling import is_whole_run, yield_to_whole_runs
from tests.simulated_runs import SimulatedRuns
from tests.warm_start import prepare_forks
from tests.worker import WORKER
from tests.workers import Workers

# Nothing that is imported is garbage: collections among it take a seventh of the time to collect the tests.
gc.disable()

# Two torch processes that each take every core slow each other down many times over.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, help="run the tests in so many processes, a file in one of them")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.workers:
        prepare_forks()  # It gets ready while the tests are collected.
        config.pluginmanager.register(Workers(config, config.option.workers))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the modules of the tests' runs once for all workers. The tests run with the garbage
    collector, as the product does."""
    if session.config.option.workers:
        import_module("tests.preload")
        gc.freeze()  # No worker needs to walk it.
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The browser first, then other whole runs: what takes long is not left for one worker to end with.
    Tests marked `gpu` or `ray` run only if they are named: `pytest -m gpu`."""
    items.sort(key=lambda item: (item.get_closest_marker("browser") is None, "/e2e/" not in item.nodeid))
    unnamed = [mark for mark in ("gpu", "ray") if mark not in config.option.markexpr]
    needing = [item for item in items if any(map(item.get_closest_marker, unnamed))]
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item not in needing]


@pytest.fixture(scope="module", autouse=True)
def _yields_to_whole_runs(request: pytest.FixtureRequest) -> None:
    """Without other workers there is none to yield to."""
    if WORKER in request.config.stash and not is_whole_run(request.node.nodeid):
        yield_to_whole_runs()


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """Return what was imported lives to the end: the many collections that tests and pages ask for need not
    walk it each time."""
    gc.collect()
    gc.freeze()


# A suite started in the background has interrupts ignored, and so would everything it starts.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no bug: examples have no time limit each, the whole test has one.
settings.register_profile("patient", deadline=None, max_examples=30)
# Of `make test-long`.
settings.register_profile("thorough", deadline=None, max_examples=400)
# Of `make check`: fewer examples, for the inner loop.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def simulated_runs(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> SimulatedRuns:
    """The simulated runs of all workers of this session."""
    base = tmp_path_factory.getbasetemp()
    return SimulatedRuns((base.parent if WORKER in pytestconfig.stash else base) / "simulated")


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all homes: for each that it makes, the factory reads the names of all others."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def _leaves_nothing_compiled() -> Iterator[None]:
    """A process that has compiled something is another one for a watch."""
    yield
    if has_compiled():
        sys.modules["torch"].compiler.reset()


@pytest.fixture(autouse=True)
def _no_script_has_the_modules_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """When memory runs out, their memory is none of a script's, and takes half a second to search."""
    if (capture := sys.modules.get("harness.watch.oom.capture")) is not None:
        monkeypatch.setattr(capture, "script_modules", lambda _frames: ())


@pytest.fixture(autouse=True)
def _own_home(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the person's own runs, nor hears their settings, nor leaves another main module, which
    forked processes would run: that of a page that was tested."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for name in list(os.environ):
        if name.startswith("STEPSCOPE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STEPSCOPE_HOME", tempfile.mkdtemp(dir=homes))
