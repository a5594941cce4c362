"""The rate limit of alerts."""

from collections import deque

from harness.alerts.alert import AlertKind, RunAlert

# Between two alerts of one kind in one run.
REPEAT_S = 600.0
# Alerts in `WINDOW_S`, over all runs.
MOST = 20
WINDOW_S = 600.0


class RateLimit:
    """Passes alerts on until there are too many, and counts the rest."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, AlertKind], float] = {}
        self._passed_s: deque[float] = deque()
        self._left_out = 0

    def passed(self, alert: RunAlert, now_s: float) -> RunAlert | None:
        """Return `alert` with a note on those left out before it; None if it is left out itself."""
        while self._passed_s and now_s - self._passed_s[0] >= WINDOW_S:
            self._passed_s.popleft()
        subject = (alert.run_id, alert.kind)
        last_s = self._last_s.get(subject)
        is_repeated = last_s is not None and now_s - last_s < REPEAT_S
        if is_repeated or len(self._passed_s) >= MOST:
            self._left_out += 1
            return None
        self._last_s = {one: at_s for one, at_s in self._last_s.items() if now_s - at_s < REPEAT_S}
        self._last_s[subject] = now_s
        self._passed_s.append(now_s)
        count, self._left_out = self._left_out, 0
        return alert._replace(text=f"{alert.text} ({count} more left out)") if count else alert
