"""What may be proposed: nothing that the device or the model cannot do, that is on already, that the run has
rejected, or that was tried in this run without a gain."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.advice.known import Known
from harness.analysis.advice.room import has_room
from harness.analysis.advice.suggestion import Option
from harness.config import SPECS, change, check_device
from harness.errors import SettingError
from harness.selection import check_fit


def choose(known: Known, options: Sequence[Option]) -> Option | None:
    """The first option that may be proposed, without what is on already."""
    now = known.settings.model_dump(mode="json")
    for option in options:
        new = {name: value for name, value in option.change.items() if now[name] != value}
        if new and is_possible(known, new) and not was_tried(known, new):
            return option._replace(change=new)
    return None


def is_possible(known: Known, values: Mapping[str, Any]) -> bool:
    """Whether the run could be told so while it goes on, and a larger batch is not expected to need more
    memory than there is."""
    try:
        after = change(known.settings, values)
        check_device(after, known.device, values)
        check_fit(after)
    except SettingError:
        return False
    if after.batch_size > known.settings.batch_size and has_room(known, after.batch_size) is False:
        return False
    return all(SPECS[name].is_live for name in values)


def was_tried(known: Known, values: Mapping[str, Any]) -> bool:
    """Whether this run has rejected it, or tried the setting that matters, the first, without a gain: at this
    value, or on the way to the one in effect, from which it would go on in the same direction."""
    if any(values.items() <= refused.items() for refused in known.refused):
        return True
    name = next(iter(values))
    now, wanted = known.settings.model_dump(mode="json")[name], values[name]
    failed = [tried for tried in known.tried if name in tried.changed and tried.has_failed]
    return any(
        tried.changed[name] == wanted
        or (tried.changed[name] == now and _is_further(tried.before.get(name), now, wanted))
        for tried in failed
    )


def _is_further(before: Any, now: Any, wanted: Any) -> bool:
    """Whether three numbers go one way."""
    if any(isinstance(value, str | bool) or value is None for value in (before, now, wanted)):
        return False
    return bool((now - before) * (wanted - now) > 0)


def tries(known: Known, options: Sequence[Option]) -> list[tuple[str, str]]:
    """What was tried of the options, as details."""
    names = {next(iter(option.change)) for option in options if option.change}
    return [
        (
            "tried from step " + f"{tried.step:,}",
            ", ".join(f"{name}={value}" for name, value in tried.changed.items())
            + (": taken back by the run" if tried.is_undone else ": no gain was seen"),
        )
        for tried in known.tried
        if tried.has_failed and names & set(tried.changed)
    ]
