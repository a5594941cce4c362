"""A whole run on a GPU: started, steered, capped and measured as a person would."""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from harness.analysis.machine.energy import energy_use, joules_per_thousand
from harness.errors import LogMissingError
from harness.records.run import AckRow, CommandKind, CommandState, EventKind, RunState, StepRow
from harness.records.telemetry import DeviceDetailRow
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

PATIENCE_S = 90.0


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Home.locate(None, os.environ))
    yield supervisor
    for summary in supervisor.runs():
        if not summary.status.state.is_over:
            supervisor.stop(supervisor.home.find(summary.run_id))


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_S:.0f} s"
        time.sleep(0.1)


def steps_of(folder: RunFolder) -> int:
    try:
        with LogReader(folder.log) as log:
            return log.extent().steps
    except LogMissingError:  # Also while it is still empty.
        return 0


def start(supervisor: Supervisor, **values: object) -> RunFolder:
    folder = supervisor.start(None, resolve({"device": "cuda", "data": "synthetic", **values}))
    until(lambda: steps_of(folder) >= 30 or supervisor.status(folder).state.is_over, "the first 30 steps")
    return folder


def request(supervisor: Supervisor, folder: RunFolder, kind: CommandKind, **payload: object) -> AckRow:
    command = supervisor.send(folder, kind, payload, "test")
    until(lambda: supervisor.answer(folder, command) is not None, f"an answer to {kind} {payload}")
    answer = supervisor.answer(folder, command)
    assert answer is not None
    return answer


def settled(folder: RunFolder, first: int) -> list[StepRow]:
    with LogReader(folder.log) as log:
        return [row for row in log.steps(first, log.extent().last or 0) if not row.flags]


def test_device_times_add_up_and_memory_is_the_allocators_own(
    supervisor: Supervisor, record_property: Callable[[str, object], None]
) -> None:
    folder = start(supervisor, model="transformer", preset="workstation")
    until(lambda: steps_of(folder) >= 120, "120 steps")
    supervisor.stop(folder)
    rows = settled(folder, 1)
    timed = [row for row in rows if row.device_step_ns is not None]
    assert len(timed) > len(rows) * 0.9
    for row in timed:
        phases = (row.device_forward_ns, row.device_backward_ns, row.device_optimizer_ns)
        assert row.device_step_ns is not None
        assert sum(ns or 0 for ns in phases) <= row.device_step_ns * 1.01
        assert row.peak_allocated_bytes is not None
        assert row.allocated_bytes is not None
        assert row.reserved_bytes is not None
        assert row.allocated_bytes <= row.peak_allocated_bytes <= row.reserved_bytes
    step_ms = statistics.median(row.step_ns for row in timed) / 1e6
    device_ms = statistics.median(row.device_step_ns or 0 for row in timed) / 1e6
    record_property("median step, wall", f"{step_ms:.2f} ms")
    record_property("median step, device", f"{device_ms:.2f} ms")


@pytest.mark.parametrize(
    "changes",
    [
        {"amp": "bf16"},
        {"amp": "fp16"},
        {"batch_size": 8},
        {"pin_memory": True, "non_blocking": True},
        {"offload_saved_tensors": True},
        {"activation_checkpointing": True},
        {"optimizer_impl": "fused"},
        {"matmul_precision": "high", "cudnn_benchmark": True},
        {"nvtx": True},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_a_change_is_applied_while_the_run_goes_on(
    supervisor: Supervisor, changes: dict[str, object], record_property: Callable[[str, object], None]
) -> None:
    folder = start(supervisor, model="transformer", preset="laptop", data="stdlib-text")
    answer = request(supervisor, folder, CommandKind.SET, **changes)
    assert answer.state == CommandState.APPLIED, answer.message
    until(lambda: len(settled(folder, answer.step)) >= 40, "40 settled steps after the change")
    supervisor.stop(folder)
    before = [row.step_ns for row in settled(folder, 1) if row.step < answer.step]
    after = [row.step_ns for row in settled(folder, answer.step)]
    record_property(
        "median step before → after",
        f"{statistics.median(before) / 1e6:.2f} → {statistics.median(after) / 1e6:.2f} ms",
    )


def test_emptying_the_cache_is_marked_with_what_it_gave_back(supervisor: Supervisor) -> None:
    folder = start(supervisor, model="cnn", preset="workstation")
    assert request(supervisor, folder, CommandKind.EMPTY_CACHE).state == CommandState.APPLIED
    with LogReader(folder.log) as log:
        events = [event for _, event in log.events() if event.kind == EventKind.EMPTY_CACHE]
    assert json.loads(events[0].detail)["freed_bytes"] is not None


def test_reaching_the_cap_is_out_of_memory_and_the_next_run_starts(supervisor: Supervisor) -> None:
    capped = supervisor.start(
        None,
        resolve(
            {
                "device": "cuda",
                "model": "transformer",
                "preset": "h200",
                "data": "synthetic",
                "memory_cap_gib": 2,
            }
        ),
    )
    until(lambda: supervisor.status(capped).state.is_over, "the end of the capped run")
    status = supervisor.status(capped)
    assert status.state is RunState.OUT_OF_MEMORY, status.message
    start(supervisor, model="mlp", preset="laptop")


def test_nvml_samples_stand_beside_the_steps(supervisor: Supervisor) -> None:
    folder = start(supervisor, model="mlp", preset="workstation")

    def sampled() -> bool:
        with LogReader(folder.log) as log:
            return any(sample.device != "cpu" for sample in log.latest_device_samples())

    until(sampled, "a sample of the GPU")
    with LogReader(folder.log) as log:
        sample = next(sample for sample in log.latest_device_samples() if sample.device != "cpu")
    assert sample.memory_total_bytes
    assert sample.util_pct is not None


@pytest.mark.alone
def test_a_runs_log_tells_its_energy_and_what_sampling_costs(
    supervisor: Supervisor, record_property: Callable[[str, object], None]
) -> None:
    folder = start(supervisor, model="transformer", preset="workstation")

    def rows() -> list[DeviceDetailRow]:
        with LogReader(folder.log) as log:
            devices = [device for device in log.devices() if device != "cpu"]
            return log.telemetry.details(devices[0], 0, log.extent().last or 0) if devices else []

    until(lambda: len(rows()) >= 4, "four samples of the GPU with details")
    energy = energy_use(rows())
    with LogReader(folder.log) as log:
        hosts = log.telemetry.last_hosts(8)
        trained = (
            None if energy is None else log.telemetry.samples_trained(energy.first_step + 1, energy.last_step)
        )
    supervisor.stop(folder)
    record_property("energy per 1,000 samples", f"{joules_per_thousand(energy, trained)} J")
    sampling_pct = statistics.fmean(host.sampling_pct for host in hosts if host.sampling_pct is not None)
    record_property("sampling, of one core", f"{sampling_pct:.2f} %")
    assert sampling_pct <= 0.5
    assert energy is None or energy.joules > 0
