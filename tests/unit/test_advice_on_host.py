"""Advice on the CPU of a run: load from other processes, and threads."""

import pytest

from harness.analysis.advice import RunEvidence, Suggestion, suggest
from tests.advice_factories import host_samples, run_evidence, scenarios

SCENARIOS = scenarios()


def advice_on(run: RunEvidence) -> dict[str, Suggestion]:
    return {advice.rule: advice for advice in suggest(run)}


def test_load_of_other_processes_is_reported_with_the_cores_left() -> None:
    advice = advice_on(SCENARIOS["busy-host"])["busy-host"]
    assert advice.evidence.startswith("Other processes use 7.2 of the 8 cores while this run gets 0.6")
    assert "OMP_NUM_THREADS=1" in advice.by_hand
    assert dict(advice.details)["torch threads"] == "8"


@pytest.mark.parametrize(
    ("busy_pct", "own_pct", "count", "rules"),
    [
        (80.0, 60.0, 30, ["unsteady"]),
        (98.0, 600.0, 30, ["unsteady"]),
        (98.0, 60.0, 5, ["busy-host"]),
        (98.0, 60.0, 4, []),
        (98.0, 60.0, 0, ["unsteady"]),
    ],
)
def test_uneven_steps_have_advice_once_it_is_known_that_no_other_load_explains_them(
    busy_pct: float, own_pct: float, count: int, rules: list[str]
) -> None:
    samples = host_samples(busy_pct, own_pct, count)
    advice = advice_on(SCENARIOS["busy-host"]._replace(host_samples=samples, torch_threads=8))
    assert list(advice) == rules


def test_the_load_is_that_of_all_cores_of_the_machine_also_where_the_run_may_use_few() -> None:
    run = SCENARIOS["busy-host"]
    device = run.device._replace(multiprocessors=2)
    few = run._replace(machine_cores=64, device=device, torch_threads=4)
    advice = advice_on(few)["busy-host"]
    assert advice.evidence.startswith("Other processes use 62 of the 64 cores while this run gets 0.6")
    few = few._replace(host_samples=host_samples(95.0, 60.0))
    assert "OMP_NUM_THREADS=2:" in advice_on(few)["busy-host"].by_hand


def test_loader_workers_count_as_load_of_the_run() -> None:
    run = SCENARIOS["busy-host"]
    workers = {one.seq: 600.0 for one in run.host_samples}
    assert "busy-host" not in advice_on(run._replace(workers_cpu_pct=workers))


def test_fewer_threads_are_not_advised_where_they_fit_the_free_cores() -> None:
    advice = advice_on(SCENARIOS["busy-host"]._replace(torch_threads=1))["busy-host"]
    assert "OMP_NUM_THREADS" not in advice.by_hand


def test_host_load_is_no_evidence_for_a_run_on_a_gpu() -> None:
    assert advice_on(run_evidence(host_samples=host_samples(98.0, 60.0), torch_threads=64)) == {}


def test_more_threads_than_cores_are_reported() -> None:
    advice = advice_on(SCENARIOS["threads"])["threads"]
    assert advice.evidence == "torch uses 32 threads on 8 cores."
    assert "OMP_NUM_THREADS=8, or one less" in advice.by_hand
    run = SCENARIOS["threads"]
    alone = run._replace(device=run.device._replace(multiprocessors=1))
    assert advice_on(alone)["threads"].by_hand == "Start the run with OMP_NUM_THREADS=1."
