"""Placement of the tensors of a training: those that are not on its device."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from harness.watch.training import Training

MOST = 20


class Misplaced(NamedTuple):
    """A tensor on another device. `what` is "parameter", "buffer", "optimizer state" or "loss"."""

    what: str
    name: str
    device: str
    size_bytes: int


def misplaced(training: Training, device: torch.device) -> list[Misplaced]:
    """Return the tensors of model, optimizer and newest loss that are not on `device`, the largest first.

    The optimizers' step counters lie on the CPU on purpose; scalars do not count.
    """
    tensors = [
        Misplaced(what, name, str(tensor.device), tensor.numel() * tensor.element_size())
        for what, name, tensor in _tensors(training)
        if not _is_on(tensor.device, device)
    ]
    return sorted(tensors, key=lambda one: -one.size_bytes)[:MOST]


def _tensors(training: Training) -> Iterator[tuple[str, str, Tensor]]:
    names: dict[Tensor, str] = {}
    for name, parameter in training.model.named_parameters():
        names[parameter] = name
        yield "parameter", name, parameter
    for name, buffer in training.model.named_buffers():
        yield "buffer", name, buffer
    for weight, state in training.optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() > 0:
                yield "optimizer state", f"{name} of {names.get(weight, 'a parameter')}", value
    yield "loss", "the loss", training.loss


def _is_on(where: torch.device, device: torch.device) -> bool:
    """A device named without an index is any of its kind."""
    return where == device or (where.type == device.type and None in (where.index, device.index))
