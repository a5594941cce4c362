"""What a profile is to record, and how it is asked for. Free of torch."""

import json
from typing import NamedTuple

from harness.errors import StepscopeError

DEFAULT_STEPS = 3
MOST_STEPS = 20


class Asked(NamedTuple):
    """What is to be recorded."""

    steps: int
    with_memory: bool = False
    with_stacks: bool = False


def parse_asked(payload: str) -> Asked:
    """What the payload of a command asks for; raises StepscopeError."""
    try:
        asked = json.loads(payload or "{}")
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"The request is not JSON ({error}); no profile was taken.") from None
    if not isinstance(asked, dict):
        raise StepscopeError("The request is no JSON object; no profile was taken.")
    steps = asked.get("steps", DEFAULT_STEPS)
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise StepscopeError(f"A profile takes 1 to {MOST_STEPS} steps, not {str(steps)[:40]}.")
    switches = [asked.get(name, False) for name in ("memory", "stacks")]
    if not all(type(switch) is bool for switch in switches):
        raise StepscopeError("A profile's memory and stacks are true or false; no profile was taken.")
    return Asked(steps, *switches)
