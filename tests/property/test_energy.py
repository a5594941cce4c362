"""Energy over a range is what the counter gained, however the range is cut, and never negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.machine.energy import energy_use
from harness.records.telemetry import DeviceDetailRow

SILENT = DeviceDetailRow("GPU-1", 0, 0, 0, *(None,) * (len(DeviceDetailRow._fields) - 4))
JOULES = st.integers(0, 10**9).map(float)


def details(values: list[float | None]) -> list[DeviceDetailRow]:
    return [
        SILENT._replace(seq=seq, t_ns=seq * 10**9, step=10 * seq, energy_j=value)
        for seq, value in enumerate(values)
    ]


@given(st.lists(JOULES, min_size=2).map(sorted))
def test_a_rising_counter_gives_its_difference(values: list[float]) -> None:
    use = energy_use(details(list(values)))
    assert use is not None
    assert use.joules == values[-1] - values[0]
    assert (use.first_step, use.last_step) == (0, 10 * (len(values) - 1))
    assert use.duration_ns == (len(values) - 1) * 10**9


@given(st.lists(JOULES | st.none(), min_size=2))
def test_energy_is_never_negative_whatever_the_counter_does(values: list[float | None]) -> None:
    use = energy_use(details(values))
    if sum(value is not None for value in values) < 2:
        assert use is None
    else:
        assert use is not None
        assert use.joules >= 0


@given(st.lists(JOULES, min_size=4).map(sorted), st.data())
def test_two_parts_add_up_to_the_whole(values: list[float], data: st.DataObject) -> None:
    rows = details(list(values))
    cut = data.draw(st.integers(1, len(rows) - 2))
    whole, one, two = energy_use(rows), energy_use(rows[: cut + 1]), energy_use(rows[cut:])
    assert whole is not None
    assert one is not None
    assert two is not None
    assert one.joules + two.joules == pytest.approx(whole.joules)
