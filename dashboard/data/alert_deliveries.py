"""The deliveries of the alerts that this server sends (`stepscope dashboard --on-alert …`)."""

from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st

from harness.alerts import AlertService, DeliveryStatus


class AlertReport(NamedTuple):
    """The state of the server's alerts.

    Attributes:
        problem: why none are sent, or are sent again after a restart; a sentence.
        deliveries: one per destination.
    """

    problem: str | None
    deliveries: Sequence[DeliveryStatus]

    @property
    def is_failing(self) -> bool:
        """Whether an alert does not reach a destination."""
        return self.problem is not None or any(one.failure is not None for one in self.deliveries)


class AlertDeliveries:
    """The service that sends the server's alerts, as the pages see it."""

    def __init__(self) -> None:
        self._service: AlertService | None = None
        self._problem: str | None = None

    def use(self, service: AlertService) -> None:
        """Report the deliveries of `service` from now on."""
        self._service = service

    def refuse(self, problem: str) -> None:
        """Report that none are sent, although there are destinations."""
        self._problem = problem

    def read(self) -> AlertReport | None:
        """Return the state; None where the server has no destination."""
        if self._service is None:
            return None if self._problem is None else AlertReport(self._problem, ())
        return AlertReport(self._service.problem, self._service.deliveries())


@st.cache_resource(show_spinner=False)
def alert_deliveries() -> AlertDeliveries:
    """Return those of this server, for all browser sessions."""
    return AlertDeliveries()
