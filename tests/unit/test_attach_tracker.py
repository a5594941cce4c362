"""The phases of a script's step, on a clock of the test's own."""

from collections.abc import Callable

import pytest

from harness.analysis.oom.report import OomPhase
from harness.attach.tracker import StepTracker
from harness.watch.timing import StepTimer, phases_ns

DATA, COPY, FORWARD, BACKWARD, OPTIMIZER = range(5)


class Step:
    """A tracker whose clock advances between events by the given nanoseconds."""

    def __init__(self, *, copies: bool = False) -> None:
        self.now_ns = 1_000
        self.timer = StepTimer(lambda: self.now_ns)
        self.tracker = StepTracker(self.timer, copies=copies)

    def after(self, duration_ns: int, event: Callable[[], object]) -> "Step":
        self.now_ns += duration_ns
        event()
        return self

    def batch(self, wait_ns: int, samples: int = 8) -> "Step":
        tracker = self.tracker
        return self.after(0, tracker.batch_requested).after(wait_ns, lambda: tracker.batch_arrived(samples))

    def forward(
        self, *, has_gradients: bool = True, is_evaluating: bool = False, is_repeated: bool = False
    ) -> None:
        self.tracker.forward_began(
            has_gradients=has_gradients, is_evaluating=is_evaluating, is_repeated=is_repeated
        )

    def evaluate(self, duration_ns: int, *, is_evaluating: bool = True) -> "Step":
        self.after(0, lambda: self.forward(has_gradients=False, is_evaluating=is_evaluating))
        return self.after(duration_ns, lambda: self.tracker.forward_ended(has_gradients=False))

    def learn(self, forward_ns: int, backward_ns: int) -> "Step":
        tracker = self.tracker
        self.after(0, self.forward).after(forward_ns, tracker.backward_began)
        return self.after(backward_ns, tracker.backward_ended)

    def update(self, duration_ns: int) -> "Step":
        return self.after(0, self.tracker.update_began).after(duration_ns, self.tracker.update_ended)

    def search(self, duration_ns: int) -> "Step":
        def find() -> None:
            self.now_ns += duration_ns

        self.tracker.leave_out_search(find)
        return self

    def end(self) -> tuple[list[int], int]:
        """The phases, and the duration of the step."""
        times_ns = self.tracker.end()
        self.tracker.begin()
        return list(phases_ns(times_ns)), times_ns[-1] - times_ns[0]


def test_phases_of_a_plain_step_and_its_residual_are_its_duration() -> None:
    step = Step()
    step.batch(10).after(3, lambda: None).learn(100, 200).after(4, lambda: None).update(50)
    assert step.tracker.samples == 8
    assert step.after(5, lambda: None).end() == ([10, 0, 100, 200, 50], 10 + 3 + 100 + 200 + 4 + 50 + 5)


def test_the_time_from_a_batch_to_the_forward_pass_is_the_copy_where_there_is_one() -> None:
    assert Step(copies=True).batch(10).after(7, lambda: None).learn(1, 2).update(3).end()[0] == [
        10,
        7,
        1,
        2,
        3,
    ]


def test_micro_batches_are_summed_up() -> None:
    step = Step()
    for _ in range(3):
        step.batch(10).learn(100, 200)
    step.update(50)
    assert step.tracker.samples == 24
    assert step.end()[0] == [30, 0, 300, 600, 50]


def test_a_closure_has_its_own_forward_and_backward_passes_within_the_update() -> None:
    step = Step()
    step.after(0, step.tracker.update_began)
    for _ in range(2):
        step.after(5, lambda: None).learn(100, 200)
    assert step.after(7, step.tracker.update_ended).end() == ([0, 0, 200, 400, 17], 617)


def test_evaluation_by_a_loader_belongs_to_no_step() -> None:
    step = Step()
    step.batch(10).learn(1, 1).update(1).end()
    for _ in range(3):
        step.batch(20).evaluate(30)
    step.after(0, step.tracker.batch_requested).after(2, step.tracker.batch_missed)
    step.batch(10, samples=4).learn(100, 200).update(50)
    assert (step.tracker.evaluation_ns, step.tracker.samples) == (152, 4)
    phases, duration_ns = step.end()
    assert (phases, duration_ns) == ([10, 0, 100, 200, 50], 360)
    assert step.tracker.evaluation_ns == 0


def test_what_is_done_after_the_last_evaluated_batch_belongs_to_no_step_either() -> None:
    step = Step()
    step.batch(10).learn(1, 1).update(1).end()
    step.batch(20).evaluate(30)
    step.after(0, step.tracker.batch_requested).after(2, step.tracker.batch_missed).after(300, lambda: None)
    step.batch(10, samples=4).learn(100, 200).update(50)
    assert step.tracker.evaluation_ns == 352
    assert step.end() == ([10, 0, 100, 200, 50], 360)


