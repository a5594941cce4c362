"""The entry of the queue that starts on each device, and the reason why the others wait."""

from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.queue.machine import ThisMachine
from harness.queue.placing import Plan, QueueDevice, Waiting, plan
from harness.records.run import DeviceFacts
from harness.settings import Settings
from tests.queue_factories import Forecasts, a_cpu, a_device, a_gpu
from tests.supervision import SETTINGS

CPU = a_device(a_cpu())
GPU_0, GPU_1 = a_device(a_gpu(0)), a_device(a_gpu(1))


def an_entry(entry_id: int, batch_size: int = 1, device: str = "auto", *, is_forced: bool = False) -> Waiting:
    settings = SETTINGS.model_copy(update={"batch_size": batch_size})
    return Waiting(entry_id, f"entry {entry_id}", device, is_forced, settings)


def a_script(entry_id: int, device: str = "auto") -> Waiting:
    return Waiting(entry_id, "train.py", device, False, None)


def started(result: Plan) -> tuple[int, str] | None:
    start = result.start
    return None if start is None else (start.entry_id, start.device.facts.torch_name)


def planned(
    *entries: Waiting,
    devices: tuple[QueueDevice, ...] = (CPU,),
    peaks: dict[int, float | str | None] | None = None,
) -> Plan:
    return plan(entries, devices, Forecasts(peaks).request)


def test_the_first_entry_starts_on_a_free_device() -> None:
    result = planned(an_entry(1), an_entry(2))
    assert started(result) == (1, "cpu")
    assert result.waiting == {2: "waits for cpu: 'entry 1' is before it"}


def test_auto_is_every_gpu_and_the_cpu_only_without_one() -> None:
    busy = GPU_0._replace(occupant="cnn-1")
    assert started(planned(an_entry(1), devices=(busy, GPU_1, CPU))) == (1, "cuda:1")
    assert started(planned(an_entry(1), devices=(busy, CPU))) is None


def test_a_device_is_named_by_torch_or_by_uuid() -> None:
    for word in ("cuda:1", "GPU-11", "gpu-11"):
        assert started(planned(an_entry(1, device=word), devices=(GPU_0, GPU_1, CPU))) == (1, "cuda:1")
    assert started(planned(an_entry(1, device="cuda"), devices=(GPU_0, GPU_1, CPU))) == (1, "cuda:0")
    assert started(planned(an_entry(1, device="cpu"), devices=(GPU_0, CPU))) == (1, "cpu")


def test_an_entry_waits_until_its_predicted_peak_is_free() -> None:
    full = GPU_0._replace(free_bytes=11 * 2**30)
    result = planned(an_entry(1, batch_size=20), devices=(full,), peaks={20: 20})
    assert started(result) is None
    assert result.waiting == {1: "waits for cuda:0: predicted 20.5 GiB, 11.0 GiB free"}
    assert started(planned(an_entry(1, batch_size=10), devices=(full,), peaks={10: 10})) == (1, "cuda:0")


def test_an_entry_that_fits_on_no_idle_device_is_blocked_and_lets_others_pass() -> None:
    result = planned(an_entry(1, 100), an_entry(2), devices=(GPU_0, GPU_1), peaks={100: 100})
    assert list(result.blocked) == [1]
    assert "cuda:0: predicted 100 GiB, 80.0 GiB at most; cuda:1:" in result.blocked[1]
    assert started(result) == (2, "cuda:0")


def test_a_forced_entry_starts_where_it_is_predicted_not_to_fit_but_not_beside_another_run() -> None:
    entry = an_entry(1, 100, is_forced=True)
    assert started(planned(entry, devices=(GPU_0,), peaks={100: 100})) == (1, "cuda:0")
    assert started(planned(entry, devices=(GPU_0._replace(occupant="cnn-1"),))) is None


def test_a_later_entry_does_not_overtake_on_the_same_device() -> None:
    full = GPU_0._replace(free_bytes=11 * 2**30)
    result = planned(an_entry(1, 20), an_entry(2), devices=(full,), peaks={20: 20})
    assert started(result) is None
    assert result.waiting[2] == "waits for cuda:0: 'entry 1' is before it"


def test_a_later_entry_starts_on_a_device_that_no_earlier_one_wants() -> None:
    busy = GPU_0._replace(occupant="cnn-1")
    result = planned(an_entry(1, device="cuda:0"), an_entry(2, device="cuda:1"), devices=(busy, GPU_1))
    assert started(result) == (2, "cuda:1")
    assert result.waiting == {1: "waits for cuda:0: run 'cnn-1' is on it"}


def test_an_entry_that_starts_leaves_the_other_devices_to_those_behind_it() -> None:
    result = planned(an_entry(1), an_entry(2), devices=(GPU_0, GPU_1))
    assert started(result) == (1, "cuda:0")
    assert result.waiting == {2: "starts next"}


def test_an_entry_waits_while_its_memory_is_being_predicted() -> None:
    result = planned(an_entry(1), an_entry(2, 7), peaks={1: None})
    assert started(result) is None
    assert result.waiting[1] == "waits for cpu: its memory is being predicted"


def test_a_script_needs_a_device_without_a_run() -> None:
    assert started(planned(a_script(1))) == (1, "cpu")
    assert started(planned(a_script(1), devices=(CPU._replace(occupant="train-1"),))) is None


def test_a_model_that_cannot_be_predicted_starts_as_a_script_does() -> None:
    assert started(planned(an_entry(1), peaks={1: "Its kernels are not known."})) == (1, "cpu")


def test_a_device_that_is_gone_is_waited_for_without_stopping_the_others() -> None:
    gone = GPU_0._replace(free_bytes=None, problem="the driver does not list it any more")
    result = planned(
        an_entry(1, device="cuda:0"), an_entry(2, device="cuda:5"), an_entry(3), devices=(gone, GPU_1)
    )
    assert result.waiting == {
        1: "waits for cuda:0: the driver does not list it any more",
        2: "waits for cuda:5: this machine does not have it (now)",
    }
    assert started(result) == (3, "cuda:1")


def test_a_cap_bounds_the_memory_that_is_waited_for() -> None:
    capped = Settings.model_validate(SETTINGS.model_dump() | {"batch_size": 9, "memory_cap_gib": 12})
    full = GPU_0._replace(free_bytes=11 * 2**30)
    entry = Waiting(1, "mlp", "auto", False, capped)
    result = planned(entry, devices=(full,), peaks={9: 11.5})
    assert result.waiting == {1: "waits for cuda:0: predicted 11.5 GiB, 11.0 GiB free"}
    assert started(planned(entry, devices=(GPU_0,), peaks={9: 11.5})) is not None
    assert 1 in planned(entry, devices=(GPU_0,), peaks={9: 13}).blocked


def test_the_machine_lists_its_devices_once_and_reads_their_free_memory_each_time() -> None:
    gpus = [FakeGpu(uuid="GPU-00")]
    library = FakeNvml(gpus)
    examinations = []

    def examine() -> list[DeviceFacts]:
        examinations.append(1)
        return [a_gpu(0), a_cpu()]

    machine = ThisMachine(examine, library)
    gpu, cpu = machine.devices()
    assert gpu.free_bytes == gpus[0].total - gpus[0].used - gpus[0].reserved
    assert cpu.free_bytes is not None
    gpus.clear()
    gone, _ = machine.devices()
    assert (gone.free_bytes, gone.problem) == (None, "the driver does not list it any more")
    assert len(examinations) == 1
