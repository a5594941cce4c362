"""Advice: each rule fires on its own scenario and on no other, and nothing is proposed that cannot be."""

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.advice import RULES, Foreseen, Known, Suggestion, Tried, suggest
from harness.analysis.advice.docs import markdown
from harness.analysis.advice.inspected import Elsewhere, Inspected, Line
from harness.analysis.advice.known import Clocks
from harness.analysis.effect import observe
from harness.analysis.timing.phases import analyse
from harness.demo import write
from harness.demo.machine import FACTS
from harness.records import AmpMode, DeviceKind, StepFlag
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.advising import read_known
from harness.supervisor.summary import read_device
from tests.advice_factories import IMAGES, a_known, details, healthy_steps, hosts, scenarios, settings
from tests.effect_factories import times_of
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


def advice_on(known: Known) -> dict[str, Suggestion]:
    return {told.rule: told for told in suggest(known)}


def a_tried(gain: float, **changed: Any) -> Tried:
    """A change after which steps take `1 - gain` of the time."""
    before = some_steps(1_100)
    after = some_steps(round(1_100 / (1 - gain)), forward=10 * (1 - gain) - 7)
    return Tried(changed, 100, observe(times_of(before, after), 2))


@pytest.mark.parametrize("rule", [rule.key for rule in RULES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_rule_fires_on_its_own_scenario_and_is_silent_on_all_others(scenario: str, rule: str) -> None:
    assert (rule in advice_on(SCENARIOS[scenario])) is (rule == scenario)


def test_there_is_a_scenario_for_every_rule() -> None:
    assert list(SCENARIOS) == [rule.key for rule in RULES]


def test_a_healthy_run_gets_no_advice() -> None:
    assert suggest(a_known()) == []
    assert suggest(a_known(some_steps(200), CPU, {"amp": "off"})) == []


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
def test_simulated_runs_get_the_advice_that_their_end_calls_for(
    tmp_path: Path, scenario: str, expected: list[str]
) -> None:
    with LogReader(write(scenario, Home(tmp_path)).log) as reader:
        known = read_known(reader, read_device(reader.run().device))
    assert [told.rule for told in ([] if known is None else suggest(known))] == expected


def test_a_simulated_slow_loader_is_named_while_it_is_slow(tmp_path: Path) -> None:
    with LogReader(write("slow-loader", Home(tmp_path)).log) as reader:
        known = read_known(reader, FACTS)
        assert known is not None
        rows = reader.steps(1, 1_200)
        before = known._replace(
            settings=known.settings.model_copy(update={"num_workers": 0}),
            steps=rows,
            timing=analyse(rows),
            tried=(),
        )
    told = advice_on(before)["input-bound"]
    assert told.change == {"num_workers": 2, "pin_memory": True}
    assert told.gain.share is not None
    assert 0.3 < told.gain.share < 0.5
    assert "waiting for the loader" in told.evidence


def test_the_gain_of_workers_is_the_wait_that_they_take_away() -> None:
    told = advice_on(a_known(some_steps(200, wait=10.0), CPU, {"amp": "off"}))["input-bound"]
    assert told.change == {"num_workers": 1}
    assert told.gain.share == pytest.approx(0.5)
    assert told.gain.sentence == "at most 50 % less time a sample (2 times as fast)"
    assert "10.0 ms of 20.0 ms a step" in told.evidence
    assert (told.first_step, told.last_step) == (1, 200)


def test_workers_do_not_outnumber_the_cores_of_a_cpu() -> None:
    told = advice_on(a_known(some_steps(200, wait=200.0), CPU, {"amp": "off"}))["input-bound"]
    assert told.change == {"num_workers": 4}
    assert told.gain.share == pytest.approx((200 - (200 / 4 - 10)) / 210)


def test_bursts_of_waiting_call_for_more_batches_made_ahead() -> None:
    rows = [a_timed_step(step, wait=60.0 if step % 10 == 0 else 0.1) for step in range(1, 201)]
    told = advice_on(a_known(rows, CPU, {"amp": "off", "num_workers": 2}))["input-bound"]
    assert told.change == {"prefetch_factor": 4}


def test_data_made_on_the_device_has_no_loader_to_help() -> None:
    known = a_known(some_steps(200, wait=10.0), CPU, {"amp": "off", "data": "synthetic"})
    assert "input-bound" not in advice_on(known)


def test_what_is_on_already_is_left_out_of_the_change() -> None:
    known = SCENARIOS["transfer-bound"]
    half = known._replace(settings=settings(pin_memory=True, non_blocking=False))
    assert advice_on(half)["transfer-bound"].change == {"non_blocking": True}
    whole = known._replace(settings=settings())
    told = advice_on(whole)["transfer-bound"]
    assert told.change == {}
    assert "smaller types" in told.by_hand


def test_what_the_device_or_the_model_cannot_do_is_not_proposed() -> None:
    starved = SCENARIOS["input-bound"]
    unpinned = starved._replace(settings=settings(pin_memory=False), device=FACTS._replace(can_pin=False))
    assert advice_on(unpinned)["input-bound"].change == {"num_workers": 1}
    launching = SCENARIOS["launch-bound"]
    assert advice_on(launching)["launch-bound"].change == {"compile": True}
    uncompiled = launching._replace(device=FACTS._replace(can_compile=False))
    assert advice_on(uncompiled)["launch-bound"].change == {"batch_size": 64}
    full = uncompiled._replace(settings=settings(memory_cap_gib=40.0), foreseen=Foreseen(64, 39 * GIB))
    assert advice_on(full)["launch-bound"].change == {}
    old = SCENARIOS["tensor-cores"]._replace(device=FACTS._replace(capability=(6, 1)))
    assert suggest(old) == []
    volta = FACTS._replace(capability=(7, 0), amp_modes=(AmpMode.OFF, AmpMode.FP16))
    assert advice_on(a_known(device=volta, values={"amp": "off"}))["tensor-cores"].change == {"amp": "fp16"}


def test_what_was_tried_without_a_gain_is_not_proposed_again() -> None:
    known = SCENARIOS["tensor-cores"]
    assert advice_on(known)["tensor-cores"].change == {"amp": "bf16"}
    failed = advice_on(known._replace(tried=[a_tried(0.0, amp="bf16")]))["tensor-cores"]
    assert failed.change == {"matmul_precision": "high"}
    assert ("tried from step 100", "amp=bf16: no gain was seen") in failed.details
    gained = known._replace(tried=[a_tried(0.4, amp="bf16")])
    assert advice_on(gained)["tensor-cores"].change == {"amp": "bf16"}


def test_what_the_run_took_back_or_rejected_is_not_proposed_again() -> None:
    known = SCENARIOS["headroom"]
    assert advice_on(known)["headroom"].change == {"batch_size": 64}
    undone = known._replace(tried=[Tried({"batch_size": 64}, 50, None, is_undone=True)])
    refused = known._replace(refused=[{"batch_size": 64}])
    assert suggest(undone) == suggest(refused) == []


def test_a_direction_that_brought_nothing_is_not_followed_further() -> None:
    rows = some_steps(200, wait=20.0)
    known = a_known(rows, CPU, {"amp": "off", "num_workers": 2}, tried=[a_tried(0.0, num_workers=2)])
    more = known._replace(tried=[a_tried(0.0, num_workers=2)._replace(before={"num_workers": 0})])
    told = advice_on(more)["input-bound"]
    assert told.change == {}
    assert told.by_hand
    fewer = known._replace(tried=[a_tried(0.0, num_workers=2)._replace(before={"num_workers": 4})])
    assert advice_on(fewer)["input-bound"].change == {"num_workers": 4}


def test_a_larger_batch_needs_room_by_a_prediction_or_by_this_runs_own_peak() -> None:
    known = SCENARIOS["headroom"]
    assert "by a line through" in dict(advice_on(known)["headroom"].details)["peak with batch 64"]
    fits = known._replace(foreseen=Foreseen(64, 40 * GIB))
    assert "40.0 GiB, predicted" in dict(advice_on(fits)["headroom"].details)["peak with batch 64"]
    assert "headroom" not in advice_on(known._replace(foreseen=Foreseen(64, 46 * GIB)))
    unknown = known._replace(settings=settings(memory_cap_gib=None))
    assert "headroom" not in advice_on(unknown)


def test_the_cost_of_an_emptied_cache_is_what_its_steps_take_longer() -> None:
    told = advice_on(SCENARIOS["emptying"])["emptying"]
    assert told.change == {"empty_cache_every": 0}
    assert told.gain.share == pytest.approx(0.5 / 10.12, rel=0.02)
    harmless = SCENARIOS["emptying"]._replace(steps=healthy_steps(), timing=analyse(healthy_steps()))
    assert suggest(harmless) == []


def test_heat_is_bounded_by_the_clock_and_a_short_look_says_nothing() -> None:
    told = advice_on(SCENARIOS["heat"])["heat"]
    assert told.gain.share == pytest.approx(1 - 1600 / 1980)
    assert "For 10 % of the last" in told.evidence
    assert suggest(a_known(details=details(5, held_thermal_ns=10**9))) == []
    unharmed = SCENARIOS["power-limit"]._replace(clocks=Clocks(1_975.0, 1_980.0))
    assert suggest(unharmed) == []


def test_retries_that_cost_no_time_are_told_for_the_memory_alone() -> None:
    told = advice_on(SCENARIOS["retries"])["retries"]
    assert told.gain.share is None
    assert told.change == {"batch_size": 16, "grad_accumulation": 2}
    slow = [
        row._replace(step_ns=3 * row.step_ns) if row.step % 20 == 0 else row
        for row in SCENARIOS["retries"].steps
    ]
    known = SCENARIOS["retries"]._replace(steps=slow, timing=analyse(slow))
    assert advice_on(known)["retries"].gain.share == pytest.approx(2 / 22, rel=0.02)


def test_the_largest_gain_comes_first_and_what_has_no_bound_last() -> None:
    known = SCENARIOS["fragmentation"]._replace(settings=settings(amp="off"))
    assert [told.rule for told in suggest(known)] == ["tensor-cores", "fragmentation"]


def test_images_stored_last_are_proposed_for_networks_of_convolutions_alone() -> None:
    assert advice_on(SCENARIOS["channels-last"])["channels-last"].change == {"channels_last": True}
    assert "channels-last" not in advice_on(a_known(values=IMAGES | {"amp": "off"}))


def test_text_fills_tiles_of_eight_by_its_length() -> None:
    assert suggest(a_known(values={"batch_size": 3, "sequence_length": 128})) == []


def test_flagged_steps_are_no_evidence() -> None:
    rows = [row._replace(flags=int(StepFlag.TRANSITION)) for row in SCENARIOS["input-bound"].steps]
    assert suggest(SCENARIOS["input-bound"]._replace(steps=rows, timing=analyse(rows))) == []
    few = some_device_steps(10, gap=5.0, parts=(0.1, 3.0, 6.0, 0.5), wait=6.0)
    assert suggest(a_known(few)) == []


def test_the_page_on_advice_is_what_the_rules_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "advice.md"
    assert page.read_text(encoding="utf-8") == markdown()
    for rule in RULES:
        for part in (rule.key, rule.title, rule.threshold, rule.source, rule.evidence, rule.change):
            assert part in markdown()


def an_inspection(*lines: Line, elsewhere: tuple[Elsewhere, ...] = ()) -> Inspected:
    return Inspected(4, 2, lines, elsewhere)


ITEM = Line("model.py:120 forward", "total += loss.item()", 6)
COPY = Line("harness/train/workload.py:107 _to_device", "inputs = inputs.to(device)", 2)
SCALER = Line("harness/train/workload.py:117 _update", "self._scaler.step(self._optimizer)", 2)


def test_the_line_that_makes_the_cpu_wait_is_named() -> None:
    waiting = SCENARIOS["synchronising"]._replace(inspected=an_inspection(ITEM))
    told = advice_on(waiting)["synchronising"]
    assert "waits for the device 3 times a step, at model.py:120 in total += loss.item()" in told.evidence
    assert ("model.py:120 in total += loss.item()", "3 a step") in told.details
    own = advice_on(waiting._replace(settings=settings(device_metrics=True)))["synchronising"]
    assert own.change == {}
    assert own.by_hand.startswith("Change model.py:120 in total += loss.item()")


def test_lines_that_wait_for_other_reasons_or_seldom_are_not_meant() -> None:
    waiting = SCENARIOS["synchronising"]._replace(settings=settings(device_metrics=True))
    for lines in ((), (COPY,), (SCALER,), (ITEM._replace(calls=1),)):
        assert "synchronising" not in advice_on(waiting._replace(inspected=an_inspection(*lines)))
    offloading = settings(device_metrics=True, offload_saved_tensors=True)
    known = waiting._replace(settings=offloading, inspected=an_inspection(ITEM))
    assert "synchronising" not in advice_on(known)
    busy = a_known(inspected=an_inspection(ITEM))
    assert suggest(busy) == []


def test_waiting_in_the_midst_of_a_step_is_told_where_the_run_looks_launch_bound() -> None:
    launching = SCENARIOS["launch-bound"]._replace(inspected=an_inspection(ITEM))
    told = advice_on(launching)["synchronising"]
    assert told.gain.share is None
    assert "runs dry in the midst of a step" in told.evidence
    at_the_end = ITEM._replace(site="harness/train/workload.py:160 _tidy", calls=2)
    known = launching._replace(settings=settings(device_metrics=False), inspected=an_inspection(at_the_end))
    assert advice_on(known)["synchronising"].gain.share is not None


def test_copies_that_are_waited_for_are_details_of_the_transfer() -> None:
    known = SCENARIOS["transfer-bound"]._replace(inspected=an_inspection(COPY))
    details = dict(advice_on(known)["transfer-bound"].details)
    place = "harness/train/workload.py:107 in inputs = inputs.to(device)"
    assert details[place] == "waited for, 1 a step"


def test_what_lies_elsewhere_is_named_with_the_line_that_copies_it() -> None:
    left = (Elsewhere("buffer", "positions", "cpu", 3 << 20), Elsewhere("loss", "the loss", "cpu", 4))
    line = Line("model.py:7 forward", "x + self.positions.to(x.device)", 2)
    told = advice_on(a_known(inspected=an_inspection(line, elsewhere=left)))["elsewhere"]
    assert told.evidence == (
        "The buffer positions (3.00 MiB) and 1 more tensor lie on cpu, while the run trains on cuda:0; "
        "torch names model.py:7 in x + self.positions.to(x.device), where the CPU waits."
    )
    assert ("loss the loss", "4 B on cpu") in told.details
    assert told.by_hand
    on_cpu = a_known(some_steps(200), CPU, {"amp": "off"}, inspected=an_inspection(elsewhere=left))
    assert suggest(on_cpu) == []


def test_what_is_too_uncertain_to_say_has_not_failed() -> None:
    rows = [a_timed_step(step, forward=3.0 + 40.0 * (step % 150 < 80)) for step in range(1, 801)]
    uncertain = Tried({"amp": "bf16"}, 100, observe(times_of(rows[:400], rows[400:]), 2))
    known = SCENARIOS["tensor-cores"]._replace(tried=[uncertain])
    assert uncertain.observed is not None
    assert uncertain.observed.samples_per_s is not None
    assert not uncertain.observed.samples_per_s.is_visible
    assert advice_on(known)["tensor-cores"].change == {"amp": "bf16"}


def test_a_slow_step_that_a_sample_of_memory_explains_is_nobodys_fault() -> None:
    """Reading the allocator's list of blocks keeps Python waiting, every two seconds at most."""
    unsteady = SCENARIOS["unsteady"]
    slow = {row.step for row in unsteady.steps if row.step % 20 == 0}
    assert "unsteady" in advice_on(unsteady)
    assert "unsteady" not in advice_on(unsteady._replace(sampled_steps=frozenset(slow)))
    some = frozenset(sorted(slow)[:2])
    assert "unsteady" in advice_on(unsteady._replace(sampled_steps=some))
    every = frozenset(row.step for row in unsteady.steps)
    assert "unsteady" in advice_on(unsteady._replace(sampled_steps=every))


def test_other_programs_are_named_with_what_they_take_and_what_is_left() -> None:
    told = advice_on(SCENARIOS["busy-host"])["busy-host"]
    assert told.evidence.startswith("Other processes take 7.2 of the 8 cores while this run gets 0.6")
    assert "OMP_NUM_THREADS=1" in told.by_hand
    assert dict(told.details)["torch's threads"] == "8"


@pytest.mark.parametrize(
    ("busy_pct", "own_pct", "count"), [(80.0, 60.0, 30), (98.0, 600.0, 30), (98.0, 60.0, 9)]
)
def test_a_cpu_with_cores_to_spare_or_filled_by_the_run_itself_is_not_blamed(
    busy_pct: float, own_pct: float, count: int
) -> None:
    samples = hosts(busy_pct, own_pct, count)
    told = advice_on(SCENARIOS["busy-host"]._replace(hosts=samples, torch_threads=8))
    assert list(told) == ["unsteady"]


def test_the_loaders_workers_are_the_runs_own() -> None:
    known = SCENARIOS["busy-host"]
    workers = {one.seq: 600.0 for one in known.hosts}
    assert "busy-host" not in advice_on(known._replace(workers_cpu_pct=workers))


def test_where_threads_fit_what_others_leave_fewer_are_not_advised() -> None:
    told = advice_on(SCENARIOS["busy-host"]._replace(torch_threads=1))["busy-host"]
    assert "OMP_NUM_THREADS" not in told.by_hand


def test_a_gpus_steps_are_not_the_hosts() -> None:
    assert advice_on(a_known(hosts=hosts(98.0, 60.0), torch_threads=64)) == {}


def test_more_threads_than_cores_are_said_to_be_too_many() -> None:
    told = advice_on(SCENARIOS["threads"])["threads"]
    assert told.evidence == "torch computes with 32 threads on 8 cores."
    assert "OMP_NUM_THREADS=8" in told.by_hand
