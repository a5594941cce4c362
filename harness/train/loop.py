"""The training loop."""

from typing import Protocol

from harness.device.protocol import StepTicket
from harness.train.readback import LossReader, LossTicket
from harness.train.timing import StepTimer, Times
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
            timer.end_data_wait()
            inputs, targets = workload.to_device(batch)
            timer.end_h2d()
            loss = workload.forward(inputs, targets)
            timer.end_forward()
            workload.backward(loss)
            timer.end_backward()
        workload.update()
        # Before the step's last mark on the device: once that is reached, the loss has arrived too.
        loss_ticket = losses.take(workload.loss)
        timer.end_optimizer()
        del batch, inputs, targets, loss
        workload.tidy(step)
        times_ns, ticket = timer.end_step()
        samples, tokens = workload.samples_per_step, workload.tokens_per_step
        listener.step_ended(step, times_ns, ticket, loss_ticket, samples, tokens)
    return step
