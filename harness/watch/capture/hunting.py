"""Snapshots requested when live tensors leak, which name the allocation sites of the leak."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.records.memory import LeakRow, LeakVerdict
from harness.records.run import CommandKind, CommandRow
from harness.watch.inbox import Inbox

# The source of these commands; they need no answer.
SOURCE = "the leak detector"
STEPS = 12
AGAIN_AFTER_S = 600.0
# The first hunt finds nothing that is retained more rarely than in every step or so.
STEPS_AGAIN = 50


class HuntResult(NamedTuple):
    """Result of a hunt that ended at `step`: whether the CPU's heap grew by more than tensors explain, and
    the size of the tensor that steps replace by larger ones, 0 without one. `refusal` is the reason why
    nothing could be tracked, in a sentence. `has_site` is whether a line or a kind of memory was found,
    `retained_bytes_per_step` the part that every step retains."""

    step: int
    is_beside_tensors: bool
    copied_bytes: int = 0
    refusal: str | None = None
    has_site: bool = False
    retained_bytes_per_step: float = 0.0

    def answers(self, leak: LeakRow) -> bool:
        """Return whether another hunt for `leak` would find no more."""
        return self.refusal is not None or self.has_site_of(leak)

    def has_site_of(self, leak: LeakRow) -> bool:
        """Return whether a line or a kind of memory was found during the growth in `leak`."""
        return self.has_site and self.step >= leak.since_step


class LeakHunt:
    """Requests a snapshot of `STEPS` steps at the first leak. If it found nothing, or was for an earlier
    growth, requests one of `STEPS_AGAIN` steps at the earliest `AGAIN_AFTER_S` later. Before the first leak
    requests one where growth may come from growing inputs, to find what each step retains. Used on the thread
    of the leak detector."""

    def __init__(
        self, inbox: Inbox, is_enabled: Callable[[], bool], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`is_enabled` returns the setting `hunt_leaks` in effect."""
        self._inbox = inbox
        self._is_enabled = is_enabled
        self._clock_s = clock_s
        self._hunted_s: list[float] = []
        self._has_doubted = False

    def on_leak(self, leak: LeakRow, result: HuntResult | None) -> None:
        """Request a snapshot if one is due. Called at each judgment with the verdict "leak", or "watch" only
        because inputs may grow; `result` is that of the newest hunt."""
        now_s, is_doubtful = self._clock_s(), leak.verdict != LeakVerdict.LEAK
        if is_doubtful and (self._has_doubted or self._hunted_s):
            return
        if self._has_doubted and (result is None or (not self._hunted_s and result.has_site_of(leak))):
            return
        if self._hunted_s:
            is_over = len(self._hunted_s) > 1 or now_s - self._hunted_s[0] < AGAIN_AFTER_S
            if is_over or result is None or result.answers(leak):
                return
        if self._is_enabled():
            steps = STEPS_AGAIN if self._hunted_s else STEPS
            options = {"steps": steps, "bytes_per_step": leak.bytes_per_step, "is_doubtful": is_doubtful}
            if is_doubtful:
                self._has_doubted = True
            else:
                self._hunted_s.append(now_s)
            number, payload = f"hunt-{self._has_doubted + len(self._hunted_s)}", json.dumps(options)
            self._inbox.put(CommandRow(number, time.time_ns(), CommandKind.SNAPSHOT, payload, SOURCE))
