"""Snapshots requested when live tensors leak, which name the allocation sites of the leak."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.records.run import CommandKind, CommandRow
from harness.watch.inbox import Inbox

# The source of these commands; they need no answer.
SOURCE = "the leak detector"
STEPS = 12
AGAIN_AFTER_S = 600.0


class HuntResult(NamedTuple):
    """Result of a hunt that ended at `step`: whether the CPU's heap grew by more than tensors explain, and
    the size of the tensor that steps replace by larger ones, 0 without one. `refusal` is the reason why
    nothing could be tracked, in a sentence."""

    step: int
    is_beside_tensors: bool
    copied_bytes: int = 0
    refusal: str | None = None


class LeakHunt:
    """Requests a snapshot of `STEPS` steps at the first leak, and a second one at the earliest
    `AGAIN_AFTER_S` later. Used on the thread of the leak detector."""

    def __init__(
        self, inbox: Inbox, is_enabled: Callable[[], bool], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`is_enabled` returns the setting `hunt_leaks` in effect."""
        self._inbox = inbox
        self._is_enabled = is_enabled
        self._clock_s = clock_s
        self._hunted_s: list[float] = []

    def on_leak(self, _message: str) -> None:
        """Request a snapshot if one is due."""
        now_s = self._clock_s()
        is_due = not self._hunted_s or (
            len(self._hunted_s) == 1 and now_s - self._hunted_s[0] >= AGAIN_AFTER_S
        )
        if is_due and self._is_enabled():
            self._hunted_s.append(now_s)
            payload = json.dumps({"steps": STEPS})
            number = f"hunt-{len(self._hunted_s)}"
            self._inbox.put(CommandRow(number, time.time_ns(), CommandKind.SNAPSHOT, payload, SOURCE))
