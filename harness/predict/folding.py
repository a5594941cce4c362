"""Recurrent layers on the CPU, of which torch computes one time step after the other (all but the LSTM).

A trace of hundreds of time steps takes minutes. So a batch of long sequences is traced as a larger batch of
short ones: it has as many values per layer. What then is missing are the nodes of the graph and the tensors
of the other time steps.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from harness.predict.graph import nodes_behind
from harness.predict.recurrent import recurrent_layers, run_under

# The lengths of the short sequences. With shorter ones, the tensors of a single time step count for more.
_LONGEST, _SHORTEST = 64, 24
_FOLDED = frozenset({"gru", "rnn_tanh", "rnn_relu"})


class Untraced(NamedTuple):
    """The memory of folded layers beyond their trace: nodes of the graph, tensors that these keep,
    and gradients of time steps, which live until that of the input is complete."""

    nodes: int
    tensors: int
    gradients: int


NOTHING_UNTRACED = Untraced(0, 0, 0)


def fold_recurrent(
    network: nn.Module, live_tensors: Callable[[], int], record: Callable[[Untraced], None]
) -> None:
    """Trace the long sequences of each recurrent module of the network as several short ones from now on,
    and `record` what the trace does not contain. `live_tensors` returns the number of storages at the
    moment."""
    for module in recurrent_layers(network):
        if module.mode != "LSTM":
            run_under(module, partial(_Folding, live_tensors, record))


class Cut(NamedTuple):
    """Sequences cut into `parts` of `length` time steps each, which may have a few more than the whole."""

    parts: int
    length: int


def cut_of(steps: int) -> Cut:
    """Return into what to cut sequences of so many time steps: with the fewest additional ones, and among
    these into the longest parts."""
    if steps <= _LONGEST:
        return Cut(1, steps)
    cuts = (Cut(-(-steps // length), length) for length in range(_LONGEST, _SHORTEST - 1, -1))
    return min(cuts, key=lambda cut: cut.parts * cut.length)


class _Folding(TorchFunctionMode):
    """Replaces torch's recurrent functions."""

    def __init__(self, live_tensors: Callable[[], int], record: Callable[[Untraced], None]) -> None:
        super().__init__()
        self._live_tensors = live_tensors
        self._record = record

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run in place of a function (input, initial state, weights, has biases, layers, dropout, is in
        training, has both directions, has the batch first). Packed sequences remain as they are."""
        if getattr(func, "__name__", "") not in _FOLDED or not isinstance(args[2], list):
            return func(*args, **(kwargs or {}))
        states, initial, *options, has_batch_first = args
        time_major = states.transpose(0, 1) if has_batch_first else states
        (steps, batch), (parts, length) = time_major.shape[:2], cut_of(time_major.shape[0])
        if parts == 1:
            return func(*args)
        before, nodes = self._live_tensors(), nodes_behind((states, initial))
        initial = initial.repeat(1, parts, 1)
        output, last = func(_cut(time_major, parts, length), initial, *options, False)
        traced = (
            len(nodes_behind((output, last)) - nodes),
            self._live_tensors() - before,
            length * initial.shape[0],
        )
        self._record(Untraced(*(count * (parts - 1) for count in traced)))
        output = output.view(parts * length, batch, -1)[:steps]  # In another order; there are no values.
        return output.transpose(0, 1) if has_batch_first else output, last[:, :batch]


class _Replace(torch.autograd.Function):
    """Replaces a tensor by one of another size."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, size: Sequence[int]) -> Tensor:
        ctx.size = tensor.shape
        return tensor.new_empty(size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.new_empty(ctx.size), None


def _cut(states: Tensor, parts: int, length: int) -> Tensor:
    """Return `states` (steps, batch, features) as `parts` times as many sequences of `length`, as a view if
    possible."""
    steps, batch, features = states.shape
    if parts * length == steps and states.is_contiguous():
        return states.view(length, parts * batch, features)
    if parts * length == steps and states.transpose(0, 1).is_contiguous():
        return states.transpose(0, 1).view(parts * batch, length, features).transpose(0, 1)
    replace: Callable[[Tensor, Sequence[int]], Tensor] = _Replace.apply
    return replace(states, (length, parts * batch, features))
