"""`python -m tests.bench.scale`: the cost of many live logs in one home, as the table of docs/scale.md.

One process writes the logs (`tests.bench.scale_writer`); this one reads them as a page, a scrape and a
collector do. CPU time is compared, which other work on the machine changes less than the time of day.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.metrics.exposition import Exposition
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.replica import LogReplica, read_rows
from harness.supervisor import Supervisor
from tests.bench.figures import machine
from tests.store_factories import a_device_sample, a_host_sample, a_run, a_step
from tests.supervision import ROOT, until

_COUNTS = (1, 8, 64, 256)
_STEPS_PER_S = 10
_TICKS = 7
_SETTLE_S = 3.0
_BYTES_OF_STEPS = 20_000
_HEAD = """| live logs | rows per s | log, KB per s | Runs page, CPU ms per tick | scrape, CPU ms \
| scrape, KB | copy, CPU ms per s | open files |
|---|---|---|---|---|---|---|---|"""


class Costs(NamedTuple):
    """The costs at one number of logs; CPU times are medians."""

    logs: int
    rows_per_s: float
    log_bytes_per_s: float
    page_ms: float
    scrape_ms: float
    scrape_bytes: int
    copy_ms_per_s: float
    open_files: int

    def line(self) -> str:
        """Return a row of the table."""
        cells = (
            f"{self.logs:,}",
            f"{self.rows_per_s:,.0f}",
            f"{self.log_bytes_per_s / 1e3:,.1f}",
            f"{self.page_ms:,.1f}",
            f"{self.scrape_ms:,.1f}",
            f"{self.scrape_bytes / 1e3:,.0f}",
            f"{self.copy_ms_per_s:,.1f}",
            f"{self.open_files}",
        )
        return f"| {' | '.join(cells)} |"


@contextmanager
def _writing(home: Home, logs: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.scale_writer", str(home.path), str(logs), str(_STEPS_PER_S)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        yield
    finally:
        writer.kill()
        writer.communicate()


def _cpu_ms(act: Callable[[], object]) -> float:
    began_ns = time.process_time_ns()
    act()
    return (time.process_time_ns() - began_ns) / 1e6


def bytes_per_s(folder: Path) -> float:
    """Return the size of a log per second of a run: its steps, samples and rollups, without the write-ahead
    log."""
    path = folder / "one.sqlite3"
    seconds = _BYTES_OF_STEPS // _STEPS_PER_S
    with LogAppender(path, a_run()) as log:
        for second in range(seconds):
            first = second * _STEPS_PER_S + 1
            samples = a_device_sample(second, first), a_host_sample(second, first)
            log.append([a_step(step) for step in range(first, first + _STEPS_PER_S)], samples)
    return path.stat().st_size / seconds


def _rows(folders: list[RunFolder]) -> int:
    """Return the rows of all logs, without rollups."""
    read = (read_rows(folder.log, {}, 10**9) for folder in folders)
    return sum(len(table.rows) for new in read if new is not None for table in new.tables.values())


def measure(folder: Path, logs: int) -> Costs:
    """Measure with this number of live logs."""
    home = Home(folder / "home")
    home.check_writable()
    with _writing(home, logs), ExitStack() as stack:
        supervisor = Supervisor(home)
        exposition = Exposition(supervisor)
        folders = home.runs()
        until(supervisor.entries, lambda entries: len(entries) == logs)
        copies = folder / "copies"
        copies.mkdir()
        replicas = [stack.enter_context(LogReplica(copies / f"{f.run_id}.sqlite3")) for f in folders]
        _copy(folders, replicas)
        time.sleep(_SETTLE_S)
        rows, began_s = _rows(folders), time.monotonic()
        page, scrapes, copied = [], [], []
        for _ in range(_TICKS):
            page.append(_cpu_ms(supervisor.entries))
            scrapes.append(_cpu_ms(lambda: exposition.scrape("")))
            copied.append(_cpu_ms(lambda: _copy(folders, replicas)))
            time.sleep(1.0)
        span_s = time.monotonic() - began_s
        rows_per_s = (_rows(folders) - rows) / span_s
        scrape_bytes = len(exposition.scrape("").body)
    open_files = psutil.Process().num_fds()
    states = {entry.state for entry in Supervisor(home).entries()}
    assert states == {"lost"}, states  # They were live, and their writer was killed.
    return Costs(
        logs,
        rows_per_s,
        logs * bytes_per_s(folder),
        statistics.median(page[1:]),
        statistics.median(scrapes[1:]),
        scrape_bytes,
        sum(copied) / span_s,
        open_files,
    )


def _copy(folders: list[RunFolder], replicas: list[LogReplica]) -> None:
    for folder, replica in zip(folders, replicas, strict=True):
        new = read_rows(folder.log, replica.marks)
        if new is not None:
            replica.apply(new)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=list(_COUNTS), help="numbers of live logs")
    counts: list[int] = parser.parse_args().counts
    print(f"{machine()}\n\n{_HEAD}", flush=True)
    for logs in counts:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), logs).line(), flush=True)


if __name__ == "__main__":
    main()
