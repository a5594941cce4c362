"""The row with a model's FLOP count; free of torch."""

from typing import NamedTuple


class FlopsRow(NamedTuple):
    """Floating-point operations of one sample's forward and backward pass; a multiply-add is two.

    Only matrix products, convolutions and attention are counted: nearly all FLOPs of training. Elementwise
    operations and the optimizer, which does not depend on the batch, are left out.
    """

    # 1: with activation checkpointing, which computes part of the forward pass twice.
    checkpointing: int
    flops_per_sample: float
    # JSON list: the operations without a formula. When it is not empty, the count is a lower bound.
    uncounted: str
    # The batch of the count, by which the count is divided: products grow linearly with the batch.
    batch_size: int
    # The settings that determine the count, as a JSON object; they cannot change in a live run.
    settings: str
    # Duration of the count, before the first step.
    took_ns: int

    @property
    def flops_or_none(self) -> float | None:
        """FLOPs per sample; None when nothing could be counted."""
        return self.flops_per_sample or None
