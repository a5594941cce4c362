"""What training takes besides the tensors that operators return: kernels' workspaces, and autograd's graph.

On the CPU a kernel's share is measured on this machine (`harness.predict.kernels`); on CUDA it is from
torch's source. The sizes of Python's and autograd's objects were measured under torch 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.catalog import model
from harness.predict.calls import Call, flops
from harness.predict.footprints import Footprints
from harness.predict.question import Question
from harness.records import DeviceKind
from harness.settings import Settings

STORAGE_BYTES = 512
"""On the CPU, of a live tensor besides its values: its objects, and alignment."""
NODE_BYTES = 870
"""On the CPU, of one node of autograd's graph with the views it keeps."""

_CUBLAS_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_CUBLAS_SM90_BYTES = 4096 * 8 * 1024
"""cuBLAS's workspace of a handle and stream, which torch takes from its own allocator and keeps
(`aten/src/ATen/cuda/CublasHandlePool.cpp`). Forward and backward run on threads with a handle each."""

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_MEASURED_PHASES = ("forward", "backward")


class Scratch:
    """Told of each operator that ran. `born` and `died` add to the log; `numbers` are the log's numbers of
    what was added."""

    def __init__(
        self,
        question: Question,
        born: Callable[[int], int],
        died: Callable[[int], None],
        footprints: Footprints | None,
    ) -> None:
        """`footprints`: of the CPU's kernels; None: kernels take nothing."""
        self._born = born
        self._died = died
        self._footprints = footprints
        self._capability = question.capability
        self._is_cuda = question.kind is DeviceKind.CUDA
        self._graphs = 1 + _share_made_anew(question.settings)
        self._kept: set[object] = set()
        self._graph: int | None = None
        self.numbers: set[int] = set()

    def ran(
        self, function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, phase: str
    ) -> Any:
        """`function` has just run in the phase called `phase`; returns its result, in which a tensor may be
        replaced that the kernel would have made larger."""
        if self._is_cuda:
            if function in _PRODUCTS:
                is_new = self._capability is not None and self._capability >= (9, 0)
                self._keep("backward" if phase == "backward" else "forward", _cublas_bytes(is_new))
            return result
        if self._footprints is None or phase not in _MEASURED_PHASES or _has_no_scratch(function, args):
            return result
        call = Call.of(function, args, kwargs)
        if call is None:
            return result
        result_bytes = sum(tensor.untyped_storage().nbytes() for tensor in _tensors(result))
        footprint = self._footprints.next(call, flops(function, args, kwargs, result), result_bytes)
        if footprint is None:
            return result
        self._keep(call, footprint.kept_bytes)
        if footprint.temporary_bytes:
            self._died(self._take(footprint.temporary_bytes))
        return _with_workspace(function, result, footprint.result_sizes)

    def forward_ended(self, loss: Tensor) -> None:
        """The graph of `loss` stands complete."""
        if not self._is_cuda:
            self._graph = self._take(int(NODE_BYTES * _nodes(loss) * self._graphs))

    def backward_ended(self) -> None:
        """The graph is gone."""
        if self._graph is not None:
            self._died(self._graph)
            self._graph = None

    def _take(self, size_bytes: int) -> int:
        number = self._born(size_bytes)
        self.numbers.add(number)
        return number

    def _keep(self, key: object, size_bytes: int) -> None:
        """Taken at the first call, and kept for good."""
        if key not in self._kept:
            self._kept.add(key)
            if size_bytes:
                self._take(size_bytes)


def _has_no_scratch(function: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operator is known to take nothing for itself: views, and what goes element by element
    without a change of type."""
    if function.is_view:
        return True
    if torch.Tag.pointwise not in function.tags:
        return False
    return len({tensor.dtype for tensor in _tensors(args)}) < 2


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, Tensor)]


def _with_workspace(function: OpOverload, result: Any, sizes: Sequence[int]) -> Any:
    """oneDNN's LSTM fills a workspace for backward, the last of its results, of which a fake tensor knows
    nothing."""
    if function is not _aten.mkldnn_rnn_layer.default or not sizes[-1]:
        return result
    return (*result[:-1], torch.empty(sizes[-1], dtype=torch.uint8))


def _share_made_anew(settings: Settings) -> float:
    """The share of the graph that stands twice at a time: under checkpointing, that of the block which is
    computed again."""
    if not settings.activation_checkpointing:
        return 0.0
    params = model(settings.model).preset(settings.preset).params
    blocks = sum(number for name, number in params.items() if name == "layers" or name.startswith("stage"))
    return 1.0 / max(1, blocks)


def _cublas_bytes(is_new: bool) -> int:
    return _CUBLAS_SM90_BYTES if is_new else _CUBLAS_BYTES


def _nodes(loss: Tensor) -> int:
    """How many nodes the graph behind `loss` has."""
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return len(seen)
