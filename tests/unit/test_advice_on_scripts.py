"""Advice on runs of scripts: settings the run has are changed, for all others there is a line of code."""

from pathlib import Path
from typing import Any

from harness.analysis.advice import PredictedPeak, RunEvidence, Suggestion, suggest, with_code_alone
from harness.analysis.advice.code import code_for
from harness.analysis.advice.inspection import StepInspection, SyncLine
from harness.demo.machine import FACTS
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence
from harness.supervisor.refit import refit_peak
from tests.advice_factories import CPU, run_evidence, scenarios
from tests.script_factories import SCRIPT_SETTINGS, script_run
from tests.timing_factories import some_steps

SCENARIOS = scenarios()
ITEM = SyncLine("train.py:20 train", "total += loss.item()", 6)


def on_script(run: RunEvidence, *names: str) -> dict[str, Suggestion]:
    """The advice on a run of a script that has the settings `names`."""
    return {advice.rule: advice for advice in suggest(run._replace(names=frozenset(names)))}


def test_a_setting_that_the_script_does_not_have_becomes_a_line_of_code() -> None:
    advice = on_script(SCENARIOS["transfer-bound"], "amp")["transfer-bound"]
    assert advice.change == {}
    assert advice.code.splitlines() == [
        "DataLoader(dataset, pin_memory=True)",
        "batch = batch.to(device, non_blocking=True)",
    ]
    assert ("pinned memory", "n/a") in advice.details


def test_a_change_is_split_where_the_script_has_only_the_main_setting() -> None:
    advice = on_script(SCENARIOS["transfer-bound"], "pin_memory")["transfer-bound"]
    assert advice.change == {"pin_memory": True}
    assert advice.code == "batch = batch.to(device, non_blocking=True)"


def test_a_setting_of_the_script_is_changed_by_the_button_alone() -> None:
    advice = on_script(SCENARIOS["tensor-cores"], "amp", "matmul_precision")["tensor-cores"]
    assert advice.change == {"amp": "bf16"}
    assert advice.code == ""


def test_an_unknown_batch_size_is_neither_stated_nor_doubled() -> None:
    assert "headroom" not in on_script(SCENARIOS["headroom"], "amp")
    for scenario in SCENARIOS.values():
        for advice in on_script(scenario, "amp").values():
            assert "batch_size" not in advice.change
            assert "batch_size" not in advice.code


def test_a_script_is_advised_no_more_workers_than_the_machine_has_cores() -> None:
    two_cores = run_evidence(some_steps(200, wait=10.0), CPU._replace(multiprocessors=2))
    code = on_script(two_cores, "amp")["input-bound"].code
    assert code.startswith("DataLoader(dataset, num_workers=2")


def test_rules_on_models_of_the_catalog_are_silent_on_scripts() -> None:
    for key in ("channels-last", "multiples-of-eight"):
        assert key not in on_script(SCENARIOS[key], "amp", "batch_size", "channels_last")


def test_an_unknown_number_of_workers_is_not_stated() -> None:
    advice = on_script(SCENARIOS["input-bound"], "amp")["input-bound"]
    assert "loader worker" not in advice.evidence
    assert advice.title == "Shorten the wait for the loader"
    assert ("loader workers", "n/a") in advice.details
    assert advice.change == {}
    assert advice.code == "DataLoader(dataset, num_workers=4, pin_memory=True)"
    assert advice.by_hand.startswith("Use more loader workers, as long as the data wait shrinks.")
    on_cpu = on_script(run_evidence(some_steps(200, wait=10.0), CPU), "amp")["input-bound"]
    assert on_cpu.code.startswith("DataLoader(dataset, num_workers=4")


def test_worker_processes_are_no_advice_for_a_loader_that_has_some() -> None:
    titles = [
        on_script(run_evidence(some_steps(200, wait=wait), CPU, {"num_workers": workers}), "num_workers")[
            "input-bound"
        ].title
        for wait, workers in ((10.0, 0), (10.0, 2), (200.0, 4))
    ]
    assert titles == ["Load data in worker processes", *["Shorten the wait for the loader"] * 2]


def test_a_script_waits_for_the_device_only_where_a_line_was_reported() -> None:
    waiting = SCENARIOS["synchronizing"]
    assert "synchronizing" not in on_script(waiting._replace(inspection=None), "amp")
    inspection = StepInspection(4, 2, (ITEM,), ())
    advice = on_script(waiting._replace(inspection=inspection), "amp")["synchronizing"]
    assert "train.py:20" in advice.evidence
    assert advice.change == {}
    assert advice.code == "losses.append(loss.detach())  # read with .item() every 100 steps"


def test_an_ended_script_gets_its_changes_as_lines_of_code() -> None:
    advice = with_code_alone(on_script(SCENARIOS["tensor-cores"], "amp")["tensor-cores"])
    assert advice.change == {}
    assert advice.code.startswith("with torch.autocast(device.type, dtype=torch.bfloat16):")


def test_every_line_is_python() -> None:
    values: dict[str, Any] = {
        "optimizer_impl": "fused",
        "compile": True,
        "matmul_precision": "high",
        "channels_last": True,
        "activation_checkpointing": True,
        "num_workers": 2,
    }
    compile(code_for(values), "train.py", "exec")
    assert len(code_for(values).splitlines()) == 6


def test_evidence_from_a_scripts_log_has_the_names_of_its_settings(tmp_path: Path) -> None:
    folder = script_run(Home(tmp_path), step_count=200)
    with LogReader(folder.log) as reader:
        evidence = read_evidence(reader, FACTS)
    assert evidence is not None
    assert evidence.names == set(SCRIPT_SETTINGS)


def test_the_peak_of_a_larger_batch_is_that_of_the_memory_page(tmp_path: Path) -> None:
    folder = script_run(Home(tmp_path), {**SCRIPT_SETTINGS, "batch_size": 24}, step_count=200)
    with LogReader(folder.log) as reader:
        evidence, refit = read_evidence(reader, FACTS), refit_peak(reader)
        batch = read_evidence(reader, FACTS, predicted_peak=PredictedPeak(64, 9))
    assert evidence is not None
    assert refit is not None
    assert evidence.predicted_peak == PredictedPeak(48, refit.peak_bytes, refit.basis)
    assert batch is not None
    assert batch.predicted_peak == PredictedPeak(64, 9)
