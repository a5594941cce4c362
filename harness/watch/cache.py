"""Emptying of the allocator's cache on request, with the bytes released."""

import json
from collections.abc import Callable
from typing import NamedTuple

from harness import words
from harness.device.protocol import Device
from harness.records.run import CommandKind, CommandRow, CommandState, EventKind, EventRow, Severity
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext


class CacheRelease(NamedTuple):
    """Bytes released by emptying the cache, None where the device does not report it, and the duration."""

    freed_bytes: int | None
    took_ns: int

    @property
    def message(self) -> str:
        """One sentence for a person."""
        if self.freed_bytes is None:
            return "Emptied the cache."
        return f"Gave back {words.size(self.freed_bytes)} of reserved memory."


def empty_cache(device: Device, clock_ns: Callable[[], int]) -> CacheRelease:
    """Return the allocator's cached memory to the system."""
    before = device.read_memory().reserved_bytes
    began_ns = clock_ns()
    device.empty_cache()
    took_ns = clock_ns() - began_ns
    after = device.read_memory().reserved_bytes
    freed = None if before is None or after is None else max(0, before - after)
    return CacheRelease(freed, took_ns)


class CacheEmptying(StepAction):
    """Carries out `empty_cache`."""

    commands = frozenset({CommandKind.EMPTY_CACHE})

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Empty the cache, or answer why not."""
        context, step = self._context, boundary.step
        if not context.device.facts.can_trim:
            reason = f"{context.device.facts.name} has no cache to empty."
            context.answer(command.command_id, CommandState.REJECTED, step, reason)
            return
        release = empty_cache(context.device, context.clock_ns)
        boundary.unsettle(step)
        detail = json.dumps(release._asdict())
        context.journal.put(
            EventRow(
                context.clock_ns(),
                step,
                EventKind.EMPTY_CACHE,
                Severity.INFO,
                "empty_cache()",
                release.message,
                detail,
                command.command_id,
            )
        )
        context.answer(command.command_id, CommandState.APPLIED, step, release.message)
