"""Test which errors count as out of memory because an earlier one does."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from harness.attach.ending import ending_of
from harness.watch.oom.errors import is_out_of_memory
from harness.watch.oom.raised import RaisedError
from stepscope.process import ExitCalls


class CrowdedBuffer(io.BytesIO):
    """A buffer that has no memory for large records."""

    def write(self, data: Any, /) -> int:
        if len(data) > 100_000:
            raise MemoryError
        return super().write(data)


def run_out() -> None:
    raise MemoryError("Unable to allocate 2.00 GiB for an array")


def save_to_buffer() -> None:
    torch.save({"weights": torch.zeros(100_000)}, CrowdedBuffer())


@contextlib.contextmanager
def an_archive() -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("the archive is not complete")


def leave_archive() -> None:
    with an_archive():
        run_out()


def fail_in_finally() -> None:
    try:
        run_out()
    finally:
        next_attempt()


def raise_another() -> None:
    try:
        run_out()
    except MemoryError:
        raise RuntimeError("batch 7 failed")  # noqa: B904


def hide_it() -> None:
    try:
        run_out()
    except MemoryError:
        raise RuntimeError("batch 7 failed") from None


def hide_it_without_a_text() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise RuntimeError("batch 7 failed") from None


class TrainingFailedError(RuntimeError):
    """An error of a script."""


def quote_it() -> None:
    try:
        run_out()
    except MemoryError as error:
        raise TrainingFailedError(f"batch 7 failed: {error}") from None


def quote_its_cause() -> None:
    try:
        run_out()
    except MemoryError as error:
        raise RuntimeError(f"batch 7: {error}") from error


def next_attempt() -> None:
    raise RuntimeError("a shape is wrong")


def attempt_again() -> None:
    try:
        run_out()
    except MemoryError:
        next_attempt()


def fail_later() -> None:
    with contextlib.suppress(MemoryError):
        run_out()
    next_attempt()


def error_of(act: Callable[[], None]) -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        act()
    return caught.value


@pytest.mark.parametrize("act", [save_to_buffer, leave_archive, fail_in_finally, raise_another, quote_it])
def test_an_error_that_took_the_place_of_one_of_memory_counts(act: Callable[[], None]) -> None:
    assert is_out_of_memory(error_of(act))


@pytest.mark.parametrize("act", [hide_it, hide_it_without_a_text, attempt_again, fail_later])
def test_an_error_of_something_else_does_not(act: Callable[[], None]) -> None:
    assert not is_out_of_memory(error_of(act))


@pytest.mark.parametrize("act", [leave_archive, fail_in_finally, raise_another, quote_it, quote_its_cause])
def test_the_calls_are_those_of_the_memory_error(act: Callable[[], None]) -> None:
    raised = RaisedError.of(error_of(act))
    functions = [function for _, _, function in raised.calls()]
    assert functions[:2] == ["run_out", act.__name__]
    assert functions[-1] == "error_of"
    assert "__exit__" not in functions
    assert raised.text == "Unable to allocate 2.00 GiB for an array"


def exit_with(code: object) -> None:
    try:
        run_out()
    except MemoryError:
        sys.exit(code)  # type: ignore[arg-type]  # anything can be a code


def leave_interpreter() -> None:
    try:
        run_out()
    except MemoryError:
        exit(1)  # as scripts do


def exit_within_a_call() -> None:
    try:
        run_out()
    except MemoryError:
        exit_with_arguments()


def exit_with_arguments() -> None:
    sys.exit("wrong arguments")


def exit_of(act: Callable[[], None]) -> SystemExit:
    with pytest.raises(SystemExit) as caught:
        act()
    return caught.value


@pytest.fixture(params=[False, True])
def _exits(request: pytest.FixtureRequest) -> Iterator[None]:
    """`sys.exit` as it is, and as it is where a script imports stepscope."""
    exits = ExitCalls()
    if request.param:
        exits.follow()
    yield
    exits.leave()


@pytest.mark.usefixtures("_exits")
@pytest.mark.parametrize("act", [lambda: exit_with(1), lambda: exit_with("no memory"), leave_interpreter])
def test_a_run_ends_by_the_memory_error_of_a_handler_that_exits(act: Callable[[], None]) -> None:
    ending = ending_of(exit_of(act), 3)
    assert ending.error is not None
    assert is_out_of_memory(ending.error)


@pytest.mark.usefixtures("_exits")
@pytest.mark.parametrize("act", [lambda: exit_with(0), exit_within_a_call])
def test_an_exit_without_an_error_or_for_another_reason_is_no_memory_error(act: Callable[[], None]) -> None:
    error = exit_of(act)
    ending = ending_of(error, 3)
    assert not is_out_of_memory(error)
    assert ending.error is None or not is_out_of_memory(ending.error)


@pytest.mark.parametrize(
    ("act", "is_of_memory"),
    [(lambda: exit_with(1), True), (lambda: exit_with(0), False), (exit_within_a_call, False)],
)
def test_an_exit_that_ends_the_process_has_the_memory_error_of_its_handler(
    act: Callable[[], None], *, is_of_memory: bool
) -> None:
    exits = ExitCalls()
    exits.follow()
    exit_of(act)
    call = exits.call
    exits.leave()
    assert call is not None
    assert is_out_of_memory(call.error) == is_of_memory
