"""Predictions against the real peak of real training steps on the CPU. `python -m tests.bench predict` does
the whole catalogue; this holds a cross-section of it."""

import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.predict import compared
from tests.bench.real_peaks import real_peaks

_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("mlp", "batch 64", {"batch_size": 64}),
    ("resnet", "SGD", {"optimizer": "sgd"}),
    ("lstm", "as it is", {}),
    ("transformer", "AMP bf16", {"amp": "bf16"}),
    ("seq2seq", "checkpointing", {"activation_checkpointing": True}),
    ("hf-gpt2", "batch 64", {"batch_size": 64}),
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
    assert 500_000 < small < large


@pytest.mark.timeout(300)
def test_predictions_are_within_five_percent_on_average(tmp_path: Path) -> None:
    asked = [(model, name, {"model": model, **changes}) for model, name, changes in _CASES]
    cases = compared(asked, tmp_path)
    errors_pct = {f"{case.model}, {case.variant}": case.error_pct for case in cases}
    assert statistics.fmean(map(abs, errors_pct.values())) <= 5, errors_pct
    assert max(map(abs, errors_pct.values())) <= 15, errors_pct
