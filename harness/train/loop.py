"""The training loop."""

from typing import Protocol

from harness.records import Phase
from harness.train.readback import LossReader, LossTicket
from harness.train.timing import StepTimer, StepTiming
from harness.train.workload import Workload

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER = Phase


class Conductor(Protocol):
    """Decides, between two steps, whether and how training goes on."""

    def proceed(self, step: int) -> bool:
        """Carry out what was asked for; whether to take the step numbered `step` (the first is 1)."""
        ...


class StepListener(Protocol):
    """Hears of every step, on the training thread."""

    def step_ended(
        self, step: int, timing: StepTiming, loss: LossTicket | None, samples: int, tokens: int | None
    ) -> None:
        """A step is over (on an asynchronous device: issued)."""
        ...


def train(
    workload: Workload, conductor: Conductor, timer: StepTimer, losses: LossReader, listener: StepListener
) -> int:
    """Train until the conductor ends it; returns the number of steps taken.

    In pseudocode:

        while the conductor says so (it carries out requests between two steps, never within one):
            for each micro-batch of the step:
                take a batch from the loader          data_wait
                copy it to the device                 h2d
                compute the loss                      forward
                compute the gradients                 backward
            update the weights                        optimizer
            take the loss along, without waiting
            tidy up, as the settings ask
            tell the listener

    Nothing here waits for the device, reads a value from it, or touches a file.
    """
    step = 0
    while conductor.proceed(step + 1):
        step += 1
        timer.begin()
        for _ in range(workload.micro_batches):
            batch = workload.next_batch()
            timer.lap(DATA_WAIT)
            inputs, targets = workload.to_device(batch)
            timer.lap(H2D)
            loss = workload.forward(inputs, targets)
            timer.lap(FORWARD)
            workload.backward(loss)
            timer.lap(BACKWARD)
        workload.update()
        # Before the step's last mark on the device: once that is reached, the loss has arrived too.
        ticket = losses.take(workload.loss)
        timer.lap(OPTIMIZER)
        del batch, inputs, targets, loss
        workload.tidy(step)
        listener.step_ended(step, timer.end(), ticket, workload.samples_per_step, workload.tokens_per_step)
    return step
