from harness.analysis.machine.throttle import (
    SEVERE,
    THROTTLE_TEXTS,
    active_reasons,
    throttle_clause,
    throttle_times,
)
from harness.records.telemetry import DeviceDetailRow, ThrottleReason

SILENT = DeviceDetailRow("GPU-1", 0, 0, 0, *(None,) * (len(DeviceDetailRow._fields) - 4))


def test_an_idle_gpu_and_chosen_clocks_are_not_throttling() -> None:
    bits = ThrottleReason.GPU_IDLE | ThrottleReason.APPLICATION_CLOCKS | ThrottleReason.DISPLAY_CLOCKS
    assert active_reasons(bits) == []
    assert throttle_clause(bits) == throttle_clause(None) == throttle_clause(0) == ""


def test_every_other_reason_has_a_text() -> None:
    for reason in THROTTLE_TEXTS:
        assert throttle_clause(reason) == THROTTLE_TEXTS[reason]
    assert SEVERE & ThrottleReason.POWER_CAP == 0


def test_the_most_severe_reason_comes_first() -> None:
    bits = ThrottleReason.POWER_CAP | ThrottleReason.HW_THERMAL
    assert active_reasons(bits) == [ThrottleReason.HW_THERMAL, ThrottleReason.POWER_CAP]


def test_a_general_slowdown_is_left_out_next_to_its_cause() -> None:
    bits = ThrottleReason.HW_SLOWDOWN | ThrottleReason.POWER_BRAKE
    assert active_reasons(bits) == [ThrottleReason.POWER_BRAKE]
    assert active_reasons(ThrottleReason.HW_SLOWDOWN) == [ThrottleReason.HW_SLOWDOWN]


def test_times_are_given_for_the_rows_and_in_total() -> None:
    rows = [SILENT._replace(held_power_ns=ns) for ns in (5, None, 9, 12)]
    by_reason = {entry.reason: entry for entry in throttle_times(ThrottleReason.POWER_CAP, rows)}
    power = by_reason[ThrottleReason.POWER_CAP]
    assert (power.is_active, power.recent_ns, power.total_ns) == (True, 7, 12)
    heat = by_reason[ThrottleReason.SW_THERMAL]
    assert (heat.is_active, heat.recent_ns, heat.total_ns) == (False, None, None)


def test_a_counter_that_restarted_is_not_counted_backwards() -> None:
    rows = [SILENT._replace(held_power_ns=ns) for ns in (100, 110, 3, 5)]
    (power,) = [entry for entry in throttle_times(None, rows) if entry.reason is ThrottleReason.POWER_CAP]
    assert (power.is_active, power.recent_ns, power.total_ns) == (None, 12, 5)
