"""Torch's own sync debug mode: what it names on a GPU, and that nobody sees its warnings."""

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from harness.records.run import EventKind, EventRow
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.watch.inspect.syncs import SyncCatcher
from tests.gpu.test_run_on_cuda import start, steps_of, supervisor, until

__all__ = ["supervisor"]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
Record = Callable[[str, object], None]


@pytest.fixture
def catcher() -> Iterator[SyncCatcher]:
    result = SyncCatcher()
    yield result
    result.stop()


def test_lines_that_wait_are_named_and_no_warning_is_seen(catcher: SyncCatcher) -> None:
    ones = torch.ones(1000, device="cuda")
    with warnings.catch_warnings(record=True) as observed:
        warnings.simplefilter("always")
        assert catcher.start()
        for _ in range(3):
            total = ones.sum().item()
        places = ones.nonzero()
        product = ones @ ones
        sites = {site.code: site.calls for site in catcher.stop()}
    assert (total, len(places), float(product)) == (1000, 1000, 1000)
    assert sites["total = ones.sum().item()"] == 3
    assert sites["places = ones.nonzero()"] >= 1
    assert "product = ones @ ones" not in sites
    assert [str(one.message) for one in observed] == []
    assert torch.cuda.get_sync_debug_mode() == 0


class Reads(torch.autograd.Function):
    """Reads a value off the device in its backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradients[0].item()
        return gradients[0]


def test_a_backward_pass_that_waits_is_named_by_its_line(catcher: SyncCatcher) -> None:
    loss = Reads.apply(torch.ones((), device="cuda", requires_grad=True))  # type: ignore[no-untyped-call]  # torch's
    catcher.start()
    loss.backward()
    (site,) = catcher.stop()
    assert (site.code, site.calls) == ("gradients[0].item()", 1)


def test_a_mode_that_a_program_has_switched_on_is_left_alone(catcher: SyncCatcher) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            assert not catcher.start()
            assert torch.cuda.get_sync_debug_mode() == 1
        finally:
            torch.cuda.set_sync_debug_mode("default")


def inspections(supervisor: Supervisor, **values: object) -> list[EventRow]:
    folder = start(supervisor, model="transformer", preset="laptop", **values)
    until(lambda: steps_of(folder) >= 60, "60 steps")
    supervisor.stop(folder)
    with LogReader(folder.log) as log:
        return [event for _, event in log.events() if event.kind == EventKind.INSPECTION]


def test_by_default_no_line_of_a_step_waits_and_everything_lies_on_the_gpu(
    supervisor: Supervisor, record_property: Record
) -> None:
    (event,) = inspections(supervisor)
    record_property("message", event.message)
    assert json.loads(event.detail)["syncs"] == []
    assert json.loads(event.detail)["elsewhere"] == []


def test_a_loss_read_in_every_step_is_found_at_its_line(
    supervisor: Supervisor, record_property: Record
) -> None:
    (event,) = inspections(supervisor, device_metrics=False)
    record_property("message", event.message)
    (line,) = json.loads(event.detail)["syncs"]
    assert line["site"].startswith("harness/train/workload.py:")
    assert line["code"] == "self.loss.item()"
    assert line["calls"] == json.loads(event.detail)["steps"]


def test_copies_from_memory_that_is_not_pinned_are_found_too(supervisor: Supervisor) -> None:
    (event,) = inspections(supervisor, data="stdlib-text")
    sites = [line["site"] for line in json.loads(event.detail)["syncs"]]
    assert sites
    assert all(site.endswith(" _to_device") for site in sites)
