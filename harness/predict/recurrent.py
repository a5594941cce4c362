"""Recurrent layers as in cuDNN: one kernel with a reserve for backward and a workspace, instead of one time
step at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Multiples of the layer's output, measured with cuDNN 9.19 on an H100 for 54 layers of width 128 to 1,024;
# cuDNN documents none of them (docs/prediction.md). The reserve is exact.
_STANDARD_SHARE = 7
# Besides that share and a copy of the weights.
_WORKSPACE_BYTES = 8.7 * 2**20


class _Kind(NamedTuple):
    """The memory of one kind of layer in multiples of its output. `reserve` is kept for backward; `aligned`
    is the workspace's in 16 bits with batches of a multiple of eight and up to `_WIDEST` units, `narrow` that
    of others up to `_NARROW` units."""

    reserve: float
    aligned: float = _STANDARD_SHARE
    narrow: float = _STANDARD_SHARE


_KINDS = {
    "rnn_tanh": _Kind(1, aligned=16, narrow=16),
    "rnn_relu": _Kind(1, aligned=16, narrow=16),
    "lstm": _Kind(5, aligned=23),
    "gru": _Kind(6),
}
_NARROW = 384
# The limit of cuDNN's persistent kernels in `aten/src/ATen/native/cudnn/RNN.cpp`.
_WIDEST = 1024


class _Layer(torch.autograd.Function):
    """Allocates the memory of the kernel, without computing."""

    @staticmethod
    def forward(ctx: Any, kind: _Kind, states: Tensor, width: int, *weights: Tensor) -> Tensor:
        """`states` (…, features) → the layer's output (…, width), in the dtype of `states`."""
        output = states.new_empty(*states.shape[:-1], width)
        reserve = output.new_empty(int(output.numel() * kind.reserve))
        size = sum(weight.numel() for weight in weights)
        # In another dtype the weights are copied into one block, which backward needs.
        copy = states.new_empty(size if states.dtype is not weights[0].dtype else 0)
        ctx.kind, ctx.size = kind, size
        _work(kind, output, size)
        ctx.save_for_backward(states, output, reserve, copy, *weights)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        """Return gradients of the states and the weights."""
        states, output, _, copy, *weights = ctx.saved_tensors
        gradient, flat = torch.empty_like(states), copy.new_empty(ctx.size)
        _work(ctx.kind, output, ctx.size)
        if not copy.numel():
            del flat  # The gradients of the weights are views of it.
        return None, gradient, None, *(torch.empty_like(weight) for weight in weights)


def _work(kind: _Kind, output: Tensor, weights: int) -> None:
    """Allocate and free the kernel's workspace; `weights` is their number."""
    is_half = output.element_size() == 2
    share: float = _STANDARD_SHARE
    if is_half and output.shape[0] % 8 == 0 and output.shape[-1] <= _WIDEST:
        share = kind.aligned
    elif output.shape[-1] <= _NARROW:
        share = kind.narrow
    size_bytes = (share * output.numel() + weights) * output.element_size() + _WORKSPACE_BYTES
    output.new_empty(int(size_bytes), dtype=torch.uint8)


def fuse_recurrent(network: nn.Module) -> None:
    """Trace each recurrent layer of the network as one kernel from now on, also where checkpointing computes
    it again within backward. For one layer and one direction per module with the batch first, as in the
    catalog."""
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            module.forward = _fused(module.forward)


def _fused(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _FusedRecurrent():
            return forward(*args)

    return run


class _FusedRecurrent(TorchFunctionMode):
    """Replaces torch's recurrent functions. It is on within a layer's own forward pass: around a whole step,
    torch would switch it off in backward."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run in place of a function (input, initial state, weights, …)."""
        kind = _KINDS.get(getattr(func, "__name__", ""))
        if kind is None or len(args) < 3:
            return func(*args, **(kwargs or {}))
        states, initial, weights = args[:3]
        if torch.is_autocast_enabled("cpu"):
            states = states.to(torch.float16)  # On a GPU also where autocast is to bfloat16.
        run: Callable[..., Tensor] = _Layer.apply
        if isinstance(initial, tuple | list):
            return run(kind, states, initial[0].shape[-1], *weights), initial[0].clone(), initial[1].clone()
        return run(kind, states, initial.shape[-1], *weights), initial.clone()
