"""The options that `stepscope dashboard` passes to the server process that it starts.

They are passed in the environment; the token stays in its file.
"""

from collections.abc import Mapping
from typing import NamedTuple

_SHARE = "STEPSCOPE_SHARE"
_READ_ONLY = "STEPSCOPE_READ_ONLY"
_BROWSER = "STEPSCOPE_BROWSER"
ALERTS_VARIABLE = "STEPSCOPE_ALERTS"


class Serving(NamedTuple):
    """The options of a server. The defaults are those of `streamlit run dashboard/app.py`."""

    # The address shared on purpose; None for loopback only.
    share: str | None = None
    # True if the pages cannot start, change, stop or delete runs.
    is_read_only: bool = False
    # The address to open in the browser once the server is up.
    browser_url: str | None = None
    # The destinations of alerts, see `harness.alerts.AlertOptions.to_json`.
    alerts: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Serving":
        """Parse the variables of `to_environ`. Any value except an empty one and 0 means read-only."""
        return cls(
            environ.get(_SHARE) or None,
            environ.get(_READ_ONLY, "") not in ("", "0"),
            environ.get(_BROWSER) or None,
            environ.get(ALERTS_VARIABLE) or None,
        )

    def to_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return `environ` with the variables of these options. Only those that differ from the default are
        set; a read-only variable already in `environ` is kept."""
        own = (_SHARE, _BROWSER, ALERTS_VARIABLE)
        variables = {name: value for name, value in environ.items() if name not in own}
        if self.share is not None:
            variables[_SHARE] = self.share
        if self.is_read_only:
            variables[_READ_ONLY] = "1"
        if self.browser_url is not None:
            variables[_BROWSER] = self.browser_url
        if self.alerts is not None:
            variables[ALERTS_VARIABLE] = self.alerts
        return variables
