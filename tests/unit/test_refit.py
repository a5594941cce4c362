"""The peak of other batch sizes, from the peaks that a run has measured."""

import json
from pathlib import Path

import pytest

from harness.analysis.memory.refit import LEAST_STEPS, MARGIN, fit_peak
from harness.device.cpu.device import CpuDevice
from harness.device.cuda.device import CudaDevice
from harness.device.mps.device import MpsDevice
from harness.device.protocol import Device
from harness.device.xpu.device import XpuDevice
from harness.records.json import to_json
from harness.records.memory import (
    LeakSeries,
    LeakVerdict,
    MeasuredPeak,
    ModuleMemoryRow,
    SnapshotReason,
    SnapshotRow,
)
from harness.records.run import DeviceKind, SettingsRow, StepFlag
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.supervisor.refit import Refit, refit_peak
from tests.advice_factories import CPU
from tests.leak_factories import a_leak
from tests.store_factories import a_run, steps, write_log

MIB = 2**20


def measured(
    samples: int, steps: int = 100, fixed: int = 10, each: float = 0.5, version: int = 1
) -> MeasuredPeak:
    """Steps whose peak is a line of `fixed` MiB and `each` MiB per sample."""
    return MeasuredPeak(samples, steps, round((fixed + each * samples) * MIB), fixed * MIB, version)


def test_two_sizes_determine_both_parts() -> None:
    fit = fit_peak([measured(64), measured(24, steps=LEAST_STEPS)])
    assert fit is not None
    assert fit.sizes == (24, 64)
    assert not fit.is_proportional
    assert fit.peak_bytes(96) == pytest.approx(58 * MIB, rel=1e-6)


def test_one_size_takes_what_a_step_needs_as_proportional() -> None:
    fit = fit_peak([measured(64)])
    assert fit is not None
    assert fit.is_proportional
    assert fit.peak_bytes(128) == 74 * MIB


def test_sizes_that_hardly_differ_determine_no_slope() -> None:
    fit = fit_peak([measured(64), measured(60, steps=20)])
    assert fit is not None
    assert fit.sizes == (64,)


def test_a_peak_that_grows_faster_with_larger_batches_is_fitted_to_the_largest() -> None:
    """Here an optimizer's update has the peak with small batches, and most steps had these."""
    curve = [measured(32, 5000, 100, 0), measured(64, 5000, 100, 0), measured(128, 20, 20, 0.8)]
    fit = fit_peak([one._replace(baseline_bytes=20 * MIB) for one in curve])
    assert fit is not None
    # 225 MiB in truth, of which three sizes show a part.
    assert fit.peak_bytes(256) == pytest.approx(167 * MIB, rel=0.01)
    assert fit.peak_bytes(32) == pytest.approx(100 * MIB, rel=0.01)
    assert fit.largest(150 * MIB) == pytest.approx(185, abs=2)


def test_the_largest_batch_leaves_a_margin() -> None:
    fit = fit_peak([measured(64), measured(16)])
    assert fit is not None
    largest = fit.largest(110 * MIB)
    assert largest is not None
    assert fit.peak_bytes(largest) <= 110 * MIB * (1 - MARGIN) < fit.peak_bytes(largest + 1)
    assert fit.largest(5 * MIB) == 0


@pytest.mark.parametrize(
    "few",
    [
        [],
        [measured(64, steps=LEAST_STEPS - 1)],
        [measured(0)],
        [MeasuredPeak(64, 100, 10 * MIB, 10 * MIB, 1)],
    ],
)
def test_too_little_gives_no_fit(few: list[MeasuredPeak]) -> None:
    assert fit_peak(few) is None


def test_a_single_sample_is_named_in_the_singular() -> None:
    fit = fit_peak([measured(1)])
    assert fit is not None
    assert Refit(fit, 1).sentence(None).endswith("(from steps of 1 sample alone).")


def test_a_peak_that_falls_with_samples_is_no_line() -> None:
    fit = fit_peak([measured(64), MeasuredPeak(16, 50, 90 * MIB, 10 * MIB, 2)])
    assert fit is not None
    assert fit.is_proportional


