"""Tensors on GPUs that this machine does not have."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


def on(device: torch.device, *shape: int) -> Tensor:
    """A tensor without memory that says to be on `device`."""
    return FakeTensor(FakeTensorMode(allow_non_fake_inputs=True), torch.empty(shape, device="meta"), device)
