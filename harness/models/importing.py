"""Imports of the code of models, which may happen while torch's modes are on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def outside_modes() -> Iterator[None]:
    """Have modules that are imported make real tensors on the CPU, as at the start of a process: they are
    imported once, and what they make stays. Under a mode that only traces it would have no values."""
    with _disable_current_modes(), torch.device("cpu"):
        yield
