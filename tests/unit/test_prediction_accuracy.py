"""Predictions against the real peak of real training steps on the CPU. `python -m tests.bench predict` draws
many configurations at random; this holds a cross-section of them."""

import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.draws import Draw, processors_here
from tests.bench.predict import compare
from tests.bench.real_peaks import real_peaks
from tests.bench.stored_results import StoredResults

_HERE = processors_here()
_NATIVE, _AVX2, _INTEL = _HERE[0], _HERE[1 % len(_HERE)], _HERE[-1]
_CASES: list[tuple[dict[str, Any], Any, int]] = [
    ({"model": "mlp", "batch_size": 64}, _NATIVE, 2),
    ({"model": "resnet", "optimizer": "sgd", "channels_last": True}, _NATIVE, 2),
    ({"model": "lstm"}, _AVX2, 1),
    ({"model": "transformer", "amp": "bf16"}, _AVX2, 1),
    ({"model": "gru", "sequence_length": 32}, _INTEL, 2),
    ({"model": "cnn", "amp": "bf16"}, _INTEL, 2),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None,
        reason="the counting malloc needs Linux, glibc and a C compiler",
    ),
]


def test_the_counter_sees_a_larger_batch(tmp_path: Path) -> None:
    small, large = real_peaks([{"model": "mlp", "batch_size": n} for n in (8, 512)], tmp_path)
    assert small is not None
    assert large is not None
    assert 500_000 < small < large


@pytest.mark.timeout(300)
def test_predictions_are_within_five_percent_on_average(tmp_path: Path) -> None:
    cases, _ = compare([Draw(*case) for case in _CASES], tmp_path, StoredResults(None))
    errors_pct = {case.draw.words: case.error_pct for case in cases}
    assert len(errors_pct) == len(_CASES)
    assert statistics.fmean(map(abs, errors_pct.values())) <= 5, errors_pct
    assert max(map(abs, errors_pct.values())) <= 15, errors_pct
