"""Choice among a rule's options: only changes the device and the model support, that are not in effect yet,
and that this run has neither rejected nor made without a gain."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.advice.code import code_for
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.free_memory import fits_in_memory
from harness.analysis.advice.suggestion import Option
from harness.errors import SettingError
from harness.settings.resolve import check_fit
from harness.settings.spec import SPECS, change, check_device

# A run without a model of the catalog trains a script.
_MODEL = "model"


def choose(run: RunEvidence, options: Sequence[Option]) -> Option | None:
    """The first option that can be proposed, without values already in effect."""
    now = run.settings.model_dump(mode="json")
    for option in options:
        new = {
            name: value
            for name, value in option.change.items()
            if name not in run.names or now[name] != value
        }
        if new and is_possible(run, new) and not has_failed_before(run, new):
            return option._replace(change=new)
    return None


def is_possible(run: RunEvidence, values: Mapping[str, Any]) -> bool:
    """Return whether the running process, or a line in its script, can apply `values`, and a larger batch is
    not expected to run out of memory."""
    try:
        after = change(run.settings, values)
        check_device(after, run.device, values)
        if _MODEL in run.names:
            check_fit(after)
    except SettingError:
        return False
    if after.batch_size > run.settings.batch_size and fits_in_memory(run, after.batch_size) is False:
        return False
    own, others = split(run, values)
    return all(SPECS[name].is_live for name in own) and (not others or bool(own) or bool(code_for(others)))


def split(run: RunEvidence, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Split a change into the part that the run can apply, and the part to write into its script: all of it,
    where the run does not have the first, main setting."""
    if next(iter(values)) not in run.names:
        return {}, values
    own = {name: value for name, value in values.items() if name in run.names}
    return own, {name: value for name, value in values.items() if name not in own}


def has_failed_before(run: RunEvidence, values: Mapping[str, Any]) -> bool:
    """Return whether this run rejected `values`, or changed the first, main setting without a gain: to this
    value, or to the value in effect while moving in the same direction."""
    if any(values.items() <= rejected.items() for rejected in run.rejected):
        return True
    name = next(iter(values))
    current, proposed = run.settings.model_dump(mode="json")[name], values[name]
    failed = [past for past in run.past_changes if name in past.changed and past.has_failed]
    return any(
        past.changed[name] == proposed
        or (past.changed[name] == current and _is_monotonic(past.before.get(name), current, proposed))
        for past in failed
    )


def _is_monotonic(before: Any, current: Any, proposed: Any) -> bool:
    """Return whether three numbers increase, or decrease, in this order."""
    if any(isinstance(value, str | bool) or value is None for value in (before, current, proposed)):
        return False
    return bool((current - before) * (proposed - current) > 0)


def failed_changes(run: RunEvidence, options: Sequence[Option]) -> list[tuple[str, str]]:
    """Past changes of the options' main settings that brought no gain, as details."""
    names = {next(iter(option.change)) for option in options if option.change}
    return [
        (
            f"changed at step {past.step:,}",
            ", ".join(f"{name}={value}" for name, value in past.changed.items())
            + (": reverted by the run" if past.is_undone else ": no gain observed"),
        )
        for past in run.past_changes
        if past.has_failed and names & set(past.changed)
    ]
