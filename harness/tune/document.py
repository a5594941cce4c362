"""The result of a tune as one JSON document, in base units."""

from typing import Any

from harness.tune.planning import combination
from harness.tune.results import (
    FigureEstimate,
    RankedRow,
    batch_sentence,
    command_line,
    largest_safe_batch,
    ranking,
    waterfall,
    winner_settings,
)
from harness.tune.rows import Trial, Tune
from harness.tune.snippet import snippet


def tune_json(tune: Tune) -> dict[str, Any]:
    """Return the document."""
    best = winner_settings(tune)
    return {
        "tune_id": tune.tune_id,
        "state": tune.state.value,
        "message": tune.message,
        "goal": tune.goal.value,
        "budget_s": tune.budget_s,
        "spent_s": tune.spent_s,
        "device": None if tune.device is None else tune.device.name,
        # The machine of the cluster that it ran on; None: this one.
        "host": tune.host,
        "baseline": dict(tune.settings),
        "winner": {
            "changes": combination(tune).changes,
            "settings": best.model_dump(mode="json"),
            "command": command_line(best),
            "snippet": None if tune.device is None else snippet(best, tune.device.kind),
        },
        "largest_batch_predicted": tune.largest_batch,
        "largest_batch_safe": largest_safe_batch(tune),
        "batch": batch_sentence(tune),
        "ranking": [_row_json(row) for row in ranking(tune)],
        "waterfall": [bar._asdict() for bar in waterfall(tune)],
        "comparisons": [_trial_json(trial) for trial in tune.trials],
        "runs": list(tune.runs),
    }


def _row_json(row: RankedRow) -> dict[str, Any]:
    figures = ("samples_per_s", "step_ns", "peak_bytes")
    return row._asdict() | {name: _estimate_json(getattr(row, name)) for name in figures}


def _estimate_json(estimate: FigureEstimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()


def _trial_json(trial: Trial) -> dict[str, Any]:
    figures = [figure._asdict() for figure in trial.figures]
    return trial._asdict() | {"title": trial.title, "figures": figures}
