"""The events of a script before its training has begun, and those on other threads."""

from typing import Any, Protocol

import torch

from harness.attach.passes import LoaderPass


class EarlyEvents(Protocol):
    """The receiver of the events before the training has begun, and of those on other threads."""

    def early_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of `batches`; raises StopIteration at its end."""
        ...

    def early_gradients(self) -> None:
        """Gradients are about to be computed; on any thread."""
        ...

    def early_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step; on any thread."""
        ...
