"""Own models for the catalog's loop: one with a loss function, and one that returns its loss."""

from typing import Any

from torch import Tensor, nn

FEATURES = 12


def build(settings: Any) -> tuple[nn.Module, nn.Module]:
    """A model and a loss function."""
    del settings
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 3)), nn.CrossEntropyLoss()


class Regression(nn.Module):
    """A model that returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(self.layer(inputs), targets)
        return loss


def build_regression(settings: Any) -> nn.Module:
    """A module that is called with inputs and targets."""
    del settings
    return Regression()


def build_number(settings: Any) -> Any:
    """No model at all."""
    del settings
    return 3


def build_without_loss(settings: Any) -> tuple[nn.Module, Any]:
    """A loss that is no scalar."""
    del settings
    return nn.Linear(FEATURES, 3), lambda outputs, _targets: outputs
