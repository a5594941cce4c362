"""What a training process on the CPU holds before its model is built."""

from functools import cache

import psutil
import torch
from torch import nn


@cache
def context_bytes() -> int:
    """This process's resident set once torch has taken a first step of the smallest model; measured once, so
    call it before anything large is imported."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight])
    (weight * 1.0).sum().backward()
    optimizer.step()
    return int(psutil.Process().memory_info().rss)


@cache
def run_threads() -> int:
    """The number of torch's threads in a run started from here. Leaves this process with one, so that it can
    be forked: threads do not survive that."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads
