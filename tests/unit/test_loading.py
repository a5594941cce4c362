"""The loader: order, workers, delays, errors, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import _utils

from harness.data.loading import Loader, ResidentLoader, open_loader
from harness.data.order import ShuffledBatches
from harness.data.source import open_source
from harness.errors import SettingError, StepscopeError
from harness.settings import Settings
from harness.settings.resolve import resolve
from tests.numbers_source import Numbers
from tests.warm_start import prepare_forks

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _warm_workers() -> None:
    prepare_forks()


def settings_with(**values: object) -> Settings:
    return resolve({"model": "mlp", "batch_size": 4, **values})


def open_numbers(length: int, generation: int = 0, bad: int = -1, **values: object) -> Loader:
    return open_loader(Numbers(length, bad), settings_with(**values), CPU, generation=generation)


def labels(loader: Loader, batches: int) -> list[int]:
    return [label for _ in range(batches) for label in loader.next().targets.tolist()]


def wait_until(what: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def quick_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch looks for dead workers every 5 s; here sooner."""
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)


def test_each_sample_comes_once_before_any_comes_again() -> None:
    with open_numbers(10) as loader:
        drawn = labels(loader, 5)
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_a_batch_larger_than_the_source_is_full_all_the_same() -> None:
    with open_numbers(3, batch_size=8) as loader:
        drawn = loader.next().targets.tolist()
    assert sorted(drawn[:3]) == sorted(drawn[3:6]) == [0, 1, 2]
    assert len(drawn) == 8


def test_the_order_follows_seed_and_generation() -> None:
    def order(seed: int, generation: int) -> list[int]:
        with open_numbers(50, seed=seed, generation=generation) as loader:
            return labels(loader, 3)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


def test_a_huge_source_is_drawn_from_without_a_permutation() -> None:
    batches = list(islice(ShuffledBatches(10**12, 1000, seed=0, generation=0), 3))
    drawn = np.concatenate(batches)
    assert drawn.min() >= 0
    assert 9 * 10**11 < drawn.max() < 10**12


def test_loading_leaves_torchs_own_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with open_numbers(10) as loader:
        loader.next()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.slow
def test_two_workers_give_the_same_batches_as_none() -> None:
    with open_numbers(30) as alone, open_numbers(30, num_workers=2) as shared:
        assert labels(shared, 20) == labels(alone, 20)
        assert alone.worker_pids() == []
        pids = shared.worker_pids()
        assert len(set(pids)) == 2
        assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "data"), [("cnn", "shapes"), ("lstm", "stdlib-text"), ("cnn", "digits")])
def test_real_sources_travel_to_workers(model: str, data: str) -> None:
    settings = resolve({"model": model, "data": data, "num_workers": 1})
    source = open_source(settings)
    with (
        open_loader(source, settings, CPU) as shared,
        open_loader(source, settings.model_copy(update={"num_workers": 0}), CPU) as alone,
    ):
        for _ in range(3):
            here, there = alone.next(), shared.next()
            assert torch.equal(here.inputs, there.inputs)
            assert torch.equal(here.targets, there.targets)


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(SettingError, match="has no samples"):
        open_numbers(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_read_is_named_in_one_sentence(workers: int) -> None:
    with (
        open_numbers(4, bad=2, num_workers=workers) as loader,
        pytest.raises(StepscopeError, match=r"^The file 2 can no longer be read\.$"),
    ):
        loader.next()


def test_a_slow_loader_delays_every_batch() -> None:
    with open_numbers(10, slow_loader_ms=30) as loader:
        started = time.monotonic()
        labels(loader, 3)
        assert time.monotonic() - started >= 0.09


def test_a_very_slow_worker_does_not_hold_up_closing() -> None:
    loader = open_numbers(10, num_workers=1, slow_loader_ms=60_000)
    pids = loader.worker_pids()
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 30
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_closing_twice_is_harmless_and_a_closed_loader_gives_nothing() -> None:
    loader = open_numbers(10)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.next()


@pytest.mark.usefixtures("quick_check")
def test_a_killed_worker_is_told_in_a_sentence() -> None:
    with open_numbers(10, num_workers=1, slow_loader_ms=5) as loader:
        loader.next()
        pid = loader.worker_pids()[0]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StepscopeError, match=f"worker {pid} was killed by signal 9; .*smaller batch"):
            labels(loader, 10)
        assert loader.worker_pids() == []


def test_workers_leave_interrupts_to_the_training_process() -> None:
    with open_numbers(10, num_workers=1) as loader:
        loader.next()
        pid = loader.worker_pids()[0]
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert len(labels(loader, 8)) == 32
        assert loader.worker_pids() == [pid]


ORPHAN = """
import os, sys, torch
from harness.data.loading import open_loader
from harness.data.source import open_source
from harness.settings.resolve import resolve
if __name__ == "__main__":
    settings = resolve({"model": "mlp", "data": "shapes", "num_workers": 2})
    loader = open_loader(open_source(settings), settings, torch.device("cpu"))
    loader.next()
    print(*loader.worker_pids(), flush=True)
    sys.stdin.read(1)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_workers_end_with_the_training_process_however_it_ends(how: int | None, tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        if how is None:
            process.stdin.write("x")
            process.stdin.flush()
        else:
            process.send_signal(how)
        process.wait(30)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_synthetic_data_is_one_batch_on_the_device_itself() -> None:
    settings = resolve({"model": "cnn", "data": "synthetic", "batch_size": 5, "num_workers": 2})
    with open_loader(open_source(settings), settings, CPU) as loader:
        assert isinstance(loader, ResidentLoader)
        first = loader.next()
        assert loader.next().inputs.data_ptr() == first.inputs.data_ptr()
        assert first.inputs.shape == (5, 3, 16, 16)
        assert loader.worker_pids() == []
