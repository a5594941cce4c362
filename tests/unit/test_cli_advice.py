"""`stepscope advise` on simulated runs, and on a real one whose loader is slow on purpose."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from harness.analysis.effect import ObservedChange
from harness.cli import main
from harness.demo import write
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.changes import observe_version
from tests.supervision import until

STEPS_BEFORE = 230
"""Of 50 ms and more: the time that an observed change compares."""


def a_home() -> Home:
    return Home.locate(None, os.environ)


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def advised(run: str) -> dict[str, Any]:
    done = shell("advise", run, "--json")
    assert done.returncode == 0, done.stderr
    return {message["rule"]: message for message in json.loads(done.stdout)}


@pytest.mark.slow
def test_advice_has_gain_evidence_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    write("fragmentation", a_home())
    assert main(["advise"]) == 0
    message = capsys.readouterr().out
    assert message.startswith("1. Use the tensor cores: at most 48 % less time per sample")
    assert "Steps 3,001 to 4,000. forward and backward pass: 96 % of the device's time" in message
    assert "In the next run: --amp bf16" in message
    assert "2. Reduce fragmentation: up to 28" in message
    assert "By hand: Start the run with PYTORCH_ALLOC_CONF" in message


@pytest.mark.slow
def test_without_evidence_there_is_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    for key, sentence in (
        ("amp", "nothing stands out in the last 1,000 steady-state steps."),
        ("empty", "it takes steady-state steps, and there are none."),
        ("one-step", "it takes steady-state steps, and there are none."),
    ):
        write(key, a_home())
        assert main(["advise", f"demo: {key}"]) == 0
        assert capsys.readouterr().out == f"No advice: {sentence}\n"
        assert main(["advise", f"demo: {key}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []


def test_a_run_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "nobody"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_real_run_with_a_slow_loader_is_advised_steered_and_compared() -> None:
    words = ("run", "mlp", "--slow-loader-ms", "50", "--detach", "--name", "slow", "--device", "cpu")
    assert shell(*words).returncode == 0
    supervisor, (folder,) = Supervisor(a_home()), a_home().runs()
    try:
        until(lambda: supervisor.summary(folder).steps or 0, lambda steps: steps >= STEPS_BEFORE, limit_s=90)
        message = advised("slow")["input-bound"]
        details = dict(message["details"])
        wait_share = float(details["data wait"].split()[0])
        assert wait_share >= 20
        share = message["gain"]["share"]  # None while other programs use the processors.
        assert share is None or 0 < share <= wait_share / 100 + 0.01
        assert 50 <= float(details["data wait, p50 / p95"].split()[0]) < 100
        assert message["change"]["num_workers"] >= 1
        assert (
            message["command"]
            == f"stepscope set {folder.run_id} num_workers={message['change']['num_workers']}"
        )
        applied = shell(*message["command"].split()[1:])
        assert applied.returncode == 0, applied.stderr
        changed_at = int(applied.stdout.split("step ")[1].split(":")[0].replace(",", ""))
        assert changed_at > STEPS_BEFORE

        def observed_now() -> ObservedChange:
            with LogReader(folder.log) as reader:
                return observe_version(reader, reader.settings_history(), 1)

        observed = until(observed_now, lambda change: change.has_windows, limit_s=90)
        with LogReader(folder.log) as reader:
            history = reader.settings_history()
        # With workers some steps wait and some do not: no quantile has to change, the throughput has to.
        assert observed.samples_per_s is not None
        assert observed.samples_per_s.after > observed.samples_per_s.before
        assert "num_workers" in history[1].changed
        again = advised("slow").get("input-bound")
        assert again is None or again["change"] != message["change"]
    finally:
        supervisor.stop(folder, "test")
