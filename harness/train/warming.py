"""Allocation of the permanent buffers of torch and its libraries before a model is built."""

import torch
from torch import nn

# (rows, inner dimension, columns). MKL keeps its packing buffers after a product. 512 × 512 makes it take
# those of ordinary products: 1 to 9 MiB by processor and threads; 256 × 256 does not make it take all of
# them. With two threads, on Intel's processors, an inner dimension much larger than the others, as in the
# gradient of a weight, makes it take 4.4 MiB more.
_PRODUCTS = ((512, 512, 512), (64, 4096, 256))


def warm_up(device: torch.device) -> None:
    """Load and allocate everything that must not count as the model's memory. Takes tens of milliseconds once
    torch's parts are loaded."""
    load_lazy_parts(device)
    if device.type == "cpu":
        for rows, inner, columns in _PRODUCTS:
            left, right = torch.ones(inner, rows), torch.ones(inner, columns)
            torch.mm(left.t(), right)
            torch.mm(left.t().contiguous(), right)


def load_lazy_parts(device: torch.device) -> None:
    """Take one step with a model of one weight, which loads what torch imports at its first backward pass and
    its first optimizer: tens of megabytes."""
    weight = nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.AdamW([weight])
    (weight * 1.0).sum().backward()
    optimizer.step()
