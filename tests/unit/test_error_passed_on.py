"""The error that a run ends by if its `close` is called while one is in flight."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import stepscope
from harness.records.run import RunState
from stepscope.process import error_passed_on
from tests.api_factories import log_of

Read = Callable[[], None]


def _fail() -> None:
    raise ValueError("the batch is empty")


def _finally(read: Read) -> None:
    try:
        _fail()
    finally:
        read()


def _finally_with_a_try_inside(read: Read) -> None:
    try:
        _fail()
    finally:
        try:  # noqa: SIM105
            int("three")
        except ValueError:
            pass
        read()


def _finally_beside_another_except(read: Read) -> None:
    try:
        _fail()
    except TypeError:
        pass
    finally:
        for call in (read,):
            call()


def _callback(read: Read) -> None:
    with ExitStack() as stack:
        stack.callback(read)
        _fail()


def _except(read: Read) -> None:
    try:
        _fail()
    except ValueError:
        read()


def _except_of_several(read: Read) -> None:
    try:
        _fail()
    except TypeError:
        pass
    except (KeyError, ValueError):
        read()


def _bare_except(read: Read) -> None:
    try:
        _fail()
    except:  # noqa: E722
        read()


def _except_of_a_group(read: Read) -> None:
    try:
        _fail()
    except* ValueError:
        read()


def _finally_within_an_except(read: Read) -> None:
    try:
        _fail()
    except ValueError:
        try:
            pass
        finally:
            read()


def _finally_after_an_except(read: Read) -> None:
    try:
        _fail()
    except ValueError:
        pass
    finally:
        read()


def _closed_generator(read: Read) -> None:
    @contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        finally:
            read()

    generator = reading().gen
    next(generator)
    generator.close()


@pytest.mark.parametrize(
    "fail", [_finally, _finally_with_a_try_inside, _finally_beside_another_except, _callback]
)
def test_an_error_that_leaves_is_passed_on(fail: Callable[[Read], None]) -> None:
    samples: list[BaseException | None] = []
    with pytest.raises(ValueError, match="the batch is empty") as raised:
        fail(lambda: samples.append(error_passed_on()))
    assert samples == [raised.value]


@pytest.mark.parametrize(
    "fail",
    [
        _except,
        _except_of_several,
        _bare_except,
        _except_of_a_group,
        _finally_within_an_except,
        _finally_after_an_except,
        _closed_generator,
    ],
)
def test_an_error_that_is_caught_is_not(fail: Callable[[Read], None]) -> None:
    samples: list[BaseException | None] = []
    fail(lambda: samples.append(error_passed_on()))
    assert samples == [None]


@pytest.mark.parametrize(
    ("fail", "state", "message"),
    [
        (_finally, RunState.FAILED, "ValueError: the batch is empty"),
        (_except, RunState.FINISHED, "The script ended after 1 step."),
    ],
)
def test_a_run_that_is_closed_meanwhile_ends_by_it(
    tmp_path: Path, fail: Callable[[Read], None], state: RunState, message: str
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = stepscope.watch(model, optimizer, home=tmp_path)
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    if state is RunState.FAILED:
        with pytest.raises(ValueError, match="the batch is empty"):
            fail(run.close)
    else:
        fail(run.close)
    with log_of(tmp_path) as log:
        assert (log.run().state, log.run().state_message) == (state, message)


def test_a_run_is_not_ended_by_what_is_no_exception(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    run = stepscope.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), home=tmp_path)
    with pytest.raises(ValueError, match="The error cannot be 'diverged'; give the exception"):
        run.close("diverged")  # type: ignore[arg-type]
    run.close(ValueError("diverged"))
    with log_of(tmp_path) as log:
        assert (log.run().state, log.run().state_message) == (RunState.FAILED, "ValueError: diverged")
