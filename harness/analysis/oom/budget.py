"""Breakdown of the memory limit at an out-of-memory error: parts that sum to the limit.

Coverage of the limits: on a GPU the cap covers reserved memory, and the device also contains contexts and
other processes; on the CPU a cap (RLIMIT_DATA) covers all data of the process since the baseline, a limit of
the process also the memory from before it, and the machine is shared.
"""

from math import floor, log10
from typing import NamedTuple

from harness import words
from harness.analysis.oom.limits import exceeds_device
from harness.analysis.oom.report import MemoryAtFailure, OomFacts, OomPhase
from harness.records.run import DeviceKind

# As a share of the limit: sizes are printed with three digits, so a smaller rest is invisible in their sum.
LEAST_REST = 0.005
# Of an excess with a known reason: a smaller one is a part of the rest.
_LEAST_EXCESS = 0.0005
# Significant digits of `harness.words.size`.
_DIGITS = 3

_HOLES = "free in the heap, in pieces between live blocks"
_SET_ASIDE = "set aside by malloc for other threads: address space without memory"
_LARGE_HOLES = "free in the heap since the failure: holes as large as the request"
_AT_READING = " at this reading: of it the failed functions had an unknown part"
_RELEASED = "in use at the failure, released before this reading (at least)"


class BudgetPart(NamedTuple):
    """A part of the limit; negative if the parts sum to more than the limit: they were read at different
    moments, or the driver has placed some of them elsewhere."""

    name: str
    size_bytes: int

    @property
    def phrase(self) -> str:
        """The size and the name without its explanation, for a sentence."""
        size = words.size(self.size_bytes)
        if self.name == _RELEASED:
            return f"at least {size} in temporaries that were released since"
        if self.name.endswith("(at most)"):
            size = f"at most {size}"
        name = "free in the heap in pieces" if self.name == _HOLES else self.name
        return f"{size} {name.partition(':')[0].partition(' (')[0]}"


def released_bytes(facts: OomFacts) -> int:
    """Return a lower bound of the memory that the failed step released before memory was read, under a cap
    or a limit of the process on the CPU; 0 if there is no evidence of any.

    The error unwinds the failing frames, which frees their temporaries. Where the request fits into the free
    memory as read, the difference was in use when the cap refused it. Rounded down to the digits in which it
    is printed.
    """
    memory, request = facts.memory, facts.request.most_bytes
    if facts.device is not DeviceKind.CPU or memory.limit_left_bytes is None:
        return 0
    # A request beyond the machine's free memory may have been refused by the machine.
    if not request or memory.device_free_bytes is None or request > memory.device_free_bytes:
        return 0
    return _rounded_down(memory.limit_left_bytes - request)


def _rounded_down(size_bytes: int) -> int:
    """Round down so that `harness.words.size` does not print more; 0 if negative."""
    if size_bytes <= 0:
        return 0
    unit = 1 << (size_bytes.bit_length() - 1) // 10 * 10
    scale = 10.0 ** (_DIGITS - 1 - floor(log10(size_bytes / unit)) if unit > 1 else 0)
    return floor(floor(size_bytes / unit * scale) / scale * unit)


def budget(facts: OomFacts) -> tuple[BudgetPart, ...]:
    """Return parts that sum to the limit, `facts.memory.limit_bytes`; empty if it is unknown. The last part
    contains what could not be read, and its name lists the candidates."""
    memory, device = facts.memory, facts.device
    limit_bytes = memory.limit_bytes
    if limit_bytes is None:
        return ()
    if memory.is_limited and facts.request.phase is OomPhase.WORKER:
        return (BudgetPart("not known: the worker's own memory", limit_bytes),)
    on_cpu = device is DeviceKind.CPU
    parts, unknown = [BudgetPart("allocated", memory.allocated_bytes or 0)], []
    if memory.allocated_bytes is None:
        parts, unknown = [], ["allocated memory"]
    parts += _unused(memory, on_cpu)
    inside = sum(part.size_bytes for part in parts)
    released = released_bytes(facts) if facts.request.most_bytes else None
    outside_parts, outside_unknown = _outside(memory, on_cpu, inside, released)
    least_excess = _LEAST_EXCESS * limit_bytes
    parts += [part for part in outside_parts if part.size_bytes >= 0 or -part.size_bytes >= least_excess]
    parts = [part for part in parts if part.size_bytes]
    rest = limit_bytes - sum(part.size_bytes for part in parts)
    if abs(rest) < LEAST_REST * limit_bytes and not (rest and not parts):
        return _absorbed(parts, rest)
    if rest < 0:
        return (*parts, BudgetPart(f"excess: {_excess(memory, device)}", rest))
    names = ", ".join([*unknown, *outside_unknown]) or "the parts were read one after the other"
    return (*parts, BudgetPart(f"not known: {names}", rest))


