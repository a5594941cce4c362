"""The process group of a run's ranks, and the device of each."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from harness.errors import DeviceError, UsageError
from harness.records.ranks import RankPlace
from harness.records.run import DeviceFacts, DeviceKind

_AUTO, _CPU, _CUDA = "auto", "cpu", "cuda"
_BACKENDS = {DeviceKind.CPU: "gloo", DeviceKind.CUDA: "nccl", DeviceKind.XPU: "xccl"}


def rank_device(selector: str, place: RankPlace) -> str:
    """Return the selector of the device of one rank: the GPU of its local rank, or the CPU.

    Raises UsageError for a selector of one GPU, DeviceError when there are fewer GPUs than local ranks.
    """
    word = selector.strip().lower()
    gpus = torch.cuda.device_count() if word in (_AUTO, _CUDA) else 0
    if word == _CPU or (word == _AUTO and not gpus):
        return _CPU
    if word not in (_AUTO, _CUDA):
        raise UsageError(
            f"A run of {place.size} processes takes the GPU of each process's local rank, so device cannot "
            f"be {selector!r}; it is auto, cuda or cpu. CUDA_VISIBLE_DEVICES chooses among GPUs."
        )
    if place.local_rank >= gpus:
        raise DeviceError(
            f"Rank {place.rank} has no GPU: its local rank is {place.local_rank}, and there are {gpus} GPUs. "
            "Start as many processes as GPUs, or with --device cpu."
        )
    return f"{_CUDA}:{place.local_rank}"


@contextmanager
def process_group(place: RankPlace, device: DeviceFacts) -> Iterator[None]:
    """The default process group of the ranks, until the context ends. Raises DeviceError where there is no
    backend for the device."""
    backend = _BACKENDS.get(device.kind)
    if backend is None or not distributed.is_available():
        raise DeviceError(
            f"torch has no backend for {device.name}, so several processes cannot train on it together; "
            "start one."
        )
    distributed.init_process_group(backend, rank=place.rank, world_size=place.size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
