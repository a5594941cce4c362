"""The model of one rank among those of the other ranks, which average their gradients (DDP)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.errors import SettingError
from harness.records.ranks import RankPlace
from harness.settings import Settings
from harness.settings.resolve import check_together

_NO_TIME_LIMIT = (
    "The time limit of a run of several processes cannot change while it goes on; stop it instead."
)


class Replica:
    """The replica of one rank. Its process group exists.

    Attributes:
        place: the place of this process.
    """

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        self.place = place
        self._device_ids = None if device.type == "cpu" else [device.index]
        self._model: DistributedDataParallel | None = None

    def check(self, settings: Settings, changed: Sequence[str]) -> None:
        """Raise SettingError for settings that ranks do not have, or cannot change together."""
        check_together(settings)
        if "max_seconds" in changed:
            raise SettingError("max_seconds", _NO_TIME_LIMIT)

    def forward(self, model: nn.Module, micro_batches: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the forward pass of `model`, whose gradients are averaged over the ranks in the last of so
        many micro-batches."""
        if self._model is None:
            self._model = DistributedDataParallel(model, device_ids=self._device_ids)
        replica = self._model
        if micro_batches == 1:
            replica.require_backward_grad_sync = True
            return replica
        passes = 0

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            nonlocal passes
            passes = passes % micro_batches + 1
            # As its context manager `no_sync`, for the forward and the backward pass.
            replica.require_backward_grad_sync = passes == micro_batches
            loss: Tensor = replica(inputs, targets)
            return loss

        return forward
