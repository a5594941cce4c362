"""The machine is looked at while somebody watches, and NVML is let go when nobody does."""

import threading
import time

import pytest

from dashboard.data.live_runs import User, Users
from dashboard.data.machine_watch import LINGER_S, MachineWatch
from harness.device.machine import EMPTY_HISTORY, MOMENTS, MachineHistory, MachineSampler
from harness.device.testing.nvml import FakeGpu, FakeNvml

SOON_S = 10.0


class Bench:
    """A watch over a fake GPU, with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.library = FakeNvml()
        self.watch = MachineWatch(self._open, lambda: self.now_s, period_s=0.001)

    def _open(self) -> MachineSampler:
        return MachineSampler(self.library)

    def first_sample(self) -> MachineHistory:
        deadline = time.monotonic() + SOON_S
        while not (machine := self.watch.read()).moments:
            assert time.monotonic() < deadline
        return machine

    def leave(self) -> None:
        thread = self.watch.thread
        assert thread is not None
        self.now_s += LINGER_S + 1
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_the_first_look_never_waits() -> None:
    bench = Bench()
    assert bench.watch.thread is None
    assert bench.watch.read() is EMPTY_HISTORY
    bench.leave()


def test_a_watched_machine_tells_its_gpus_and_its_host() -> None:
    bench = Bench()
    machine = bench.first_sample()
    assert machine.gpus == [(FakeGpu().uuid, FakeGpu().name)]
    assert machine.moments[-1].gpus[FakeGpu().uuid].sample.util_pct == 87.0
    assert machine.moments[-1].host.ram_total_bytes > 0
    bench.leave()


def test_ten_seconds_after_the_last_look_nvml_is_let_go() -> None:
    bench = Bench()
    bench.first_sample()
    assert bench.library.users == 1
    bench.leave()
    assert (bench.library.users, bench.library.gpm_samples) == (0, 0)
    assert bench.watch.thread is None


def test_watching_again_begins_anew() -> None:
    bench = Bench()
    bench.first_sample()
    bench.leave()
    assert bench.watch.read() is EMPTY_HISTORY
    bench.first_sample()
    assert bench.library.users == 1
    bench.leave()
    assert bench.library.users == 0


def test_many_who_look_share_one_thread() -> None:
    bench = Bench()
    lookers = [threading.Thread(target=bench.watch.read) for _ in range(8)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    watching = [thread for thread in threading.enumerate() if thread.name == "stepscope-machine"]
    assert watching == [bench.watch.thread]
    bench.leave()


def test_only_the_last_two_minutes_are_remembered() -> None:
    now_ns = [0]
    sampler = MachineSampler(FakeNvml(), lambda: now_ns[0])
    for second in range(MOMENTS + 5):
        now_ns[0] = second
        machine = sampler.sample()
    assert [moment.t_ns for moment in machine.moments] == list(range(5, MOMENTS + 5))
    sampler.close()


def test_a_gpu_that_is_lost_is_said_once_and_left_out() -> None:
    library = FakeNvml([FakeGpu(), FakeGpu(uuid="GPU-two")])
    sampler = MachineSampler(library)
    sampler.sample()
    library.fail("nvmlDeviceGetPowerUsage", "GpuIsLost")
    sampler.sample()
    machine = sampler.sample()
    assert machine.moments[-1].gpus == {}
    assert len(machine.warnings) == 2
    sampler.close()


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded", "NoPermission"])
def test_without_nvml_the_host_is_told_and_the_reason(error: str) -> None:
    library = FakeNvml()
    library.fail("nvmlInit", error)
    sampler = MachineSampler(library)
    machine = sampler.sample()
    assert machine.gpus == []
    assert machine.nvml_problem
    assert machine.moments[-1].host.ram_used_bytes > 0
    sampler.close()


def test_the_memory_of_other_processes_is_unknown_where_that_of_one_is() -> None:
    known, unknown, run = User(1, "a", 300, None), User(2, "b", None, None), User(3, "c", None, "mine")
    sums = [Users(users, (), True).strangers_bytes for users in ([known, run], [known, unknown], [run])]
    assert sums == [300, None, 0]
