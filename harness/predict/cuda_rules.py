"""The operators that torch runs otherwise on CUDA than on the CPU, for traces of a CUDA run on the CPU."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# "CUDA Ops that can autocast to float32" of PyTorch's documentation, as far as layers and losses use them.
_FLOAT32 = (
    "binary_cross_entropy_with_logits",
    "cosine_similarity",
    "cross_entropy_loss",
    "exp",
    "group_norm",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "nll_loss_nd",
    "pow",
    "prod",
    "reciprocal",
    "rsqrt",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "sum",
)
_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def cuda_rules(*, autocast: bool) -> Iterator[None]:
    """Within, torch computes on the CPU as it would on CUDA, with `autocast` also under autocast. All threads
    are affected."""
    with ExitStack() as stack:
        stack.enter_context(_grouped_attention())
        if autocast:
            stack.enter_context(_cuda_autocast())
        yield


@contextmanager
def _grouped_attention() -> Iterator[None]:
    """In float32, attention with fewer keys than queries materializes its weights: of CUDA's fused kernels,
    only those for 16 bits take such keys (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`)."""
    fused: Callable[..., Tensor] = functional.scaled_dot_product_attention

    def attention(query: Tensor, *args: Any, enable_gqa: bool = False, **kwargs: Any) -> Tensor:
        is_half = query.dtype is not torch.float32 or torch.is_autocast_enabled("cpu")
        if is_half or not enable_gqa:
            return fused(query, *args, enable_gqa=enable_gqa, **kwargs)
        with sdpa_kernel(SDPBackend.MATH):
            return fused(query, *args, enable_gqa=True, **kwargs)

    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    """Within, autocast on the CPU computes in float32 what it does on CUDA, by a longer list."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in _FLOAT32:
            packet = getattr(torch.ops.aten, name)
            for operator in (getattr(packet, overload) for overload in packet.overloads()):
                if _lacks_rule(operator):
                    library.impl(operator, _in_float32(operator), "AutocastCPU")
        yield
    finally:
        library._destroy()


def _lacks_rule(operator: OpOverload) -> bool:
    """Return whether an operator of tensors has no rule in the CPU's autocast, and returns its result."""
    is_tensors = any(isinstance(argument.type, torch.TensorType) for argument in operator._schema.arguments)
    is_out = any(argument.is_out for argument in operator._schema.arguments)
    if not is_tensors or is_out:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "AutocastCPU")


def _in_float32(operator: OpOverload) -> Callable[..., Any]:
    outside = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(outside):
            return operator(*map(_cast, args), **{name: _cast(value) for name, value in kwargs.items()})

    return run


def _cast(value: Any) -> Any:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype in _HALF else value
