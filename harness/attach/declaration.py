"""The declaration of a script's own setting, checked at the call: the shell and the page have to show it."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from harness.records.script import DeclaredSetting, SettingKind, SettingValue
from harness.settings.spec import SPECS
from harness.words import clip

_LONGEST_NAME = 40
# Of a label, and of a choice: a line of the page.
_LONGEST_TEXT = 100
_SHOWN_CHARACTERS = 60

Bounds = tuple[float | None, float | None]


def declare(
    name: object,
    default: SettingValue,
    bounds: Bounds | None,
    choices: Iterable[str] | None,
    label: str | None,
) -> DeclaredSetting:
    """Return the declaration of a script's own setting, of the kind of its `default`. Raises ValueError
    with the reason."""
    if not isinstance(name, str) or not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"{_shown(name)} cannot name a setting; use letters, digits and underscores, at most "
            f"{_LONGEST_NAME}."
        )
    if name.lower() in SPECS:
        raise ValueError(f"{name!r} is a setting of Stepscope; choose another name.")
    if label is not None and not _is_text(label):
        raise ValueError(
            f"{name} cannot have the label {_shown(label)}; give printable text of up to {_LONGEST_TEXT} "
            "letters."
        )
    default = _number(default)
    low, high = (None, None) if bounds is None else _checked_bounds(name, bounds)
    texts = None if choices is None else _checked_choices(name, choices)
    kind = _kind_of(name, default, (low, high), texts)
    setting = DeclaredSetting(name, kind, default, low, high, texts or (), label or name)
    return setting._replace(default=setting.check(default))


def _number(default: Any) -> Any:
    """Return a number of another kind than Python's, such as NumPy's, as one of these; others as they are."""
    if isinstance(default, int | float) or not isinstance(default, Real):
        return default
    return int(default) if isinstance(default, Integral) else float(default)


def _kind_of(
    name: str, default: SettingValue, bounds: Bounds, choices: tuple[str, ...] | None
) -> SettingKind:
    if choices is not None:
        return SettingKind.CHOICE
    if isinstance(default, bool):
        return SettingKind.BOOL
    if isinstance(default, int) and not any(isinstance(bound, float) for bound in bounds):
        return SettingKind.INT
    if isinstance(default, int | float):
        return SettingKind.FLOAT
    raise ValueError(
        f"{name} cannot be {_shown(default)}; give a number, True, False, or text with choices=[…]."
    )


def _checked_bounds(name: str, bounds: Any) -> Bounds:
    """Return the bounds as numbers of Python."""
    try:
        low, high = bounds
        low = None if low == -math.inf else _bound(low)
        high = None if high == math.inf else _bound(high)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{name} cannot have the bounds {_shown(bounds)}; give two finite numbers, or None for no bound, "
            "such as (0, None)."
        ) from None
    if low is not None and high is not None and low > high:
        raise ValueError(f"{name} cannot have the bounds ({low:g}, {high:g}); give the lower one first.")
    return low, high


def _bound(value: object) -> float | None:
    """Raises TypeError or OverflowError for what is no finite number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise TypeError
    return int(value) if isinstance(value, Integral) else float(value)


def _checked_choices(name: str, choices: Any) -> tuple[str, ...]:
    # A text is a sequence of texts, of one letter each.
    texts = () if isinstance(choices, str) or not isinstance(choices, Iterable) else tuple(choices)
    if not texts:
        raise ValueError(
            f"{name} cannot have the choices {_shown(choices)}; give a list of texts, such as ['a', 'b']."
        )
    checked: set[str] = set()
    for text in texts:
        if not _is_text(text):
            example = f", such as {str(text)!r}" if isinstance(text, Real) else ""
            raise ValueError(
                f"{name} cannot have the choice {_shown(text)}; a choice is printable text of up to "
                f"{_LONGEST_TEXT} letters{example}."
            )
        if text in checked:
            raise ValueError(f"{name} cannot have the choice {text!r} twice; give each one once.")
        checked.add(text)
    return texts


def _is_text(value: object) -> bool:
    # Half of a surrogate pair, which no log can hold, is not printable.
    return isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_TEXT


def _shown(value: object) -> str:
    return clip(repr(value), _SHOWN_CHARACTERS)
