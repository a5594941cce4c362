"""Finds autograd graphs that outlive their step: nodes on the host's heap, which no tensor's size shows.

`total += loss` keeps every loss's graph. Backward frees what the graph saved, so that what stays are its
nodes alone, and a look at tensors finds nothing. A node's `metadata` is a dictionary that lives as long as
the node: a mark put there tells by a weak reference whether the node is alive, and keeps nothing.
"""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from harness.tracking.kept_graphs import KeptGraphs

_MARK = "stepscope"
# Whose graphs may still be in use when the window ends, as in `harness.tracking.births.grown`.
_NEWEST_STEPS = 2
# Visited from one tensor: what adds up losses has the newest of them right behind it.
_MOST_NODES = 256
_LONGEST_WALK_NS = 500_000_000


class _Mark:
    """Alive as long as its node."""

    __slots__ = ("__weakref__",)


class _Marked(NamedTuple):
    mark: "weakref.ref[_Mark]"
    sequence: int


class GraphWatch:
    """Marks the losses of followed steps. Used on the training thread."""

    def __init__(self) -> None:
        self._steps: list[list[_Marked]] = [[]]

    def begin(self) -> None:
        """Forget what was marked."""
        self._steps = [[]]

    def note(self, loss: Tensor) -> None:
        """Mark the graph that `loss` stands at the end of."""
        node: Any = loss.grad_fn
        if node is None:
            return
        mark = _Mark()
        node.metadata[_MARK] = mark
        self._steps[-1].append(_Marked(weakref.ref(mark), node._sequence_nr()))

    def step_ended(self) -> None:
        """A step is over."""
        self._steps.append([])

    def kept(self, site_of: Callable[[Tensor], str | None]) -> KeptGraphs | None:
        """Which graphs are alive, of all steps but the newest two; None when none is. `site_of` tells where a
        tensor was made. The search for the tensor that holds them visits Python's objects, which takes some
        tenths of a second at the most."""
        ended = [step for step in self._steps if step][:-_NEWEST_STEPS]
        alive = [[one for one in step if one.mark() is not None] for step in ended]
        kept = [step for step in alive if step]
        if not kept:
            return None
        sequences = {one.sequence for step in self._steps for one in step if one.mark() is not None}
        holder = next(_holders(sequences), None)
        if holder is None:
            return KeptGraphs(len(kept), len(ended))
        return KeptGraphs(len(kept), len(ended), _operation(holder), site_of(holder))


def _operation(tensor: Tensor) -> str | None:
    """`AddBackward0` → `Add`."""
    node = tensor.grad_fn
    return None if node is None else node.name().partition("Backward")[0]


def _holders(sequences: set[int]) -> Iterator[Tensor]:
    """Tensors from whose graph one of these nodes is reached."""
    give_up_ns = time.monotonic_ns() + _LONGEST_WALK_NS
    is_tensor: dict[type, bool] = {}
    for thing in reversed(gc.get_objects()):  # What holds graphs of late was made of late.
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
    waiting, seen = [node], 0
    while waiting and seen < _MOST_NODES:
        node = waiting.pop(0)
        seen += 1
        if node._sequence_nr() in sequences:
            return True
        waiting += [after for after, _ in node.next_functions if after is not None]
    return False
