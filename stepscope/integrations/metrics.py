"""The metrics that another library logs, on their way into the run."""

from collections.abc import Mapping
from typing import Any

from harness.attach.active import active_remarks


class Metrics:
    """Records metrics in the run of this process, as it is when this is created.

    A metric that cannot be recorded never ends the training: it is left out, with one warning of the run per
    kind of reason. Texts are left out without one.
    """

    def __init__(self) -> None:
        self._remarks = active_remarks()

    def log(self, values: Mapping[Any, object], step: object = None) -> None:
        """Record the numbers among `values` at `step`; None: at the step under way."""
        if self._remarks is not None:
            numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
            self._remarks.log_possible(numbers, step)
