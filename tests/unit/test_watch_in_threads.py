"""`stepscope.watch` in several threads of a process, which has one run at a time."""

import threading
from pathlib import Path

import torch

import stepscope
from harness.attach.active import active
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.api_factories import SmallTraining, log_of, watch


def test_threads_that_watch_at_once_end_each_others_runs(tmp_path: Path) -> None:
    backward, together = torch.autograd.backward, threading.Barrier(2)
    runs: list[stepscope.Run] = []

    def train() -> None:
        training = SmallTraining()
        together.wait(10)
        with watch(training, tmp_path) as run:
            runs.append(run)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 2
    assert active() is None
    assert torch.autograd.backward is backward
    for folder in Home(tmp_path).runs():
        with LogReader(folder.log) as log:
            assert log.run().state == RunState.FINISHED


def test_batches_that_another_thread_takes_from_steps_are_not_mixed_in(tmp_path: Path) -> None:
    training, other = SmallTraining(), SmallTraining()
    batches = list(training.loader)
    with watch(training, tmp_path) as run:

        def train_other() -> None:
            other.train(run.steps(iter(batches)))

        for batch in run.steps(iter(batches)):
            thread = threading.Thread(target=train_other)
            thread.start()
            thread.join()
            training.step(batch)
    with log_of(tmp_path) as log:
        assert [row.samples for row in log.last_steps(100)] == [8] * len(batches)
