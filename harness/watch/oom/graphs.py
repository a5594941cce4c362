"""Tensors that autograd has saved for a backward pass in the graphs behind kept outputs.

A graph is walked from node to node through the descriptors of torch's own classes. Nothing is unpacked: where
hooks have packed a tensor (offloading, checkpointing), unpacking it would run them. Nodes are kept alive for
the walk only.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from harness.watch.oom.arrays import attributes_of, is_kind_of

# Each takes about 400 bytes until the walk ends, in sum less than `harness.device.host.reserve` sets aside.
MOST_NODES = 20_000
_SavedTensor: Any = torch._C._autograd.SavedTensor
# torch 2.13 has these; without them it is not known whether there are hooks.
_CAN_READ = hasattr(_SavedTensor, "unpack_hook") and hasattr(_SavedTensor, "data")
_PythonNode: Any = torch._C._FunctionBase
_grad_fn_of_tensor: Any = torch._C.TensorBase.__dict__["grad_fn"]
_SAVED = "_raw_saved_"


def node_of(tensor: Tensor) -> Any:
    """Return the node that computed `tensor`; None for a leaf. Call it under
    `torch._C.DisableTorchFunctionSubclass`."""
    try:
        return _grad_fn_of_tensor.__get__(tensor)
    except RuntimeError:  # A view that was changed in place where that is forbidden.
        return None


class GraphWalk:
    """A walk over the graphs behind `nodes`, each node once.

    Attributes:
        is_complete: False after a walk that was cut, or that met what it cannot read.
    """

    def __init__(self, nodes: Iterable[Any], is_over: Callable[[], bool]) -> None:
        """`is_over` is called now and then: True ends the walk."""
        self._waiting = list(nodes)
        self._is_over = is_over
        self._readers: dict[type, tuple[Any, tuple[Any, ...]]] = {}
        self.is_complete = _CAN_READ or not self._waiting

    def saved(self) -> Iterator[Tensor]:
        """Yield the saved tensors, and those that a custom function's node has as attributes."""
        # A node's object lives as long as it is referred to, so the objects themselves are the marks.
        visited: dict[int, Any] = {id(node): node for node in self._waiting}
        read_nodes = 0
        while self._waiting and _CAN_READ:
            node = self._waiting.pop()
            read_nodes += 1
            if read_nodes % 256 == 0 and self._is_over():
                self.is_complete = False
                return
            following, saved = self._reader(type(node))
            for read in saved:
                yield from self._tensors(node, read)
            if is_kind_of(node, _PythonNode):
                yield from self._own(node)
            for child, _ in () if following is None else following.__get__(node):
                if child is None or id(child) in visited:
                    continue
                if len(visited) >= MOST_NODES:
                    self.is_complete = False
                    break
                visited[id(child)] = child
                self._waiting.append(child)

    def _reader(self, kind: type) -> tuple[Any, tuple[Any, ...]]:
        """Return the descriptors of the next nodes and of the saved tensors of a class of nodes."""
        reader = self._readers.get(kind)
        if reader is None:
            own = (
                _PythonNode.__dict__
                if issubclass(kind, _PythonNode)
                else type.__dict__["__dict__"].__get__(kind)
            )
            saved = tuple(descriptor for name, descriptor in own.items() if name.startswith(_SAVED))
            reader = self._readers[kind] = own.get("next_functions"), saved
        return reader

    def _tensors(self, node: Any, read: Any) -> Iterator[Tensor]:
        try:
            saved = read.__get__(node)
        except RuntimeError:  # Released by a backward pass.
            return
        for one in saved if type(saved) in (tuple, list) else (saved,):
            if type(one) is not _SavedTensor:
                continue
            if one.unpack_hook is not None:
                self.is_complete = False
            elif (tensor := one.data) is not None:
                yield tensor

    def _own(self, node: Any) -> Iterator[Tensor]:
        for value in list(attributes_of(node).values()):
            for one in value if type(value) in (tuple, list) else (value,):
                if is_kind_of(one, Tensor):
                    yield one
