"""Advice: each rule fires on its own scenario only, and only possible changes are proposed."""

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.advice import RULES, PastChange, PredictedPeak, RunEvidence, Suggestion, suggest
from harness.analysis.advice.docs import markdown
from harness.analysis.advice.evidence import SmClock
from harness.analysis.advice.inspection import MisplacedTensor, StepInspection, SyncLine
from harness.analysis.effect import observe
from harness.analysis.timing.phases import analyze
from harness.demo.machine import FACTS
from harness.records.run import AmpMode, DeviceKind, StepFlag
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence
from harness.supervisor.stored_json import read_device
from tests.advice_factories import (
    IMAGES,
    details,
    healthy_steps,
    run_evidence,
    scenarios,
    settings,
)
from tests.effect_factories import times_of
from tests.simulated_runs import SimulatedRuns
from tests.timing_factories import a_timed_step, some_device_steps, some_steps

SCENARIOS = scenarios()
CPU = FACTS._replace(
    kind=DeviceKind.CPU,
    uuid=None,
    name="Some CPU",
    capability=None,
    multiprocessors=4,
    amp_modes=(AmpMode.OFF, AmpMode.BF16),
    can_pin=False,
    can_compile=False,
)
GIB = 2**30


def advice_on(run: RunEvidence) -> dict[str, Suggestion]:
    return {advice.rule: advice for advice in suggest(run)}


def a_past_change(gain: float, **changed: Any) -> PastChange:
    """A past change after which a step takes `1 - gain` of the time."""
    before = some_steps(1_100)
    after = some_steps(round(1_100 / (1 - gain)), forward=10 * (1 - gain) - 7)
    return PastChange(changed, 100, observe(times_of(before, after), 2))


@pytest.mark.parametrize("rule", [rule.key for rule in RULES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_rule_fires_on_its_own_scenario_and_is_silent_on_all_others(scenario: str, rule: str) -> None:
    assert (rule in advice_on(SCENARIOS[scenario])) is (rule == scenario)


def test_every_rule_has_a_scenario() -> None:
    assert list(SCENARIOS) == [rule.key for rule in RULES]


def test_a_healthy_run_gets_no_advice() -> None:
    assert suggest(run_evidence()) == []
    assert suggest(run_evidence(some_steps(200), CPU, {"amp": "off"})) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("steady", ["tensor-cores"]),
        ("amp", []),
        ("leak", ["tensor-cores"]),
        ("fragmentation", ["tensor-cores", "fragmentation"]),
        ("oom", []),
        ("slow-loader", ["tensor-cores"]),
        ("stalled", ["tensor-cores"]),
        ("lost", ["tensor-cores"]),
        ("empty", []),
        ("one-step", []),
    ],
)
def test_simulated_runs_get_advice_that_fits_their_last_steps(
    tmp_path: Path, simulated_runs: SimulatedRuns, scenario: str, expected: list[str]
) -> None:
    with LogReader(simulated_runs.copy(Home(tmp_path), scenario).log) as reader:
        run = read_evidence(reader, read_device(reader.run().device))
    assert [advice.rule for advice in ([] if run is None else suggest(run))] == expected


def test_a_slow_loader_of_a_simulated_run_is_reported_while_it_is_slow(
    tmp_path: Path, simulated_runs: SimulatedRuns
) -> None:
    with LogReader(simulated_runs.copy(Home(tmp_path), "slow-loader").log) as reader:
        run = read_evidence(reader, FACTS)
        assert run is not None
        rows = reader.steps(1, 1_200)
        before = run._replace(
            settings=run.settings.model_copy(update={"num_workers": 0}),
            steps=rows,
            timing=analyze(rows),
            past_changes=(),
        )
    advice = advice_on(before)["input-bound"]
    assert advice.change == {"num_workers": 2, "pin_memory": True}
    assert advice.gain.share is not None
    assert 0.3 < advice.gain.share < 0.5
    assert "waiting for the loader" in advice.evidence


def test_the_gain_of_workers_is_the_data_wait_they_remove() -> None:
    advice = advice_on(run_evidence(some_steps(200, wait=10.0), CPU, {"amp": "off"}))["input-bound"]
    assert advice.change == {"num_workers": 1}
    assert advice.gain.share == pytest.approx(0.5)
    assert advice.gain.sentence == "at most 50 % less time per sample (2 times as fast)"
    assert "10.0 ms of a 20.0 ms step" in advice.evidence
    assert (advice.first_step, advice.last_step) == (1, 200)


