"""Parts of a script that run out of memory."""

from typing import Any

import torch

TOO_MUCH = 1 << 60


class Hungry(torch.optim.SGD):
    """Runs out of memory in its update, as where its state does not fit."""

    def step(self, closure: Any = None) -> Any:
        torch.empty(TOO_MUCH)
