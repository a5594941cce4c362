"""How the limit was divided when memory ran out: parts that add up to it, the unknown rest among them.

What each device's limit counts: on a GPU the cap counts what the allocator reserves, and the device also has
contexts and other processes; on the CPU a cap (RLIMIT_DATA) counts all data of the process, and the machine
is shared by all.
"""

from typing import NamedTuple

from harness.analysis.oom.report import Held
from harness.records.run import DeviceKind

LEAST_REST = 0.005
"""Of the limit: sizes are printed in three digits, and a smaller rest does not show in their sum."""


class Part(NamedTuple):
    """A part of the limit; negative where parts were read at different moments and exceed it together."""

    name: str
    size_bytes: int


def budget(held: Held, device: DeviceKind) -> tuple[Part, ...]:
    """The parts of `held.limit_bytes`, which add up to it; empty where the limit is not known. What is not
    known is in the last part, which names what it may be."""
    limit_bytes = held.limit_bytes
    if limit_bytes is None:
        return ()
    on_cpu = device is DeviceKind.CPU
    parts, unknown = [Part("allocated", held.allocated_bytes or 0)], []
    if held.allocated_bytes is None:
        parts, unknown = [], ["what was allocated"]
    parts += _unused(held, on_cpu)
    found, open_ = _outside(held, on_cpu, sum(part.size_bytes for part in parts))
    parts = [part for part in (*parts, *found) if part.size_bytes]
    rest = limit_bytes - sum(part.size_bytes for part in parts)
    if abs(rest) < LEAST_REST * limit_bytes and not (rest and not parts):
        return _absorbed(parts, rest)
    if rest < 0:
        return (*parts, Part("too much: these were read one after the other", rest))
    return (*parts, Part(f"not known: {', '.join([*unknown, *open_]) or 'read one after the other'}", rest))


def _absorbed(parts: list[Part], rest: int) -> tuple[Part, ...]:
    """The parts with a rest too small to show in the largest of them; what is allocated stays as it is said
    elsewhere, where another part has room for the rest."""
    others = [at for at in range(1, len(parts)) if parts[at].size_bytes + rest >= 0]
    at = max(others or range(len(parts)), key=lambda index: parts[index].size_bytes)
    parts[at] = parts[at]._replace(size_bytes=parts[at].size_bytes + rest)
    return tuple(parts)


def _unused(held: Held, on_cpu: bool) -> list[Part]:
    """What the allocator holds beside what is allocated."""
    unused = held.unused_bytes
    if not unused:
        return []
    if on_cpu:
        return [Part("free in the heap, in pieces between what is in use", unused)]
    parts = []
    for name, size in (
        ("free in private pools of CUDA graphs", held.private_free_bytes),
        ("freed and held for another stream", held.waiting_bytes),
        ("free in split blocks", held.split_free_bytes),
        ("free in whole segments", held.free_bytes),
    ):
        part = min(size or 0, unused)
        parts.append(Part(name, part))
        unused -= part
    return [*parts, Part("reserved and in no tensor", unused)]


def _outside(held: Held, on_cpu: bool, inside: int) -> tuple[list[Part], list[str]]:
    """What lies outside the allocator, and the names of what is not known of it. `inside` is what the
    allocator holds."""
    assert held.limit_bytes is not None
    if held.is_capped and not on_cpu:
        return [Part("left under the cap", max(0, held.limit_bytes - inside))], []
    if held.is_capped:
        left = held.cap_left_bytes
        if left is None:
            return [], ["what lies outside the heap", "what was left"]
        left = max(0, left)
        outside = held.limit_bytes - left - inside
        name = "outside the heap: Python's own pools, stacks"
        if outside < 0:
            name = "too much: it lies in free memory from before the run, which the cap does not count"
        return [Part(name, outside), Part("left", left)], []
    parts, unknown = [], []
    for name, size in (
        ("this process beside the allocator", _beside(held, inside)),
        ("other processes", held.others_bytes),
        ("free", held.device_free_bytes),
    ):
        if size is None:
            unknown.append(name)
        else:
            parts.append(Part(name, size))
    return parts, unknown or ["the driver"]


def _beside(held: Held, inside: int) -> int | None:
    """What the process holds beside its allocator: a GPU's context and libraries; on the CPU its code."""
    return None if held.process_bytes is None else max(0, held.process_bytes - inside)