def test_workers_do_not_outnumber_the_cores_that_a_run_on_a_gpu_may_use() -> None:
    starved = some_device_steps(
        200, gap=60.0, parts=(0.1, 3.0, 6.0, 0.5), wait=60.0, forward=2.0, backward=5.0, rest=0.6
    )
    for cores, proposed in ((None, 7), (64, 7), (4, 4), (1, 2)):
        advice = advice_on(run_evidence(starved, usable_cores=cores))["input-bound"]
        assert advice.change["num_workers"] == proposed


def test_workers_do_not_outnumber_the_cores_of_a_cpu() -> None:
    advice = advice_on(run_evidence(some_steps(200, wait=200.0), CPU, {"amp": "off"}))["input-bound"]
    assert advice.change == {"num_workers": 4}
    assert advice.gain.share == pytest.approx((200 - (200 / 4 - 10)) / 210)


def test_bursts_of_waiting_call_for_more_prefetching() -> None:
    rows = [a_timed_step(step, wait=60.0 if step % 10 == 0 else 0.1) for step in range(1, 201)]
    advice = advice_on(run_evidence(rows, CPU, {"amp": "off", "num_workers": 2}))["input-bound"]
    assert advice.change == {"prefetch_factor": 4}


def test_data_generated_on_the_device_gets_no_advice_on_the_loader() -> None:
    run = run_evidence(some_steps(200, wait=10.0), CPU, {"amp": "off", "data": "synthetic"})
    assert "input-bound" not in advice_on(run)


def test_values_in_effect_are_left_out_of_the_change() -> None:
    run = SCENARIOS["transfer-bound"]
    half = run._replace(settings=settings(pin_memory=True, non_blocking=False))
    assert advice_on(half)["transfer-bound"].change == {"non_blocking": True}
    whole = run._replace(settings=settings())
    advice = advice_on(whole)["transfer-bound"]
    assert advice.change == {}
    assert "smaller types" in advice.by_hand


def test_changes_the_device_or_the_model_does_not_support_are_not_proposed() -> None:
    starved = SCENARIOS["input-bound"]
    unpinned = starved._replace(settings=settings(pin_memory=False), device=FACTS._replace(can_pin=False))
    assert advice_on(unpinned)["input-bound"].change == {"num_workers": 1}
    launching = SCENARIOS["launch-bound"]
    assert advice_on(launching)["launch-bound"].change == {"compile": True}
    uncompiled = launching._replace(device=FACTS._replace(can_compile=False))
    assert advice_on(uncompiled)["launch-bound"].change == {"batch_size": 64}
    full = uncompiled._replace(
        settings=settings(memory_cap_gib=40.0), predicted_peak=PredictedPeak(64, 39 * GIB)
    )
    assert advice_on(full)["launch-bound"].change == {}
    old = SCENARIOS["tensor-cores"]._replace(device=FACTS._replace(capability=(6, 1)))
    assert suggest(old) == []
    volta = FACTS._replace(capability=(7, 0), amp_modes=(AmpMode.OFF, AmpMode.FP16))
    assert advice_on(run_evidence(device=volta, values={"amp": "off"}))["tensor-cores"].change == {
        "amp": "fp16"
    }


def test_a_change_without_a_gain_is_not_proposed_again() -> None:
    run = SCENARIOS["tensor-cores"]
    assert advice_on(run)["tensor-cores"].change == {"amp": "bf16"}
    failed = advice_on(run._replace(past_changes=[a_past_change(0.0, amp="bf16")]))["tensor-cores"]
    assert failed.change == {"matmul_precision": "high"}
    assert ("changed at step 100", "amp=bf16: no gain observed") in failed.details
    gained = run._replace(past_changes=[a_past_change(0.4, amp="bf16")])
    assert advice_on(gained)["tensor-cores"].change == {"amp": "bf16"}


def test_a_reverted_or_rejected_change_is_not_proposed_again() -> None:
    run = SCENARIOS["headroom"]
    assert advice_on(run)["headroom"].change == {"batch_size": 64}
    undone = run._replace(past_changes=[PastChange({"batch_size": 64}, 50, None, is_undone=True)])
    rejected = run._replace(rejected=[{"batch_size": 64}])
    assert suggest(undone) == suggest(rejected) == []


