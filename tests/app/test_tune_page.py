"""The Tune page starts, shows and stops a tune, from the files of the home."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboard.charts import tune as charts
from dashboard.data import tunes as tune_data
from dashboard.data.runs import home
from harness.device.testing.device import FAKE_FACTS
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.tune.folder import TuneFolder, create_tune, tunes
from harness.tune.launch import MORE_BUDGET_S, launch_tune, relaunch_tune
from harness.tune.results import ranking, waterfall
from harness.tune.rows import Goal, TrialProgress, Tune, TuneState
from tests.app.conftest import Open, texts
from tests.figure_schema import validate_figure
from tests.supervision import lock_holder_process
from tests.tune_factories import a_tune, completed


def machine(changes: Mapping[str, Any]) -> tuple[float, float]:
    time = 0.5 if changes.get("amp") == "bf16" else 1.0
    return time * (0.8 if changes.get("num_workers") == 2 else 1.0), 0.7 if time < 1 else 1.0


DONE = completed(a_tune(), machine)._replace(state=TuneState.COMPLETED, message="Completed in 4 min 05 s.")


def stored(tune: Tune) -> TuneFolder:
    """The folder of a tune in the home of the pages."""
    folder = create_tune(home(), 1e9)
    folder.write(tune._replace(tune_id=folder.tune_id))
    return folder


def test_a_home_without_tunes_has_the_form_and_an_explanation(open_page: Open) -> None:
    app = open_page("tune")
    assert not app.exception
    assert "one warm run" in texts(app)
    assert app.button(key="tune_start_0").label == "Start"


def test_the_sizes_of_a_model_are_named_as_in_a_new_run(open_page: Open) -> None:
    app = open_page("tune")
    size = app.selectbox(key=f"tune_size_{app.selectbox(key='tune_model').value}")
    assert (size.options, size.value) == (["Laptop", "Workstation", "H200"], "laptop")


def test_the_form_has_the_values_of_its_address(open_page: Open) -> None:
    app = open_page(
        "tune",
        tune_model="LSTM",
        tune_size_lstm="Workstation",
        tune_goal="peak memory",
        tune_budget="30 min",
        tune_selected_lstm="Mixed precision (AMP)",
        tune_baseline_lstm="Batch size",
        new_batch_size_lstm_workstation="24",
    )
    assert not app.exception
    keys = ("tune_model", "tune_size_lstm", "tune_goal", "tune_budget")
    assert [app.selectbox(key=key).value for key in keys] == ["lstm", "workstation", "memory", 1800]
    assert app.multiselect(key="tune_selected_lstm").value == ["amp"]
    assert app.number_input(key="new_batch_size_lstm_workstation").value == 24


def test_a_completed_tune_shows_ranking_winner_and_snippet(open_page: Open) -> None:
    stored(DONE)
    app = open_page("tune")
    assert not app.exception
    assert app.selectbox(key="pick_tune").options[0].startswith("mlp laptop on a CPU · ")
    table = app.dataframe[0].value
    assert table["Settings"][0] == "AMP bf16, workers 2"
    assert table["Samples/s"][0] == "2,500"
    code = [block.value for block in app.code]
    assert any("--amp bf16" in text for text in code)
    assert any("torch.autocast" in text for text in code)


def test_a_tune_in_progress_can_be_stopped(open_page: Open) -> None:
    progress = TrialProgress("AMP bf16", 3, 8, 1.0, 10.0)
    folder = stored(DONE._replace(state=TuneState.RUNNING, progress=progress, message=""))
    with lock_holder_process(folder.alive):
        app = open_page("tune")
        assert not app.exception
        app.button(key="tune_stop").click().run()
        assert folder.stop.exists()
        button = app.button(key="tune_stop")
        assert (button.label, button.disabled) == ("Stopping…", True)


def test_a_damaged_tune_is_one_sentence(open_page: Open) -> None:
    stored(DONE).state.write_text("{}")
    app = open_page("tune")
    assert not app.exception
    assert "is not valid" in app.warning[0].value


def test_a_tune_that_was_stopped_offers_to_continue(open_page: Open) -> None:
    stored(DONE._replace(state=TuneState.STOPPED, message="Stopped."))
    assert open_page("tune").button(key="tune_continue").label == "Continue"


def test_a_tune_without_time_left_continues_with_more_of_it(open_page: Open) -> None:
    stored(DONE._replace(state=TuneState.STOPPED, spent_s=3595.0))
    assert open_page("tune").button(key="tune_continue").label == "Continue for 5 min"


def test_a_completed_tune_without_comparisons_left_does_not_continue(open_page: Open) -> None:
    stored(DONE)
    assert not [button for button in open_page("tune").button if button.key == "tune_continue"]


def test_the_form_passes_on_settings_to_compare_and_the_baseline(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[Any, ...]] = []

    def launch(_: object, settings: Settings, *rest: object) -> TuneFolder:
        launched.append((settings, *rest))
        return stored(DONE)

    monkeypatch.setattr(tune_data, "launch_tune", launch)
    app = open_page("tune")
    app.selectbox(key="tune_model").select("mlp").run()
    app.multiselect(key="tune_selected_mlp").set_value(["num_workers", "batch_size"])
    app.multiselect(key="tune_baseline_mlp").set_value(["slow_loader_ms"]).run()
    app.number_input(key="new_slow_loader_ms_mlp_laptop").set_value(5.0)
    app.button(key="tune_start_0").click().run()
    assert not app.exception
    settings, goal, budget_s, selected = launched[0]
    assert (settings.model, settings.slow_loader_ms) == ("mlp", 5.0)
    assert (goal, budget_s, selected) == (Goal.THROUGHPUT, 600, ["num_workers", "batch_size"])


def test_the_cpu_is_one_row_beside_the_gpu(open_page: Open) -> None:
    settings = resolve({"model": "mlp", "device": "cuda:0"}).model_dump(mode="json")
    gpu = FAKE_FACTS._replace(name="a GPU")

    def slower(changes: Mapping[str, Any]) -> tuple[float, float]:
        return (20.0 if changes.get("device") == "cpu" else 1.0), 1.0

    stored(completed(a_tune(gpu, settings=settings), slower)._replace(state=TuneState.COMPLETED))
    table = open_page("tune").dataframe[0].value
    rows = [row for row in table.to_dict("records") if row["Settings"] == "Device cpu"]
    assert [(row["Samples/s"], row["Peak allocated"]) for row in rows] == [("50.0", "n/a")]


def test_a_tune_continues_as_running_before_its_process_says_so(open_page: Open) -> None:
    folder = stored(DONE._replace(state=TuneState.STOPPED, message="Stopped.", spent_s=3595.0))
    folder.request_stop()
    relaunch_tune(home(), folder, lambda *_: _Ended())
    tune = folder.view()
    assert (tune.state, tune.message, tune.remaining_s) == (TuneState.RUNNING, "", MORE_BUDGET_S)
    assert not folder.stop.exists()


def test_the_figures_are_valid_and_mark_the_front() -> None:
    front = charts.front(ranking(DONE), "r")
    steps = charts.waterfall(waterfall(DONE), "r")
    assert front is not None
    assert steps is not None
    validate_figure(front)
    validate_figure(steps)
    best = front["data"][0]
    assert (best["name"], len(best["x"])) == ("Pareto front", 1)
    assert steps["data"][0]["x"] == pytest.approx([1000.0, 1000.0, 500.0, 0.0, 2500.0])


def test_without_peaks_or_gains_there_is_no_figure() -> None:
    assert charts.front([], "r") is None
    assert charts.waterfall([], "r") is None


class _Ended:
    """A process that has ended."""

    pid = 1

    def poll(self) -> int:
        return 0

    def wait(self) -> int:
        return 0


def test_a_launch_writes_the_state_and_starts_a_process_that_continues_it(open_page: Open) -> None:
    commands: list[list[str]] = []

    def spawn(command: list[str], environ: Mapping[str, str], output: Path) -> _Ended:
        commands.append(command)
        return _Ended()

    folder = launch_tune(home(), resolve({"model": "mlp"}), Goal.MEMORY, 120.0, ("amp",), spawn)
    assert commands[0][-2:] == ["--resume", folder.tune_id]
    tune = tunes(home())[0].read()
    assert (tune.goal, tune.budget_s, tune.selected) == (Goal.MEMORY, 120.0, ("amp",))
    view = tune_data.view_tune(folder.tune_id)
    assert view is not None
    assert view.is_running
