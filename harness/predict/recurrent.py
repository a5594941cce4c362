"""Recurrent layers as in cuDNN: one kernel with a reserve for backward and a workspace, instead of one time
step at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from harness.models.recurrent import RecurrentLanguageModel

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


class _Kernel(NamedTuple):
    """One call of a module: `layers` computed as one kernel, with `units` in each direction and an output of
    `width` for both directions together. `batch` is the size of the batch; 1 where sequences are packed."""

    kind: _Kind
    layers: int
    directions: int
    units: int
    width: int
    batch: int

    def reserve(self, steps: int) -> int:
        """Return the number of values that are kept for backward; `steps` are those of all sequences. Of
        several layers the outputs in between are kept too."""
        outputs = self.directions * self.units * steps
        return int(outputs * (self.kind.reserve * self.layers + self.layers - 1))


class _Layer(torch.autograd.Function):
    """Allocates the memory of the kernel, without computing."""

    @staticmethod
    def forward(
        ctx: Any, kernel: _Kernel, states: Tensor, hidden: Tensor, cells: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`states` (…, features) → the output (…, width) in the same dtype, and the hidden states and cells
        after the last step."""
        output = states.new_empty(*states.shape[:-1], kernel.width)
        reserve = output.new_empty(kernel.reserve(output.shape[:-1].numel()))
        weight_count = sum(weight.numel() for weight in weights)
        # In another dtype the weights are copied into one block, which backward needs.
        copy = states.new_empty(weight_count if states.dtype is not weights[0].dtype else 0)
        ctx.kernel, ctx.weight_count = kernel, weight_count
        _use_workspace(kernel, output, weight_count)
        # Torch 2.6 keeps what was to be saved if checkpointing ends its second pass here: with the output
        # itself that is a reference cycle.
        ctx.save_for_backward(states, output.detach(), hidden, cells, reserve, copy, *weights)
        return output, torch.empty_like(hidden), torch.empty_like(cells)

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        """Return gradients of the states, hidden states, cells and weights."""
        states, output, hidden, cells, _, copy, *weights = ctx.saved_tensors
        gradient, flat = torch.empty_like(states), copy.new_empty(ctx.weight_count)
        _use_workspace(ctx.kernel, output, ctx.weight_count)
        if not copy.numel():
            del flat  # The gradients of the weights are views of it.
        of_initial_states = torch.empty_like(hidden), torch.empty_like(cells)
        return None, gradient, *of_initial_states, *(torch.empty_like(weight) for weight in weights)


def _use_workspace(kernel: _Kernel, output: Tensor, weight_count: int) -> None:
    """Allocate and free the kernel's workspace."""
    is_half = output.element_size() == 2
    share: float = _STANDARD_SHARE
    if is_half and kernel.batch % 8 == 0 and kernel.units <= _WIDEST:
        share = kernel.kind.aligned
    elif kernel.units <= _NARROW:
        share = kernel.kind.narrow
    values = share * kernel.directions * kernel.units * output.shape[:-1].numel() + weight_count
    output.new_empty(int(values * output.element_size() + _WORKSPACE_BYTES), dtype=torch.uint8)


def recurrent_layers(network: nn.Module) -> list[nn.RNNBase]:
    """Return the recurrent modules of the network."""
    return [module for module in network.modules() if isinstance(module, nn.RNNBase)]


def is_single(module: nn.RNNBase) -> bool:
    """Return whether it is one layer in one direction, as those that were measured."""
    return module.num_layers == 1 and not module.bidirectional and not module.proj_size


def run_under(module: nn.Module, open_mode: Callable[[], TorchFunctionMode]) -> None:
    """Run the forward passes of `module` under a mode from now on, also where checkpointing computes them
    again within backward: around a whole step, torch would switch the mode off there."""
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with open_mode():
            return forward(*args, **kwargs)

    module.forward = run


def fuse_recurrent(network: nn.Module) -> None:
    """Trace each recurrent module of the network as one kernel of a GPU from now on."""
    if isinstance(network, RecurrentLanguageModel):
        network.is_float32_on_cpu = False
    for module in recurrent_layers(network):
        run_under(module, _FusedRecurrent)


class _FusedRecurrent(TorchFunctionMode):
    """Replaces torch's recurrent functions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run in place of a function (input, initial state, weights, has biases, layers, dropout, is in
        training, has both directions, has the batch first), or of one of packed sequences (input, batch
        sizes, initial state, weights, and so on)."""
        kind = _KINDS.get(getattr(func, "__name__", ""))
        if kind is None:
            return func(*args, **(kwargs or {}))
        states, is_packed = args[0], not isinstance(args[2], list)
        initial, weights, _, layers, _, _, is_bidirectional, *order = args[2:] if is_packed else args[1:]
        is_lstm = isinstance(initial, tuple | list)
        hidden, cells = initial if is_lstm else (initial, initial[:0])
        directions, units = 2 if is_bidirectional else 1, (cells if is_lstm else hidden).shape[-1]
        batch = 1 if is_packed else states.shape[0 if order[0] else 1]
        width = directions * hidden.shape[-1]
        if torch.is_autocast_enabled("cpu"):
            states = states.to(torch.float16)  # On a GPU also where autocast is to bfloat16.
        run: Callable[..., tuple[Tensor, ...]] = _Layer.apply
        kernel = _Kernel(kind, layers, directions, units, width, batch)
        results = run(kernel, states, hidden.to(states.dtype), cells.to(states.dtype), *weights)
        return results if is_lstm else results[:2]
