"""A real run's watch in this process, as `harness.run` has it, minus a process of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from harness.data.source import open_source
from harness.device.cpu.device import CpuDevice
from harness.models.building import build_model
from harness.records.run import CommandKind, CommandRow, SettingsRow
from harness.settings.resolve import resolve
from harness.settings.spec import change
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.liveness import Liveness
from harness.store.reader import LogReader
from harness.train.loop import train
from harness.train.workload import Workload
from harness.watch.boundary import StepAction
from harness.watch.instruments import DROPPED
from harness.watch.jobs.judging import Judging
from harness.watch.live_settings import LiveSettings
from harness.watch.measuring import Measuring
from harness.watch.steps import Steps
from harness.watch.tee import Feed
from harness.watch.watch import Pacing, RunFiles, Watch
from tests.store_factories import a_run

_SETTLE_S = 0.02
"""What was under way when the gate closed is done by then."""


def cpu_workload(device: CpuDevice, **values: Any) -> Workload:
    """A catalog model in training on this CPU."""
    settings = resolve(values)
    torch.set_flush_denormal(settings.flush_denormal)
    source = open_source(settings)
    torch.manual_seed(0)
    device.begin_memory()
    return Workload(settings, device, build_model(settings, source.shape), source)


class Gate:
    """Holds back what watches a run while something else is measured: for the samplers time stands still,
    and the writer takes no steps."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._held_s = 0.0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Until the end of the context nothing of what watches the run is at work."""
        closed_s = time.monotonic()
        self._is_open.clear()
        time.sleep(_SETTLE_S)
        try:
            yield
        finally:
            self._held_s += time.monotonic() - closed_s
            self._is_open.set()

    def clock_s(self) -> float:
        """A monotonic clock without the time meanwhile, in which it keeps who asks waiting: a sampler that
        was told the same time again and again would wake up as often."""
        self._is_open.wait()
        return time.monotonic() - self._held_s

    def held(self, feed: Feed) -> Feed:
        """`feed`, which has nothing to give meanwhile: the writer still asks, four times a second."""
        return lambda: feed() if self._is_open.is_set() else ()


class Recording:
    """A run's watch over a workload in this process, alive while the context lasts: the product's own, over
    real files, with a control file as it is once somebody has used it."""

    def __init__(self, workload: Workload, device: CpuDevice, folder: Path) -> None:
        self._workload = workload
        self._device = device
        self._run = RunFolder(folder)
        self._stack = ExitStack()
        self.gate = Gate()

    def __enter__(self) -> Self:
        with ControlLog(self._run) as control:
            control.send(CommandRow("first", 1, CommandKind.RESUME, "{}", "bench"))
        handle = self._stack.enter_context(FolderHandle(self._run))
        alive = self._stack.enter_context(Liveness.hold(self._run.alive))
        files, settings = RunFiles(self._run.path, handle, alive), self._workload.settings
        pacing = Pacing(self.gate.clock_s, self.gate.held)
        watch = Watch(files, self._device, a_run(), settings, pacing=pacing)
        self._watch = self._stack.enter_context(watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def errors(self) -> list[str]:
        """Return what broke and was dropped, as the log says."""
        with LogReader(self.log) as log:
            return [event.message for _, event in log.events() if DROPPED in event.message]

    @property
    def log(self) -> Path:
        """The log, which can be read while it is written and afterwards."""
        return self._run.log

    @property
    def last_step(self) -> int:
        """The newest step."""
        return self._watch.context.last_step

    def train(
        self,
        steps: int,
        around: Callable[[Steps], None] = lambda _: None,
        actions: Sequence[StepAction] = (),
    ) -> None:
        """Take so many steps, exactly as a run does. Once only: steps are numbered from 1. `around` may wrap
        what the loop calls; `actions` are further ones between steps."""
        workload = self._workload
        workload.settings = change(workload.settings, {"max_steps": steps})
        journal = self._watch.context.journal
        journal.put(SettingsRow(1, 1, 0, workload.settings.model_dump_json(), "{}", None))
        live = LiveSettings(self._watch.context, workload)
        self.measuring = Measuring(self._watch.context, live)
        judging = Judging(self._watch.context, self._watch.folder, self.measuring.to_judge)
        acting = [live, self.measuring, *actions]
        with self._watch.observe(workload, acting, jobs=[judging.job]) as watched:
            around(watched)
            train(workload, watched)
