"""Placement of the tensors of a training: those that were left on the CPU while it computes on a GPU."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.device.accelerator import computing_device
from harness.watch.training import Training

MOST = 20


class Misplaced(NamedTuple):
    """A tensor on another device. `what` is "parameter", "buffer", "optimizer state" or "loss"."""

    what: str
    name: str
    device: str
    size_bytes: int


def misplaced(training: Training, device: torch.device) -> list[Misplaced]:
    """Return the tensors of model, optimizer and newest loss that are on another kind of device than
    `device`, the largest first, as far as they were left there.

    Tensors are placed on purpose where all tensors of their module are on that kind of device, as with an
    embedding on the CPU or a model that is split over several GPUs; and optimizer state is with its weight.
    The optimizers' step counters lie on the CPU on purpose; scalars do not count. The loss does not, where
    parts of the model are on the CPU on purpose: they may compute it.
    """
    left = [
        Misplaced(what, name, str(tensor.device), tensor.numel() * tensor.element_size())
        for what, name, tensor in _tensors_left(training, device)
    ]
    return sorted(left, key=lambda one: -one.size_bytes)[:MOST]


def _tensors_left(training: Training, device: torch.device) -> Iterator[tuple[str, str, Tensor]]:
    left: set[Tensor] = set()
    has_part_elsewhere = False
    for path, module in training.model.named_modules():
        for what, name, tensor in _own_tensors(path, module):
            if _is_at(tensor, device) or tensor in left:
                continue
            # Of a weight that modules share, each module decides.
            if _computes_on(module, device):
                left.add(tensor)
                yield what, name, tensor
            elif what == "parameter":
                has_part_elsewhere = True
    yield from _state_left(training, device)
    if not has_part_elsewhere and not _is_at(training.loss, device) and not _is_unknown(training.loss):
        yield "loss", "the loss", training.loss


def _state_left(training: Training, device: torch.device) -> Iterator[tuple[str, str, Tensor]]:
    names: dict[Tensor, str] = {weight: name for name, weight in training.model.named_parameters()}
    for weight, state in training.optimizer.state.items():
        if not _is_at(weight, device):
            continue
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() > 0 and not _is_at(value, device):
                yield "optimizer state", f"{name} of {names.get(weight, 'a parameter')}", value


def _own_tensors(path: str, module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in module.named_parameters(path, recurse=False):
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers(path, recurse=False):
        yield "buffer", name, buffer


def _computes_on(module: nn.Module, device: torch.device) -> bool:
    """Return whether a tensor of the module, or of those within, is on the kind of `device`."""
    return any(_is_at(one, device) for one in chain(module.parameters(), module.buffers()))


def _is_at(tensor: Tensor, device: torch.device) -> bool:
    return computing_device(tensor).type == device.type


def _is_unknown(loss: Tensor) -> bool:
    """Return whether it is what a script has before its first loss of one element."""
    return loss.is_cpu and bool(loss.isnan())
