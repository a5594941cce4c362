"""The training loop."""

from collections.abc import Callable
from typing import Protocol

from harness.device.protocol import StepTicket
from harness.records.run import Phase
from harness.train.workload import Workload
from harness.watch.dispatch import StepEnded
from harness.watch.oom.capture import OomCapture
from harness.watch.readback import LossTicket
from harness.watch.timing import StepTimer, Times


class WatchedSteps(Protocol):
    """The part of a watch that the loop calls, see `harness.watch.steps.Steps`."""

    @property
    def proceed(self) -> Callable[[int], bool]:
        """Carries out requests; returns whether to take the step of that number (the first is 1)."""
        ...

    @property
    def step_ended(self) -> StepEnded:
        """Receives every step, see `StepListener`."""
        ...

    @property
    def timer(self) -> StepTimer:
        """Times the phases of a step and records its loss."""
        ...


class OomHandler(Protocol):
    """Recovery from out-of-memory errors within a step."""

    def capture(self, error: BaseException, step: int) -> OomCapture | None:
        """Return the evidence, inside the handler of the error; None if it is not about memory."""
        ...

    def recover(self, capture: OomCapture) -> None:
        """Prepare the run to repeat the step, after the handler, or raise."""
        ...

    def step_ended(self, step: int) -> None:
        """Record the end of the first step after a recovery."""
        ...


def train(workload: Workload, steps: WatchedSteps, oom_handler: OomHandler | None = None) -> int:
    """Train until the watch ends the run; return the number of steps.

    In pseudocode:

        while the watch says so (it carries out requests between two steps, never within one):
            take a step (see `take_step`)
            when memory ran out in it:
                release its memory, apply the policy, and repeat it with the next batch
            report the step to the watch

    Nothing here waits for the device, reads a value from it, or touches a file. Without an `oom_handler`
    every error ends the loop.
    """
    timer = steps.timer
    step, is_retry = 0, False
    while steps.proceed(step + 1):
        step += 1
        capture = None
        try:
            times_ns, ticket, loss = take_step(workload, timer, step)
        except (RuntimeError, MemoryError) as error:
            capture = None if oom_handler is None else oom_handler.capture(error, step)
            if capture is None:
                raise
        if capture is not None and oom_handler is not None:
            # Only here, after the handler, does nothing refer to the failed step any more.
            oom_handler.recover(capture)
            step, is_retry = step - 1, True
            continue
        steps.step_ended(step, times_ns, ticket, loss, workload.samples_per_step, workload.tokens_per_step)
        if is_retry and oom_handler is not None:
            oom_handler.step_ended(step)
            is_retry = False
    return step


def take_step(
    workload: Workload, timer: StepTimer, step: int
) -> tuple[Times, StepTicket | None, LossTicket | None]:
    """Take one step; return its times, and the tickets for the device's times and the loss.

    In pseudocode:

        for each micro-batch of the step:
            take a batch from the loader          data_wait
            copy it to the device                 h2d
            compute the loss                      forward
            compute the gradients                 backward
        update the weights                        optimizer
        record the loss, without waiting
        tidy up, as set

    In unobserved steps the timer records only the step's end.
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
        loss_ticket = timer.take_loss(workload.loss)
        laps, updated_ns = laps + 1, now()
        if lap is not None:
            lap(Phase.OPTIMIZER)
        del batch, inputs, targets, loss
        workload.tidy(step)
    except (RuntimeError, MemoryError):
        timer.laps = laps
        raise
    ticket = None if timer.end_device is None else timer.end_device()
    timer.end_ns = end_ns = timer.clock_ns()
    times_ns += (updated_ns, end_ns)
    return times_ns, ticket, loss_ticket
