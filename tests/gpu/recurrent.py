"""The memory of recurrent layers on a GPU, as in tests/material: `python -m tests.gpu.recurrent`.

Of each layer, in bytes above the level before: after its forward pass, and at the peak of both passes.
"""

import gc
import json
import sys
from itertools import product
from typing import Any

import torch
from torch import nn

SHAPES = (
    (128, 64, 16),
    (256, 64, 64),
    (256, 128, 32),
    (512, 64, 64),
    (512, 128, 128),
    (512, 256, 32),
    (1024, 128, 32),
    (512, 128, 127),
    (384, 100, 20),
)
"""Width, length of the sequence, batch."""
ARRANGEMENTS: tuple[dict[str, Any], ...] = (
    {"num_layers": 2},
    {"num_layers": 4},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True},
)
"""Of several layers or directions in one module, each in the shape `_ARRANGED`."""
_ARRANGED = (512, 64, 64)
_PASSES = 3
"""The last one counts: the first loads kernels."""


def layers() -> list[dict[str, Any]]:
    """All layers to measure."""
    names = ("cell", "width", "sequence", "batch", "is_half")
    cells, halves = ("RNN", "LSTM", "GRU"), (False, True)
    single = [
        dict(zip(names, (cell, *shape, is_half), strict=True))
        for cell, shape, is_half in product(cells, SHAPES, halves)
    ]
    arranged = [
        dict(zip((*names, "options"), (cell, *_ARRANGED, is_half, options), strict=True))
        for cell, options, is_half in product(cells, ARRANGEMENTS, halves)
    ]
    return single + arranged


def measure(layer: dict[str, Any]) -> dict[str, int]:
    """Run both passes of a layer, under autocast to float16 where it `is_half`."""
    gc.collect()
    torch.cuda.empty_cache()
    width = layer["width"]
    network = getattr(nn, layer["cell"])(width, width, batch_first=True, **layer.get("options", {})).cuda()
    inputs = torch.randn(layer["batch"], layer["sequence"], width, device="cuda", requires_grad=True)
    result: dict[str, int] = {}
    for _ in range(_PASSES):
        before = _begin()
        with torch.autocast("cuda", torch.float16, enabled=layer["is_half"]):
            output = network(inputs)[0]
        torch.cuda.synchronize()
        result["after_forward"] = torch.cuda.memory_allocated() - before
        result["peak_forward"] = torch.cuda.max_memory_allocated() - before
        gradient = torch.ones_like(output)
        before = _begin()
        output.backward(gradient)
        torch.cuda.synchronize()
        result["peak_backward"] = torch.cuda.max_memory_allocated() - before
        network.zero_grad(set_to_none=True)
        inputs.grad = None
        del output, gradient
    return result


def _begin() -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def main() -> int:
    """Print all layers as JSON, one per line."""
    rows = ",\n".join(json.dumps(layer | measure(layer)) for layer in layers())
    print(f"[\n{rows}\n]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
