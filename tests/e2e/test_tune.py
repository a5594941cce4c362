"""A tune as a process: comparisons of a real training, Ctrl-C with its results, and its continuation."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.records.run import RunState
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.tune.folder import TuneFolder, tunes
from harness.tune.rows import Comparison, TrialOutcome, TrialStage, TuneState
from harness.tune.trial_run import WarmRun, Watching
from tests.supervision import ROOT, until

_MLP = ("mlp", "--device", "cpu", "--batch-size", "8")
# Of a machine busy with other tests.
_LIMIT_S = 200.0


def start_tune(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start `stepscope tune` with one thread per training, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness", "tune", *words, "--home", str(home), "--json"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def trials_of(folder: TuneFolder) -> int:
    """The number of finished comparisons; 0 before the state is written."""
    return len(folder.read().trials) if folder.state.exists() else 0


def result(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for the end; the code and the printed document."""
    printed, problems = process.communicate(timeout=_LIMIT_S)
    assert printed, problems
    document: dict[str, Any] = json.loads(printed)
    return process.returncode, document


@pytest.mark.long
def test_a_tune_is_interrupted_with_its_results_and_resumes_after_them(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    process = start_tune(home.path, *_MLP, "--budget", "200s")
    try:
        folder = until(lambda: tunes(home), bool, _LIMIT_S)[0]
        until(lambda: trials_of(folder), lambda number: number >= 1, _LIMIT_S)
        process.send_signal(signal.SIGINT)
        code, document = result(process)
        assert (code, document["state"]) == (130, TuneState.STOPPED)
        first = document["comparisons"][0]
        assert (first["stage"], first["outcome"], first["changes"]) == (
            TrialStage.SINGLE,
            TrialOutcome.MEASURED,
            {"amp": "bf16"},
        )
        assert first["figures"][0]["low"] < first["figures"][0]["high"]

        process = start_tune(home.path, "--resume", folder.tune_id)
        until(lambda: trials_of(folder), lambda number: number > len(document["comparisons"]), _LIMIT_S)
        folder.request_stop()
        code, resumed = result(process)
        assert (code, resumed["state"]) == (0, TuneState.STOPPED)
        assert resumed["comparisons"][0] == first
        assert resumed["spent_s"] > document["spent_s"]
        changes = [one["changes"] for one in resumed["comparisons"]]
        assert changes.count({"amp": "bf16"}) == 1
        assert resumed["winner"]["command"].startswith("stepscope run --model mlp")
    finally:
        process.kill()
        process.communicate()
    runs = Supervisor(home).runs()
    assert {run.status.state for run in runs} == {RunState.STOPPED}
    assert {run.name for run in runs} == {f"tune-{folder.tune_id}-1", f"tune-{folder.tune_id}-2"}


@pytest.mark.long
def test_memory_that_runs_out_is_a_result_and_the_run_goes_on(tmp_path: Path) -> None:
    supervisor = Supervisor(Home(tmp_path / "home"))
    settings = resolve({"model": "cnn", "device": "cpu", "memory_cap_gib": 0.2})
    run = WarmRun(supervisor, supervisor.start("warm", settings), settings)
    watching = Watching(lambda: False, lambda pairs: None)
    try:
        run.wait_until_warm(lambda: False)
        trial = run.compare(Comparison(TrialStage.SINGLE, {}, {"batch_size": 16384}, 8), 1.0, watching)
        assert (trial.outcome, trial.figures) == (TrialOutcome.OUT_OF_MEMORY, ())
        assert not run.is_over
    finally:
        run.close()
