"""What is counted of a model's arithmetic: a row that passes between layers, free of torch."""

from typing import NamedTuple


class FlopsRow(NamedTuple):
    """Floating-point operations of one sample's forward and backward pass; a multiply-add is two.

    Products alone are counted (matrix products, convolutions, attention): in training they are nearly all.
    The optimizer, which does not depend on the batch, and elementwise operations are left out.
    """

    # 1: with activation checkpointing, which computes part of the forward pass twice.
    checkpointing: int
    flops_per_sample: float
    # JSON list: the operations without a formula. Where it is not empty, the figure is a lower bound.
    uncounted: str
    # The batch it was counted with, which is then divided by: products grow linearly with the batch.
    batch_size: int
    # The settings that decide it, as a JSON object: they cannot change while the run goes on.
    settings: str
    # How long counting took, before the first step.
    took_ns: int

    @property
    def flops_or_none(self) -> float | None:
        """The figure; None where nothing could be counted."""
        return self.flops_per_sample or None
