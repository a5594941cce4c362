"""Floats as SQLite stores them: NaN and infinity survive as a state beside an empty value."""

import math
from enum import IntEnum


class FloatState(IntEnum):
    """The class of a float value: SQLite silently stores NaN as NULL."""

    FINITE = 0
    NAN = 1
    INFINITE = 2
    MINUS_INFINITE = 3


def encode_float(value: float | None) -> tuple[float | None, int | None]:
    """Split `value` into a number that SQLite can store and a `FloatState`; (None, None): "not measured"."""
    if value is None:
        return None, None
    if math.isnan(value):
        return None, FloatState.NAN.value
    if math.isinf(value):
        return None, (FloatState.INFINITE if value > 0 else FloatState.MINUS_INFINITE).value
    return value, FloatState.FINITE.value


def decode_float(value: float | None, state: int | None) -> float | None:
    """Undo `encode_float`; an unknown state means "not measured"."""
    if state is None or state == FloatState.FINITE:
        return value
    return _NOT_FINITE.get(state)


_NOT_FINITE: dict[int, float] = {
    FloatState.NAN: math.nan,
    FloatState.INFINITE: math.inf,
    FloatState.MINUS_INFINITE: -math.inf,
}
