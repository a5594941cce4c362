"""The calls of a model between the computation of a loss and its backward pass."""

from typing import NamedTuple

from torch import Tensor
from torch._C._autograd import _get_sequence_nr

# Samples and tokens; None: unknown.
Sizes = tuple[int | None, int | None]


class Called(NamedTuple):
    """The calls of a model since the newest backward pass: samples and tokens that are counted, and how often
    the number of samples has changed."""

    sizes: Sizes
    changes: int


class LaterCalls:
    """Finds the calls that began after a loss was computed, as for the loss of a validation: the gradients of
    the first are not for these calls. autograd numbers the nodes of its graphs as a thread creates them.

    Attributes:
        earlier: for each call that has changed what is counted, the number of the next node as it began, and
            the calls before it.
    """

    def __init__(self) -> None:
        self.earlier: list[tuple[int, Called]] = []

    def add(self, before: Called) -> None:
        """A call begins after those `before`, and changes what is counted."""
        self.earlier.append((_get_sequence_nr(), before))

    def before(self, loss: Tensor) -> Called | None:
        """Return the calls before the first one that began after `loss` was computed; None: there is none."""
        called = None
        while self.earlier and loss.grad_fn is not None and loss.grad_fn._sequence_nr() < self.earlier[-1][0]:
            _, called = self.earlier.pop()
        return called
