"""Facts about memory running out, plain by default, for tests of reports and pages."""

from typing import Any

from harness.analysis.oom.report import BatchPeak, FailedRequest, MemoryAtFailure, OomFacts, OomPhase
from harness.records.run import DeviceKind

MIB, GIB = 2**20, 2**30


def some_facts(device: DeviceKind = DeviceKind.CUDA, **values: Any) -> OomFacts:
    """A step that failed on an 80 GiB card for no special reason: fields of its request, of its memory and of
    the facts may be given by name."""
    request: dict[str, Any] = {
        "error_bytes": 512 * MIB,
        "least_bytes": 512 * MIB,
        "most_bytes": 512 * MIB,
        "phase": OomPhase.FORWARD,
        "module": "blocks.3.mlp",
        "module_kind": "FeedForward",
        "site": "harness/models/transformer.py:31 forward",
        "code": "return self.down(gelu(self.up(x)))",
        "stack": ("harness/models/transformer.py:31 forward", "harness/models/base.py:29 run_block"),
        "note": None,
        "script_site": None,
    }
    memory: dict[str, Any] = {
        "allocated_bytes": 79 * GIB,
        "reserved_bytes": 79 * GIB + 100 * MIB,
        "free_bytes": 0,
        "split_free_bytes": 100 * MIB,
        "largest_free_bytes": 20 * MIB,
        "private_free_bytes": 0,
        "waiting_bytes": 0,
        "device_free_bytes": 100 * MIB,
        "device_total_bytes": 80 * GIB,
        "process_bytes": None,
        "others_bytes": None,
        "cap_bytes": None,
        "cap_left_bytes": None,
        "process_limit": None,
        "maps_large_blocks": False,
        "large_hole_bytes": None,
    }
    facts: dict[str, Any] = {
        "step": 120,
        "device": device,
        "device_name": "Test device",
        "error": "CUDA out of memory. Tried to allocate 512.00 MiB.",
        "batch_size": 64,
        "grad_accumulation": 1,
        "amp": "off",
        "checkpointing": False,
        "is_first_update": False,
        "holders": (),
        "sites": (),
        "steps": (),
        "peaks": (),
        "static_bytes": None,
        "change": None,
        "leak": None,
        "variables": (),
        "calls_without_backward": 0,
    }
    for name, value in values.items():
        (group,) = (group for group in (request, memory, facts) if name in group)
        group[name] = value
    return OomFacts(request=FailedRequest(**request), memory=MemoryAtFailure(**memory), **facts)


def some_peaks(*pairs: tuple[int, float]) -> tuple[BatchPeak, ...]:
    """Peaks of 40 steps each: batch sizes, and GiB."""
    return tuple(BatchPeak(size, int(gib * GIB), 40) for size, gib in pairs)
