"""The watch over all runs of a home: new alerts at each poll, each cause once."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.alerts.alert import RunAlert, alert_of_event, alert_of_outcome, alert_of_silence
from harness.alerts.reported import ReportedAlerts, Tracked
from harness.analysis.state import HEARTBEAT_LIMIT_S
from harness.errors import LogError
from harness.records.run import EventKind
from harness.store.folder import RunFolder
from harness.store.liveness import heartbeat_age_s
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.activity import active_folders
from harness.supervisor.summary import RunSummary

# Files that changed shortly before the last poll are read again: clocks of file systems are coarse.
_MARGIN_S = 60.0
# Between two writes of the history without news.
_SAVE_S = 60.0


class AlertWatch:
    """Polls the runs of a supervisor's home, for one thread.

    Only what happens from its first poll on is an alert. With a `history` file, that first poll was in an
    earlier process: what happened in between is reported at the first poll of this one.

    Attributes:
        problem: why the newest poll could not write the history; None: it could, or had no need to.
    """

    def __init__(
        self, supervisor: Supervisor, history: Path | None = None, unix_s: Callable[[], float] = time.time
    ) -> None:
        self._supervisor = supervisor
        self._unix_s = unix_s
        self._history = ReportedAlerts(history)
        self._saved_unix_s = 0.0
        self.problem: str | None = None

    def poll(self) -> list[RunAlert]:
        """Return the new alerts, also where the history cannot be written: then `problem` says why, and the
        next poll writes it. Raises HomeError."""
        now_unix_s, history = self._unix_s(), self._history
        since_unix_s = min(history.polled_unix_s, now_unix_s) - _MARGIN_S
        listed = self._supervisor.home.runs()
        tracked = [folder for folder in listed if folder.run_id in history.runs]
        others = [folder for folder in listed if folder.run_id not in history.runs]
        folders = tracked + active_folders(others, now_unix_s if history.is_new else since_unix_s)
        before = (dict(history.runs), len(history.ended))
        alerts = [alert for folder in folders for alert in self._check(folder)]
        run_ids = {folder.run_id for folder in folders}
        history.runs = {run: tracked for run, tracked in history.runs.items() if run in run_ids}
        history.is_new = False
        history.polled_unix_s = now_unix_s
        is_due = self.problem is not None or now_unix_s - self._saved_unix_s >= _SAVE_S
        if is_due or before != (history.runs, len(history.ended)):
            try:
                self.save()
            except OSError as error:
                self.problem = str(error)
        return alerts

    def save(self) -> None:
        """Write the history. Raises OSError."""
        self._history.save()
        self._saved_unix_s, self.problem = self._unix_s(), None

    def _check(self, folder: RunFolder) -> list[RunAlert]:
        run_id, history = folder.run_id, self._history
        if run_id in history.ended:
            return []
        summary = self._supervisor.summary(folder)
        tracked = history.runs.get(run_id)
        if tracked is None:
            tracked = self._begin(folder, summary)
            if tracked is None:
                return []
        alerts, tracked = self._news(folder, summary, tracked)
        if summary.status.state.is_over:
            history.end(run_id)
        else:
            history.runs[run_id] = tracked
        return alerts

    def _begin(self, folder: RunFolder, summary: RunSummary) -> Tracked | None:
        """Return the state of a run that is not tracked yet: from its beginning if it is new, from now on if
        it is live; None for any other, and for a simulated or an imported one."""
        if summary.is_simulated or summary.imported is not None:
            return None
        is_new_run = summary.created_unix_ns / 1e9 > self._history.polled_unix_s
        if is_new_run and not self._history.is_new:
            return Tracked()
        return None if summary.status.state.is_over else Tracked(_newest_event(folder))

    def _news(
        self, folder: RunFolder, summary: RunSummary, tracked: Tracked
    ) -> tuple[list[RunAlert], Tracked]:
        """Return the alerts of a run since the last poll, and its new state."""
        run_id, run = folder.run_id, summary.name
        event_id, has_oom_event = tracked.event_id, False
        candidates: list[RunAlert | None] = []
        try:
            with LogReader(folder.log) as reader:
                for number, event in reader.events(tracked.event_id):
                    candidates.append(alert_of_event(run_id, run, number, event))
                    event_id = max(event_id, number)
                has_oom_event = reader.event_counts().get(EventKind.OOM, 0) > 0
        except LogError:  # Its status says what became of it.
            pass
        if summary.status.state.is_over:
            candidates.append(alert_of_outcome(run_id, run, summary.status, has_oom_event=has_oom_event))
        elif (heartbeat_age_s(folder.alive, self._unix_s()) or 0.0) > HEARTBEAT_LIMIT_S:
            candidates.append(alert_of_silence(run_id, run, summary.status, summary.last_step))
        causes, alerts = dict.fromkeys(tracked.causes), []
        for alert in candidates:
            if alert is not None and alert.key not in causes:
                causes[alert.key] = None
                alerts.append(alert)
        return alerts, Tracked(event_id, tuple(causes))


def _newest_event(folder: RunFolder) -> int:
    try:
        with LogReader(folder.log) as reader:
            return max((number for number, _ in reader.events()), default=0)
    except LogError:
        return 0
