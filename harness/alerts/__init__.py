"""Alerts: what happened in a run, sent once to commands and webhooks (docs/export-and-alerts.md).

A process of its own watches all runs of a home through their files; no training process waits for it.
"""

from harness.alerts.alert import AlertKind, RunAlert
from harness.alerts.delivery import DeliveryStatus
from harness.alerts.options import AlertOptions
from harness.alerts.service import AlertService
from harness.alerts.watching import AlertWatch

__all__ = ["AlertKind", "AlertOptions", "AlertService", "AlertWatch", "DeliveryStatus", "RunAlert"]