def test_a_training_without_a_loader_begins_after_what_follows_an_evaluation() -> None:
    step = Step()
    step.learn(1, 1).update(1).end()
    step.batch(20).evaluate(30)
    step.after(0, step.tracker.batch_requested).after(2, step.tracker.batch_missed).after(300, lambda: None)
    step.learn(100, 200).update(50)
    assert step.tracker.evaluation_ns == 352
    assert step.end() == ([0, 0, 100, 200, 50], 350)


def test_a_step_that_is_loaded_before_the_evaluated_batches_end_is_a_step_like_others() -> None:
    step = Step()
    step.batch(20).evaluate(30)
    step.after(0, step.tracker.batch_requested).after(2, step.tracker.batch_missed)
    step.learn(100, 200).update(50)
    assert step.end()[0][FORWARD:] == [100, 200, 50]
    step.batch(10).learn(100, 200).update(50)
    assert (step.tracker.evaluation_ns, step.end()) == (0, ([10, 0, 100, 200, 50], 360))


@pytest.mark.parametrize("loads", [True, False])
def test_evaluation_between_two_micro_batches_leaves_the_step_what_it_has(loads: bool) -> None:
    step = Step()
    for number in range(4):
        step.batch(10) if loads else step.after(10, lambda: None)
        step.learn(100, 200).after(5, lambda: None)
        if number in (0, 1):
            for _ in range(3):
                (step.batch(20) if loads else step).evaluate(30)
            if loads:
                step.after(0, step.tracker.batch_requested).after(2, step.tracker.batch_missed)
    step.update(50)
    evaluation_ns = 2 * (5 + 3 * 50 + 2) if loads else 2 * (5 + 90 + 10)
    assert (step.tracker.evaluation_ns, step.tracker.samples) == (evaluation_ns, 32 if loads else None)
    residual_ns = 2 * 5 + (0 if loads else 2 * 10)
    data_ns = 40 if loads else 0
    assert step.end() == ([data_ns, 0, 400, 800, 50], data_ns + 400 + 800 + 50 + residual_ns)


def test_evaluation_between_the_updates_of_two_optimizers_leaves_the_first_one_in_the_step() -> None:
    step = Step()
    step.batch(10).learn(100, 200).update(50).evaluate(1_000).batch(10).learn(100, 200).update(50)
    assert (step.tracker.evaluation_ns, step.tracker.samples) == (1_000, 16)
    assert step.end() == ([20, 0, 200, 400, 100], 720)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_search_for_models_after_an_update_belongs_to_no_step(evaluates: bool) -> None:
    """As where an optimizer of a meta-learner steps before each task's own is created."""
    step = Step()
    step.update(50)
    step.after(3, lambda: None).search(1_000)
    if evaluates:
        step.evaluate(400)
    step.batch(10).learn(100, 200).update(50)
    evaluation_ns = 3 + 400 if evaluates else 0
    assert step.tracker.evaluation_ns == evaluation_ns
    assert step.end() == ([10, 0, 100, 200, 100], (0 if evaluates else 3) + 10 + 100 + 200 + 100)


def test_gradients_that_are_dropped_after_a_search_take_the_time_before_it_along() -> None:
    step = Step()
    step.batch(10).learn(100, 200).batch(20)
    step.search(1_000).tracker.leave_out_dropped()
    assert step.tracker.evaluation_ns == 10 + 100 + 200
    step.learn(100, 200).update(50)
    assert step.end() == ([20, 0, 100, 200, 50], 20 + 100 + 200 + 50)


def test_in_unobserved_steps_an_evaluation_leaves_out_all_before_it() -> None:
    step = Step()
    ends_ns: list[int] = [1_000]
    step.timer.unobserve(ends_ns)
    step.batch(10).learn(100, 200).evaluate(30).batch(10).learn(100, 200).update(50)
    assert step.tracker.evaluation_ns == 340
    assert ends_ns == [1_340]


def test_evaluation_in_evaluation_mode_without_a_loader_belongs_to_no_step() -> None:
    step = Step()
    step.learn(1, 1).update(1).end()
    step.evaluate(500).learn(100, 200).update(50)
    assert step.tracker.evaluation_ns == 500
    assert step.end() == ([0, 0, 100, 200, 50], 350)


def test_a_call_without_gradients_in_training_mode_is_a_part_of_the_step_that_trains_after_it() -> None:
    without_loader, with_loader = Step(), Step().batch(10)
    for step in (without_loader, with_loader):
        step.evaluate(40, is_evaluating=False).learn(100, 200).update(50)
        assert step.tracker.evaluation_ns == 0
    assert without_loader.end() == ([0, 0, 140, 200, 50], 390)
    assert with_loader.end() == ([10, 0, 140, 200, 50], 400)


def test_the_time_from_the_model_to_the_backward_pass_is_the_loss_and_belongs_to_the_forward_pass() -> None:
    step = Step()
    step.after(0, step.forward).after(100, lambda: step.tracker.forward_ended(has_gradients=True))
    step.after(7, step.forward).after(100, lambda: step.tracker.forward_ended(has_gradients=True))
    step.after(20, step.tracker.backward_began).after(200, step.tracker.backward_ended).update(50)
    assert step.end() == ([0, 0, 227, 200, 50], 477)


