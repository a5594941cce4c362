"""The folder of a tune: its state survives, and foreign content is refused in a sentence."""

import errno
import json
import os
from pathlib import Path

import pytest

from harness.cli.tuning import parse_budget, parse_selected
from harness.errors import HomeError, RunStateError, UnknownRunError, UsageError
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.supervisor import Supervisor
from harness.tune.folder import create_tune, find_tune, tunes
from harness.tune.rows import TuneState
from harness.tune.tuning import TuneInterface, Tuner
from tests.supervision import lock_holder_process
from tests.tune_factories import a_tune, completed


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_state_is_read_as_it_was_written(home: Home) -> None:
    folder = create_tune(home, 1.0)
    tune = completed(a_tune(), lambda changes: (0.9 if changes else 1.0, 1.0))._replace(
        tune_id=folder.tune_id
    )
    folder.write(tune)
    assert folder.read() == tune


def test_a_running_tune_without_a_process_is_stopped_and_says_how_to_continue(home: Home) -> None:
    folder = create_tune(home, 1.0)
    folder.write(a_tune())
    assert folder.view().state is TuneState.RUNNING, "its process may be starting"
    os.utime(folder.state, (1, 1))
    view = folder.view()
    assert view.state is TuneState.STOPPED
    assert f"--resume {folder.tune_id}" in view.message
    with lock_holder_process(folder.alive):
        assert folder.view().state is TuneState.RUNNING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"tune_id": 1}',
        "[" * 100_000,
        "\\ud800",
    ],
)
def test_a_state_that_is_not_valid_is_refused_in_a_sentence(home: Home, text: str) -> None:
    folder = create_tune(home, 1.0)
    folder.state.write_text(text)
    with pytest.raises(HomeError, match="is not valid"):
        folder.read()


def test_a_state_with_settings_of_another_kind_is_refused(home: Home) -> None:
    folder = create_tune(home, 1.0)
    folder.write(a_tune())
    values = json.loads(folder.state.read_text())
    values["settings"]["batch_size"] = -1
    folder.state.write_text(json.dumps(values))
    with pytest.raises(HomeError, match="batch_size cannot be -1"):
        folder.read()


def test_a_missing_state_is_refused_in_a_sentence(home: Home) -> None:
    with pytest.raises(HomeError, match="cannot be read"):
        create_tune(home, 1.0).read()


def test_on_a_full_disk_no_tune_is_left_without_a_state(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, new = create_tune(home, 1.0), create_tune(home, 2.0)
    begun.write(a_tune())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    for folder in (begun, new):
        with pytest.raises(HomeError, match="No space left"):
            folder.write(a_tune())
    assert tunes(home) == [begun]
    assert list(begun.path.iterdir()) == [begun.state]


def test_tunes_are_found_by_the_beginning_of_their_id(home: Home) -> None:
    assert tunes(home) == []
    with pytest.raises(UnknownRunError, match="There is no tune yet"):
        find_tune(home, "latest")
    older, newer = create_tune(home, 1.0), create_tune(home, 1e9)
    assert find_tune(home, "latest") == newer
    assert find_tune(home, older.tune_id[:8]) == older
    with pytest.raises(UnknownRunError, match=newer.tune_id):
        find_tune(home, "elsewhere")


@pytest.mark.slow
def test_a_tune_in_progress_is_not_started_twice(home: Home) -> None:
    folder = create_tune(home, 1.0)
    interface = TuneInterface(lambda: False, lambda tune: None)
    with lock_holder_process(folder.alive), pytest.raises(RunStateError, match="in progress"):
        Tuner(Supervisor(home), folder, a_tune(), interface, lambda *_: None)
    Liveness.hold(folder.alive).close()


@pytest.mark.parametrize(("state", "is_kept"), [(TuneState.RUNNING, True), (TuneState.STOPPED, False)])
def test_a_stop_requested_while_the_process_starts_is_kept_and_an_earlier_one_is_not(
    home: Home, state: TuneState, is_kept: bool
) -> None:
    folder = create_tune(home, 1.0)
    folder.request_stop()
    interface = TuneInterface(lambda: False, lambda tune: None)
    with Tuner(Supervisor(home), folder, a_tune()._replace(state=state), interface, lambda *_: None):
        assert folder.stop.exists() is is_kept


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5 h", 5400), ("45", 45)])
def test_a_budget_is_a_time_with_a_unit(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    ("text", "reason"), [("soon", "no time"), ("-5m", "no time"), ("3s", "give 20s or more")]
)
def test_a_budget_of_no_use_is_refused_with_the_least_one(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_budget(text)


def test_settings_to_compare_are_names_in_one_word() -> None:
    assert parse_selected("amp, num-workers") == ("amp", "num_workers")
    with pytest.raises(UsageError, match="A tune cannot compare 'seed'; it compares: "):
        parse_selected("seed")
