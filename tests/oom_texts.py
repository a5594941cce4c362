"""Real out-of-memory texts of torch, with the figures in them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

GIB = 2**30


class OomText(NamedTuple):
    """A text, where it was published, and its sizes in bytes; None where it does not say."""

    source: str
    text: str
    requested_bytes: int
    total_bytes: int
    free_bytes: int
    process_bytes: int | None
    """Of this process; in a container, where it is listed as another, known from the sizes."""
    others_bytes: int | None


def real_texts() -> list[OomText]:
    """From public issue threads and logs; `source` names each."""
    path = Path(__file__).parent / "material" / "oom_texts.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [_text(row) for row in rows]


def _text(row: dict[str, Any]) -> OomText:
    names = ("asked", "total", "free", "this_process", "other_processes")
    request, total, free, process, others = (None if row[name] is None else int(row[name]) for name in names)
    assert request is not None
    assert total is not None
    assert free is not None
    return OomText(row["source"], row["text"], request, total, free, process, others)


def a_container_text(listed_bytes: list[int], allocated_bytes: int, unallocated_bytes: int) -> str:
    """Return the text that torch writes where NVML lists processes by other numbers than its own."""
    listed = "".join(
        f"Process {4_000 + n} has {in_gib(size)} memory in use. " for n, size in enumerate(listed_bytes)
    )
    return (
        f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
        f"1.00 GiB is free. {listed}Of the allocated memory {in_gib(allocated_bytes)} is allocated by "
        f"PyTorch, and {in_gib(unallocated_bytes)} is reserved by PyTorch but unallocated. If reserved but "
        f"unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True."
    )


def in_gib(size_bytes: int) -> str:
    """Like c10::CachingAllocator::format_size."""
    if size_bytes < GIB:
        return f"{size_bytes / 2**20:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"
