"""The calling thread's mode toward captures of CUDA graphs.

While a graph is captured in the mode "global", which is torch's default, a call such as cudaEventQuery or
cudaMalloc of any thread in that mode fails and makes the capture invalid. A thread in the mode "relaxed"
neither fails nor disturbs (cuThreadExchangeStreamCaptureMode of CUDA's driver API; torch's own watchdog of
NCCL polls its events in another mode than "global", too: pytorch/pytorch#148594).
"""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed.
RELAXED = 2


def relax_captures() -> bool:
    """Put the calling thread into the mode "relaxed"; return whether the driver could. Not for a thread of
    the script, which needs the errors of calls that do not belong into a graph."""
    exchange = _exchange()
    if exchange is None:
        return False
    mode = ctypes.c_int(RELAXED)
    return bool(exchange(ctypes.byref(mode)) == 0)


@cache
def _exchange() -> Callable[..., Any] | None:
    """Return the driver's function that exchanges a thread's mode."""
    names, prefix = ["nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"], "cu"
    if torch.version.hip is not None:
        names, prefix = ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"], "hip"
    for name in names:
        try:
            function: Callable[..., Any] = getattr(
                ctypes.CDLL(name), f"{prefix}ThreadExchangeStreamCaptureMode"
            )
        except (OSError, AttributeError):
            continue
        return function
    return None
