"""Adds to an out-of-memory report what was predicted of other settings. Nothing is computed for it: what the
form for a new run, the Memory page or `stepscope predict` asked before is at hand. Free of torch."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomFacts, OomReport, PredictedChange
from harness.errors import SettingError
from harness.predict.advising import single_changes
from harness.predict.answer import Prediction, Target
from harness.predict.cache import RowCache, prediction_cache
from harness.predict.question import Question
from harness.records.run import DeviceFacts, SettingsRow
from harness.settings import Settings
from harness.settings.spec import change, read_settings


def retold(
    report: OomReport, history: Sequence[SettingsRow], device: DeviceFacts | None, home: Path
) -> OomReport:
    """`report` with the predictions that the home keeps for the settings under which it failed."""
    settings = _failed_under(report.facts, history)
    if settings is None or device is None:
        return report
    predicted = _predicted(settings, Target.of(device), prediction_cache(home))
    return explain(report.facts, predicted, report.outcome) if predicted else report


def _failed_under(facts: OomFacts, history: Sequence[SettingsRow]) -> Settings | None:
    """The newest settings up to the failed step that are those of the report: a recovery may already have
    put others into effect for the same step."""
    for row in reversed([row for row in history if row.step <= facts.step]):
        settings = read_settings(row.settings)
        if settings is None:
            continue
        stated = (facts.batch_size, facts.grad_accumulation, facts.amp, facts.checkpointing)
        tried = (settings.batch_size, settings.grad_accumulation, settings.amp.value)
        if (*tried, settings.activation_checkpointing) == stated:
            return settings
    return None


def _predicted(settings: Settings, target: Target, cache: RowCache[Prediction]) -> list[PredictedChange]:
    found = []
    try:
        whole = cache.get(Question.of(settings, target).key)
        for label, changes in single_changes(settings, target, None) if whole is not None else ():
            other = cache.get(Question.of(change(settings, changes), target).key)
            if whole is not None and other is not None and other.needed_bytes < whole.needed_bytes:
                saved_bytes = whole.needed_bytes - other.needed_bytes
                found.append(PredictedChange(label, other.needed_bytes, saved_bytes))
    except SettingError:
        return []
    return found
