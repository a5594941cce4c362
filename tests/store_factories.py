"""Rows and runs for tests of the store and of what reads it."""

from collections.abc import Sequence
from pathlib import Path

from harness.records.run import (
    DeviceSampleRow,
    EventKind,
    EventRow,
    HostSampleRow,
    RunRow,
    RunState,
    SettingsRow,
    Severity,
    StepRow,
)
from harness.store.appender import LogAppender
from harness.store.reader import LogReader


def a_run(run_id: str = "20260102-030405-abcd", name: str = "cnn-1") -> RunRow:
    return RunRow(
        run_id=run_id,
        name=name,
        started_unix_ns=1_700_000_000_000_000_000,
        harness_version="0.1.0",
        settings="{}",
        device="{}",
        model_parameters=1000,
        versions="{}",
        host="here",
        simulated=0,
        state=RunState.LAUNCHING,
        state_message="Starting.",
        ended_unix_ns=None,
    )


def a_step(step: int, loss: float | None = 0.5, loss_state: int | None = 0) -> StepRow:
    """A step on the CPU: nothing from a device's clock."""
    return StepRow(
        step=step,
        t_ns=step * 2_000_000,
        step_ns=2_000_000 + step % 7,
        data_wait_ns=100_000,
        h2d_ns=0,
        forward_ns=800_000,
        backward_ns=900_000,
        optimizer_ns=200_000,
        device_step_ns=None,
        device_h2d_ns=None,
        device_forward_ns=None,
        device_backward_ns=None,
        device_optimizer_ns=None,
        device_gap_ns=None,
        loss=loss,
        loss_state=loss_state,
        samples=32,
        tokens=None,
        allocated_bytes=10_000_000 + step,
        reserved_bytes=20_000_000,
        active_bytes=None,
        peak_allocated_bytes=15_000_000 + step % 5,
        peak_reserved_bytes=20_000_000,
        inactive_split_bytes=None,
        alloc_retries=None,
        ooms=0,
        rss_bytes=300_000_000,
        settings_version=0,
        flags=0,
        all_reduce_wait_ns=None,
        broadcast_wait_ns=None,
    )


def steps(first: int, last: int) -> list[StepRow]:
    return [a_step(step) for step in range(first, last + 1)]


def an_event(message: str = "Something happened.", step: int = 1) -> EventRow:
    return EventRow(
        t_ns=1,
        step=step,
        kind=EventKind.WARNING,
        severity=Severity.INFO,
        label="something",
        message=message,
        detail="{}",
        command_id=None,
    )


def a_settings_row(version: int = 0) -> SettingsRow:
    return SettingsRow(version, step=1, t_ns=1, settings="{}", changed="{}", command_id=None)


def a_device_sample(
    seq: int, step: int, device: str = "cpu", util_pct: float | None = 50.0
) -> DeviceSampleRow:
    return DeviceSampleRow(
        device=device,
        seq=seq,
        t_ns=seq * 1_000_000_000,
        step=step,
        util_pct=util_pct,
        memory_util_pct=None,
        memory_used_bytes=1_000 + seq,
        memory_total_bytes=10_000,
        power_w=None,
        power_limit_w=None,
        temperature_c=40.0,
        sm_clock_mhz=None,
        memory_clock_mhz=None,
        throttle_reasons=None,
    )


def a_host_sample(seq: int, step: int) -> HostSampleRow:
    return HostSampleRow(seq, seq * 1_000_000_000, step, 20.0, 95.0, 1_000, 2_000, 0, 5_000, 9_000)


def step_numbers(log: LogReader) -> list[int]:
    """Every step that a log accounts for, in order: those with a row, and those that went unobserved."""
    blocks = log.overhead.unobserved(0, 10**9)
    unobserved = [step for block in blocks for step in range(block.first_step, block.last_step + 1)]
    return sorted([row.step for row in log.last_steps(1_000_000)] + unobserved)


def write_log(path: Path, rows: Sequence[StepRow] = (), host: str = "a machine") -> Path:
    """A finished log with `rows`, as one plain file."""
    with LogAppender(path, a_run()._replace(host=host)) as appender:
        appender.append(rows)
    return path