def _excess(memory: MemoryAtFailure, device: DeviceKind) -> str:
    """Return the reason why the parts sum to more than the limit."""
    if memory.is_capped or memory.is_limited or not exceeds_device(memory, device):
        return "the parts were read one after the other"
    if device is DeviceKind.MPS:
        return "above the maximum that Metal recommends"
    return "in the host's memory, for which the driver has no space on the device"


def _absorbed(parts: list[BudgetPart], rest: int) -> tuple[BudgetPart, ...]:
    """Add a rest too small to show to the largest part. The allocated part keeps the value stated elsewhere
    if another part can absorb the rest."""
    others = [at for at in range(1, len(parts)) if parts[at].size_bytes + rest >= 0]
    at = max(others or range(len(parts)), key=lambda index: parts[index].size_bytes)
    parts[at] = parts[at]._replace(size_bytes=parts[at].size_bytes + rest)
    return tuple(parts)


def _unused(memory: MemoryAtFailure, on_cpu: bool) -> list[BudgetPart]:
    """Return the parts that are reserved but unallocated."""
    unused = memory.unused_bytes
    if not unused:
        return []
    if on_cpu:
        large = min(unused, memory.large_hole_bytes or 0)
        return [BudgetPart(_HOLES, unused - large), BudgetPart(_LARGE_HOLES, large)]
    parts = []
    for name, size in (
        ("free in private pools (CUDA graphs, MemPool)", memory.private_free_bytes),
        ("freed, waiting for another stream", memory.waiting_bytes),
        ("free in split blocks", memory.split_free_bytes),
        ("free in whole segments", memory.free_bytes),
    ):
        part = min(size or 0, unused)
        parts.append(BudgetPart(name, part))
        unused -= part
    return [*parts, BudgetPart("reserved but unallocated", unused)]


def _outside(
    memory: MemoryAtFailure, on_cpu: bool, inside: int, released: int | None
) -> tuple[list[BudgetPart], list[str]]:
    """Return the parts outside the allocator, and the names of those that are unknown. `inside` is the
    allocator's memory in bytes, `released` that of `released_bytes`; None if the request is unknown."""
    assert memory.limit_bytes is not None
    if memory.is_capped and not on_cpu:
        return [BudgetPart("free under the cap", max(0, memory.limit_bytes - inside))], []
    if memory.is_capped or memory.is_limited:
        limit_name = "cap" if memory.is_capped else "limit"
        left = memory.limit_left_bytes
        if left is None:
            return [], ["memory outside the heap", f"free memory under the {limit_name}"]
        left = max(0, left)
        parts = _covered(memory, memory.limit_bytes - left - inside)
        if not released:
            then = _AT_READING if released is None else ""
            return [*parts, BudgetPart(f"free under the {limit_name}{then}", left)], []
        return [
            *parts,
            BudgetPart(_RELEASED, released),
            BudgetPart(f"free under the {limit_name} at the failure (at most)", left - released),
        ], []
    parts, unknown = [], []
    for name, size in (
        (_process_name(memory), _process_outside(memory, inside)),
        ("other processes", memory.others_bytes),
        ("free", memory.device_free_bytes),
    ):
        if size is None:
            unknown.append(name)
        else:
            parts.append(BudgetPart(name, size))
    return parts, unknown or ["the driver"]


def _covered(memory: MemoryAtFailure, outside: int) -> list[BudgetPart]:
    """Return the parts of `outside`, the memory outside the run's heap that a cap or a limit of the process
    covers on the CPU."""
    # Its parts are not measured. Of a script with an LSTM it grew while Python's count of blocks stood still.
    name = "outside the heap: Python's pools, stacks, libraries' own mappings"
    if outside < 0:
        covered = "the cap does not count" if memory.is_capped else "is part of the limit"
        return [BudgetPart(f"excess: in memory that was free before the run, which {covered}", outside)]
    limit = memory.process_limit
    if limit is None or memory.is_capped:
        return [BudgetPart(name, outside)]
    if memory.allocated_bytes is None:
        name = "in use by the run"
    reserve = min(outside, limit.reserve_bytes)
    set_aside = min(outside - reserve, limit.set_aside_bytes)
    before = min(outside - reserve - set_aside, limit.before_bytes)
    return [
        BudgetPart(name, outside - before - reserve - set_aside),
        BudgetPart(_SET_ASIDE, set_aside),
        BudgetPart("in use before the run: Python, libraries", before),
        BudgetPart("Stepscope's reserve for this report", reserve),
    ]


def _process_name(memory: MemoryAtFailure) -> str:
    return "this process" if memory.allocated_bytes is None else "this process outside the allocator"


def _process_outside(memory: MemoryAtFailure, inside: int) -> int | None:
    """Return the process's memory outside its allocator: on a GPU context and libraries, on the CPU code."""
    return None if memory.process_bytes is None else max(0, memory.process_bytes - inside)
