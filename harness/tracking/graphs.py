"""Detection of autograd graphs that outlive their step: nodes on the host's heap, not visible in any tensor's
size.

`total += loss` retains every loss's graph. Backward frees the saved tensors, so only the nodes remain. A
node's `metadata` is a dictionary with the lifetime of the node: a weak reference to a mark in it shows
whether the node is live, without retaining it.
"""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from harness.tracking.retained_graphs import RetainedGraphs

_MARK = "stepscope"
# Steps whose graphs may still be in use when the window ends, as in
# `harness.tracking.tracked_blocks.retained_blocks`.
_NEWEST_STEPS = 2
# Nodes visited from one tensor: a sum of losses is right next to the newest of them.
_MOST_NODES = 256
_LONGEST_WALK_NS = 500_000_000


class _Mark:
    """An object with the lifetime of its node."""

    __slots__ = ("__weakref__",)


class _Marked(NamedTuple):
    mark: "weakref.ref[_Mark]"
    sequence: int


class GraphWatch:
    """Marks the losses of tracked steps. Used on the training thread."""

    def __init__(self) -> None:
        self._steps: list[list[_Marked]] = [[]]

    def begin(self) -> None:
        """Drop all marks."""
        self._steps = [[]]

    def note(self, loss: Tensor) -> None:
        """Mark the graph of `loss`."""
        node: Any = loss.grad_fn
        if node is None:
            return
        mark = _Mark()
        node.metadata[_MARK] = mark
        self._steps[-1].append(_Marked(weakref.ref(mark), node._sequence_nr()))

    def step_ended(self) -> None:
        """End a step."""
        self._steps.append([])

    def retained(self, site_of: Callable[[Tensor], str | None]) -> RetainedGraphs | None:
        """Return the live graphs of all steps except the newest two; None without any. `site_of` returns a
        tensor's allocation site. The search for the tensor that retains them visits Python's objects, which
        takes at most some tenths of a second."""
        ended = [step for step in self._steps if step][:-_NEWEST_STEPS]
        alive = [[one for one in step if one.mark() is not None] for step in ended]
        retained = [step for step in alive if step]
        if not retained:
            return None
        sequences = {one.sequence for step in self._steps for one in step if one.mark() is not None}
        referrer = next(_referrers(sequences), None)
        if referrer is None:
            return RetainedGraphs(len(retained), len(ended))
        return RetainedGraphs(len(retained), len(ended), _operation(referrer), site_of(referrer))


def _operation(tensor: Tensor) -> str | None:
    """Return the name of the operation, as `Add` for `AddBackward0`."""
    node = tensor.grad_fn
    return None if node is None else node.name().partition("Backward")[0]


def _referrers(sequences: set[int]) -> Iterator[Tensor]:
    """Yield tensors from whose graph one of these nodes is reachable."""
    give_up_ns = time.monotonic_ns() + _LONGEST_WALK_NS
    is_tensor: dict[type, bool] = {}
    for thing in reversed(gc.get_objects()):  # The tensor is probably recent.
        kind = type(thing)
        if kind not in is_tensor:
            is_tensor[kind] = issubclass(kind, Tensor)
        if not is_tensor[kind] or thing.grad_fn is None:
            continue
        if time.monotonic_ns() > give_up_ns:
            return
        if _reaches(thing.grad_fn, sequences):
            yield thing


def _reaches(node: Any, sequences: set[int]) -> bool:
    waiting, visited = [node], 0
    while waiting and visited < _MOST_NODES:
        node = waiting.pop(0)
        visited += 1
        if node._sequence_nr() in sequences:
            return True
        waiting += [after for after, _ in node.next_functions if after is not None]
    return False
