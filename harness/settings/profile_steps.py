"""Parsing of the setting `profile_at`: the steps at which a profile is due. Free of torch."""

import re

from harness.errors import SettingError

# Most profiles in one setting: each writes a trace of megabytes.
MOST_PROFILES = 50
_NUMBER = re.compile(r"[1-9][0-9]{0,11}")


def parse_profile_at(text: str | None) -> tuple[int, ...]:
    """Return the steps in `text` ("100,1000"), sorted; empty for None. Raises SettingError."""
    if not text or not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not _NUMBER.fullmatch(part)), None)
    if wrong is not None:
        raise SettingError(
            "profile_at",
            f"profile_at {text!r} names no step with {wrong!r}; write steps as in 100 or 100,1000.",
        )
    steps = sorted({int(part) for part in parts})
    if len(steps) > MOST_PROFILES:
        raise SettingError(
            "profile_at", f"profile_at names {len(steps)} steps; at most {MOST_PROFILES} are allowed."
        )
    return tuple(steps)


def check_steps_ahead(text: str | None, next_step: int) -> None:
    """Raise SettingError if all steps in `text` are before `next_step`."""
    steps = parse_profile_at(text)
    if steps and steps[-1] < next_step:
        raise SettingError(
            "profile_at",
            f"profile_at {text!r} has only past steps: the next is {next_step:,}; name a later one.",
        )
