"""Scalars for those who come from TensorBoard."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from harness.attach.active import active, active_remarks
from harness.attach.launch import DISABLED_VARIABLE

if TYPE_CHECKING:
    from harness.attach.remarks import Remarks


class SummaryWriter:
    """Writes scalars into the run of this process, with the calls of `torch.utils.tensorboard.SummaryWriter`.

    A `global_step` is recorded as given: charts show the value at the step of that number. Without one it is
    the step under way, as in `Run.log`.
    """

    def __init__(self, log_dir: str | None = None) -> None:
        """`log_dir` is accepted and not used. Raises RuntimeError when this process has no run."""
        del log_dir
        self._remarks: Remarks | None = active_remarks()
        if active() is None and os.environ.get(DISABLED_VARIABLE) != "1":
            raise RuntimeError(
                "There is no run to write to; call stepscope.watch(model, optimizer) first, or start the "
                "script by `stepscope run`."
            )

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: int | None = None,
        walltime: float | None = None,
        **_options: Any,
    ) -> None:
        """Record one number. `walltime` and further options of TensorBoard are not used."""
        del walltime
        self._log({tag: scalar_value}, global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, object],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Record several numbers, each under the name `main_tag/tag`."""
        del walltime
        self._log({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)

    def flush(self) -> None:
        """Do nothing: values are in the log within a second."""

    def close(self) -> None:
        """End writing. The run goes on. Idempotent."""
        self._remarks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log(self, values: Mapping[str, object], step: int | None) -> None:
        if step is not None and (isinstance(step, bool) or not hasattr(step, "__index__") or int(step) < 0):
            raise ValueError(f"global_step cannot be {step!r}; give a whole number from 0, or none.")
        if self._remarks is not None:
            self._remarks.log(values, None if step is None else int(step))
