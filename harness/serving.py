"""How the dashboard is served: what `stepscope dashboard` decides and the server it starts has to know.

The two are processes of their own, so it travels in the environment; the token itself stays in its file.
"""

from collections.abc import Mapping
from typing import NamedTuple

_SHARE = "STEPSCOPE_SHARE"
_READ_ONLY = "STEPSCOPE_READ_ONLY"
_BROWSER = "STEPSCOPE_BROWSER"


class Serving(NamedTuple):
    """One way of serving. The default is what `streamlit run dashboard/app.py` gives."""

    share: str | None = None
    """The address that is shared on purpose; None: this machine's loopback alone."""
    is_read_only: bool = False
    """Whether the pages show runs without starting, changing, ending or deleting any."""
    browser_url: str | None = None
    """The address to open in the person's browser once the server is up."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Serving":
        """Read what `to_environ` wrote. Read-only is any value but none and 0."""
        return cls(
            environ.get(_SHARE) or None,
            environ.get(_READ_ONLY, "") not in ("", "0"),
            environ.get(_BROWSER) or None,
        )

    def to_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` with this way of serving in place of what it said about another. A variable is set only
        where it departs from the default, but the read-only one of the environment stays."""
        variables = {name: value for name, value in environ.items() if name not in (_SHARE, _BROWSER)}
        if self.share is not None:
            variables[_SHARE] = self.share
        if self.is_read_only:
            variables[_READ_ONLY] = "1"
        if self.browser_url is not None:
            variables[_BROWSER] = self.browser_url
        return variables
