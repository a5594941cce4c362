"""The base class of the catalog's models: a module whose forward pass returns the loss."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class LossModel(nn.Module):
    """A model called as `model(inputs, targets)` that returns its mean loss, a scalar on the device.

    Attributes:
        checkpointing: save only the inputs of each block and recompute the rest in the backward pass. May
            change between two steps.
    """

    checkpointing: bool

    def __init__(self) -> None:
        super().__init__()
        self.checkpointing = False

    def run_block(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `block(*inputs)`, checkpointed when `checkpointing` is on."""
        if self.checkpointing:
            output: Tensor = checkpoint(block, *inputs, use_reentrant=False)
            return output
        return block(*inputs)


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of `logits` (…, classes) against `targets` (…), in float32, also under autocast."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
