"""A queue over a bench of stand-in processes: devices and predictions as a test sets them."""

import time
from collections.abc import Mapping
from pathlib import Path

from harness.predict.answer import Answer, Impossible, PartBytes, Prediction, Target
from harness.queue.adding import add_model
from harness.queue.files import queue_log
from harness.queue.placing import QueueDevice
from harness.queue.worker import QueueWorker
from harness.records.memory import MemoryCategory
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.store.folder import RunFolder
from tests.supervision import SETTINGS, SupervisorBench

GIB = 2**30
CONTEXT_BYTES = GIB // 2


def a_gpu(ordinal: int = 0, memory_gib: int = 80) -> DeviceFacts:
    return DeviceFacts(
        DeviceKind.CUDA,
        ordinal,
        f"GPU-{ordinal}{ordinal}",
        "A GPU",
        memory_gib * GIB,
        (9, 0),
        132,
        700.0,
        tuple(AmpMode),
        *(True,) * 4,
    )


def a_cpu(memory_gib: int = 16) -> DeviceFacts:
    memory_bytes = memory_gib * GIB
    return DeviceFacts(
        DeviceKind.CPU, None, None, "A CPU", memory_bytes, None, 8, None, (AmpMode.OFF,), *(False,) * 4
    )


def a_device(facts: DeviceFacts, free_gib: float | None = None) -> QueueDevice:
    free_bytes = facts.memory_bytes if free_gib is None else int(free_gib * GIB)
    return QueueDevice(facts, free_bytes)


def a_prediction(peak_gib: float) -> Prediction:
    peak_bytes = int(peak_gib * GIB)
    parts = (PartBytes(MemoryCategory.WEIGHTS, peak_bytes),)
    return Prediction(
        DeviceKind.CUDA, peak_bytes, peak_bytes, peak_bytes, parts, "forward", 0, CONTEXT_BYTES, "", (), ()
    )


class Forecasts:
    """Predictions by batch size, in GiB; None: being computed; a text: impossible."""

    def __init__(self, peaks: Mapping[int, float | str | None] | None = None) -> None:
        self.peaks = dict(peaks or {})

    def request(self, settings: Settings, target: Target) -> Answer | None:
        peak = self.peaks.get(settings.batch_size, 1.0)
        if isinstance(peak, str):
            return Impossible(peak)
        return None if peak is None else a_prediction(peak)


class Machines:
    """The devices of a machine, for a test to change."""

    def __init__(self, *devices: QueueDevice) -> None:
        self.now = list(devices)

    def devices(self) -> list[QueueDevice]:
        return self.now


class QueueBench:
    """A queue, its worker and a supervisor of stand-in processes."""

    def __init__(self, path: Path) -> None:
        self.bench = SupervisorBench(path)
        self.home = self.bench.home
        self.log = queue_log(self.home)
        self.machine = Machines(a_device(a_cpu()))
        self.forecasts = Forecasts()
        self.worker = self.another()

    def another(self) -> QueueWorker:
        """One more worker, as of another process."""
        return QueueWorker(
            self.bench.another(), self.machine, self.forecasts, sleep=lambda _: time.sleep(0.02)
        )

    def add(self, name: str | None = None, batch_size: int = 1, device: str = "auto") -> int:
        settings = SETTINGS.model_copy(update={"batch_size": batch_size, "device": device})
        return add_model(self.home, settings, name)

    def names(self) -> list[str]:
        """The names of the runs, oldest first."""
        return [folder.request().name for folder in reversed(self.home.runs())]

    def run(self, name: str) -> RunFolder:
        return self.home.find(name)

    def reasons(self) -> dict[str | None, str]:
        return {row.name: row.reason for row in self.log.entries()}
