"""The loop: phases in order, one optimizer step a step, the loss taken before the step's last mark."""

from typing import Any

import pytest
import torch

from harness.device.protocol import StepTicket
from harness.train.loop import train
from harness.watch.readback import LossReader, LossTicket
from harness.watch.timing import StepTimer, Times
from tests.train_factories import Clock, LoopSteps, a_step, a_workload


class Steps:
    """Lets so many steps happen, then no more."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.asked: list[int] = []

    def proceed(self, step: int) -> bool:
        self.asked.append(step)
        return step <= self._steps


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[int, Times, float, int, int | None]] = []

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        assert loss is not None
        self.heard.append((step, times_ns, loss() if callable(loss) else loss, samples, tokens))


def run(workload: Any, steps: int, losses: LossReader | None = None) -> Listener:
    listener = Listener()
    timer = StepTimer(Clock(tick_ns=1), losses=losses)
    last_step = train(workload, LoopSteps(Steps(steps).proceed, listener.step_ended, timer))
    assert last_step == steps
    return listener


def test_it_trains_as_a_plain_loop_would() -> None:
    with_loop = [heard[2] for heard in run(a_workload(), 5).heard]
    plain = a_workload()
    assert with_loop == [a_step(plain) for _ in range(5)]


def test_the_conductor_is_asked_before_every_step_and_ends_it() -> None:
    conductor = Steps(2)
    steps = LoopSteps(conductor.proceed, Listener().step_ended, StepTimer(Clock()))
    train(a_workload(), steps)
    assert conductor.asked == [1, 2, 3]


def test_every_step_is_told_with_what_it_consumed() -> None:
    heard = run(a_workload(grad_accumulation=3), 2).heard
    assert [(step, samples, tokens) for step, _, _, samples, tokens in heard] == [
        (1, 24, None),
        (2, 24, None),
    ]


@pytest.mark.slow
def test_a_text_step_counts_its_tokens() -> None:
    workload = a_workload(model="rnn", sequence_length=16)
    assert run(workload, 1).heard[0][3:] == (8, 128)


class Diary:
    """A workload that writes down what is called, in order."""

    micro_batches = 2
    samples_per_step = 1
    tokens_per_step = None
    loss = torch.tensor(0.0)

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> Any:
            self.lines.append(name)
            return (0, 0) if name == "to_device" else 0

        return call


class DiaryTimer(StepTimer):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(Clock(), losses=DiaryReader(lines))
        self.lap = lambda phase: lines.append(f"· {phase}")


class DiaryReader(LossReader):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(None)
        take = self.take

        def note(loss: torch.Tensor) -> LossTicket | None:
            lines.append("take loss")
            return take(loss)

        self.take = note


def test_everything_happens_in_order_and_is_attributed_to_its_phase() -> None:
    diary: Any = Diary()
    train(diary, LoopSteps(Steps(1).proceed, Listener().step_ended, DiaryTimer(diary.lines)))
    micro = [
        "next_batch",
        "· data_wait",
        "to_device",
        "· h2d",
        "forward",
        "· forward",
        "backward",
        "· backward",
    ]
    assert diary.lines == [*micro, *micro, "update", "take loss", "· optimizer", "tidy"]
