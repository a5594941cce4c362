"""Test what is read from out-of-memory texts as they were published, and what follows from them."""

import pytest

from harness.analysis.oom.error import own_size, read_error
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomVerdict
from tests.oom_factories import GIB, MIB, some_facts
from tests.oom_texts import OomText, a_container_text, real_texts

BY_SOURCE = {text.source: text for text in real_texts()}
# Processes that really were in the way of the one that failed.
IN_THE_WAY = ("Process 2514068 ", "Process 3449556 ", "Process 58482 ")


@pytest.fixture(params=real_texts(), ids=lambda text: text.source)
def real(request: pytest.FixtureRequest) -> OomText:
    text: OomText = request.param
    return text


def test_every_figure_of_a_real_text_is_read(real: OomText) -> None:
    numbers = read_error(real.text)
    assert numbers.requested_bytes == real.requested_bytes
    assert numbers.total_bytes == real.total_bytes
    assert numbers.free_bytes == real.free_bytes
    assert numbers.process_bytes == real.process_bytes
    assert numbers.others_bytes == pytest.approx(real.others_bytes, abs=2)


def test_another_process_is_blamed_only_where_there_was_one(real: OomText) -> None:
    numbers = read_error(real.text)
    report = explain(
        some_facts(
            error_bytes=numbers.requested_bytes,
            least_bytes=numbers.requested_bytes,
            most_bytes=numbers.requested_bytes,
            device_total_bytes=numbers.total_bytes,
            device_free_bytes=numbers.free_bytes,
            process_bytes=numbers.process_bytes,
            others_bytes=numbers.others_bytes,
        )
    )
    assert (report.verdict is OomVerdict.OTHER_PROCESS) == any(name in real.text for name in IN_THE_WAY)


def test_a_text_that_is_cut_off_is_read_with_what_the_allocator_holds() -> None:
    text = BY_SOURCE["public file docker: 1 real other 21.3, own 2.16"].text.partition(" Of the")[0]
    assert read_error(text)[3:] == (None, None)
    process, others = read_error(text, reserved_bytes=int(1.6 * GIB))[3:]
    assert (process, others) == (int(2.16 * GIB), int(21.3 * GIB))


def test_a_process_without_a_size_leaves_open_which_one_is_this() -> None:
    text = a_container_text([30 * GIB, 2**64], 20 * GIB, GIB)
    assert "17179869184.00 GiB" in text
    assert read_error(text)[3:] == (None, None)
    assert read_error(a_container_text([2**64], 20 * GIB, GIB))[3:] == (None, None)
    assert read_error(f"this process has 9.00 GiB memory in use. {text}")[3:] == (9 * GIB, None)


def test_a_request_may_be_larger_than_the_card_but_not_than_any() -> None:
    assert read_error("Tried to allocate 130206.04 GiB. a total capacity of 23.56 GiB").requested_bytes
    assert read_error("Tried to allocate 17179869184.00 GiB.").requested_bytes is None


@pytest.mark.parametrize(
    ("listed", "reserved", "own"),
    [
        ([5], 100, 5),
        ([5], None, 5),
        ([97, 5], 100, None),
        ([98, 5], 100, 98),
        ([500, 110, 20], 100, 110),
        ([500, 20], 0, 20),
        ([500, 20], None, None),
        ([], 100, None),
    ],
)
def test_the_smallest_size_with_room_for_what_is_reserved_is_its_own(
    listed: list[int], reserved: int | None, own: int | None
) -> None:
    assert own_size([size * MIB for size in listed], None if reserved is None else reserved * MIB) == (
        None if own is None else own * MIB
    )
