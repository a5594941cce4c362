"""Memory of training besides the tensors that operators return: kernels' workspaces, and autograd's graph.

On the CPU a kernel's share is measured on this machine (`harness.predict.kernels`); on CUDA it is from
torch's source. The sizes of Python's and autograd's objects were measured under torch 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.catalog import model
from harness.device.cuda.cublas import workspace_bytes
from harness.predict.calls import Call, flops, storage_bytes
from harness.predict.folding import NOTHING_UNTRACED, Untraced
from harness.predict.graph import nodes_behind
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings import Settings

# On the CPU, of a live tensor besides its values: its objects, and alignment.
STORAGE_BYTES = 512
# On the CPU, of one node of autograd's graph with the views it keeps, and of one after its backward pass: the
# nodes of a graph live as long as its loss. In backward the engine has a table of them. Of the nodes of
# recurrent layers, more remains.
NODE_BYTES, RELEASED_NODE_BYTES, ENGINE_NODE_BYTES = 870, 520, 90
_RELEASED_RECURRENT_BYTES = 690

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
# Pointwise operators that oneDNN computes, which compiles code for each shape.
_COMPILED = {_aten.gelu.default, _aten.gelu_backward.default}
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
    """Records each operator that ran. `born` and `died` add events to the log, `spread` adds memory that grew
    during the phase and returns its numbers, `adopt` adds a tensor and returns its number. `numbers` are the
    log's numbers of the added storages, `kernels` the runs of the CPU's kernels that may need memory of their
    own."""

    def __init__(
        self,
        question: Question,
        born: Callable[[int], int],
        died: Callable[[int], None],
        spread: Callable[[int], list[int]],
        adopt: Callable[[Tensor], int | None],
    ) -> None:
        self._born = born
        self._died = died
        self._spread = spread
        self._adopt = adopt
        self._capability = question.capability
        self._is_cuda = question.kind is DeviceKind.CUDA
        self._graphs = 1 + _share_made_anew(question.settings)
        self._retained: set[object] = set()
        self._graph: list[int] = []
        self._nodes = self._released_bytes = 0
        self._untraced = NOTHING_UNTRACED
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
        result_bytes = sum(map(storage_bytes, _tensors(result)))
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

    def add_untraced(self, untraced: Untraced) -> None:
        """Add what the graph of the forward pass has besides what is traced of it."""
        self._untraced = Untraced(*map(add, self._untraced, untraced))

    def forward_ended(self, loss: Tensor) -> None:
        """Record the complete graph of `loss`, which grew in this phase and replaces the loss before."""
        if not self._is_cuda:
            traced, untraced = len(nodes_behind((loss,))), self._untraced
            self._nodes = int((traced + untraced.nodes) * self._graphs)
            self._released_bytes = RELEASED_NODE_BYTES * traced + _RELEASED_RECURRENT_BYTES * untraced.nodes
            graph = self._spread(NODE_BYTES * self._nodes + STORAGE_BYTES * untraced.tensors)
            self.numbers.update(graph)
            self.loss_ended()
            self._graph = graph

    def backward_began(self) -> None:
        """Record what the engine of the backward pass needs for itself, and the gradients not traced."""
        if not self._is_cuda:
            size_bytes = ENGINE_NODE_BYTES * self._nodes + STORAGE_BYTES * self._untraced.gradients
            self._graph.append(self._take(size_bytes))

    def backward_ended(self) -> None:
        """Record the release of what the graph's nodes keep."""
        self.loss_ended()
        self._untraced = NOTHING_UNTRACED
        if not self._is_cuda:
            self._graph = [self._take(self._released_bytes)]

    def loss_ended(self) -> None:
        """Record the end of the newest loss, and of its graph."""
        for number in self._graph:
            self._died(number)
        self._graph = []

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
    without a change of dtype that are torch's own."""
    if function.is_view:
        return True
    if torch.Tag.pointwise not in function.tags or function in _COMPILED:
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
