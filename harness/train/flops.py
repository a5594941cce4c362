"""Count of a sample's floating-point operations, once, when the model is built.

A model of the catalog is built a second time on torch's "meta" device, a person's own is copied to it, and
one forward and one backward pass run under `FlopCounterMode`. Nothing is computed or allocated, and the count
does not depend on the device's kernels: fused attention and fused recurrent kernels appear as matrix
products. Attention is counted in full also where it is causal, as in PaLM (Chowdhery et al., 2022,
appendix B).
"""

import gc
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from harness.catalog import model as cataloged
from harness.models.base import LossModel
from harness.models.building import build_model
from harness.records.data import DataKind, DataShape
from harness.records.flops import FlopsRow
from harness.settings import Settings

# The settings that decide the figure, besides activation checkpointing. None changes in a live run.
DECIDING = ("model", "preset", "data", "image_size", "sequence_length")

# Recurrent layers take the tokens one by one, and so does counting. What they cost is affine in the number of
# tokens, which three short samples show; a model of which it is not true is counted in full.
_SHORT_TOKENS = (2, 4, 6)
_BATCH = 2
# Parts of the names of operations made of products.
_PRODUCTS = ("rnn", "lstm", "gru", "attention", "mm", "mv", "dot", "conv", "linear", "einsum", "fft")
_NO_PRODUCTS = frozenset({"_fused_sdp_choice"})
_OURS = frozenset({"aten", "prim", "prims"})


class Count(NamedTuple):
    """Operations of one sample, and the names of those for which there is no formula."""

    flops: float
    uncounted: frozenset[str]


def flops_rows(settings: Settings, shape: DataShape, own: LossModel | None = None) -> list[FlopsRow]:
    """FLOPs per sample with and without activation checkpointing, which may be switched live.

    `own` is a person's own model, which is not built twice: its code would find itself on another device, and
    what it stores in its modules and caches there would stay for the training. Raises what torch raises where
    the model needs values to know its shapes, or tensors that are not its own.
    """
    ways = (False, True) if cataloged(settings.model).can_checkpoint else (False,)
    decided = json.dumps({name: getattr(settings, name) for name in DECIDING})
    rows = []
    for checkpointing in ways:
        begun_ns = perf_counter_ns()
        network = _built_on_meta(settings, shape) if own is None else _copied_to_meta(own)
        count = count_sample(network, shape, checkpointing)
        uncounted = json.dumps(sorted(count.uncounted))
        took_ns = perf_counter_ns() - begun_ns
        rows.append(FlopsRow(int(checkpointing), count.flops, uncounted, _BATCH, decided, took_ns))
    if own is not None:
        gc.collect()  # Copies of modules are cycles, and the run's memory is already measured.
    return rows


def _built_on_meta(settings: Settings, shape: DataShape) -> LossModel:
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        return build_model(settings, shape)


def _copied_to_meta(network: LossModel) -> LossModel:
    """Return a copy of `network` in which all of its tensors are on the meta device."""
    copies: dict[int, Any] = {}
    for module in network.modules():
        own = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        for tensor in own:
            if isinstance(tensor, Tensor):
                empty = torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
                is_parameter = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return deepcopy(network, copies)


def count_sample(network: LossModel, shape: DataShape, checkpointing: bool) -> Count:
    """Count the operations of one sample, forward and backward; `network` is on the meta device."""
    network.checkpointing = checkpointing
    has_tokens = shape.inputs is None  # The samples of a person's own dataset have the size they have.
    if has_tokens and any(isinstance(module, nn.RNNBase) for module in network.modules()):
        short = [count(network, shape._replace(sequence_length=tokens)) for tokens in _SHORT_TOKENS]
        first, second, third = (one.flops for one in short)
        if third - second == second - first:
            a_token = (second - first) / (_SHORT_TOKENS[1] - _SHORT_TOKENS[0])
            return short[0]._replace(flops=first + a_token * (shape.sequence_length - _SHORT_TOKENS[0]))
    return count(network, shape)


def count(network: LossModel, shape: DataShape, batch_size: int = _BATCH) -> Count:
    """Count the operations of one sample of `shape`; `network` is on the meta device."""
    inputs, targets = _batch(shape, batch_size)
    collector = _UncountedCollector()
    counter = FlopCounterMode(display=False)
    # A person's own model may draw numbers. The counter on top decomposes operations first.
    with torch.random.fork_rng(devices=()), sdpa_kernel(SDPBackend.MATH), collector, counter:
        network(inputs, targets).backward()
    return Count(counter.get_total_flops() / batch_size, frozenset(collector.uncounted))


class _UncountedCollector(TorchDispatchMode):
    """Collects operations without a formula that consist of products, or are unknown."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is untyped
        self.uncounted: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        packet = func.overloadpacket
        if packet not in flop_registry:
            namespace, _, name = packet._qualified_op_name.partition("::")
            is_product = name not in _NO_PRODUCTS and any(part in name for part in _PRODUCTS)
            if namespace not in _OURS or is_product:
                self.uncounted.add(f"{namespace}.{name}")
        return func(*args, **(kwargs or {}))


def _batch(shape: DataShape, batch_size: int) -> tuple[Tensor, Tensor]:
    if shape.kind is DataKind.IMAGE:
        images = torch.empty(batch_size, shape.channels, shape.height, shape.width, device="meta")
        return images, torch.empty(batch_size, dtype=torch.int64, device="meta")
    if shape.inputs is not None and shape.targets is not None:
        pair = [
            torch.empty((batch_size, *one.size), dtype=getattr(torch, one.dtype), device="meta")
            for one in (shape.inputs, shape.targets)
        ]
        return pair[0], pair[1]
    tokens = torch.empty(batch_size, shape.sequence_length, dtype=torch.int64, device="meta")
    return tokens, tokens
