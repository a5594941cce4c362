"""Recurrent layers as in cuDNN: one kernel with a reserve for backward, instead of one time step at a
time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# cuDNN's reserve in units of the layer's output: the gates and, of an LSTM, the cell and its tanh, at each
# time step. An estimate; cuDNN does not document its contents.
_RESERVE = {"rnn_tanh": 1.0, "rnn_relu": 1.0, "gru": 4.0, "lstm": 6.0}


class _Layer(torch.autograd.Function):
    """Allocates the memory of the kernel, without computing."""

    @staticmethod
    def forward(ctx: Any, share: float, states: Tensor, initial: Tensor, *weights: Tensor) -> Tensor:
        """`states` (…, features) → the layer's output (…, width)."""
        output = states.new_empty(*states.shape[:-1], initial.shape[-1])
        reserve = output.new_empty(int(output.numel() * share))
        ctx.save_for_backward(states, output, reserve, *weights)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        """Return gradients of the states and the weights."""
        states, _, _, *weights = ctx.saved_tensors
        return None, torch.empty_like(states), None, *(torch.empty_like(weight) for weight in weights)


def fuse_recurrent(network: nn.Module) -> None:
    """Trace each recurrent layer of the network as one kernel from now on, also where checkpointing computes
    it again within backward. For one layer and one direction per module, as in the catalog."""
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
        share = _RESERVE.get(getattr(func, "__name__", ""))
        if share is None or len(args) < 3:
            return func(*args, **(kwargs or {}))
        states, initial, weights = args[:3]
        run: Callable[..., Tensor] = _Layer.apply
        if isinstance(initial, tuple | list):
            return run(share, states, initial[0], *weights), initial[0].clone(), initial[1].clone()
        return run(share, states, initial, *weights), initial.clone()
