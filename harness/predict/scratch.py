"""Memory of training besides the tensors that operators return: kernels' workspaces, and autograd's graph.

On the CPU a kernel's share is measured on this machine (`harness.predict.kernels`); on CUDA it is from
torch's source. The sizes of Python's and autograd's objects were measured under torch 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.catalog import model
from harness.device.cuda.cublas import workspace_bytes
from harness.predict.calls import Call, flops
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings import Settings

# On the CPU, of a live tensor besides its values: its objects, and alignment.
STORAGE_BYTES = 512
# On the CPU, of one node of autograd's graph with the views it keeps, and of one after its backward pass: the
# nodes of a graph live as long as its loss.
NODE_BYTES, RELEASED_NODE_BYTES = 870, 520

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_MEASURED_PHASES = ("forward", "backward")


class KernelRun(NamedTuple):
    """A run of one of the CPU's kernels, and the log's numbers of its own memory, all of size 0 until
    measured: `retained` is retained after its first call (None in later ones), `temporary` is freed within
    the call, `workspace` is one of its results, for backward (None for most kernels)."""

    call: Call
    flops: int
    result_bytes: int
    retained: int | None
    temporary: int
    workspace: int | None


class Scratch:
    """Records each operator that ran. `born` and `died` add events to the log, `adopt` adds a tensor and
    returns its number. `numbers` are the log's numbers of the added storages, `kernels` the runs of the CPU's
    kernels that may need memory of their own."""

    def __init__(
        self,
        question: Question,
        born: Callable[[int], int],
        died: Callable[[int], None],
        adopt: Callable[[Tensor], int | None],
    ) -> None:
        self._born = born
        self._died = died
        self._adopt = adopt
        self._capability = question.capability
        self._is_cuda = question.kind is DeviceKind.CUDA
        self._graphs = 1 + _share_made_anew(question.settings)
        self._retained: set[object] = set()
        self._graph: int | None = None
        self._nodes = 0
        self.numbers: set[int] = set()
        self.kernels: list[KernelRun] = []

    def ran(
        self, function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, phase: str
    ) -> Any:
        """Record that `function` ran in `phase`; return its result, with a replacement for a tensor that the
        real kernel would make larger."""
        if self._is_cuda:
            if function in _PRODUCTS:
                key = "backward" if phase == "backward" else "forward"
                self._retain(key, workspace_bytes(self._capability))
            return result
        if phase not in _MEASURED_PHASES or _has_no_scratch(function, args):
            return result
        call = Call.of(function, args, kwargs)
        if call is None:
            return result
        result_bytes = sum(tensor.untyped_storage().nbytes() for tensor in _tensors(result))
        retained = self._retain(call, 0)
        temporary = self._take(0)
        self._died(temporary)
        workspace = None
        if function is _aten.mkldnn_rnn_layer.default:
            # oneDNN's LSTM fills a workspace for backward, of which a fake tensor knows nothing.
            result = (*result[:-1], torch.empty(1, dtype=torch.uint8))
            workspace = self._adopt(result[-1])
        operations = flops(function, args, kwargs, result)
        self.kernels.append(KernelRun(call, operations, result_bytes, retained, temporary, workspace))
        return result

    def forward_ended(self, loss: Tensor) -> None:
        """Record the complete graph of `loss`, which then replaces the loss before."""
        if not self._is_cuda:
            self._nodes = int(_nodes(loss) * self._graphs)
            graph = self._take(NODE_BYTES * self._nodes)
            self.loss_ended()
            self._graph = graph

    def backward_ended(self) -> None:
        """Record the release of what the graph's nodes keep."""
        self.loss_ended()
        if not self._is_cuda:
            self._graph = self._take(RELEASED_NODE_BYTES * self._nodes)

    def loss_ended(self) -> None:
        """Record the end of the newest loss, and of its graph."""
        if self._graph is not None:
            self._died(self._graph)
            self._graph = None

    def _take(self, size_bytes: int) -> int:
        number = self._born(size_bytes)
        self.numbers.add(number)
        return number

    def _retain(self, key: object, size_bytes: int) -> int | None:
        """Return the number of memory allocated at the first call and retained; None in later calls."""
        if key in self._retained:
            return None
        self._retained.add(key)
        return self._take(size_bytes)


def _has_no_scratch(function: OpOverload, args: Sequence[Any]) -> bool:
    """Return whether an operator is known to need no memory of its own: views, and pointwise operators
    without a change of dtype."""
    if function.is_view:
        return True
    if torch.Tag.pointwise not in function.tags:
        return False
    return len({tensor.dtype for tensor in _tensors(args)}) < 2


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, Tensor)]


def _share_made_anew(settings: Settings) -> float:
    """Return the share of the graph that exists twice at a time: under checkpointing, that of the recomputed
    block."""
    if not settings.activation_checkpointing:
        return 0.0
    params = model(settings.model).preset(settings.preset).params
    blocks = sum(number for name, number in params.items() if name == "layers" or name.startswith("stage"))
    return 1.0 / max(1, blocks)


def _nodes(loss: Tensor) -> int:
    """Return the number of nodes of the graph of `loss`."""
    visited: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return len(visited)
