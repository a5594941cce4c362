"""Test the step at which a growth begins, as far as the readings show it."""

import subprocess
import sys

import numpy as np
import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.growth import GrowthJudge, Judgment
from harness.records.memory import LeakSeries, LeakVerdict
from tests.leak_factories import GIB, a_row

KIB, MIB = 2**10, 2**20
_SLOPE = 64 * KIB
_JUDGED_AT_LENGTH = """
from harness.analysis.leak.growth import GrowthJudge

def mapped_kib():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData"))

judge, before = GrowthJudge(), mapped_kib()
for step in range(1, 2001):
    judge.add(step, 1e8 + 65536 * max(0, step - 600))
    judge.judge()
assert judge.judge().onset is not None
print(mapped_kib() - before)
"""


def _judged(onset: int, steps: int, noise: float = 0.0) -> Judgment:
    """The verdict on memory that is flat up to `onset` and then grows, with noise of so many bytes."""
    judge, chance = GrowthJudge(), np.random.default_rng(1)
    for step in range(1, steps + 1):
        grown = _SLOPE * max(0, step - onset)
        judge.add(step, 100 * MIB + grown + noise * chance.standard_normal())
        judge.judge()
    return judge.judge().from_onset()


@pytest.mark.parametrize("steps", [900, 1_500, 2_000, 5_000])
@pytest.mark.parametrize("noise", [0.0, 200 * KIB])
def test_a_leak_that_begins_late_is_stated_from_its_onset_on(steps: int, noise: float) -> None:
    judgment = _judged(600, steps, noise)
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.since_step == pytest.approx(600, abs=steps / 40)
    assert judgment.trend is not None
    assert judgment.trend.slope == pytest.approx(_SLOPE, rel=0.1)
    assert judgment.risen_bytes == pytest.approx(_SLOPE * (steps - 600), rel=0.15)


@pytest.mark.parametrize("noise", [0.0, 200 * KIB, 2 * MIB])
def test_a_leak_from_the_first_step_on_has_no_later_onset(noise: float) -> None:
    for steps in (200, 900, 2_000):
        judgment = _judged(0, steps, noise)
        assert judgment.onset is None
        assert judgment.since_step <= 40


def test_steady_memory_has_no_onset() -> None:
    assert _judged(2_000, 2_000, 2 * MIB).onset is None


def test_the_row_of_a_leak_states_the_step_at_which_it_begins() -> None:
    detector = LeakDetector(on_cpu=False)
    for step in range(1, 2_001):
        detector.add_steps([a_row(step, GIB + max(0, step - 600) * MIB)])
        rows = detector.judge(0) if step % 10 == 0 else []
    row = next(row for row in rows if row.series is LeakSeries.ALLOCATED)
    assert row.verdict is LeakVerdict.LEAK
    assert row.since_step == pytest.approx(600, abs=50)
    assert f"since step {row.since_step}" in row.message


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_search_for_an_onset_maps_little_memory() -> None:
    """On the CPU it is a part of what is judged. The first product by BLAS of a matrix maps 32 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _JUDGED_AT_LENGTH], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 2_048
