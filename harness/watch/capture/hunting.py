"""Has a snapshot taken when live tensors leak, so that the lines that keep them are named."""

import json
import time
from collections.abc import Callable

from harness.records.run import CommandKind, CommandRow
from harness.watch.inbox import Inbox

# Who such a command is from; nobody waits for its answer.
SOURCE = "the leak detector"
STEPS = 12
AGAIN_AFTER_S = 600.0


class LeakHunt:
    """Asks for a snapshot of `STEPS` steps at the first leak, and for another at the earliest
    `AGAIN_AFTER_S` later. Used from the thread that watches for leaks."""

    def __init__(
        self, inbox: Inbox, is_enabled: Callable[[], bool], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`is_enabled` reads the setting in effect, `hunt_leaks`."""
        self._inbox = inbox
        self._is_enabled = is_enabled
        self._clock_s = clock_s
        self._hunted_s: list[float] = []

    def on_leak(self, _message: str) -> None:
        """Something leaks; the message says what."""
        now_s = self._clock_s()
        is_due = not self._hunted_s or (
            len(self._hunted_s) == 1 and now_s - self._hunted_s[0] >= AGAIN_AFTER_S
        )
        if is_due and self._is_enabled():
            self._hunted_s.append(now_s)
            payload = json.dumps({"steps": STEPS})
            number = f"hunt-{len(self._hunted_s)}"
            self._inbox.put(CommandRow(number, time.time_ns(), CommandKind.SNAPSHOT, payload, SOURCE))
