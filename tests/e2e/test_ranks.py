"""Runs of two processes for real, over Gloo: their logs, commands to both, and the end of one of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.analysis.ranks.stragglers import compare_ranks
from harness.analysis.state import RunStatus
from harness.analysis.timing.phases import StepPart
from harness.importing.importing import import_folder
from harness.records.run import AckRow, CommandKind, CommandState, RunState
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.ranks import parts_of, read_rank_steps, read_ranks
from tests.ports import free_port
from tests.supervision import last_step, until
from tests.warm_start import fork_training, run_python, run_script

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[1] / "scripts" / "two_ranks.py"
_RUN = ("harness", "run")
_NPROC = [*_RUN, "--nproc", "2"]
_TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
_RANKS = (0, 1)


@contextmanager
def _a_run(path: Path, **values: object) -> Iterator[tuple[Supervisor, RunFolder]]:
    """A run of two processes in training; it is stopped at the end."""
    supervisor = Supervisor(Home(path), spawn=fork_training)
    settings = resolve({"model": "mlp", "device": "cpu", "slow_loader_ms": 20.0} | values)
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


def _measures_waits(folder: RunFolder, first_step: int) -> bool:
    """Return whether all ranks have the waits for each other from `first_step` on, as parts of the passes."""
    waits = []
    for path in folder.rank_logs().values():
        with LogReader(path) as log:
            rows = log.steps(first_step, 1_000)
        waits += [wait for row in rows for wait in (row.all_reduce_wait_ns, row.broadcast_wait_ns)]
        assert all((row.all_reduce_wait_ns or 0) <= row.backward_ns for row in rows)
        assert all((row.broadcast_wait_ns or 0) <= row.forward_ns for row in rows)
    return None not in waits


@pytest.mark.long
def test_commands_take_effect_before_the_same_step_on_both_ranks(tmp_path: Path) -> None:
    with _a_run(tmp_path, max_seconds=900.0) as (supervisor, folder):
        for kind, values in (
            (CommandKind.SET, {"learning_rate": 0.002}),
            (CommandKind.PAUSE, {}),
            (CommandKind.SET, {"batch_size": 64, "grad_accumulation": 2}),
            (CommandKind.RESUME, {}),
            (CommandKind.SET, {"amp": "bf16", "max_seconds": 600.0}),
        ):
            answers = _answers(folder, supervisor.send(folder, kind, values))
            assert {answer.state for answer in answers} == {CommandState.APPLIED}
            assert len({answer.step for answer in answers}) == 1
        with LogReader(folder.log) as log:
            limits_s = [row.values["max_seconds"] for row in log.settings_history()]
        assert limits_s == [900.0] * 3 + [600.0]
        refused = supervisor.send(folder, CommandKind.MEASURE, {"settings": {"amp": "off"}})
        answer = until(lambda: supervisor.answer(folder, refused), lambda row: row is not None)
        assert answer is not None
        assert "run of several processes" in answer.message
        supervisor.stop(folder)
        assert supervisor.status(folder).state is RunState.STOPPED
    assert len({last_step(RunFolder(folder.path, rank)) for rank in _RANKS}) == 1
    assert all(_is_whole(path) for path in folder.rank_logs().values())
    assert _measures_waits(folder, first_step=1)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_and_is_named(tmp_path: Path, rank: int) -> None:
    with _a_run(tmp_path) as (supervisor, folder):
        pid = json.loads(RunFolder(folder.path, rank).process.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        status = _status(supervisor, folder, f"Rank {rank}: Killed by SIGKILL")
        assert status.state is RunState.KILLED
    assert all(_is_whole(path) for path in folder.rank_logs().values())


@pytest.mark.long
def test_a_sharded_model_trains_as_a_replicated_one(tmp_path: Path) -> None:
    """Over two ranks the sums of gradients have one order, so the losses are equal bit by bit."""
    losses, supervisor = [], Supervisor(Home(tmp_path), spawn=fork_training)
    for parallel in ("ddp", "fsdp2"):
        settings = {"model": "cnn", "device": "cpu", "parallel": parallel, "grad_accumulation": 2}
        folder = supervisor.start(None, resolve(settings | {"max_steps": 10}), ranks=2)
        status = until(partial(supervisor.status, folder), lambda status: status.state.is_over)
        assert status.state is RunState.FINISHED, status
        with LogReader(folder.log) as log:
            losses.append([row.loss for row in log.last_steps(10)])
        assert _measures_waits(folder, first_step=1) is (parallel == "ddp")
    assert losses[0] == losses[1]
    assert None not in losses[0]


@pytest.mark.long
def test_a_time_limit_ends_both_ranks_after_the_same_step(tmp_path: Path) -> None:
    with _a_run(tmp_path, max_seconds=2.0) as (supervisor, folder):
        status = _status(supervisor, folder, "Reached the limit of 2 s.")
        assert status.state is RunState.FINISHED
    assert len({last_step(RunFolder(folder.path, rank)) for rank in _RANKS}) == 1


def _run(command: list[str], home: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    environment: Mapping[str, str] = os.environ | {"STEPSCOPE_HOME": str(home)} | environ
    return run_python("-m", *command, environ=environment)


def _run_bare(port: int, rank: int) -> str:
    """Standard output of one rank of the script, in a process without an observer."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(_RANKS), "LOCAL_WORLD_SIZE": len(_RANKS)}
    environ = {name: str(value) for name, value in (ranks | {"MASTER_PORT": port}).items()}
    environ |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}
    return run_script(f"import os\nos.environ |= {environ!r}\n" + _SCRIPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("watch", [_NPROC, pytest.param([*_TORCHRUN, "-m", *_RUN], marks=pytest.mark.long)])
def test_a_script_trains_in_two_processes_as_without_stepscope_and_its_slower_rank_is_named(
    tmp_path: Path, watch: list[str]
) -> None:
    """By `--nproc`, or by torchrun: the losses are those without Stepscope; each rank has a log with all
    steps."""
    with ThreadPoolExecutor() as pool:
        bare, nothing = pool.map(partial(_run_bare, free_port()), _RANKS)
    assert nothing == ""
    watched = _run([*watch, str(_SCRIPT)], tmp_path, OMP_NUM_THREADS="1")
    assert (watched.returncode, watched.stdout) == (0, bare), watched.stderr
    (folder,) = Home(tmp_path).runs()
    assert folder.request().part.ranks == 2
    assert [last_step(RunFolder(folder.path, rank)) for rank in _RANKS] == [90, 90]
    assert Supervisor(Home(tmp_path)).status(folder).state is RunState.FINISHED
    assert _measures_waits(folder, first_step=2)  # Its models are known after the first step.
    comparison = compare_ranks(read_rank_steps(Home(tmp_path).runs()))
    assert comparison is not None
    assert comparison.straggler is not None, comparison
    assert (comparison.straggler.rank, comparison.straggler.part) == (1, StepPart.BACKWARD)


@pytest.mark.long
def test_each_machine_has_a_run_of_its_ranks_and_commands_of_both_reach_all(tmp_path: Path) -> None:
    """Two agents of torchrun with a home each stand for two machines."""
    agents = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
    agents += ["--rdzv-endpoint", f"localhost:{free_port()}", "--local-addr", "localhost"]
    command = [sys.executable, "-m", "torch.distributed.run", *agents, "-m", "harness", "run"]
    homes = [Home(tmp_path / name) for name in ("one", "other")]
    processes = [
        subprocess.Popen(
            [*command, "mlp", "--device", "cpu", "--slow-loader-ms", "3"],
            env=os.environ | {"STEPSCOPE_HOME": str(home.path), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for home in homes
    ]
    try:
        folders = [until(home.runs, bool)[0] for home in homes]
        ranks = [RunFolder(folder.path, rank) for folder in folders for rank in _RANKS]
        until(lambda: min(map(last_step, ranks)), lambda step: step >= 5)
        assert sorted(folder.request().part.first_rank for folder in folders) == [0, 2]
        for folder, rate in zip(folders, (0.002, 0.003), strict=True):
            of_home = Supervisor(Home(folder.path.parents[1]))
            sent = of_home.send(folder, CommandKind.SET, {"learning_rate": rate})
            answers = _answers(folders[0], sent) + _answers(folders[1], sent)
            assert {answer.state for answer in answers} == {CommandState.APPLIED}
            assert len({answer.step for answer in answers}) == 1
        supervisor = Supervisor(homes[1])
        supervisor.stop(folders[1])
        for process in processes:
            process.wait(60)
        assert len(set(map(last_step, ranks))) == 1
        for home, folder in zip(homes, folders, strict=True):
            assert Supervisor(home).status(folder).state is RunState.STOPPED
            assert [facts.rank for facts in read_ranks([folder], 0.0)] == [
                folder.request().part.first_rank + at for at in _RANKS
            ]
        imported = import_folder(homes[0], folders[1].path)
        for folder in (folders[0], imported.folder):
            parts = parts_of(folder)
            assert [facts.rank for facts in read_ranks(parts, 0.0)] == [0, 1, 2, 3]
            assert sorted(read_rank_steps(parts)) == [0, 1, 2, 3]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_settings_that_ranks_do_not_share_are_refused_before_the_start(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--compile"], "torch.compile is not available in a run of several processes"),
        (["--nproc", "0"], "--nproc cannot be 0"),
    ):
        words = ["harness", "run", "mlp", "--device", "cpu", "--nproc", "2", *arguments]
        done = _run(words, tmp_path)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert Home(tmp_path).runs() == []
