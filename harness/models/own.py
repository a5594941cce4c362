"""A person's own model in the catalog's loop.

`build(settings)` returns a module that is called as `model(inputs, targets)` and returns the mean loss, or a
pair of a module, called as `model(inputs)`, and a function `loss(outputs, targets)`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from harness.catalog.own import parse_own
from harness.catalog.own_code import call_own, load_own, takes
from harness.errors import SettingError, StepscopeError
from harness.models.base import LossModel
from harness.models.importing import outside_modes
from harness.settings import Settings


class OwnModel(LossModel):
    """A module of a person, with its loss."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Any] | None, title: str) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._title = title

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch. Raises StepscopeError when it is no scalar tensor."""
        value = self.model(inputs, targets) if self._loss is None else self._loss(self.model(inputs), targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = type(value).__name__
            what = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"of type {kind}"
            )
            remedy = "its loss function has to return a scalar tensor, such as the mean over the batch."
            if self._loss is None:
                remedy = "return a scalar tensor from the model, or a pair of model and loss function."
            raise StepscopeError(f"The loss of {self._title} is {what}; {remedy}")
        return value.reshape(())


def import_function(settings: Settings) -> Callable[[Settings], Any]:
    """Return the function that `settings.model` names. Raises SettingError when its file cannot be imported
    or has no such function."""
    own = parse_own(settings.model)
    assert own is not None
    with outside_modes():
        function = load_own("model", own.file, own.attribute)
    if not callable(function):
        raise SettingError("model", f"{own.title} is no function; it has to take the settings.")
    if not takes(function, 1):
        raise SettingError(
            "model", f"{own.title} does not take the settings; it is called as build(settings)."
        )
    builder: Callable[[Settings], Any] = function
    return builder


def build(settings: Settings) -> OwnModel:
    """Build the model that `settings.model` names, on torch's default device. Raises SettingError when the
    function fails or returns something else than described above."""
    own = parse_own(settings.model)
    assert own is not None
    built = call_own("model", own.title, import_function(settings), settings)
    model, loss = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module) or (loss is not None and not callable(loss)):
        raise SettingError(
            "model",
            f"{own.title} returned {_kinds(built)}; it has to return a torch.nn.Module, or a pair of a "
            "module and a loss function.",
        )
    if isinstance(loss, type):
        raise SettingError(
            "model",
            f"{own.title} returned the class {loss.__name__} as the loss function; return an instance of it, "
            f"{loss.__name__}().",
        )
    for name, weight in model.named_parameters():
        if isinstance(weight, UninitializedParameter):
            raise SettingError(
                "model",
                f"{own.title} returned a model without the size of {name}, of a lazy module; call it once in "
                "the function, with a batch of zeros.",
            )
    is_called_by_forward = type(model).__call__ is nn.Module.__call__
    if loss is None and is_called_by_forward and not takes(model.forward, 2):
        raise SettingError(
            "model",
            f"{own.title} returned {type(model).__name__} alone, which is then called as "
            "model(inputs, targets) and has to return the loss; return a pair of the model and a loss "
            "function.",
        )
    trained = [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]
    if not any(weight.requires_grad for weight in trained):
        raise SettingError("model", f"{own.title} returned a model without a parameter to train.")
    device = torch.get_default_device()
    if any(weight.device.type != device.type for weight in model.parameters()):
        model.to(device)
    return OwnModel(model, loss, own.title)


def _kinds(built: object) -> str:
    """Return the type of an object; of a tuple, those of its elements."""
    if not isinstance(built, tuple):
        return type(built).__name__
    names = (f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__ for one in built)
    return f"({', '.join(names)})"
