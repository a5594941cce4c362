"""The training loop."""

from typing import Protocol

from harness.device.protocol import StepTicket
from harness.records import Phase
from harness.train.oom_scene import Scene
from harness.train.readback import LossReader, LossTicket
from harness.train.timing import StepTimer, Times
from harness.train.unobserved import Unobserved
from harness.train.workload import Workload


class Conductor(Protocol):
    """Decides, between two steps, whether and how training goes on."""

    def proceed(self, step: int) -> bool:
        """Carry out what was asked for; whether to take the step numbered `step` (the first is 1)."""
        ...


class StepListener(Protocol):
    """Hears of every step, on the training thread."""

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """A step is over (on an asynchronous device: issued). `ticket` and `loss` become known later."""
        ...


class Rescue(Protocol):
    """Recovers from running out of memory within a step."""

    def look(self, error: BaseException, step: int) -> Scene | None:
        """While the error is handled: what there is to see; None when it is not about memory."""
        ...

    def recover(self, scene: Scene) -> None:
        """Once the error is gone: make the run fit to take the step again, or raise."""
        ...

    def step_ended(self, step: int) -> None:
        """The first step after a recovery is over."""
        ...


def train(
    workload: Workload,
    conductor: Conductor,
    timer: StepTimer,
    losses: LossReader,
    listener: StepListener,
    rescue: Rescue | None = None,
    unobserved: Unobserved | None = None,
) -> int:
    """Train until the conductor ends it; returns the number of steps taken.

    In pseudocode:

        while the conductor says so (it carries out requests between two steps, never within one):
            take a step (see `take_step`; a few are taken unobserved, to know what observing costs)
            when memory ran out in it:
                let go of the step, change what is to be changed, and take it again with the next batch
            tell the listener

    Nothing here waits for the device, reads a value from it, or touches a file. Without a `rescue` every
    error ends the loop; without `unobserved` every step is observed.
    """
    step, is_rescued = 0, False
    while conductor.proceed(step + 1):
        step += 1
        scene = None
        if unobserved is not None and step >= unobserved.due:
            unobserved.before_step(step)
        try:
            if timer.ends_ns is not None:
                take_unobserved_step(workload, timer, timer.ends_ns, step)
                continue
            times_ns, ticket, loss = take_step(workload, timer, losses, step)
        except (RuntimeError, MemoryError) as error:
            scene = None if rescue is None else rescue.look(error, step)
            if scene is None:
                raise
        if scene is not None and rescue is not None:
            # Only here, behind the handler, is nothing left that holds the failed step.
            rescue.recover(scene)
            step, is_rescued = step - 1, True
            continue
        listener.step_ended(step, times_ns, ticket, loss, workload.samples_per_step, workload.tokens_per_step)
        if is_rescued and rescue is not None:
            rescue.step_ended(step)
            is_rescued = False
    return step


def take_step(
    workload: Workload, timer: StepTimer, losses: LossReader, step: int
) -> tuple[Times, StepTicket | None, LossTicket | None]:
    """Take one step: its times, and the tickets for those of the device and for its loss.

    In pseudocode:

        for each micro-batch of the step:
            take a batch from the loader          data_wait
            copy it to the device                 h2d
            compute the loss                      forward
            compute the gradients                 backward
        update the weights                        optimizer
        take the loss along, without waiting
        tidy up, as the settings ask
    """
    now, lap = timer.now, timer.lap
    laps = 0
    times_ns: Times = (timer.end_ns, now())
    try:
        for _ in range(workload.micro_batches):
            batch = workload.next_batch()
            laps, arrived_ns = laps + 1, now()
            if lap is not None:
                lap(Phase.DATA_WAIT)
            inputs, targets = workload.to_device(batch)
            laps, copied_ns = laps + 1, now()
            if lap is not None:
                lap(Phase.H2D)
            loss = workload.forward(inputs, targets)
            laps, forward_ns = laps + 1, now()
            if lap is not None:
                lap(Phase.FORWARD)
            workload.backward(loss)
            laps, backward_ns = laps + 1, now()
            if lap is not None:
                lap(Phase.BACKWARD)
            times_ns += (arrived_ns, copied_ns, forward_ns, backward_ns)
        workload.update()
        # Before the step's last mark on the device: once that is reached, the loss has arrived too.
        loss_ticket = losses.take(workload.loss)
        laps, updated_ns = laps + 1, now()
        if lap is not None:
            lap(Phase.OPTIMIZER)
        del batch, inputs, targets, loss
        workload.tidy(step)
    except (RuntimeError, MemoryError):
        timer.laps = laps
        raise
    ticket = None if timer.end_device is None else timer.end_device()
    timer.end_ns = end_ns = now()
    times_ns += (updated_ns, end_ns)
    return times_ns, ticket, loss_ticket


def take_unobserved_step(workload: Workload, timer: StepTimer, ends_ns: list[int], step: int) -> None:
    """As `take_step`, and only its end is taken down; should it fail, so is how far it came."""
    laps = 0
    try:
        for _ in range(workload.micro_batches):
            batch = workload.next_batch()
            laps += 1
            inputs, targets = workload.to_device(batch)
            laps += 1
            loss = workload.forward(inputs, targets)
            laps += 1
            workload.backward(loss)
            laps += 1
        workload.update()
        laps += 1
        del batch, inputs, targets, loss
        workload.tidy(step)
    except (RuntimeError, MemoryError):
        timer.laps = laps
        raise
    ends_ns.append(timer.now())
