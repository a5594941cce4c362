"""What a run's log says about Stepscope's own cost, as one or two sentences."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.timing.own_cost import ASYNCHRONOUS, LONGEST_NS, SYNCHRONOUS
from harness.own_cost_records import OwnCostRow
from harness.records import DeviceFacts, DeviceKind, SettingsRow
from harness.store.reader import LogReader


class SeenCost(NamedTuple):
    """What is known of it."""

    # What observing adds to a step; None while it is not known.
    row: OwnCostRow | None
    # Whether it was measured under the settings in effect.
    is_current: bool
    # What sampling devices and host takes, of one core.
    sampling_pct: float | None
    # Why there is no `row`, in a sentence; empty where there is one.
    why_unknown: str


def read_own_cost(reader: LogReader, device: DeviceFacts | None) -> SeenCost:
    """The own cost of the run that `reader` reads. Raises LogError."""
    row, host, history = reader.own_cost.latest(), reader.telemetry.latest_host(), reader.settings_history()
    is_current = row is None or not history or row.settings_version == history[-1].version
    sampling_pct = None if host is None else host.sampling_pct
    return SeenCost(row, is_current, sampling_pct, "" if row is not None else _why(history, device))


def _why(history: Sequence[SettingsRow], device: DeviceFacts | None) -> str:
    settings = json.loads(history[-1].settings) if history else {}
    if settings.get("measure_own_cost") is False:
        return "What it adds to a step is not measured: measure_own_cost is off."
    plan = SYNCHRONOUS if device is not None and device.kind is DeviceKind.CPU else ASYNCHRONOUS
    return (
        f"What it adds to a step is not known: that takes some {words.count(plan.known_after)} steps under "
        f"the same settings, each no longer than {words.duration(LONGEST_NS / plan.steps)}."
    )


def cost_words(seen: SeenCost) -> str:
    """What Stepscope costs the run, for people."""
    told = seen.why_unknown if seen.row is None else seen.row.message
    if not seen.is_current:
        told += " Measured before settings were last changed."
    if seen.sampling_pct is not None:
        told += f" Sampling devices and host takes {seen.sampling_pct:.2f} % of one core."
    return told
