"""Operator calls without their data: enough to run the same kernel in another process."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_RECURRENT = (_aten.mkldnn_rnn_layer.default, _aten.mkldnn_rnn_layer_backward.default)


class TensorSpec(NamedTuple):
    """A dense tensor's layout."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """Return the layout of `tensor`, which may be a fake tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def extent(self) -> int:
        """Number of elements from the tensor's first to its last in memory."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def size_bytes(self) -> int:
        """Size of these elements."""
        return self.extent * self.dtype.itemsize


class Call(NamedTuple):
    """An operator and its arguments, with tensors replaced by their layout. Hashable and picklable."""

    operator: str
    overload: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    # Kernels that keep a workspace for backward ask for it.
    is_grad_enabled: bool

    @classmethod
    def of(cls, function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Call | None":
        """Return the call of `function`; None if an argument cannot be recreated from its description, and
        for operators that are not torch's own."""
        if function.namespace != "aten":
            return None
        try:
            arguments = _specified(tuple(args))
            keywords = tuple((name, _specified(value)) for name, value in sorted(kwargs.items()))
        except TypeError:
            return None
        return cls(
            function.overloadpacket.__name__,
            function._overloadname,
            arguments,
            keywords,
            torch.is_grad_enabled(),
        )

    @property
    def function(self) -> Callable[..., Any]:
        """The operator."""
        overload: OpOverload = getattr(getattr(_aten, self.operator), self.overload)
        return overload

    @property
    def input_bytes(self) -> int:
        """Size of the tensors among the arguments."""
        return sum(spec.size_bytes for spec in _specs((self.arguments, self.keywords)))

    def materialize(self) -> tuple[list[Any], dict[str, Any]]:
        """Create arguments of zeros for the operator: positional ones, and keywords."""
        return [_made(value) for value in self.arguments], {
            name: _made(value) for name, value in self.keywords
        }


def storage_bytes(result: object) -> int:
    """Return the size of a tensor's storage; 0 for other results, and for a sparse tensor, which consists of
    other tensors."""
    if not isinstance(result, Tensor) or result.layout is not torch.strided:
        return 0
    return result.untyped_storage().nbytes()


def flops(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the floating-point operations of a call, 0 without a formula: torch's own formulas, and that of
    a fused recurrent layer (two operations per weight and token)."""
    if function in _RECURRENT:
        weights = sum(weight.numel() for weight in args[1:3])
        passes = 1 if function is _RECURRENT[0] else 2
        return int(2 * passes * weights * math.prod(args[0].shape[:-1]))
    formula = flop_registry.get(function.overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def _specified(value: Any) -> Any:
    """Replace the tensors in `value` by their layout. Raises TypeError for other objects and for tensors that
    are not dense."""
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return TensorSpec.of(value)
    if isinstance(value, list | tuple):
        return tuple(_specified(item) for item in value)
    if value is None or isinstance(
        value, bool | int | float | str | torch.dtype | torch.layout | torch.memory_format | torch.device
    ):
        return value
    raise TypeError(type(value))


def _specs(value: Any) -> Iterator[TensorSpec]:
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _specs(item)


def _made(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return torch.zeros(value.extent, dtype=value.dtype).as_strided(value.shape, value.stride)
    if isinstance(value, tuple):
        return [_made(item) for item in value]
    return value
