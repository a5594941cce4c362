"""Training with optimizers that step within the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class BackwardUpdates:
    """A model with hooks that update its parameters when their gradients are there.

    Attributes:
        model: the model.
        run: calls an optimizer's step.
    """

    def __init__(self, *, is_one: bool, device: str = "cpu") -> None:
        """`is_one`: one optimizer steps at the last gradient; else each parameter has its own."""
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1)).to(device)
        self.run: Callable[[Callable[[], object]], object] = lambda update: update()
        self._inputs = torch.ones(4, 8, device=device)
        weights: list[Tensor] = list(self.model.parameters())
        if is_one:
            self._of = dict.fromkeys(weights[:1], torch.optim.SGD(weights, lr=0.01))
        else:
            self._of = {weight: torch.optim.SGD([weight], lr=0.01) for weight in weights}
        self._hooks = [weight.register_post_accumulate_grad_hook(self._update) for weight in weights]

    def _update(self, weight: Tensor) -> None:
        if (optimizer := self._of.get(weight)) is not None:
            self.run(optimizer.step)
            optimizer.zero_grad()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.model(self._inputs).square().mean().backward()

    def close(self) -> None:
        """Remove the hooks, which garbage collection does not see."""
        for hook in self._hooks:
            hook.remove()
