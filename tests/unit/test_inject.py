"""Injected faults: each keeps memory for the reason its name says, and as much as was asked for."""

import gc
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from harness.data.source import Batch
from harness.data.workers import worker_context
from harness.device.cpu.device import CpuDevice
from harness.device.cpu.heap import Heap, in_use, open_heap
from harness.errors import SettingError
from harness.records.data import DataKind, DataShape
from harness.settings.injection import Fault, Injection, describe
from harness.settings.resolve import check_fit, resolve
from harness.train.inject import LeakySource, leaky
from harness.watch.oom.errors import is_out_of_memory
from tests.train_factories import a_step, a_workload

pytestmark = pytest.mark.slow

KIB = 2**10
_STEPS = 60


@pytest.fixture
def heap() -> Heap:
    """glibc's malloc."""
    opened = open_heap()
    if opened is None:
        pytest.skip("malloc cannot be read here")
    return opened


def growth(text: str, read: Callable[[], int]) -> float:
    """Return how much more `read` says after each of many steps of a run with this fault, on average."""
    gc.collect()  # Nothing of the run before may be freed while this one is measured.
    workload = a_workload(inject=text)
    for step in range(1, 11):
        a_step(workload)
        workload.tidy(step)
    before = read()
    for step in range(11, 11 + _STEPS):
        a_step(workload)
        workload.tidy(step)
    grown = (read() - before) / _STEPS
    workload.close()
    return grown


@pytest.mark.parametrize("fault", [Fault.LEAK_GRAPH, Fault.LEAK_HIDDEN, Fault.LEAK_LIST, Fault.LEAK_CACHE])
def test_leaks_of_tensors_hold_what_was_asked_for(fault: Fault, heap: Heap) -> None:
    grown = growth(f"{fault}:256KiB", lambda: in_use(heap.info()))
    assert 240 * KIB <= grown <= 290 * KIB


def test_lines_of_text_lie_outside_the_heap_of_tensors(heap: Heap) -> None:
    process = psutil.Process()
    assert growth("leak:host:256KiB", lambda: in_use(heap.info())) < 32 * KIB
    assert growth("leak:host:1MiB", lambda: int(process.memory_info().rss)) > 700 * KIB


_FRAGMENT = """
from tests.unit.test_inject import growth
from harness.device.cpu.heap import heap_bytes, in_use, open_heap
heap = open_heap()
print(growth("fragmentation:512KiB", lambda: heap_bytes(heap.info()) - in_use(heap.info())))
"""


@pytest.mark.long
def test_fragmentation_leaves_holes_and_holds_nothing(heap: Heap) -> None:
    # In a process of its own: holes that earlier tests left in this one's heap would be filled first.
    fresh = subprocess.run([sys.executable, "-c", _FRAGMENT], capture_output=True, text=True, check=True)
    assert float(fresh.stdout) > 200 * KIB
    assert growth("fragmentation:512KiB", lambda: in_use(heap.info())) < 16 * KIB


def test_without_a_fault_nothing_grows(heap: Heap) -> None:
    assert growth("", lambda: in_use(heap.info())) < 4 * KIB


def test_several_micro_batches_leak_together_what_was_asked_for(heap: Heap) -> None:
    gc.collect()
    workload = a_workload(inject="leak:list:256KiB", grad_accumulation=4)
    a_step(workload)
    before = in_use(heap.info())
    for _ in range(20):
        a_step(workload)
    assert (in_use(heap.info()) - before) / 20 == pytest.approx(256 * KIB, rel=0.1)


def test_memory_runs_out_in_the_step_asked_for_and_only_once() -> None:
    workload = a_workload(CpuDevice.open(), inject="oom:3")
    for step in (1, 2):
        a_step(workload)
        workload.tidy(step)
    with pytest.raises(RuntimeError) as caught:
        a_step(workload)
    assert is_out_of_memory(caught.value)
    workload.abandon_step()
    a_step(workload)


class _Sizes(Dataset[int]):
    """Fetches from a source inside a worker and says how many bytes it keeps there."""

    def __init__(self, source: LeakySource) -> None:
        self._source = source

    def __getitem__(self, index: int) -> int:
        self._source.fetch(np.array([0]))
        return sum(retained.nbytes for retained in self._source._buffers)

    def __len__(self) -> int:
        return 5


class _One:
    """A source of one sample."""

    shape = DataShape(DataKind.IMAGE)
    note: str | None = None

    def __len__(self) -> int:
        return 1

    def fetch(self, indices: object) -> Batch:
        return Batch(torch.zeros(1), torch.zeros(1))


@pytest.mark.slow
def test_only_copies_in_workers_leak() -> None:
    source = leaky(_One(), Injection(Fault.LEAK_WORKER, 4096), resolve({"model": "mlp", "num_workers": 1}))
    assert isinstance(source, LeakySource)
    loader = DataLoader(
        _Sizes(source), batch_size=None, num_workers=1, multiprocessing_context=worker_context()
    )
    assert list(loader) == [4096, 8192, 12288, 16384, 20480]
    source.fetch(np.array([0]))
    assert source._buffers == []


def test_a_leak_in_workers_needs_workers() -> None:
    settings = resolve({"model": "mlp", "inject": "leak:worker"})
    with pytest.raises(SettingError, match="num_workers=1"):
        check_fit(settings)
    check_fit(settings.model_copy(update={"num_workers": 1}))


def test_every_fault_says_in_words_what_is_wrong() -> None:
    for fault in Fault:
        text = describe(Injection(fault, 65_536, step=7))
        assert text.startswith("Injected: ")
        assert ("64.0 KiB per step" in text) is (fault not in (Fault.OOM, Fault.SYNC))


def test_a_workload_without_a_fault_calls_nothing_of_it() -> None:
    workload = a_workload()
    assert workload.forward is workload.model
