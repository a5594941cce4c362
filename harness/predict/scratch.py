"""What training takes besides the tensors that operators return: kernels' workspaces, and autograd's graph.

All of it is estimated. The figures for the CPU were measured with a counting malloc (tests/bench/peak.c)
under torch 2.13 on a processor with AVX-512; see docs/prediction.md. Those for CUDA are from torch's source.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.catalog import model
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

_CHANNEL_BLOCK = 16
"""oneDNN's blocked layouts hold channels in groups of 16 with AVX-512."""
_KERNEL_BYTES = 32 * 1024
_HALF_PRODUCT_BYTES = 550 * 1024
_CONVOLUTION_BYTES = 75 * 1024
_CONVOLUTION_BACKWARD_BYTES = 115 * 1024
_LSTM_BYTES = 270 * 1024
"""What oneDNN keeps for good of each kernel it has compiled: one for every shape of a product in bfloat16
(attention is made of two, and two more backward), of a convolution (one, and two backward) and of an LSTM."""

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


class Scratch:
    """Told of each operator that ran. `born` and `died` add to the log; `numbers` are the log's numbers of
    what was added."""

    def __init__(self, question: Question, born: Callable[[int], int], died: Callable[[int], None]) -> None:
        self._born = born
        self._died = died
        self._capability = question.capability
        self._is_cuda = question.kind is DeviceKind.CUDA
        self._graphs = 1 + _share_made_anew(question.settings)
        self._kept: set[object] = set()
        self._graph: int | None = None
        self.numbers: set[int] = set()

    def ran(self, function: OpOverload, args: Sequence[Any], result: Any, phase: str) -> Any:
        """`function` has just run in the phase called `phase`; returns its result, in which a tensor may be
        replaced that the kernel would have made larger."""
        if function in _PRODUCTS:
            if self._is_cuda:
                is_new = self._capability is not None and self._capability >= (9, 0)
                self._keep("backward" if phase == "backward" else "forward", _cublas_bytes(is_new))
            elif args[0].dtype is not torch.float32:
                self._keep((function, *map(_look, args[:3])), _HALF_PRODUCT_BYTES)
        elif self._is_cuda:
            pass
        elif function in _ATTENTION:
            if args[0].dtype is not torch.float32:
                self._keep((function, _look(args[0])), 2 * _HALF_PRODUCT_BYTES)
        elif function is _aten.convolution.default:
            self._keep((function, *map(_look, args[:2])), _CONVOLUTION_BYTES)
            self._pass(_convolution_bytes(args[0], args[1], result))
        elif function is _aten.convolution_backward.default:
            self._keep((function, *map(_look, args[:3])), _CONVOLUTION_BACKWARD_BYTES)
            self._pass(_convolution_backward_bytes(args[1], args[2], args[0], args[-1][0]))
        elif function is _aten.mkldnn_rnn_layer.default:
            self._keep((function, *map(_look, args[:2])), _LSTM_BYTES)
            return self._recurrent(args, result)
        elif function is _aten.mkldnn_rnn_layer_backward.default:
            self._keep((function, *map(_look, args[:2])), _LSTM_BYTES)
            unit, weights, is_half = _units(args[1:5], args[7])
            self._pass(int(unit * 1.2 + weights * 1.6) if is_half else int(unit * 3.9 + weights * 2.2))
        return result

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

    def _pass(self, size_bytes: int) -> None:
        """Taken and given back within the operator."""
        self._died(self._take(size_bytes))

    def _keep(self, what: object, size_bytes: int) -> None:
        """Taken at the first time, and kept for good."""
        if what not in self._kept:
            self._kept.add(what)
            self._take(size_bytes)

    def _recurrent(self, args: Sequence[Any], result: Sequence[Tensor]) -> Sequence[Tensor]:
        """oneDNN's LSTM takes scratch, and fills a workspace for backward, of which a fake tensor knows
        nothing. In units of the output in float32, and of the weights in float32."""
        unit, weights, is_half = _units(args[1:5], result[0])
        self._pass(int(unit * 1.1 + weights * 0.5) if is_half else int(unit * 4.4 + weights * 1.1))
        if not args[-1]:
            return result
        workspace = torch.empty(int(unit * (10.7 if is_half else 15.3)), dtype=torch.uint8)
        return (*result[:3], workspace)


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


def _look(tensor: Any) -> object:
    """What a compiled kernel is made for."""
    return (tensor.dtype, tensor.shape, tensor.stride()) if isinstance(tensor, Tensor) else None


def _units(weights: Sequence[Tensor], output: Tensor) -> tuple[int, int, bool]:
    """Bytes of the output and of the weights, both as if in float32; whether it runs in 16 bits."""
    is_half = output.dtype is not torch.float32
    return output.numel() * 4, sum(weight.numel() for weight in weights) * 4, is_half


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _blocked_bytes(tensor: Tensor) -> int:
    """Of activations (batch, channels, …) in a blocked layout."""
    channels = tensor.shape[1]
    return _bytes(tensor) // channels * (-(-channels // _CHANNEL_BLOCK) * _CHANNEL_BLOCK)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _convolution_bytes(inputs: Tensor, weight: Tensor, output: Tensor) -> int:
    """oneDNN copies inputs and weights into blocked layouts, and its result out of one, unless they are
    channels_last. The result's copy takes the place of the output while the kernel runs."""
    if _is_channels_last(output) and inputs.shape[1] > 1:
        return _bytes(weight) + _KERNEL_BYTES
    copied = _bytes(inputs) if inputs.shape[1] >= _CHANNEL_BLOCK else 0
    result = _blocked_bytes(output)
    return max(copied + _bytes(weight) + result - _bytes(output), result) + _KERNEL_BYTES


def _convolution_backward_bytes(inputs: Tensor, weight: Tensor, gradient: Tensor, wants_inputs: bool) -> int:
    """As in forward: for the gradient of the inputs, where that is wanted, then for that of the weights."""
    copied = _bytes(inputs) if inputs.shape[1] >= _CHANNEL_BLOCK else 0
    if _is_channels_last(gradient) and not gradient.is_contiguous():
        if inputs.shape[1] == 1:  # Such images count as laid out as ever, and the gradient is made to fit.
            copied += _bytes(gradient)
        elif gradient.dtype is torch.float32:
            return _bytes(weight) + _KERNEL_BYTES
        else:
            return 3 * _bytes(weight) + 3 * _KERNEL_BYTES
    of_inputs = 0
    if wants_inputs:
        result = _blocked_bytes(inputs)
        spread = _blocked_bytes(gradient)
        of_inputs = max(spread + _bytes(weight) + result - _bytes(inputs), result)
    of_weights = copied + _bytes(gradient) + _bytes(weight)
    if gradient.dtype is not torch.float32:
        of_weights += 3 * _bytes(weight)
    return max(of_inputs, of_weights) + _KERNEL_BYTES


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