@pytest.mark.parametrize(
    ("versions", "peak_mib"),
    [
        pytest.param((1, 2), 42, id="after a change of the batch"),
        pytest.param((1, 1), 74, id="last batches of epochs, which share readings"),
    ],
)
def test_a_peak_that_a_change_of_the_batch_leaves_as_it_was_is_constant(
    versions: tuple[int, int], peak_mib: int
) -> None:
    last, usual = (
        MeasuredPeak(samples, steps, 42 * MIB, 10 * MIB, version)
        for samples, steps, version in zip((16, 64), (20, 100), versions, strict=True)
    )
    fit = fit_peak([last, usual])
    assert fit is not None
    assert fit.peak_bytes(128) == peak_mib * MIB
    assert (fit.largest(2**40) is None) is not fit.is_proportional


def test_the_same_size_under_two_versions_is_one_size() -> None:
    fit = fit_peak([measured(64), measured(64, version=2), measured(16, version=3)])
    assert fit is not None
    assert fit.sizes == (16, 64)


def test_one_size_states_what_is_taken_as_proportional() -> None:
    fit = fit_peak([measured(64)])
    assert fit is not None
    assert Refit(fit, 64, is_lower_bound=True).sentence(2**30) == (
        "If all that a step needs beyond 10.0 MiB grows with the batch, one of 128 would peak at about "
        "74.0 MiB or more; at most about 1,925 would fit into 1.00 GiB (from steps of 64 samples alone, with "
        "peaks that were sampled)."
    )


def test_steps_of_a_run_are_fitted_across_changes_of_the_batch_alone(tmp_path: Path) -> None:
    log = tmp_path / "log.sqlite3"
    rows = [
        row._replace(
            samples=samples,
            settings_version=version,
            allocated_bytes=10 * MIB,
            peak_allocated_bytes=(10 + samples) * MIB,
            flags=0,
        )
        for version, samples, first in ((1, 8, 1), (2, 8, 21), (3, 32, 41))
        for row in steps(first, first + 19)
    ]
    history = [
        SettingsRow(version, 1, 0, json.dumps({"amp": amp, "batch_size": size}), "{}", None)
        for version, amp, size in ((1, "bf16", 8), (2, "off", 8), (3, "off", 32))
    ]
    with LogAppender(log, a_run()) as appender:
        appender.append(rows, history)
    with LogReader(log) as reader:
        refit = refit_peak(reader)
    assert refit is not None
    assert (refit.samples, refit.fit.sizes) == (32, (8, 32))
    assert refit.sentence(200 * MIB) == (
        "A batch of 64 would peak at about 74.0 MiB or more; at most about 180 would fit into 200 MiB "
        "(from steps of 8, 32 samples)."
    )
    assert refit._replace(is_lower_bound=True).sentence(200 * MIB) == (
        "A batch of 64 would peak at about 74.0 MiB or more; at most about 180 would fit into 200 MiB "
        "(from steps of 8, 32 samples, with peaks that were sampled)."
    )


def test_gradients_between_steps_are_freed_before_a_forward_pass(tmp_path: Path) -> None:
    """With one size of the batch: 10 MiB between steps, of which 4 MiB are gradients, and a peak of 26."""
    log = tmp_path / "log.sqlite3"
    rows = [
        row._replace(
            samples=8, settings_version=1, allocated_bytes=10 * MIB, peak_allocated_bytes=26 * MIB, flags=0
        )
        for row in steps(1, 20)
    ]
    snapshot = SnapshotRow(
        1, 1, 5, SnapshotReason.START, "cpu", 0, 10 * MIB, None, None, 0, 0, None, None, None, ""
    )
    modules = [ModuleMemoryRow(1, name, "Linear", 2 * MIB, 0, 2 * MIB, None, None) for name in ("a", "b")]
    with LogAppender(log, a_run()) as appender:
        appender.append(rows, [*modules, snapshot])
    with LogReader(log) as reader:
        refit = refit_peak(reader)
    assert refit is not None
    assert refit.peak_bytes == 46 * MIB


