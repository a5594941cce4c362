"""One batch over several GPUs in threads of one process: torch.nn.DataParallel."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.errors import SettingError

NAME = "data_parallel"


class DataParallelLoss(nn.DataParallel[nn.Module]):
    """DataParallel of a model that returns the mean loss of its samples: each GPU gets a replica of the
    weights and a part of the batch, and the losses are averaged by the number of their samples. In the
    backward pass the gradients of all replicas are added up on the first GPU, which has the optimizer."""

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch on the first GPU."""
        parts, _ = self.scatter((inputs, targets), {}, self.device_ids)
        if len(parts) == 1:
            loss: Tensor = self.module(*parts[0])
            return loss
        replicas = self.replicate(self.module, self.device_ids[: len(parts)])
        losses = self.parallel_apply(replicas, parts, [{}] * len(parts))
        shares = [len(part[0]) / len(inputs) for part in parts]
        weighted = [share * loss.to(inputs.device) for share, loss in zip(shares, losses, strict=True)]
        return torch.stack(weighted).sum()

    def parallel_apply(
        self, replicas: Sequence[Callable[..., Any]], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Return the losses of the replicas, under the autocast of the calling thread.

        Torch's function enters an autocast without a data type on each of its threads, where the default
        holds: float16, which without scaled gradients loses the small ones.
        """
        device_type = inputs[0][0].device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            replicas = [partial(_under_autocast, device_type, dtype, replica) for replica in replicas]
        losses: list[Any] = super().parallel_apply(replicas, inputs, kwargs)  # type: ignore[arg-type]  # only called
        return losses


def _under_autocast(
    device_type: str, dtype: torch.dtype, replica: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with torch.autocast(device_type, dtype=dtype):
        return replica(*args, **kwargs)


def data_parallel(
    model: nn.Module, device: torch.device, count: int, visible: Callable[[], int] = torch.cuda.device_count
) -> DataParallelLoss:
    """Return the forward pass of `model`, which is on `device`, over `count` GPUs: that one and the first
    others in torch's order. Raises SettingError when there are not as many."""
    existing = visible()
    if device.type != "cuda" or count > existing:
        there = f"this machine has {existing}" if existing else "this run has none"
        raise SettingError(NAME, f"{NAME}={count} needs {count} CUDA GPUs, and {there}.")
    others = [ordinal for ordinal in range(existing) if ordinal != device.index]
    return DataParallelLoss(model, device_ids=[device.index, *others[: count - 1]])
