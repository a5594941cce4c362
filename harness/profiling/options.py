"""The options of a requested profile. Free of torch."""

import json
from typing import NamedTuple

from harness.errors import StepscopeError

DEFAULT_STEPS = 3
MOST_STEPS = 20


class ProfileOptions(NamedTuple):
    """The options of a profile."""

    steps: int
    with_memory: bool = False
    with_stacks: bool = False


def parse_options(payload: str) -> ProfileOptions:
    """Parse the payload of a command; raises StepscopeError."""
    try:
        options = json.loads(payload or "{}")
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"The request is not JSON ({error}); the request was rejected.") from None
    if not isinstance(options, dict):
        raise StepscopeError("The request is not a JSON object; the request was rejected.")
    steps = options.get("steps", DEFAULT_STEPS)
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise StepscopeError(f"A profile takes 1 to {MOST_STEPS} steps, not {str(steps)[:40]}.")
    flags = [options.get(name, False) for name in ("memory", "stacks")]
    if not all(type(flag) is bool for flag in flags):
        raise StepscopeError("A profile's memory and stacks are true or false; the request was rejected.")
    return ProfileOptions(steps, *flags)
