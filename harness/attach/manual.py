"""The steps of a script that updates its parameters without an optimizer of torch."""

from collections.abc import Iterable
from typing import NamedTuple
from weakref import ReferenceType, ref

from torch import nn


class _Gradient(NamedTuple):
    """The gradient of `parameter` at the end of a backward pass: its id, and how often it was changed in
    place."""

    parameter: ReferenceType[nn.Parameter]
    tensor_id: int
    changes: int


class ManualUpdates:
    """Decides where a step ends that no optimizer ends: where the gradients of a model are cleared, or else
    where the model is called again after a backward pass.

    A script that clears them by itself, as an optimizer of fastai does, is noticed at the next call of the
    model or backward pass: a gradient is another tensor then, or was changed in place. Until it has done so
    for the first time, each call ends a step.

    Attributes:
        has_gradients: whether a backward pass has ended in the step under way.
    """

    def __init__(self, clears_gradients: bool) -> None:
        """`clears_gradients` is whether the script calls `zero_grad` of a model."""
        self.has_gradients = False
        self._clears_gradients = clears_gradients
        self._clears_after_call = False
        self._gradient: _Gradient | None = None

    def gradients_ended(self, models: Iterable[nn.Module]) -> None:
        """A backward pass through `models` has ended."""
        self.has_gradients, self._gradient = True, None
        for parameter in (parameter for model in models for parameter in model.parameters()):
            # In the place of a parameter a script may have put a result, of which torch warns at its `grad`.
            if parameter.is_leaf and (gradient := parameter.grad) is not None:
                self._gradient = _Gradient(ref(parameter), id(gradient), gradient._version)
                return

    def were_cleared(self) -> bool:
        """Return whether the script has cleared the gradients by itself since the last backward pass."""
        if (before := self._gradient) is None or (parameter := before.parameter()) is None:
            return False
        gradient = parameter.grad
        if gradient is not None and (id(gradient), gradient._version) == before[1:]:
            return False
        self._gradient = None
        return True

    def cleared(self, *, is_called: bool) -> bool:
        """Gradients are cleared; return whether that ends a step. `is_called` is whether the model was called
        since the last backward pass, as by Keras: its calls then end the steps from now on."""
        self._clears_gradients, self._gradient = True, None
        self._clears_after_call |= is_called and self.has_gradients
        return self.has_gradients

    def model_called(self, *, is_evaluating: bool) -> bool:
        """A model is called; return whether that ends a step. Several calls before gradients are cleared
        are one step, of several micro-batches, unless the model with the gradients exists no longer."""
        if self.were_cleared():
            return self.cleared(is_called=False)
        is_lost = self._gradient is not None and self._gradient.parameter() is None
        is_first = is_evaluating or is_lost or self._clears_after_call or not self._clears_gradients
        return self.has_gradients and is_first
