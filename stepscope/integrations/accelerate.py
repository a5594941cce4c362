"""The logs of Accelerate: `Accelerator(log_with=StepscopeTracker())`, after `stepscope.watch`."""

from typing import Any

from accelerate.tracking import GeneralTracker

from stepscope.integrations.metrics import Metrics
from stepscope.summary import SummaryWriter


class StepscopeTracker(GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Writes the numbers of `accelerator.log` into the run of this process; texts are left out. A `step` is
    recorded as given, see `stepscope.SummaryWriter`. What cannot be recorded is left out with a warning."""

    name = "stepscope"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self) -> None:
        super().__init__()
        self._writer: SummaryWriter | None = None
        self._metrics: Metrics | None = None

    @property
    def tracker(self) -> SummaryWriter | None:
        """The writer of scalars; None before the first log."""
        return self._writer

    def start(self) -> None:
        """Begin a further training: its logs go into the run that this process then has."""
        self._writer = self._metrics = None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: the run has the script's arguments."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record the numbers among `values`. Raises RuntimeError when this process has no run."""
        del kwargs
        if self._writer is None:
            self._writer, self._metrics = SummaryWriter(), Metrics()
        if self._metrics is not None:
            self._metrics.log(values, step)

    def finish(self) -> None:
        """End writing; the run goes on."""
        self._metrics = None
