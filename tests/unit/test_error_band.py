"""Test how far predictions were off over the runs that a home has."""

import json
from pathlib import Path

import pytest

from harness.demo.machine import FACTS
from harness.predict.answer import Prediction, Target
from harness.predict.cache import prediction_cache
from harness.predict.error_band import ErrorBand, error_band
from harness.predict.question import Question
from harness.records.run import SettingsRow
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from tests.store_factories import a_run, a_step

TARGET = Target.of(FACTS)


def finish_run(home: Home, settings: Settings, peak_bytes: int, device: str = FACTS.name) -> None:
    facts = FACTS._replace(name=device)
    folder = home.create(None, settings, 1_000_000_000)
    run = a_run(folder.run_id)._replace(device=json.dumps(facts._asdict()), ended_unix_ns=2)
    steps = [a_step(step)._replace(peak_allocated_bytes=peak_bytes, settings_version=1) for step in (1, 2, 3)]
    with LogAppender(folder.log, run) as appender:
        appender.append(steps, [SettingsRow(1, 1, 0, settings.model_dump_json(), "{}", None)])


def keep(home: Home, settings: Settings, peak_bytes: int) -> None:
    prediction = Prediction(
        target=FACTS.kind,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=None,
        least_reserved_bytes=None,
        parts=(),
        phase="backward",
        static_bytes=0,
        context_bytes=None,
        context_note="",
        modules=(),
        notes=(),
    )
    prediction_cache(home.path).put(Question.of(settings, TARGET).key, prediction)


def test_the_band_holds_predictions_against_the_peaks_of_finished_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    small, large = (resolve({"model": "mlp", "batch_size": size}) for size in (8, 64))
    assert error_band(home, TARGET) is None
    finish_run(home, small, 1000)
    finish_run(home, large, 2000)
    assert error_band(home, TARGET) is None
    keep(home, small, 1100)
    keep(home, large, 1960)
    band = error_band(home, TARGET)
    assert band is not None
    assert band.runs == 2
    assert (band.mean_pct, band.lowest_pct, band.highest_pct) == pytest.approx((6, -2, 10))
    assert error_band(home, TARGET._replace(name="another")) is None


def test_the_band_in_words() -> None:
    sentence = ErrorBand(3, 2.04, -3.5, 1.25).sentence
    assert sentence.startswith(
        "Over 3 finished runs on this device, predicted peaks were off by 2.0 % on average"
    )
    assert "from −3.5 to +1.2 %" in sentence
    assert "In the one finished run" in ErrorBand(1, 3.5, -3.5, -3.5).sentence
