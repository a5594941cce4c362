"""The size of cuBLAS's workspaces, which torch takes from its own allocator and keeps.

There is one for each handle and stream, so usually two: the forward and the backward pass run on threads with
a handle each (`aten/src/ATen/cuda/CublasHandlePool.cpp`).
"""

import os
import re
from collections.abc import Mapping

_DEFAULT_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_HOPPER_BYTES = 4096 * 8 * 1024
_PART = re.compile(r":([0-9]+):([0-9]+)")


def workspace_bytes(capability: tuple[int, int] | None, environ: Mapping[str, str] = os.environ) -> int:
    """Return the size of one workspace on a GPU of this compute capability: the parts ":KiB:number" of
    CUBLAS_WORKSPACE_CONFIG, else torch's own choice, which is larger from Hopper on."""
    parts = _PART.findall(environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return sum(int(size) * 1024 * int(number) for size, number in parts)
    return _HOPPER_BYTES if capability is not None and capability >= (9, 0) else _DEFAULT_BYTES