def test_a_direction_without_a_gain_is_not_continued() -> None:
    rows = some_steps(200, wait=20.0)
    run = run_evidence(
        rows, CPU, {"amp": "off", "num_workers": 2}, past_changes=[a_past_change(0.0, num_workers=2)]
    )
    more = run._replace(past_changes=[a_past_change(0.0, num_workers=2)._replace(before={"num_workers": 0})])
    advice = advice_on(more)["input-bound"]
    assert advice.change == {}
    assert advice.by_hand
    fewer = run._replace(past_changes=[a_past_change(0.0, num_workers=2)._replace(before={"num_workers": 4})])
    assert advice_on(fewer)["input-bound"].change == {"num_workers": 4}


def test_the_cost_of_empty_cache_is_the_extra_time_of_its_steps() -> None:
    advice = advice_on(SCENARIOS["empty-cache"])["empty-cache"]
    assert advice.change == {"empty_cache_every": 0}
    assert advice.gain.share == pytest.approx(0.5 / 10.12, rel=0.02)
    harmless = SCENARIOS["empty-cache"]._replace(steps=healthy_steps(), timing=analyze(healthy_steps()))
    assert suggest(harmless) == []


def test_heat_is_bounded_by_the_clock_and_needs_ten_seconds_of_samples() -> None:
    advice = advice_on(SCENARIOS["heat"])["heat"]
    assert advice.gain.share == pytest.approx(1 - 1600 / 1980)
    assert "For 10 % of the last" in advice.evidence
    assert suggest(run_evidence(details=details(5, held_thermal_ns=10**9))) == []
    unharmed = SCENARIOS["power-limit"]._replace(clocks=SmClock(1_975.0, 1_980.0))
    assert suggest(unharmed) == []


def test_retries_that_cost_no_time_are_reported_for_the_memory_alone() -> None:
    advice = advice_on(SCENARIOS["retries"])["retries"]
    assert advice.gain.share is None
    assert advice.change == {"batch_size": 16, "grad_accumulation": 2}
    slow = [
        row._replace(step_ns=3 * row.step_ns) if row.step % 20 == 0 else row
        for row in SCENARIOS["retries"].steps
    ]
    run = SCENARIOS["retries"]._replace(steps=slow, timing=analyze(slow))
    assert advice_on(run)["retries"].gain.share == pytest.approx(2 / 22, rel=0.02)
    single = SCENARIOS["retries"]._replace(settings=settings(batch_size=1))
    assert advice_on(single)["retries"].change == {"activation_checkpointing": True}


def test_the_largest_gain_comes_first_and_unbounded_ones_last() -> None:
    run = SCENARIOS["fragmentation"]._replace(settings=settings(amp="off"))
    assert [advice.rule for advice in suggest(run)] == ["tensor-cores", "fragmentation"]


def test_channels_last_is_proposed_for_convolutional_networks_alone() -> None:
    assert advice_on(SCENARIOS["channels-last"])["channels-last"].change == {"channels_last": True}
    assert "channels-last" not in advice_on(run_evidence(values=IMAGES | {"amp": "off"}))


def test_text_fills_tiles_of_eight_by_its_sequence_length() -> None:
    assert suggest(run_evidence(values={"batch_size": 3, "sequence_length": 128})) == []


def test_flagged_steps_are_no_evidence() -> None:
    rows = [row._replace(flags=int(StepFlag.TRANSITION)) for row in SCENARIOS["input-bound"].steps]
    assert suggest(SCENARIOS["input-bound"]._replace(steps=rows, timing=analyze(rows))) == []
    few = some_device_steps(10, gap=5.0, parts=(0.1, 3.0, 6.0, 0.5), wait=6.0)
    assert suggest(run_evidence(few)) == []


def test_the_page_on_advice_is_generated_from_the_rules() -> None:
    page = Path(__file__).parents[2] / "docs" / "advice.md"
    assert page.read_text(encoding="utf-8") == markdown()
    for rule in RULES:
        for part in (rule.key, rule.title, rule.threshold, rule.source, rule.evidence, rule.change):
            assert part in markdown()


def an_inspection(*lines: SyncLine, elsewhere: tuple[MisplacedTensor, ...] = ()) -> StepInspection:
    return StepInspection(4, 2, lines, elsewhere)


ITEM = SyncLine("model.py:120 forward", "total += loss.item()", 6)
COPY = SyncLine("harness/train/workload.py:107 _to_device", "inputs = inputs.to(device)", 2)
SCALER = SyncLine("harness/train/workload.py:117 _update", "self._scaler.step(self._optimizer)", 2)


