"""A fault, what is promised for it, and how it is measured whether the promise holds."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.store.home import Home
from tests.faults import shim
from tests.faults.forks import Forks
from tests.faults.trainer import FaultyRun, Trainer

# No scenario trains longer, however long its kill is delayed by other work on the machine.
_REFERENCE_STEPS, _QUICK_REFERENCE_STEPS = 2_000, 700


class Measurement(NamedTuple):
    """Outcome of one scenario."""

    text: str
    """What was measured, with figures, for a person."""
    broken: tuple[str, ...] = ()
    """Each way in which the promise was broken; none: it holds."""


class UnmeasurableError(Exception):
    """The fault cannot be brought about on this machine; the message says why."""


@dataclass(frozen=True)
class Scenario:
    """One row of the table of faults."""

    name: str
    """A word, to pick the scenario by."""
    fault: str
    promise: str
    measure: "Callable[[Bench], Measurement]"
    """Brings the fault about and measures. Raises UnmeasurableError."""
    is_in_tests: bool = True
    """Whether a test measures it, with few cases; the others take too long, or are tested elsewhere."""
    is_long: bool = False
    """Whether that test is left to `make test-long`."""


class Bench:
    """Context of scenarios: a folder, a seed, the processes that fork runs. A context manager.

    Attributes:
        is_quick: whether few cases are enough.
        seed: seeds every random choice.
    """

    def __init__(self, folder: Path, is_quick: bool, seed: int) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._folders = 0
        self.is_quick = is_quick
        self.seed = seed

    @cached_property
    def trainer(self) -> Trainer:
        """Forks runs with the library of faults loaded. Raises UnmeasurableError where there is none."""
        if shim.OBSTACLE is not None:
            raise UnmeasurableError(shim.OBSTACLE)
        return self._stack.enter_context(Trainer(shim.compile_shim(self.new_folder("shim"))))

    @cached_property
    def pages(self) -> Forks:
        """Forks dashboards."""
        quiet = {"STREAMLIT_LOGGER_LEVEL": "error"}
        return self._stack.enter_context(Forks("tests.faults.page_zygote", quiet))

    def count(self, full: int, quick: int) -> int:
        """Return how many cases to take."""
        return quick if self.is_quick else full

    def chance(self, name: str) -> random.Random:
        """Random choices that another run with the same seed makes again."""
        return random.Random(f"{self.seed} {name}")

    def new_folder(self, name: str) -> Path:
        """An empty folder."""
        self._folders += 1
        folder = self._folder / f"{self._folders}-{name}"
        folder.mkdir(parents=True)
        return folder

    def new_home(self, name: str) -> Home:
        """A home without runs."""
        return Home(self.new_folder(name))

    @cached_property
    def losses(self) -> list[float]:
        """The losses of a run to whose end nothing happens. Pace and length change none of them."""
        steps = self.count(_REFERENCE_STEPS, _QUICK_REFERENCE_STEPS)
        run = self.trainer.train(self.new_home("undisturbed"), {"max_steps": steps})
        assert run.wait() == 0, run.folder.output_tail()
        assert [row.loss for row in run.rows()] == run.losses
        return run.losses

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def training_faults(run: FaultyRun, losses: list[float]) -> list[str]:
    """Return how the training that went on in `run` differs from the undisturbed one's `losses`; nothing when
    all its losses are the same to the last bit. A run that was ended early has fewer."""
    ours = run.losses
    if len(ours) > len(losses):
        return [f"{len(ours)} steps were trained, too many to compare"]
    if ours == losses[: len(ours)]:
        return []
    step = next(i for i, pair in enumerate(zip(ours, losses, strict=False), 1) if pair[0] != pair[1])
    return [f"the loss of step {step} is {ours[step - 1]!r}, not {losses[step - 1]!r}"]


def log_faults(run: FaultyRun, losses: list[float]) -> list[str]:
    """Return how the rows in the log of `run` differ from the undisturbed losses; a row may be missing."""
    wrong = [row.step for row in run.rows() if row.loss not in losses[row.step - 1 : row.step]]
    return (
        [f"the log has another loss than was trained at {len(wrong)} steps, first {wrong[0]}"]
        if wrong
        else []
    )
