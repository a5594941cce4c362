"""A run that begins and ends within a generator."""

from collections.abc import Generator
from pathlib import Path

from harness.records.run import RunState
from tests.api_factories import SmallTraining, log_of, watch


def test_a_generator_that_is_closed_within_the_block_is_a_regular_end(tmp_path: Path) -> None:
    training = SmallTraining()

    def losses() -> Generator[float, None, None]:
        with watch(training, tmp_path) as run:
            for batch in run.steps(training.loader):
                yield training.step(batch).item()

    steps = losses()
    next(steps)
    next(steps)
    steps.close()
    with log_of(tmp_path) as log:
        run = log.run()
    assert (run.state, run.state_message) == (RunState.FINISHED, "The script ended after 2 steps.")
