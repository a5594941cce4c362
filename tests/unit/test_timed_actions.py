"""Test when timed actions between two steps run."""

from harness.watch.boundary import WARM_UP_STEPS, Boundary, StepAction
from harness.watch.controller import StepController
from harness.watch.inbox import Inbox
from tests.train_factories import Clock, Watched, a_context

SETTLED = WARM_UP_STEPS + 1


class Timed(StepAction):
    """An action that is due every `period_ns`, and notes its steps."""

    def __init__(self, clock: Clock, period_ns: int, *, only_measures: bool) -> None:
        self.only_measures = only_measures
        self.steps: list[int] = []
        self._clock, self._period_ns, self._due_ns = clock, period_ns, 0

    @property
    def deadline_ns(self) -> int:
        return self._due_ns

    def before_step(self, boundary: Boundary) -> None:
        if self._clock.now_ns >= self._due_ns:
            self._due_ns = self._clock.now_ns + self._period_ns
        self.steps.append(boundary.step)


def test_an_action_that_only_measures_runs_alone_when_only_its_time_has_come() -> None:
    clock = Clock()
    often, seldom = Timed(clock, 2, only_measures=True), Timed(clock, 6, only_measures=False)
    actions: list[StepAction] = [often, seldom]
    controller = StepController(a_context(clock_ns=clock), Inbox(), Watched().steps.boundary, actions)
    for step in range(SETTLED, SETTLED + 10):
        clock.now_ns = step - SETTLED
        assert controller.proceed(step)
    assert [step - SETTLED for step in often.steps] == [0, 2, 4, 6, 8]
    assert [step - SETTLED for step in seldom.steps] == [0, 6]
