"""Baseline memory of a training process on the CPU, before its model is built."""

from functools import cache

import psutil
import torch
from torch import nn


@cache
def context_bytes() -> int:
    """Return this process's RSS after a first step of the smallest model; measured once, so call it before
    large imports."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight])
    (weight * 1.0).sum().backward()
    optimizer.step()
    return int(psutil.Process().memory_info().rss)


@cache
def run_threads() -> int:
    """Return the number of torch's threads in a run started from this process. Sets this process's number to
    one, so that it can be forked: threads do not survive a fork."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads
