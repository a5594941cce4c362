"""Autograd graphs that outlive their step are found, with the line that made the tensor that holds them."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.device.cpu.heap import in_use, open_heap
from harness.device.protocol import AllocatorReading
from harness.records.memory import SnapshotRow
from harness.tracking.graphs import GraphWatch
from harness.watch.capture.hunting import LeakHunt
from harness.watch.capture.snapshot_rows import graphs_sentence
from tests.leak_factories import a_leak
from tests.train_factories import SteppedRun

STEPS = 6


def watched(use: Callable[[Tensor], object], watch: GraphWatch | None = None) -> GraphWatch:
    """A watch after some steps of a model of one layer, each loss put to `use`."""
    model, watch = torch.nn.Linear(4, 2), watch or GraphWatch()
    for _ in range(STEPS):
        loss = model(torch.ones(3, 4)).sum()
        watch.note(loss)
        loss.backward()
        use(loss)
        del loss
        watch.step_ended()
    return watch


class Metric:
    total: Any = 0.0

    def add(self, loss: Tensor) -> None:
        self.total = self.total + loss

    def add_detached(self, loss: Tensor) -> None:
        self.total = self.total + loss.detach()


def test_losses_that_are_added_up_keep_every_graph() -> None:
    metric = Metric()
    result = watched(metric.add).retained(lambda tensor: "here" if tensor is metric.total else None)
    assert result is not None
    assert (result.retained, result.steps) == (STEPS - 2, STEPS - 2)
    assert (result.operation, result.site) == ("Add", "here")


@pytest.mark.parametrize("slow_clock", ["cpu_ns", "clock_ns"])
def test_the_youngest_tensors_are_examined_however_late_it_is(slow_clock: str) -> None:
    weight = torch.ones(2, requires_grad=True)
    old = [weight * 2 for _ in range(100)]
    gc.collect()
    gc.disable()
    try:
        metric, minutes = Metric(), iter(range(0, 10**15, 60 * 10**9))
        watch = watched(metric.add, GraphWatch(**{slow_clock: lambda: next(minutes)}))
        result = watch.retained(lambda tensor: "here" if tensor is metric.total else None)
    finally:
        gc.enable()
    assert len(old) == 100
    assert result is not None
    assert (result.operation, result.site) == ("Add", "here")


def test_the_search_ends_late_without_the_tensor() -> None:
    weight = torch.ones(2, requires_grad=True)
    losses: list[Tensor] = []
    minutes = iter(range(0, 10**15, 60 * 10**9))
    watch = watched(losses.append, GraphWatch(cpu_ns=lambda: next(minutes)))
    younger = [weight * 2 for _ in range(100)]
    result = watch.retained(lambda _tensor: "a site")
    assert len(younger) == 100
    assert result is not None
    assert (result.retained, result.operation, result.site) == (STEPS - 2, None, None)


def test_the_newest_loss_is_not_the_tensor_that_retains_the_graphs() -> None:
    metric = Metric()
    watch = watched(metric.add)
    loss = torch.nn.Linear(4, 2)(torch.ones(3, 4)).sum()
    watch.note(loss)
    watch.step_ended()
    result = watch.retained(lambda tensor: "here" if tensor is metric.total else None)
    assert loss.grad_fn is not None
    assert result is not None
    assert (result.operation, result.site) == ("Add", "here")


def test_losses_that_are_collected_keep_every_graph() -> None:
    losses: list[Tensor] = []
    result = watched(losses.append).retained(lambda _tensor: None)
    assert result is not None
    assert (result.retained, result.operation) == (STEPS - 2, "Sum")


@pytest.mark.parametrize("use", [Metric().add_detached, lambda loss: loss.item(), lambda _loss: None])
def test_losses_whose_graph_is_let_go_of_keep_none(use: Callable[[Tensor], object]) -> None:
    assert watched(use).retained(lambda _tensor: None) is None


def test_a_mark_keeps_no_graph_alive() -> None:
    watch = GraphWatch()
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 2).sum()
    freed: list[bool] = []
    node: Any = loss.grad_fn
    node.metadata["freed"] = _Noted(freed)
    del node
    watch.note(loss)
    del loss
    assert freed == [True]


class _Noted:
    def __init__(self, freed: list[bool]) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append(True)


def test_a_loss_without_a_graph_is_left_alone() -> None:
    watch = GraphWatch()
    watch.note(torch.ones(()))
    for _ in range(3):
        watch.step_ended()
    assert watch.retained(lambda _tensor: None) is None


def stepped(keep: Callable[[Tensor], object]) -> GraphWatch:
    """A watch after some steps: their output, but not their loss, is put to `keep`."""
    model, watch = torch.nn.Linear(4, 2), GraphWatch()
    for _ in range(STEPS):
        output = model(torch.ones(3, 4))
        keep(output)
        loss = output.square().sum()
        watch.note(loss)
        loss.backward()
        del loss, output
        watch.step_ended()
    return watch


def test_outputs_that_are_collected_keep_the_graphs_before_them() -> None:
    kept: list[Tensor] = []
    watch = stepped(kept.append)
    assert watch.retained(lambda _tensor: None) is None
    result = watch.of_results(lambda tensor: "here" if tensor is kept[-3] else None)
    assert result is not None
    # Nothing is known of where the first step began.
    assert (result.retained, result.steps) == (STEPS - 3, STEPS - 3)
    assert (result.operation, result.site, result.of_losses) == ("Addmm", "here", False)
    assert "use detach() there" in graphs_sentence(result)


def test_results_that_are_replaced_or_detached_or_older_keep_none() -> None:
    older = [torch.ones(2, requires_grad=True) * 2 for _ in range(20)]
    newest: dict[str, Tensor] = {}
    detached: list[Tensor] = []
    assert stepped(lambda output: newest.update(state=output)).of_results(lambda _tensor: None) is None
    assert stepped(lambda output: detached.append(output.detach())).of_results(lambda _tensor: None) is None
    assert GraphWatch().of_results(lambda _tensor: None) is None
    assert len(older) == 20


def test_results_of_some_steps_only_are_no_growth_with_every_step() -> None:
    kept: list[Tensor] = []
    numbers = iter(range(STEPS))
    watch = stepped(lambda output: kept.append(output) if next(numbers) % 2 else None)
    assert watch.of_results(lambda _tensor: None) is None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SteppedRun]:
    run = SteppedRun(tmp_path)
    yield run
    run.close()


def hunted(bench: SteppedRun) -> SnapshotRow:
    bench.run(8)
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak(), None)
    bench.run(20)
    assert not bench.dropped
    row: SnapshotRow = bench.journal.of(SnapshotRow)[-1]
    return row


@pytest.mark.slow
def test_the_hunt_for_a_leak_of_nodes_names_them_and_the_line_that_keeps_them(bench: SteppedRun) -> None:
    metric, forward = Metric(), bench.workload.forward

    def mistaken(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = forward(inputs, targets)
        metric.add(loss)
        return loss

    bench.workload.forward = mistaken
    message = hunted(bench).message
    assert message.startswith("The autograd graphs of 10 of 10 steps were retained by a tensor created at")
    assert "tests/unit/test_graphs.py:" in message
    assert "No allocation site" not in message


@pytest.mark.slow
def test_the_hunt_blames_no_other_memory_for_nodes_that_a_result_keeps(bench: SteppedRun) -> None:
    heap = open_heap()
    if heap is None:
        pytest.skip("malloc cannot be read here")
    gc.collect()  # The heap is to shrink by nothing of earlier tests.
    device, states, forward = bench.context.device, list[Tensor](), bench.workload.forward
    device.read_allocator = lambda: AllocatorReading(in_use(heap.info()), 0, 0, 0, 0, 1)  # type: ignore[method-assign]

    def mistaken(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = forward(inputs, targets)
        state = torch.ones(1, requires_grad=True)
        for _ in range(200):
            state = state * 1.0
        states.append(state)
        return loss + 0 * state.sum()

    bench.workload.forward = mistaken
    bench.run(8)
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak()._replace(bytes_per_step=100_000.0), None)
    bench.run(20)
    message, result = bench.journal.of(SnapshotRow)[-1].message, bench.snapshots.hunt_result
    assert "The autograd graphs of 9 of 9 steps were retained by a tensor created at" in message, message
    assert "NumPy" not in message
    assert result is not None
    assert not result.is_beside_tensors
    assert result.has_site


@pytest.mark.slow
def test_the_hunt_in_a_run_without_kept_graphs_says_nothing_of_them(bench: SteppedRun) -> None:
    assert "graph" not in hunted(bench).message


def test_the_sentence_says_what_was_found_and_no_more() -> None:
    result = watched((metric := Metric()).add).retained(lambda _tensor: None)
    assert result is not None
    assert "were retained by the result of an operation Add:" in graphs_sentence(result)
    assert "were retained: their nodes" in graphs_sentence(result._replace(operation=None))
    assert metric.total is not None
