"""The training thread's half of a watch: the work before, within and after each step."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from harness.records.run import DeviceKind
from harness.tracking.history import AllocatorHistory
from harness.watch.boundary import Boundary, Outcome, StepAction
from harness.watch.cache import CacheEmptying
from harness.watch.capture.profiles import Profiles
from harness.watch.capture.snapshots import Snapshots
from harness.watch.controller import StepController
from harness.watch.dispatch import Dispatcher, StepEnded, StepListener
from harness.watch.inspect.inspection import open_inspection
from harness.watch.instruments import Instruments
from harness.watch.limits import RunLimits
from harness.watch.oom.reporter import Subject
from harness.watch.rank_waits import RankWaits
from harness.watch.readback import LossReader
from harness.watch.timing import StepTimer
from harness.watch.training import Training
from harness.watch.unobserved import Unobserved


class Steps:
    """The steps of one training; nothing here waits for the device or starts a thread.

    A loop calls `proceed` before each step, notes its times and its loss with `timer`, and calls `step_ended`
    after it.

    Attributes:
        proceed: `StepController.proceed`.
        step_ended: `Dispatcher.step_ended`.
        timer: times the phases of a step and records its loss.
        controller: carries out requests.
        boundary: the state of the run between two steps.
        snapshots, profiles: capture steps.
        unobserved: leaves blocks of steps unobserved.
        subject: the subject of out-of-memory reports.
        recorder: records steps.
        context, memory: the run's.
    """

    def __init__(
        self,
        instruments: Instruments,
        training: Training,
        actions: Sequence[StepAction] = (),
        listeners: Mapping[str, StepListener] | None = None,
        history: AllocatorHistory | None = None,
        end_in_time: Callable[[str], None] | None = None,
    ) -> None:
        """`actions` are those of the loop itself, such as changes of its settings, and act first; `listeners`
        receive steps in addition to the recorder. `history` is CUDA's; tests pass a fake. `end_in_time` as
        for `RunLimits`."""
        context, memory = instruments.context, instruments.memory
        self.context, self.memory = context, memory
        is_cpu = context.device.facts.kind is DeviceKind.CPU
        device_clock = instruments.device_clock
        losses = LossReader.of(torch.device("cpu") if device_clock is None else context.device.torch_device)
        self.timer = StepTimer(instruments.now_ns, device_clock, memory if is_cpu else None, losses)
        self.boundary = Boundary(context.marks, memory, self.timer)
        self.snapshots = Snapshots(context, training, memory, instruments.captures, history)
        self.profiles = Profiles(context, training, instruments.captures)
        inspection = open_inspection(context, training)
        meter = instruments.meter
        self.unobserved = Unobserved(context, training, self.timer, meter.plan, meter.block_ended)
        self.controller = StepController(
            context,
            instruments.inbox,
            self.boundary,
            [
                RunLimits(context, training, end_in_time),
                *actions,
                CacheEmptying(context),
                self.snapshots,
                self.profiles,
                *([] if inspection is None else [inspection]),
                self.unobserved,
            ],
            instruments.step_finished,
        )
        self.subject = Subject(training, self.snapshots.live_allocations)
        everyone = {"recorder": instruments.recorder, **(listeners or {})}
        self.proceed: Callable[[int], bool] = self.controller.proceed
        self._dispatcher = Dispatcher(everyone, context.guard, context.progress)
        self.step_ended: StepEnded = self._dispatcher.step_ended
        self.recorder = instruments.recorder
        self._is_cpu = is_cpu

    def follow_ranks(self, model: nn.Module) -> None:
        """Measure the waits for other ranks in the steps of `model`, which DDP replicates, from now on. Not
        on a GPU: there the CPU only issues the passes. Idempotent."""
        if not self._is_cpu:
            return
        if self.recorder.rank_waits is None:
            self.recorder.rank_waits = RankWaits(self.timer)
        self.recorder.rank_waits.follow(model)

    @property
    def records_alone(self) -> bool:
        """Return whether the recorder is all that receives steps."""
        return self._dispatcher.names == ["recorder"]

    @property
    def outcome(self) -> Outcome | None:
        """The reason for the end of the loop; None while it goes on."""
        return self.controller.outcome

    def close(self) -> None:
        """Restore the functions of the training. Idempotent."""
        self.controller.close()
        if self.recorder.rank_waits is not None:
            self.recorder.rank_waits.close()
