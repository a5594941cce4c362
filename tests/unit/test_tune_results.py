"""The results of a tune: ranking, Pareto front, waterfall, winner."""

import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.cli import build_parser
from harness.cli.arguments import settings_of
from harness.cli.tuning import row_cells
from harness.settings.resolve import resolve
from harness.tune.document import tune_json
from harness.tune.results import (
    NOT_COMPARED,
    baseline_sentence,
    batch_sentence,
    command_line,
    ranking,
    waterfall,
    winner_settings,
)
from harness.tune.rows import TrialOutcome, TrialStage, TuneState
from tests.tune_factories import PEAK_BYTES, a_tune, completed

OWN = Path(__file__).parents[1] / "scripts"


def machine(changes: Mapping[str, Any]) -> tuple[float, float]:
    time, peak = 1.0, 1.0
    if changes.get("amp") == "bf16":
        time, peak = 0.5, 0.7
    if changes.get("num_workers") == 2:
        time *= 0.8
    if changes.get("activation_checkpointing"):
        time, peak = time * 1.25, peak * 0.5
    if changes.get("matmul_precision") == "medium":
        time, peak = time * 1.1, peak * 1.1
    if changes.get("batch_size", 32) > 32:
        time, peak = time * 1.0, peak * 2
    return time, peak


DONE = completed(a_tune(), machine)


def test_the_ranking_has_the_best_combination_first() -> None:
    first = ranking(DONE)[0]
    assert first.changes == {"amp": "bf16", "num_workers": 2}
    assert first.is_winner
    assert first.samples_per_s is not None
    assert first.samples_per_s.value == pytest.approx(2500, rel=0.01)
    assert first.samples_per_s.low < first.samples_per_s.value < first.samples_per_s.high


def test_the_front_has_each_row_that_no_other_beats_in_both_figures() -> None:
    front = {row.title for row in ranking(DONE) if row.is_on_front}
    assert front == {"AMP bf16, workers 2", "checkpointing on"}


def test_the_baseline_is_in_the_ranking_and_wins_where_nothing_is_better() -> None:
    rows = ranking(completed(a_tune(), lambda changes: (1.0, 1.0)))
    winners = [row for row in rows if row.is_winner]
    assert [row.title for row in winners] == ["baseline"]


def test_the_waterfall_leads_from_the_baseline_to_the_measured_combination() -> None:
    bars = waterfall(DONE)
    assert [bar.title for bar in bars] == ["AMP bf16", "workers 2", "interaction"]
    assert bars[0].before == pytest.approx(1000)
    assert all(one.after == other.before for one, other in pairwise(bars))
    assert bars[-1].after == pytest.approx(2500)


def test_settings_without_a_comparison_are_listed_as_not_compared() -> None:
    done = completed(a_tune(budget_s=60.0), machine)._replace(state=TuneState.COMPLETED)
    late = [row for row in ranking(done) if row.verdict == NOT_COMPARED]
    assert late
    assert {row_cells(row)[1] for row in late} == {"n/a"}


def test_the_next_size_of_the_batch_is_listed_as_not_compared_where_the_budget_left_no_time() -> None:
    done = completed(a_tune(), machine)
    first = next(n for n, trial in enumerate(done.trials) if "batch_size" in trial.changes)
    done = done._replace(state=TuneState.COMPLETED, trials=done.trials[:first])
    late = [row.changes for row in ranking(done) if row.verdict == NOT_COMPARED]
    assert {"batch_size": 64} in late


def test_a_batch_without_memory_is_a_row_of_the_ranking() -> None:
    done = completed(a_tune(), machine, oom_batch=64)
    row = next(row for row in ranking(done) if row.changes == {"batch_size": 64})
    assert (row.verdict, row.samples_per_s) == ("out of memory", None)
    assert batch_sentence(done) == (
        "Largest safe batch: 32, the largest one that ran below the 64 at which memory ran out. The "
        "prediction fits 100 into the memory of a CPU."
    )
    assert tune_json(done)["largest_batch_safe"] == 32


def test_the_largest_safe_batch_has_run_where_a_larger_one_ran_out_of_memory() -> None:
    faster = completed(a_tune(largest_batch=1000), lambda changes: (8 / changes.get("batch_size", 32), 1.0))
    assert batch_sentence(faster).endswith(" the memory of a CPU. Measured up to 512.")
    done = faster._replace(
        trials=tuple(
            trial._replace(outcome=TrialOutcome.OUT_OF_MEMORY)
            if trial.changes.get("batch_size", 0) >= 256
            else trial
            for trial in faster.trials
        )
    )
    assert batch_sentence(done).startswith("Largest safe batch: 128, the largest one that ran below the 256 ")
    assert tune_json(done)["largest_batch_safe"] == 128


def test_a_batch_that_ran_out_of_memory_above_the_predicted_ones_leaves_the_prediction() -> None:
    done = completed(a_tune(), machine, oom_batch=64)._replace(largest_batch=60)
    assert batch_sentence(done).startswith("Largest safe batch: 54, 10 % below the 60 that the prediction ")
    assert batch_sentence(done).endswith(" Memory ran out at 64.")


def test_a_batch_without_a_prediction_has_the_limit_and_no_number() -> None:
    unknown = DONE._replace(largest_batch=None)
    sentence = batch_sentence(unknown)
    assert sentence.startswith("The largest batch that fits into the memory of a CPU was not predicted.")
    assert batch_sentence(unknown._replace(limit_words="")).startswith("The largest batch was not predicted.")
    begun = unknown._replace(state=TuneState.RUNNING, limit_words="", trials=())
    assert batch_sentence(begun) == "The largest batch has no prediction yet."
    assert batch_sentence(begun._replace(state=TuneState.STOPPED)) == "The largest batch was not predicted."


def test_the_command_of_the_winner_has_its_settings() -> None:
    best = winner_settings(DONE)
    words = command_line(best).split()
    assert words[:2] == ["stepscope", "run"]
    arguments = build_parser().parse_args(words[1:])
    assert settings_of(arguments, {}) == best


def test_the_command_of_a_model_of_ones_own_names_its_dataset() -> None:
    best = resolve(
        {"model": f"{OWN}/own_model.py:build", "data": f"{OWN}/own_data.py:dataset", "amp": "bf16"}
    )
    words = shlex.split(command_line(best))
    assert settings_of(build_parser().parse_args(words[1:]), {}) == best
    assert words.count("--data") == 1


def test_the_document_has_the_ranking_the_winner_and_all_comparisons() -> None:
    document = tune_json(DONE)
    assert document["winner"]["changes"] == {"amp": "bf16", "num_workers": 2}
    assert len(document["comparisons"]) == len(DONE.trials)
    assert document["ranking"][0]["peak_bytes"]["value"] == pytest.approx(0.7 * PEAK_BYTES)
    assert [one["stage"] for one in document["comparisons"]][-1] == TrialStage.TOTAL


def test_a_tune_without_a_measured_comparison_does_not_call_the_baseline_the_best() -> None:
    done = completed(a_tune(), lambda _: (1.0, 1.0))._replace(state=TuneState.COMPLETED)
    failed = [trial._replace(outcome=TrialOutcome.FAILED, figures=()) for trial in done.trials]
    nothing_measured = done._replace(trials=tuple(failed))
    assert baseline_sentence(done) == "Nothing is measurably better than the baseline."
    assert baseline_sentence(nothing_measured).startswith("No comparison was measured:")
    running = nothing_measured._replace(state=TuneState.RUNNING)
    assert "so far" in baseline_sentence(running)
    assert baseline_sentence(done._replace(trials=())) == "No comparison was completed."
