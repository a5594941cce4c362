"""Scalars for those who come from TensorBoard."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

from harness.attach.active import active, active_remarks
from harness.attach.launch import DISABLED_VARIABLE

if TYPE_CHECKING:
    from harness.attach.remarks import Remarks


def _unrecorded(name: str) -> Callable[..., None]:
    """Return the method `name` for something that a run does not have."""

    def method(self: "SummaryWriter", *_arguments: object, **_options: object) -> None:
        self._warn_of(name)

    method.__name__, method.__qualname__ = name, f"SummaryWriter.{name}"
    method.__doc__ = "Do nothing but warn once, in the run, that this is not recorded."
    return method


def _number_of(value: object) -> object:
    """Return the number that a text such as f"{loss:.3f}" or a Decimal is, as TensorBoard does; all others as
    they are."""
    if isinstance(value, str | bytes | Decimal):
        with suppress(ValueError):
            return float(value)
    return value


class SummaryWriter:
    """Writes scalars into the run of this process, with the calls of `torch.utils.tensorboard.SummaryWriter`.

    A `global_step` is recorded as given, rounded toward zero as by TensorBoard: charts show the value at the
    step of that number. Without one it is the step under way, as in `Run.log`. Numbers under names that a run
    cannot have, or at negative steps, are left out with one warning of the run, and so is everything but
    scalars: none of them ends a script that runs with TensorBoard.

    Attributes:
        log_dir: a folder for files of the script: the given one, otherwise that of the run.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
    ) -> None:
        """`log_dir` is created, as TensorBoard does, and the run writes nothing to it; the other arguments
        are not used. Raises RuntimeError when this process has no run."""
        del comment, purge_step, max_queue, flush_secs, filename_suffix
        attachment = active()
        if attachment is None and os.environ.get(DISABLED_VARIABLE) != "1":
            raise RuntimeError(
                "There is no run to write to; call stepscope.watch(model, optimizer) first, or start the "
                "script by `stepscope run`."
            )
        self._remarks: Remarks | None = active_remarks()
        run_folder = os.curdir if attachment is None else str(attachment.folder_path)
        self.log_dir: str = os.fspath(log_dir) if log_dir else run_folder
        if log_dir and "://" not in self.log_dir:  # That of the run exists, unless somebody has deleted it.
            # Where it cannot be created, the script's own files say so.
            with suppress(OSError):
                os.makedirs(self.log_dir, exist_ok=True)

    def get_logdir(self) -> str:
        """Return `log_dir`."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Record one number, also from its text; `walltime` and the options after it are not used. Raises
        ValueError for anything else, and for a step that is no number or larger than 2**63 - 1."""
        del walltime, new_style, double_precision
        self._log({tag: _number_of(scalar_value)}, global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Any,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record several numbers, each under the name `main_tag/tag`; as `add_scalar`."""
        del walltime
        if not isinstance(tag_scalar_dict, Mapping):
            kind = type(tag_scalar_dict).__name__
            raise ValueError(f"tag_scalar_dict cannot be {kind}; give a dict of tags and numbers.")
        numbers = {f"{main_tag}/{tag}": _number_of(value) for tag, value in tag_scalar_dict.items()}
        self._log(numbers, global_step)

    add_histogram = _unrecorded("add_histogram")
    add_histogram_raw = _unrecorded("add_histogram_raw")
    add_image = _unrecorded("add_image")
    add_images = _unrecorded("add_images")
    add_image_with_boxes = _unrecorded("add_image_with_boxes")
    add_figure = _unrecorded("add_figure")
    add_video = _unrecorded("add_video")
    add_audio = _unrecorded("add_audio")
    add_text = _unrecorded("add_text")
    add_tensor = _unrecorded("add_tensor")
    add_graph = _unrecorded("add_graph")
    add_onnx_graph = _unrecorded("add_onnx_graph")
    add_embedding = _unrecorded("add_embedding")
    add_mesh = _unrecorded("add_mesh")
    add_pr_curve = _unrecorded("add_pr_curve")
    add_pr_curve_raw = _unrecorded("add_pr_curve_raw")
    add_custom_scalars = _unrecorded("add_custom_scalars")
    add_custom_scalars_marginchart = _unrecorded("add_custom_scalars_marginchart")
    add_custom_scalars_multilinechart = _unrecorded("add_custom_scalars_multilinechart")
    add_hparams = _unrecorded("add_hparams")

    def flush(self) -> None:
        """Do nothing: values are in the log within a second."""

    def close(self) -> None:
        """Do nothing: the run goes on, and, as for TensorBoard, numbers can be added after it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log(self, values: Mapping[str, object], step: Any) -> None:
        # Not at import time: it imports torch.
        from harness.attach.scalars import NAME_FAULTS, ScalarFault, check_step

        with suppress(TypeError, ValueError, OverflowError, RuntimeError):  # The last one: torch's.
            step = None if step is None else int(step)
        is_negative = isinstance(step, int) and step < 0
        number = step if is_negative else check_step("global_step", step)
        if self._remarks is not None:
            self._remarks.log_possible(values, number, NAME_FAULTS | {ScalarFault.STEP})

    def _warn_of(self, method: str) -> None:
        if self._remarks is not None:
            self._remarks.warn_once(
                method, "not recorded", f"SummaryWriter.{method} records nothing: a run has scalars only."
            )