def test_the_line_that_makes_the_cpu_wait_is_reported() -> None:
    waiting = SCENARIOS["synchronizing"]._replace(inspection=an_inspection(ITEM))
    advice = advice_on(waiting)["synchronizing"]
    assert "waits for the device 3 times per step, at model.py:120 in total += loss.item()" in advice.evidence
    assert ("model.py:120 in total += loss.item()", "3 per step") in advice.details
    own = advice_on(waiting._replace(settings=settings(device_metrics=True)))["synchronizing"]
    assert own.change == {}
    assert own.by_hand.startswith("Change model.py:120 in total += loss.item()")


def test_lines_that_wait_for_other_reasons_or_rarely_are_left_out() -> None:
    waiting = SCENARIOS["synchronizing"]._replace(settings=settings(device_metrics=True))
    for lines in ((), (COPY,), (SCALER,), (ITEM._replace(calls=1),)):
        assert "synchronizing" not in advice_on(waiting._replace(inspection=an_inspection(*lines)))
    offloading = settings(device_metrics=True, offload_saved_tensors=True)
    run = waiting._replace(settings=offloading, inspection=an_inspection(ITEM))
    assert "synchronizing" not in advice_on(run)
    busy = run_evidence(inspection=an_inspection(ITEM))
    assert suggest(busy) == []


def test_waiting_in_the_middle_of_a_step_is_reported_where_the_run_looks_launch_bound() -> None:
    launching = SCENARIOS["launch-bound"]._replace(inspection=an_inspection(ITEM))
    advice = advice_on(launching)["synchronizing"]
    assert advice.gain.share is None
    assert "runs out of work in the middle of the step" in advice.evidence
    at_the_end = ITEM._replace(site="harness/train/workload.py:160 _tidy", calls=2)
    run = launching._replace(settings=settings(device_metrics=False), inspection=an_inspection(at_the_end))
    assert advice_on(run)["synchronizing"].gain.share is not None


def test_synchronous_copies_are_details_of_the_transfer_rule() -> None:
    run = SCENARIOS["transfer-bound"]._replace(inspection=an_inspection(COPY))
    details = dict(advice_on(run)["transfer-bound"].details)
    place = "harness/train/workload.py:107 in inputs = inputs.to(device)"
    assert details[place] == "synchronous, 1 per step"


def test_a_misplaced_tensor_is_reported_with_the_line_that_copies_it() -> None:
    left = (
        MisplacedTensor("buffer", "positions", "cpu", 3 << 20),
        MisplacedTensor("loss", "the loss", "cpu", 4),
    )
    line = SyncLine("model.py:7 forward", "x + self.positions.to(x.device)", 2)
    advice = advice_on(run_evidence(inspection=an_inspection(line, elsewhere=left)))["misplaced-tensors"]
    assert advice.evidence == (
        "The buffer positions (3.00 MiB) and 1 more tensor are on cpu, while the run trains on cuda:0; "
        "the CPU waits for the device at model.py:7 in x + self.positions.to(x.device)."
    )
    assert ("loss the loss", "4 B on cpu") in advice.details
    assert advice.by_hand
    on_cpu = run_evidence(some_steps(200), CPU, {"amp": "off"}, inspection=an_inspection(elsewhere=left))
    assert suggest(on_cpu) == []


def test_a_change_with_an_uncertain_effect_has_not_failed() -> None:
    rows = [a_timed_step(step, forward=3.0 + 40.0 * (step % 150 < 80)) for step in range(1, 801)]
    uncertain = PastChange({"amp": "bf16"}, 100, observe(times_of(rows[:400], rows[400:]), 2))
    run = SCENARIOS["tensor-cores"]._replace(past_changes=[uncertain])
    assert uncertain.observed is not None
    assert uncertain.observed.samples_per_s is not None
    assert not uncertain.observed.samples_per_s.is_visible
    assert advice_on(run)["tensor-cores"].change == {"amp": "bf16"}


def test_slow_steps_with_a_memory_sample_are_left_out() -> None:
    """Reading the allocator's block list holds the GIL, every two seconds at most."""
    unsteady = SCENARIOS["unsteady"]
    slow = {row.step for row in unsteady.steps if row.step % 20 == 0}
    assert "unsteady" in advice_on(unsteady)
    assert "unsteady" not in advice_on(unsteady._replace(sampled_steps=frozenset(slow)))
    some = frozenset(sorted(slow)[:2])
    assert "unsteady" in advice_on(unsteady._replace(sampled_steps=some))
    every = frozenset(row.step for row in unsteady.steps)
    assert "unsteady" in advice_on(unsteady._replace(sampled_steps=every))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_advice_points_to_nothing_on_the_page_around_it(scenario: str) -> None:
    for advice in advice_on(SCENARIOS[scenario]).values():
        assert " below" not in f"{advice.by_hand} {advice.why}"
