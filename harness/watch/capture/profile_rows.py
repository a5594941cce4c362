"""Rows of a profile from the profiler's result, and the event on the chart."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from harness import words
from harness.analysis.profiles import sentence
from harness.errors import StepscopeError
from harness.profiling import cupti
from harness.profiling.frames import frame_name
from harness.profiling.nesting import ProfileSums, sum_events
from harness.profiling.options import ProfileOptions
from harness.profiling.rows import rows
from harness.profiling.window import ProfilerResult, records_kernels
from harness.records.profile import ProfileReason, ProfileRow
from harness.records.run import DeviceKind, EventKind, EventRow, Severity
from harness.store.inserts import ProfilingRow
from harness.tracking.frames import shorten

_COMPILED = "Modules: the model is compiled, so there are no calls of modules to record."
_EVENTS_OF_CPU = (
    "Work on the device: the profiler does not support {}; times are those of the CPU, which issues it."
)


class ProfileCapture(NamedTuple):
    """The result of a profile's steps, and the conditions of the recording."""

    number: int
    recorded: ProfilerResult
    options: ProfileOptions
    first_step: int
    settings_version: int
    reason: ProfileReason
    device: DeviceKind
    # A step's duration before the profiler was on.
    ordinary_ns: float
    is_compiled: bool


def profile(
    capture: ProfileCapture,
    classes: Mapping[str, str],
    clock_ns: Callable[[], int],
    ended_ns: int,
    command_id: str | None,
) -> tuple[list[ProfilingRow], EventRow]:
    """Return the rows, in the order of writing, and the event. `classes` maps modules to class names;
    `ended_ns` is the end of the last step.

    Raises StepscopeError if the profiler recorded nothing.
    """
    is_on_device = records_kernels(capture.device)
    sums = sum_events(capture.recorded.events, is_on_device, partial(frame_name, shorten=shorten))
    _check(sums, capture.device)
    options = capture.options
    parts = rows(capture.number, sums, classes, is_on_device, options.with_memory, options.with_stacks)
    row = ProfileRow(
        profile_id=capture.number,
        t_ns=clock_ns(),
        first_step=capture.first_step,
        steps=options.steps,
        settings_version=capture.settings_version,
        reason=capture.reason,
        on_device=int(is_on_device),
        wall_ns=sums.wall_ns,
        busy_ns=sums.busy_ns,
        took_ns=None,
        slowdown=_slowdown(sums, capture),
        with_memory=int(options.with_memory),
        with_stacks=int(options.with_stacks),
        file=None if capture.recorded.file_bytes is None else f"profile-{capture.number}.json.gz",
        file_bytes=capture.recorded.file_bytes,
        message="",
        left_out=" ".join(_left_out(capture, is_on_device, parts.left_out)),
    )
    row = row._replace(message=sentence(parts.operators, row), took_ns=clock_ns() - ended_ns)
    return [*parts.operators, *parts.modules, *parts.stacks, row], _event(row, Severity.INFO, command_id)


def failure(
    number: int,
    step: int,
    settings_version: int,
    reason: ProfileReason,
    t_ns: int,
    why: str,
    command_id: str | None,
) -> tuple[ProfileRow, EventRow]:
    """Return the row of a profile that failed before `step`, and the event."""
    message = f"The profile is unavailable, because {why}"
    nothing = (None, None, None, None)
    row = ProfileRow(
        number, t_ns, step, 0, settings_version, reason, 0, *nothing, 0, 0, None, None, message, ""
    )
    return row, _event(row, Severity.WARNING, command_id)


def _check(sums: ProfileSums, device: DeviceKind) -> None:
    if device is DeviceKind.CUDA and not sums.kernels:
        raise StepscopeError(cupti.missing_kernels_reason())
    if not (sums.kernels if records_kernels(device) else sums.operators) or not sums.wall_ns:
        raise StepscopeError("the profiler recorded no work; the run's output may say why.")


def _slowdown(sums: ProfileSums, capture: ProfileCapture) -> float | None:
    if sums.wall_ns is None or sums.fastest_ns is None or capture.ordinary_ns <= 0:
        return None
    is_cpu = capture.device is DeviceKind.CPU
    recorded_ns = sums.fastest_ns if is_cpu else sums.wall_ns / capture.options.steps
    return recorded_ns / capture.ordinary_ns


def _left_out(capture: ProfileCapture, is_on_device: bool, cut: list[str]) -> list[str]:
    notes = list(cut)
    if capture.is_compiled:
        notes.append(_COMPILED)
    if not is_on_device and capture.device is not DeviceKind.CPU:
        notes.append(_EVENTS_OF_CPU.format(capture.device.value.upper()))
    if capture.recorded.cut:
        notes.append(capture.recorded.cut)
    return notes


def _event(row: ProfileRow, severity: Severity, command_id: str | None) -> EventRow:
    detail = {"profile_id": row.profile_id, "reason": row.reason, "steps": row.steps, "file": row.file}
    step = row.first_step + row.steps - 1 if row.steps else row.first_step
    trace = "" if row.file_bytes is None else f" Its trace has {words.size(row.file_bytes)}."
    message = f"{row.message}{trace}"
    return EventRow(
        row.t_ns, step, EventKind.PROFILE, severity, "profile", message, json.dumps(detail), command_id
    )
