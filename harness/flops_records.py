"""What is counted of a model's arithmetic: a row that passes between layers, free of torch."""

from typing import NamedTuple


class FlopsRow(NamedTuple):
    """Floating-point operations of one sample's forward and backward pass; a multiply-add is two.

    Products alone are counted (matrix products, convolutions, attention): in training they are nearly all.
    The optimizer, which does not depend on the batch, and elementwise operations are left out.
    """

    checkpointing: int
    """1: with activation checkpointing, which computes part of the forward pass twice."""
    flops_per_sample: float
    uncounted: str
    """JSON list: the operations without a formula. Where it is not empty, the figure is a lower bound."""
    batch_size: int
    """The batch it was counted with, which is then divided by: products grow linearly with the batch."""
    settings: str
    """The settings that decide it, as a JSON object: they cannot change while the run goes on."""
    took_ns: int
    """How long counting took, before the first step."""

    @property
    def flops_or_none(self) -> float | None:
        """The figure; None where nothing could be counted."""
        return self.flops_per_sample or None
