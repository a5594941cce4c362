"""The sequence that corrupts the heap in torch's memory history, on a GPU, in a process of its own.

`python -m tests.gpu.overflow cleared|uncleared`: follow every allocation, make 60,000 small tensors (more
than the ring of events holds), go on recording only what is alive, make 200,000 more, take a snapshot. With
"uncleared" the recording is not switched off in between, as torch.cuda.memory would be used without
`harness.tracking.history.CudaHistory`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from harness.tracking.history import CudaHistory
from harness.tracking.traces import MOST_ENTRIES

ALIVE, LATER = 60_000, 200_000


def uncleared_keep() -> None:
    """From all events to the state alone, without emptying the ring."""
    memory: Any = torch.cuda.memory
    memory._record_memory_history(enabled="state", context="state", stacks="python")


def provoke(keep: Callable[[], None], history: CudaHistory, device: str = "cuda:0") -> dict[str, int]:
    """Run the sequence; what the snapshot then holds."""
    assert ALIVE > MOST_ENTRIES
    history.follow()
    try:
        tensors = [torch.empty(128, device=device) for _ in range(ALIVE)]
        keep()
        for _ in range(LATER):
            torch.empty(128, device=device)
        snapshot = history.snapshot()
    finally:
        history.off()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {
        "alive": len(tensors),
        "events": len(snapshot["device_traces"][0]),
        "blocks_with_stack": sum(bool(block.get("frames")) for block in blocks),
    }


def main() -> int:
    """Print what the snapshot holds; a corrupted heap ends the process before or behind that."""
    history = CudaHistory()
    keep = {"cleared": history.keep, "uncleared": uncleared_keep}[sys.argv[1]]
    print(json.dumps(provoke(keep, history)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
