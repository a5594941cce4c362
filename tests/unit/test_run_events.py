"""The list of a run's events ends with its outcome, also where the log lacks it."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.demo.writing import write
from harness.records.run import EventKind, EventRow
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.reporting import read_report
from harness.supervisor.run_events import read_events
from tests.store_factories import steps, write_log


def a_folder(home: Home, outcome: tuple[str, str] | None) -> RunFolder:
    """A run that has ended with a log of five steps and no outcome, which is in its vital signs."""
    folder = RunFolder(home.runs_path / "20260102-030405-abcd")
    folder.path.mkdir(parents=True)
    write_log(folder.log, steps(1, 5))
    with Liveness.hold(folder.alive) as alive:
        if outcome is not None:
            alive.signs.set_outcome(*outcome)
    return folder


def events_of(home: Home, folder: RunFolder) -> list[EventRow]:
    with LogReader(folder.log) as reader:
        return read_events(reader, Supervisor(home).summary(folder))


@pytest.mark.parametrize("outcome", [("stopped", "Stopped after step 9."), None])
def test_an_outcome_that_the_log_lacks_is_the_last_event(
    tmp_path: Path, outcome: tuple[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    folder = a_folder(home, outcome)
    summary = Supervisor(home).summary(folder)
    (event,) = events_of(home, folder)
    assert (event.kind, event.step) == (EventKind.STATE, 5)
    assert (event.label, event.message) == ("lost" if outcome is None else "stopped", summary.status.message)
    assert outcome is None or outcome[1] in event.message
    assert read_report(folder, summary).events == [event]
    assert main(["show", "--home", str(home.path), folder.run_id]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].split()[:2] == ["5", event.label]


def test_an_outcome_in_the_log_is_not_repeated(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    folder = write("steady", home, steps=20)
    with LogReader(folder.log) as reader:
        logged = [event for _, event in reader.events()]
    assert events_of(home, folder) == logged
