"""Test how the caching allocator's history is switched, over a ring with torch's rules."""

import inspect

import pytest
import torch

from harness.device.testing.allocation_history import FakeMemoryHistory, HeapOverflowError
from harness.tracking.history import CudaHistory
from harness.tracking.traces import MOST_ENTRIES


def events(history: CudaHistory) -> int:
    return len(history.snapshot()["device_traces"][0])


def test_the_fake_ring_overflows_as_torchs_does() -> None:
    memory = FakeMemoryHistory()
    memory._record_memory_history("all", max_entries=50_000)
    memory.record(60_000)
    memory._record_memory_history("state")
    with pytest.raises(HeapOverflowError, match="50,000"):
        memory.record(200_000)


def test_a_snapshot_of_more_events_than_the_ring_holds_writes_nothing_behind_it() -> None:
    memory = FakeMemoryHistory()
    history = CudaHistory(memory)
    history.follow()
    memory.record(MOST_ENTRIES + 10_000)
    assert events(history) == MOST_ENTRIES
    history.keep()
    memory.record(4 * MOST_ENTRIES)
    assert events(history) == 1


def test_a_window_begins_with_an_empty_ring() -> None:
    memory = FakeMemoryHistory()
    history = CudaHistory(memory)
    history.follow()
    memory.record(100)
    history.follow()
    memory.record(7)
    assert events(history) == 7
    history.off()
    assert (events(history), memory.enabled) == (0, None)


def test_the_fake_takes_the_arguments_of_torchs_function() -> None:
    real = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    fake = inspect.signature(FakeMemoryHistory._record_memory_history).parameters
    names = [name for name in fake if name != "self"]
    assert names == list(real)[: len(names)]
    assert real["enabled"].default == fake["enabled"].default == "all"
