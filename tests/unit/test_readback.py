"""Losses come back without waiting, through a ring of slots where the device is asynchronous."""

import math
import sys
import threading
import weakref
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.watch.readback import LossReader


def test_on_the_cpu_a_loss_is_read_at_once() -> None:
    assert LossReader.of(torch.device("cpu")).take(torch.tensor(0.25)) == 0.25


def test_the_losses_of_all_elements_are_not_kept() -> None:
    output, reader = torch.ones(1_000, requires_grad=True), LossReader.of(torch.device("cpu"))
    loss = functional.mse_loss(output, torch.zeros(1_000)).detach()
    elements = weakref.ref(loss.untyped_storage())
    assert loss.untyped_storage().nbytes() == 4 * 1_000  # Otherwise torch frees them by itself.
    value = reader.take(loss)
    del loss
    assert (value, elements()) == (1.0, None)


def test_losses_are_read_without_passing_the_interpreters_lock() -> None:
    """Otherwise training and the thread that reads them wait for each other at each loss."""
    take, losses = LossReader.of(torch.device("cpu")).take, [torch.tensor(0.5) for _ in range(20_000)]
    go, has_run, interval_s = threading.Lock(), threading.Event(), sys.getswitchinterval()
    go.acquire()

    def wait_for_the_lock() -> None:
        with go:
            has_run.set()

    other = threading.Thread(target=wait_for_the_lock)
    other.start()
    sys.setswitchinterval(60)
    try:
        go.release()
        values = [take(loss) for loss in losses]
        has_waited = not has_run.is_set()
    finally:
        sys.setswitchinterval(interval_s)
        other.join()
    assert values == [0.5] * len(losses)
    assert has_waited


@pytest.mark.parametrize("value", [1.5, math.inf, -math.inf])
def test_a_slot_keeps_the_loss_until_it_is_read(value: float) -> None:
    losses = LossReader(torch.zeros(2))
    loss = torch.tensor(value)
    ticket = losses.take_slot(loss)
    loss.fill_(9.0)
    assert ticket is not None
    assert ticket() == value


def test_a_ticket_that_is_called_again_frees_its_slot_only_once() -> None:
    losses = LossReader(torch.zeros(2))
    first = losses.take_slot(torch.tensor(1.0))
    assert first is not None
    assert (first(), first()) == (1.0, 1.0)
    assert all(losses.take_slot(torch.tensor(value)) is not None for value in (2.0, 3.0))
    assert losses.take_slot(torch.tensor(4.0)) is None
    assert first() == 1.0


def test_a_nan_stays_a_nan_in_its_slot() -> None:
    ticket = LossReader(torch.zeros(1)).take_slot(torch.tensor(math.nan))
    assert ticket is not None
    assert math.isnan(ticket())


def test_a_half_precision_loss_fits_a_slot() -> None:
    ticket = LossReader(torch.zeros(1)).take_slot(torch.tensor(0.5, dtype=torch.bfloat16))
    assert ticket is not None
    assert ticket() == 0.5


def test_a_full_ring_gives_no_ticket_and_a_read_one_frees_its_slot() -> None:
    losses = LossReader(torch.zeros(2))
    first = losses.take_slot(torch.tensor(1.0))
    second = losses.take_slot(torch.tensor(2.0))
    assert losses.take_slot(torch.tensor(3.0)) is None
    assert first is not None
    assert second is not None
    assert first() == 1.0
    third = losses.take_slot(torch.tensor(4.0))
    assert third is not None
    assert (second(), third()) == (2.0, 4.0)


def test_the_ring_is_of_floats_in_memory_whatever_the_defaults_of_a_script() -> None:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            losses = LossReader.of(torch.device("mps"))  # Its ring is not pinned, which takes a GPU.
    finally:
        torch.set_default_dtype(dtype)
    ticket = losses.take_slot(torch.tensor(1.2345, dtype=torch.float32))
    assert ticket is not None
    assert ticket() == pytest.approx(1.2345)


def test_the_loss_of_another_gpu_passes_the_one_with_the_marks() -> None:
    class OnAnotherGpu:
        device = torch.device("cuda", 1)

        def to(self, device: torch.device, non_blocking: bool) -> Tensor:
            moves.append((device, non_blocking))
            return torch.tensor(0.5)

    moves: list[tuple[torch.device, bool]] = []
    ticket = LossReader(torch.zeros(1), torch.device("cuda", 0)).take_slot(cast(Tensor, OnAnotherGpu()))
    assert ticket is not None
    assert (ticket(), moves) == (0.5, [(torch.device("cuda", 0), True)])
