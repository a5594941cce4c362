"""Detection of autograd graphs that outlive their step: nodes on the host's heap, not visible in any tensor's
size.

`total += loss` retains every loss's graph. Backward frees the saved tensors, so only the nodes remain. A
node's `metadata` is a dictionary with the lifetime of the node: a weak reference to a mark in it shows
whether the node is live, without retaining it.
"""

import gc
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from harness.tracking.retained_graphs import RetainedGraphs

_MARK = "stepscope"
# Steps whose graphs may still be in use when the window ends, as in
# `harness.tracking.tracked_blocks.retained_blocks`.
_NEWEST_STEPS = 2
# Nodes visited from one tensor: a sum of losses is a few nodes from the newest of them.
_MOST_NODES = 256
# Processor time of the search, and wall time: on a busy machine a thread may wait for most of it.
_LONGEST_WALK_NS, _LONGEST_WAIT_NS = 500_000_000, 5_000_000_000
# Tensors examined whatever the time: the one that retains the graphs is among the youngest.
_LEAST_TENSORS = 32
# Of CPython's garbage collector, the youngest first; in Python 3.14 the second is empty.
_GENERATIONS = range(3)


class _Mark:
    """An object with the lifetime of its node."""

    __slots__ = ("__weakref__",)


class _Marked(NamedTuple):
    mark: "weakref.ref[_Mark]"
    sequence: int


class GraphWatch:
    """Marks the losses of tracked steps. Used on the training thread."""

    def __init__(
        self,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`cpu_ns` is the processor time of this thread."""
        self._cpu_ns = cpu_ns
        self._clock_ns = clock_ns
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
        takes at most some tenths of a second of processor time."""
        ended = [step for step in self._steps if step][:-_NEWEST_STEPS]
        alive = [[one for one in step if one.mark() is not None] for step in ended]
        retained = [step for step in alive if step]
        if not retained:
            return None
        # Not those of the newest steps, which the script's own variable of the loss still refers to.
        sequences = {one.sequence for step in retained for one in step}
        referrer = next(self._referrers(sequences), None)
        if referrer is None:
            return RetainedGraphs(len(retained), len(ended))
        return RetainedGraphs(len(retained), len(ended), _operation(referrer), site_of(referrer))

    def of_results(self, site_of: Callable[[Tensor], str | None]) -> RetainedGraphs | None:
        """Return the graphs that live results of the steps keep, as those of hidden states in a list, if each
        step but the first and the newest two has such a result; else None. Takes as long as `retained`."""
        newest = [max((one.sequence for one in step), default=None) for step in self._steps]
        bounds = [number for number in newest if number is not None]
        ended = len(bounds) - 1 - _NEWEST_STEPS
        if ended < 1:
            return None
        steps: set[int] = set()
        youngest: Tensor | None = None
        for tensor in self._results():
            # Nodes of one thread are numbered in order, and a step's last is that of its loss.
            step = bisect_left(bounds, tensor.grad_fn._sequence_nr()) - 1
            if 0 <= step < ended:
                steps.add(step)
                youngest = tensor if youngest is None else youngest
                if len(steps) == ended:
                    return RetainedGraphs(ended, ended, _operation(youngest), site_of(youngest), False)
        return None

    def _referrers(self, sequences: set[int]) -> Iterator[Tensor]:
        """Yield the tensors that have one of these nodes in their graph, the youngest first."""
        return (tensor for tensor in self._results() if _reaches(tensor.grad_fn, sequences))

    def _results(self) -> Iterator[Any]:
        """Yield the tensors that have a graph, the youngest first, until it takes too long."""
        cpu_end_ns, end_ns = self._cpu_ns() + _LONGEST_WALK_NS, self._clock_ns() + _LONGEST_WAIT_NS
        is_tensor: dict[type, bool] = {}
        examined = 0
        for thing in _objects():
            kind = type(thing)
            if kind not in is_tensor:
                is_tensor[kind] = issubclass(kind, Tensor)
            if not is_tensor[kind] or thing.grad_fn is None:
                continue
            examined += 1
            is_late = self._cpu_ns() > cpu_end_ns or self._clock_ns() > end_ns
            if is_late and examined > _LEAST_TENSORS:
                return
            yield thing


def _operation(tensor: Tensor) -> str | None:
    """Return the name of the operation, as `Add` for `AddBackward0`."""
    node = tensor.grad_fn
    return None if node is None else node.name().partition("Backward")[0]


def _objects() -> Iterator[Any]:
    """Yield Python's container objects, the youngest first. A generation lists its newest last, and
    `gc.get_objects()` without an argument the youngest generation first."""
    for generation in _GENERATIONS:
        yield from reversed(gc.get_objects(generation))


def _reaches(node: Any, sequences: set[int]) -> bool:
    waiting, visited = [node], 0
    while waiting and visited < _MOST_NODES:
        node = waiting.pop(0)
        visited += 1
        if node._sequence_nr() in sequences:
            return True
        waiting += [after for after, _ in node.next_functions if after is not None]
    return False
