"""Test when timed actions between two steps run."""

from harness.watch.boundary import WARM_UP_STEPS, Boundary, StepAction
from harness.watch.controller import StepController
from harness.watch.inbox import Inbox
from tests.train_factories import Clock, Watched, a_context

SETTLED = WARM_UP_STEPS + 1


class Timed(StepAction):
    """An action that is due every `period_ns`, and notes its steps."""

    def __init__(self, clock: Clock, period_ns: int) -> None:
        self.steps: list[int] = []
        self._clock, self._period_ns, self._due_ns = clock, period_ns, 0

    @property
    def deadline_ns(self) -> int:
        return self._due_ns

    def before_step(self, boundary: Boundary) -> None:
        if self._clock.now_ns >= self._due_ns:
            self._due_ns = self._clock.now_ns + self._period_ns
            self.steps.append(boundary.step)


def test_actions_run_once_the_time_of_one_of_them_has_come() -> None:
    clock = Clock()
    often, seldom = Timed(clock, 2), Timed(clock, 6)
    controller = StepController(a_context(clock_ns=clock), Inbox(), Watched().steps.boundary, [often, seldom])
    for step in range(SETTLED, SETTLED + 10):
        clock.now_ns = step - SETTLED
        assert controller.proceed(step)
    assert [step - SETTLED for step in often.steps] == [0, 2, 4, 6, 8]
    assert [step - SETTLED for step in seldom.steps] == [0, 6]