def test_a_larger_batch_peaks_no_lower_than_the_warm_up(tmp_path: Path) -> None:
    rows = [
        row._replace(
            samples=8,
            allocated_bytes=40 * MIB,
            peak_allocated_bytes=(60 if row.step == 1 else 41) * MIB,
            flags=StepFlag.PROFILED if row.step == 20 else StepFlag.WARM_UP if row.step < 5 else 0,
        )
        for row in steps(1, 20)
    ]
    rows[-1] = rows[-1]._replace(peak_allocated_bytes=90 * MIB)
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        refit = refit_peak(reader)
    assert refit is not None
    assert refit.fit.peak_bytes(16) == 42 * MIB
    assert " one of 16 would peak at about 60.0 MiB " in refit.sentence(None)


@pytest.mark.parametrize(
    ("series", "verdict", "is_fitted"),
    [
        (LeakSeries.ALLOCATED, LeakVerdict.LEAK, False),
        (LeakSeries.ALLOCATED, LeakVerdict.STEADY, True),
        (LeakSeries.WORKERS, LeakVerdict.LEAK, True),
    ],
)
def test_peaks_that_grow_by_a_leak_of_tensors_are_not_fitted(
    tmp_path: Path, series: LeakSeries, verdict: LeakVerdict, *, is_fitted: bool
) -> None:
    rows = [
        row._replace(samples=8, allocated_bytes=10 * MIB, peak_allocated_bytes=20 * MIB, flags=0)
        for row in steps(1, 20)
    ]
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows, [a_leak()._replace(series=series, verdict=verdict)])
    with LogReader(tmp_path / "log.sqlite3") as reader:
        assert (refit_peak(reader) is not None) is is_fitted


@pytest.mark.parametrize(("risen_mib", "is_fitted"), [(1, True), (6, False)])
def test_growth_that_matters_beside_the_batch_is_not_fitted(
    tmp_path: Path, risen_mib: int, *, is_fitted: bool
) -> None:
    rows = [
        row._replace(samples=8, allocated_bytes=10 * MIB, peak_allocated_bytes=20 * MIB, flags=0)
        for row in steps(1, 20)
    ]
    growth = a_leak()._replace(
        series=LeakSeries.ALLOCATED, verdict=LeakVerdict.WATCH, risen_bytes=risen_mib * MIB
    )
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows, [growth])
    with LogReader(tmp_path / "log.sqlite3") as reader:
        assert (refit_peak(reader) is not None) is is_fitted


@pytest.mark.parametrize("device_type", [CpuDevice, CudaDevice, MpsDevice, XpuDevice])
def test_peaks_that_a_device_does_not_count_itself_are_lower_bounds(
    tmp_path: Path, device_type: type[Device]
) -> None:
    rows = [
        row._replace(samples=8, allocated_bytes=10 * MIB, peak_allocated_bytes=20 * MIB, flags=0)
        for row in steps(1, 20)
    ]
    kind = DeviceKind(device_type.__name__.removesuffix("Device").lower())
    device = to_json(CPU._replace(kind=kind))
    with LogAppender(tmp_path / "log.sqlite3", a_run()._replace(device=device)) as appender:
        appender.append(rows)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        refit = refit_peak(reader)
    assert refit is not None
    assert refit.is_lower_bound is device_type.samples_peak


@pytest.mark.parametrize(
    ("newest", "sentence"),
    [
        (20_000, None),
        (80, "one of 128 would peak at about 138 MiB (from steps of 64 samples alone)."),
        # The last batch of an epoch, which is smaller than the others.
        (16, "one of 128 would peak at about 138 MiB (from steps of 64 samples alone)."),
    ],
)
def test_the_largest_of_the_newest_steps_is_doubled_where_the_fit_reaches_that_far(
    tmp_path: Path, newest: int, sentence: str | None
) -> None:
    rows = [
        row._replace(
            samples=64 if row.step < 40 else newest,
            settings_version=1,
            allocated_bytes=10 * MIB,
            peak_allocated_bytes=74 * MIB,
            flags=0,
        )
        for row in steps(1, 40)
    ]
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        refit = refit_peak(reader)
    assert (None if refit is None else refit.sentence(None).partition(", ")[2]) == sentence


def test_a_run_without_steps_has_no_fit(tmp_path: Path) -> None:
    with LogReader(write_log(tmp_path / "log.sqlite3")) as reader:
        assert refit_peak(reader) is None
