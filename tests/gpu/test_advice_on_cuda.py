"""Advice on real runs that have what a rule names: it fires, and the run takes the change."""

import statistics
from collections.abc import Callable

import pytest
import torch

from harness.analysis.advice import RunEvidence, Suggestion, suggest
from harness.records.run import CommandKind, CommandState
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.advising import read_evidence
from harness.supervisor.stored_json import read_device
from tests.gpu.test_run_on_cuda import request, settled, start, supervisor, until

__all__ = ["supervisor"]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
Record = Callable[[str, object], None]
STEPS = 60


def known_of(folder: RunFolder) -> RunEvidence:
    with LogReader(folder.log) as log:
        names = read_evidence(log, read_device(log.run().device))
    assert names is not None
    return names


def told(names: RunEvidence, rule: str) -> Suggestion:
    result = {one.rule: one for one in suggest(names)}
    assert rule in result, f"{rule} is silent; told were {[one.evidence for one in result.values()]}"
    return result[rule]


def apply(supervisor: Supervisor, folder: RunFolder, advice: Suggestion) -> tuple[float, float]:
    """Let the run do what is advised; the median step before and after, in ms."""
    before = statistics.median(row.step_ns for row in settled(folder, 1)) / 1e6
    answer = request(supervisor, folder, CommandKind.SET, **advice.change)
    assert answer.state == CommandState.APPLIED, answer.message
    until(lambda: len(settled(folder, answer.step)) >= STEPS, f"{STEPS} settled steps after the change")
    after = statistics.median(row.step_ns for row in settled(folder, answer.step)) / 1e6
    supervisor.stop(folder)
    return before, after


def a_run(supervisor: Supervisor, **values: object) -> RunFolder:
    folder = start(supervisor, **values)
    until(lambda: len(settled(folder, 1)) >= STEPS, f"{STEPS} settled steps")
    return folder


@pytest.mark.alone
def test_a_starved_gpu_is_given_loader_workers(supervisor: Supervisor, record_property: Record) -> None:
    folder = a_run(supervisor, model="mlp", data="digits", slow_loader_ms=3.0)
    advice = told(known_of(folder), "input-bound")
    record_property("evidence", advice.evidence)
    assert advice.change["num_workers"] > 0
    before, after = apply(supervisor, folder, advice)
    record_property("median step before → after", f"{before:.2f} → {after:.2f} ms")
    assert after < 0.8 * before


@pytest.mark.alone
def test_a_loss_read_in_every_step_is_named_with_its_line_and_kept_on_the_gpu(
    supervisor: Supervisor, record_property: Record
) -> None:
    folder = a_run(supervisor, model="transformer", preset="laptop", device_metrics=False)
    advice = told(known_of(folder), "synchronizing")
    record_property("evidence", advice.evidence)
    assert "harness/train/workload.py" in advice.evidence
    assert "self.loss.item()" in advice.evidence
    assert advice.change == {"device_metrics": True}
    before, after = apply(supervisor, folder, advice)
    record_property("median step before → after", f"{before:.2f} → {after:.2f} ms")


def test_a_launch_bound_run_is_given_a_larger_batch(supervisor: Supervisor, record_property: Record) -> None:
    folder = a_run(supervisor, model="transformer", preset="laptop", batch_size=1)
    names = known_of(folder)
    # Compiling depends on what else is installed, and a fused optimizer on the optimizer's share.
    uncompiled = names._replace(device=names.device._replace(can_compile=False))
    advice = told(uncompiled, "launch-bound")
    record_property("evidence", advice.evidence)
    assert set(advice.change) <= {"batch_size", "optimizer_impl"}
    before, after = apply(supervisor, folder, advice)
    record_property("median step before → after", f"{before:.2f} → {after:.2f} ms")


def test_idle_tensor_cores_are_given_16_bit_numbers(supervisor: Supervisor, record_property: Record) -> None:
    if torch.cuda.get_device_capability() < (7, 0):
        pytest.skip("this GPU has no tensor cores")
    folder = a_run(supervisor, model="transformer", preset="workstation", batch_size=128)
    advice = told(known_of(folder), "tensor-cores")
    record_property("evidence", advice.evidence)
    assert set(advice.change) == {"amp"}
    before, after = apply(supervisor, folder, advice)
    record_property("median step before → after", f"{before:.2f} → {after:.2f} ms")
    assert after < before


def test_a_run_with_nothing_amiss_is_not_told_to_read_or_move_anything(supervisor: Supervisor) -> None:
    folder = a_run(supervisor, model="transformer", preset="workstation", batch_size=128)
    result = {one.rule for one in suggest(known_of(folder))}
    supervisor.stop(folder)
    assert result.isdisjoint({"synchronizing", "misplaced-tensors", "input-bound", "transfer-bound"})


def test_a_buffer_left_on_the_cpu_is_named_with_the_line_that_copies_it(
    supervisor: Supervisor, record_property: Record
) -> None:
    folder = a_run(supervisor, model="transformer", preset="laptop", inject="elsewhere:4MiB")
    advice = told(known_of(folder), "misplaced-tensors")
    supervisor.stop(folder)
    record_property("evidence", advice.evidence)
    assert "The buffer left_behind (4.00 MiB) is on cpu, while the run trains on cuda:0" in advice.evidence
    assert "harness/train/inject.py" in advice.evidence


def test_a_loss_read_in_the_midst_of_a_step_is_named_with_its_line(
    supervisor: Supervisor, record_property: Record
) -> None:
    folder = a_run(supervisor, model="transformer", preset="laptop", batch_size=1, inject="sync")
    names = known_of(folder)
    supervisor.stop(folder)
    assert names.inspection is not None
    (line,) = names.inspection.lines_of_every_step()
    record_property("line", line.place)
    assert (line.code, line.is_within) == ("loss.item()", True)
    advice = told(names, "synchronizing")
    record_property("evidence", advice.evidence)
    assert "harness/train/inject.py" in advice.evidence
