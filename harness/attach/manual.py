"""The steps of a script that updates its parameters without an optimizer of torch."""


class ManualUpdates:
    """Decides where a step ends that no optimizer ends: where the gradients of a model are cleared, or else
    where the model is called again after a backward pass.

    Attributes:
        has_gradients: whether a backward pass has ended in the step under way.
    """

    def __init__(self, clears_gradients: bool) -> None:
        """`clears_gradients` is whether the script calls `zero_grad` of a model."""
        self.has_gradients = False
        self._clears_gradients = clears_gradients
        self._clears_after_call = False

    def cleared(self, *, is_called: bool) -> bool:
        """Gradients are cleared; return whether that ends a step. `is_called` is whether the model was called
        since the last backward pass, as by Keras: its calls then end the steps from now on."""
        self._clears_gradients = True
        self._clears_after_call |= is_called and self.has_gradients
        return self.has_gradients

    def model_called(self, *, is_evaluating: bool) -> bool:
        """A model is called; return whether that ends a step. Several calls before gradients are cleared
        are one step, of several micro-batches."""
        is_first = is_evaluating or self._clears_after_call or not self._clears_gradients
        return self.has_gradients and is_first
