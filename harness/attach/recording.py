"""Records properties of a script in the log: the size of its model, its loader's values whenever they
differ, its autocast regions, and the settings that cannot change."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from harness.attach.switches import ScriptSwitches
from harness.attach.training import ScriptTraining
from harness.records.run import EventKind, EventRow, ModelSizeRow, SettingsRow, Severity
from harness.records.script import UnavailableSettingRow
from harness.settings import labels
from harness.settings.spec import change_title
from harness.tracking.owners import parameter_names
from harness.watch.context import RunContext
from harness.watch.live_settings import LiveSettings
from harness.watch.recent_changes import AppliedChange


def record_loader(
    context: RunContext, switches: ScriptSwitches, step: int, earlier: Mapping[str, Any]
) -> bool:
    """Record the loader's values in effect from `step` on, and an event where they differ from its `earlier`
    ones; return whether they do. Values that were unknown before are no change."""
    values, failure = switches.loaders.values(), switches.loaders.take_failure()
    if failure is None and values == earlier:
        return False
    changed = {name: value for name, value in values.items() if earlier.get(name, value) != value}
    version, now_ns = context.marks.begin_version(), context.clock_ns()
    settings, new = json.dumps(switches.take_over(values)), json.dumps(changed)
    context.journal.put(SettingsRow(version, step, now_ns, settings, new, None))
    if failure is None and not changed:
        return False
    message = failure or f"The script opened another loader. {labels.sentence_on_values(earlier, changed)}"
    severity = Severity.INFO if failure is None else Severity.WARNING
    detail = json.dumps(
        {"from": {name: earlier[name] for name in changed}, "to": changed, "version": version}
    )
    if failure is not None:
        text = f"{labels.sentence_on_values(earlier, changed)[:-1]} again, as the loader failed"
        context.changes.add(
            AppliedChange(step, {name: earlier[name] for name in changed}, changed, text, None)
        )
    title = change_title(changed) or "loader"
    context.journal.put(EventRow(now_ns, step, EventKind.SETTING, severity, title, message, detail, None))
    return True


class ScriptRecords:
    """Records the script's values of settings, and the settings that it cannot change."""

    def __init__(
        self,
        context: RunContext,
        switches: ScriptSwitches,
        live: LiveSettings,
        unsettle: Callable[[int], None],
    ) -> None:
        """Records the settings that cannot change at the moment. `live` changes those of `switches`;
        `unsettle` is called with a step from which on the loader has other values."""
        self._context = context
        self._switches = switches
        self._live = live
        self._unsettle = unsettle
        self._recorded: dict[str, str] = {}
        self._has_unread_loss = False
        self.update_unavailable()

    def step_ended(self, step: int, earlier: Mapping[str, Any] | None) -> None:
        """Record new values of the script's loader and of autocast after `step`. `earlier` are the values of
        the loader before; None: there are no new ones."""
        autocast = self._switches.autocast
        if earlier is None and not autocast.has_news:
            return
        if earlier is not None and record_loader(self._context, self._switches, step + 1, earlier):
            self._unsettle(step + 1)
        if autocast.has_news and (values := self._switches.found_values()):
            self._live.impose(values, step + 1, autocast.why)
        self.update_unavailable()

    def update_unavailable(self) -> None:
        """Record which settings have become unavailable, or available, and why."""
        reasons = self._switches.unavailable()
        for name in self._recorded.keys() | reasons.keys():
            reason = reasons.get(name, "")
            if self._recorded.get(name) != reason:
                self._recorded[name] = reason
                self._context.journal.put(UnavailableSettingRow(name, reason))

    def reads_loss(self, device: torch.device) -> bool:
        """Return False: this training on the CPU reads no losses on `device`. Records the reason once."""
        if not self._has_unread_loss:
            self._has_unread_loss = True
            self._context.warn(
                "loss not read",
                f"The loss is on {device}, while all weights are on the CPU, so that this run is one of the "
                f"CPU: the loss is n/a, as reading it would make each step wait for {device}.",
            )
        return False

    def record_new_rates(self, step: int) -> None:
        """Record the values in effect from `step` on if the optimizers found so far have a learning rate, and
        those before had none."""
        context, switches = self._context, self._switches
        if switches.offer_rates():
            version, settings = context.marks.begin_version(), json.dumps(switches.take_over({}))
            context.journal.put(SettingsRow(version, step, context.clock_ns(), settings, "{}", None))
            self.update_unavailable()


def record_size(context: RunContext, training: ScriptTraining) -> None:
    """Record the number of trained values, unless that of a lazy module is still unknown."""
    weights = parameter_names(training.model, training.optimizer)
    if not any(map(is_lazy, weights)):
        size = sum(weight.numel() for weight in weights if weight.requires_grad)
        context.journal.put(ModelSizeRow(size))