def test_between_two_calls_of_the_same_model_the_script_does_something_else() -> None:
    step = Step()
    for _ in range(3):
        step.after(1_000, lambda: step.forward(is_repeated=True))
        step.after(10, lambda: step.tracker.forward_ended(has_gradients=True))
    step.after(20, step.tracker.backward_began).after(200, step.tracker.backward_ended).update(50)
    assert step.end() == ([0, 0, 50, 200, 50], 3_300)


def test_nested_backward_passes_and_what_they_compute_again_are_one_backward_pass() -> None:
    step = Step()
    step.after(0, step.forward).after(100, step.tracker.backward_began)
    step.after(5, step.forward).after(5, step.tracker.backward_began).after(5, step.tracker.backward_ended)
    step.after(5, step.tracker.backward_ended).update(50)
    assert step.end()[0] == [0, 0, 100, 20, 50]


def test_a_loader_within_a_loader_is_one_wait_and_counts_the_outer_batch() -> None:
    step = Step()
    step.after(0, step.tracker.batch_requested).batch(10, samples=1)
    step.after(5, lambda: step.tracker.batch_arrived(8)).learn(1, 1).update(1)
    assert step.tracker.samples == 8
    assert step.end()[0][DATA] == 15


@pytest.mark.parametrize(
    ("begin", "phase"),
    [
        (lambda step: step.tracker.batch_requested(), OomPhase.DATA),
        (lambda step: step.forward(), OomPhase.FORWARD),
        (lambda step: step.tracker.backward_began(), OomPhase.BACKWARD),
        (lambda step: step.tracker.update_began(), OomPhase.OPTIMIZER),
    ],
)
def test_the_phase_of_an_error_is_the_one_under_way(begin: Callable[[Step], None], phase: OomPhase) -> None:
    step = Step()
    assert step.tracker.oom_phase == OomPhase.BETWEEN
    begin(step)
    assert step.tracker.oom_phase == phase


def test_after_a_failed_backward_pass_the_next_step_has_all_its_phases() -> None:
    step = Step()
    step.batch(10).after(0, step.forward).after(100, step.tracker.backward_began)
    step.after(30, step.tracker.backward_failed)
    assert step.tracker.oom_phase == OomPhase.BACKWARD
    assert step.batch(10).learn(100, 200).update(50).end() == ([20, 0, 200, 230, 50], 500)


def test_after_a_failed_update_an_evaluation_is_no_part_of_an_optimizer() -> None:
    step = Step()
    step.after(0, step.tracker.update_began)
    step.batch(10).learn(1, 2)
    assert not step.tracker.is_updating
    assert step.update(3).end()[0] == [10, 0, 1, 2, 3]


def test_a_pause_between_two_steps_belongs_to_none() -> None:
    step = Step()
    step.learn(1, 1).update(1)
    step.tracker.end()
    step.after(5_000, step.timer.restart)
    step.tracker.begin()
    assert step.learn(100, 200).update(50).end() == ([0, 0, 100, 200, 50], 350)


def test_an_unobserved_step_has_an_end_and_the_next_one_all_phases() -> None:
    step = Step()
    step.timer.unobserve()
    times_ns = step.batch(10).learn(100, 200).update(50).tracker.end()
    assert times_ns[-1] == step.now_ns
    step.timer.restart()
    step.tracker.begin()
    assert step.batch(10).learn(100, 200).update(50).end() == ([10, 0, 100, 200, 50], 360)


def test_calls_that_no_backward_pass_follows_are_counted_once_they_are_far_more_than_usual() -> None:
    step = Step()
    for _ in range(20):  # None was ever followed by one, as in rollouts before the first update.
        step.forward()
    assert step.tracker.calls_without_backward == 0
    step = Step()
    for _ in range(2):
        step.batch(1).learn(1, 1)
    step.update(1).end()
    for calls in range(1, 6):
        step.batch(1).after(0, lambda: step.forward(is_evaluating=True))
        assert step.tracker.oom_phase is OomPhase.EVALUATION
        assert step.tracker.calls_without_backward == (calls if calls > 3 else 0)
        step.after(1, lambda: step.tracker.forward_ended(has_gradients=True))
    # An evaluation before a step makes no calls usual.
    step.batch(1).learn(1, 1).update(1).end()
    for _ in range(4):
        step.batch(1).after(0, step.forward).after(1, lambda: step.tracker.forward_ended(has_gradients=True))
    assert step.tracker.calls_without_backward == 4


def test_the_calls_that_a_step_usually_has_are_not_too_many() -> None:
    step = Step()
    for _ in range(2):
        for _ in range(50):
            step.after(0, step.forward).after(1, lambda: step.tracker.forward_ended(has_gradients=True))
        assert step.tracker.calls_without_backward == 0
        step.learn(1, 1).update(1).end()
