"""Runs of two processes for real, over Gloo: their logs, commands to both, and the end of one of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.analysis.state import RunStatus
from harness.records.run import AckRow, CommandKind, CommandState, RunState
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.supervision import last_step, until

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[1] / "scripts" / "two_ranks.py"
_RANKS = (0, 1)


@contextmanager
def _a_run(path: Path, **values: object) -> Iterator[tuple[Supervisor, RunFolder]]:
    """A run of two processes in training; it is stopped at the end."""
    supervisor = Supervisor(Home(path))
    settings = resolve({"model": "mlp", "device": "cpu", "slow_loader_ms": 3.0} | values)
    folder = supervisor.start(None, settings, ranks=2)
    try:
        for rank in _RANKS:
            until(lambda rank=rank: last_step(RunFolder(folder.path, rank)), lambda step: step >= 5)  # type: ignore[misc]
        yield supervisor, folder
    finally:
        until(lambda: _end(supervisor, folder), bool)


def _end(supervisor: Supervisor, folder: RunFolder) -> bool:
    """Stop what is left of the run; return whether none of its ranks is alive."""
    if not supervisor.status(folder).state.is_over:
        supervisor.stop(folder)
    return not any(is_alive(RunFolder(folder.path, rank).alive) for rank in _RANKS)


def _answers(folder: RunFolder, command_id: str) -> list[AckRow]:
    """Wait for the answers of both ranks to a command."""

    def read() -> list[AckRow]:
        rows = []
        for path in folder.rank_logs().values():
            with LogReader(path) as log:
                rows += [row for row in log.acks() if row.command_id == command_id]
        return rows

    return until(read, lambda rows: len(rows) == len(_RANKS))


def _status(supervisor: Supervisor, folder: RunFolder, word: str) -> RunStatus:
    return until(lambda: supervisor.status(folder), lambda status: word in status.message)


def _is_whole(path: Path) -> bool:
    """Return whether every step up to the last is in the log."""
    with LogReader(path) as log:
        extent = log.extent()
        return (extent.first, extent.steps) == (1, extent.last)


def test_commands_take_effect_before_the_same_step_on_both_ranks(tmp_path: Path) -> None:
    with _a_run(tmp_path) as (supervisor, folder):
        for kind, values in (
            (CommandKind.SET, {"learning_rate": 0.002}),
            (CommandKind.PAUSE, {}),
            (CommandKind.SET, {"batch_size": 64, "grad_accumulation": 2}),
            (CommandKind.RESUME, {}),
            (CommandKind.SET, {"amp": "bf16"}),
        ):
            answers = _answers(folder, supervisor.send(folder, kind, values))
            assert {answer.state for answer in answers} == {CommandState.APPLIED}
            assert len({answer.step for answer in answers}) == 1
        refused = supervisor.send(folder, CommandKind.MEASURE, {"settings": {"amp": "off"}})
        answer = until(lambda: supervisor.answer(folder, refused), lambda row: row is not None)
        assert answer is not None
        assert "run of several processes" in answer.message
        supervisor.stop(folder)
        assert supervisor.status(folder).state is RunState.STOPPED
    assert len({last_step(RunFolder(folder.path, rank)) for rank in _RANKS}) == 1
    assert all(_is_whole(path) for path in folder.rank_logs().values())


@pytest.mark.parametrize("rank", _RANKS)
def test_a_killed_rank_ends_the_run_and_is_named(tmp_path: Path, rank: int) -> None:
    with _a_run(tmp_path) as (supervisor, folder):
        pid = json.loads(RunFolder(folder.path, rank).process.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        status = _status(supervisor, folder, f"Rank {rank}: Killed by SIGKILL")
        assert status.state is RunState.KILLED
    assert all(_is_whole(path) for path in folder.rank_logs().values())


def test_a_time_limit_ends_both_ranks_after_the_same_step(tmp_path: Path) -> None:
    with _a_run(tmp_path, max_seconds=2.0) as (supervisor, folder):
        status = _status(supervisor, folder, "Reached the limit of 2 s.")
        assert status.state is RunState.FINISHED
    assert len({last_step(RunFolder(folder.path, rank)) for rank in _RANKS}) == 1


def _run(command: list[str], home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = os.environ | {"STEPSCOPE_HOME": str(home)} | environ
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_script_trains_in_two_processes_as_without_stepscope(tmp_path: Path) -> None:
    """By `--nproc`, by torchrun, and bare: the same losses; each rank has a log with all steps."""
    bare = _run(["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(_SCRIPT)], tmp_path)
    assert bare.returncode == 0, bare.stderr
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "harness"]
    for command in (["harness", "run", "--nproc", "2", str(_SCRIPT)], [*torchrun, "run", str(_SCRIPT)]):
        watched = _run(command, tmp_path)
        assert (watched.returncode, watched.stdout) == (0, bare.stdout), watched.stderr
    runs = Home(tmp_path).runs()
    assert len(runs) == 2
    for folder in runs:
        assert folder.request().ranks == 2
        assert [last_step(RunFolder(folder.path, rank)) for rank in _RANKS] == [40, 40]
        assert Supervisor(Home(tmp_path)).status(folder).state is RunState.FINISHED


def test_a_model_trains_as_ranks_of_torchrun_in_one_run(tmp_path: Path) -> None:
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "harness",
        "run",
        "mlp",
    ]
    done = _run([*command, "--device", "cpu", "--max-steps", "20"], tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = Home(tmp_path).runs()
    assert list(folder.rank_logs()) == [0, 1]
    with LogReader(folder.log) as log:
        assert log.run().state_message == "Took all 20 steps."


def test_settings_that_ranks_do_not_share_are_refused_before_the_start(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--compile"], "torch.compile is not available in a run of several processes"),
        (["--nproc", "0"], "--nproc cannot be 0"),
    ):
        words = ["harness", "run", "mlp", "--device", "cpu", "--nproc", "2", *arguments]
        done = _run(words, tmp_path)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert Home(tmp_path).runs() == []
