"""The model of one rank among those of the other ranks: DDP or FSDP2."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from harness.records.ranks import RankPlace
from harness.settings import Settings
from harness.settings.declaration import Parallelism
from harness.settings.resolve import check_processes


class Replica:
    """The replica of one rank. Its process group exists.

    Attributes:
        place: the place of this process.
    """

    def __init__(self, place: RankPlace, device: torch.device, parallelism: Parallelism) -> None:
        self.place = place
        self._device = device
        self._is_sharded = parallelism is Parallelism.FSDP2
        self._replicated: DistributedDataParallel | None = None

    def check(self, settings: Settings) -> None:
        """Raise SettingError for settings that ranks do not have."""
        check_processes(settings, self.place.size)

    def shard(self, model: nn.Module) -> None:
        """Keep this rank's share of the weights only, where the model is to be sharded: by blocks, each of
        which is gathered for its forward and its backward pass. To be called before there is an optimizer."""
        if not self._is_sharded:
            return
        mesh = init_device_mesh(self._device.type, (self.place.size,))
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def forward(self, model: nn.Module, micro_batches: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the forward pass of `model`, whose gradients are averaged over the ranks in the last of so
        many micro-batches."""
        replica, average = self._joined(model)
        if micro_batches == 1:
            average(True)
            return replica
        passes = 0

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            nonlocal passes
            passes = passes % micro_batches + 1
            average(passes == micro_batches)
            loss: Tensor = replica(inputs, targets)
            return loss

        return forward

    def _joined(self, model: nn.Module) -> tuple[nn.Module, Callable[[bool], None]]:
        """Return the model to call, and what sets whether the next backward pass averages gradients."""
        if isinstance(model, FSDPModule):
            return model, model.set_requires_gradient_sync
        if self._replicated is None:
            device_ids = None if self._device.type == "cpu" else [self._device.index]
            self._replicated = DistributedDataParallel(model, device_ids=device_ids)
        replicated = self._replicated

        def average(is_averaged: bool) -> None:
            replicated.require_backward_grad_sync = is_averaged  # As its context manager `no_sync`.

        return replicated, average


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists and sequences of layers that have weights."""
    for child in model.children():
        if not isinstance(model, nn.ModuleList | nn.Sequential):
            yield from _blocks(child)
        elif next(child.parameters(), None) is not None:
            yield child
