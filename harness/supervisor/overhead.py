"""The overhead of Stepscope in a run, from its log, as one or two sentences."""

from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.timing.overhead import ASYNCHRONOUS, MAX_BLOCK_NS, SYNCHRONOUS
from harness.records.overhead import OverheadRow
from harness.records.run import DeviceFacts, DeviceKind, SettingsRow
from harness.store.reader import LogReader

# Unobserved steps of a script differ from the observed ones in clocks, losses and rows alone.
_HOOKS = (
    " Not included: the calls around torch's functions, which unobserved steps make too; "
    "docs/bench.md has their share."
)


class RunOverhead(NamedTuple):
    """The overhead of a run."""

    # The overhead per step; None while unknown.
    row: OverheadRow | None
    # True when it was measured under the current settings.
    is_current: bool
    # The CPU time of sampling devices and host, of one core.
    sampling_pct: float | None
    # The reason that there is no `row`, in a sentence; else empty.
    why_unknown: str
    # Whether the run trains a person's own script.
    is_script: bool = False


def read_overhead(reader: LogReader, device: DeviceFacts | None) -> RunOverhead:
    """Read the overhead of a run. Raises LogError."""
    row, host, history = reader.overhead.latest(), reader.telemetry.latest_host(), reader.settings_history()
    is_current = row is None or not history or row.settings_version == history[-1].version
    sampling_pct = None if host is None else host.sampling_pct
    why_unknown = "" if row is not None else _why(history, device)
    # Some settings are unavailable in every script, and in no run of the catalog.
    is_script = bool(reader.script.unavailable_settings())
    return RunOverhead(row, is_current, sampling_pct, why_unknown, is_script)


def _why(history: Sequence[SettingsRow], device: DeviceFacts | None) -> str:
    settings = history[-1].values if history else {}
    if settings.get("measure_overhead") is False:
        return "The overhead per step is not measured: measure_overhead is off."
    plan = SYNCHRONOUS if device is not None and device.kind is DeviceKind.CPU else ASYNCHRONOUS
    return (
        f"The overhead per step is unknown: it takes about {words.count(plan.steps_needed)} steps under the "
        f"same settings, each no longer than {words.duration(MAX_BLOCK_NS / plan.steps)}."
    )


def overhead_text(overhead: RunOverhead) -> str:
    """Describe the overhead of Stepscope."""
    text = overhead.why_unknown if overhead.row is None else overhead.row.message
    if not overhead.is_current:
        text += " Measured before settings were last changed."
    if overhead.is_script and overhead.row is not None:
        text += _HOOKS
    if overhead.sampling_pct is not None:
        text += f" Sampling devices and host takes {overhead.sampling_pct:.2f} % of one core."
    return text
