"""Test which of the processes in an out-of-memory text is this one, for any sizes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.oom.error import read_error
from tests.oom_texts import GIB, a_container_text

MIB = 2**20
# A printed size is off by half a hundredth of a GiB; the sum of allocated and unallocated by twice as much.
ROUNDING_BYTES = 0.02 * GIB


@given(
    allocated=st.integers(0, 60 * GIB),
    unallocated=st.integers(0, 5 * GIB),
    context=st.integers(200 * MIB, 2 * GIB),
    others=st.lists(st.integers(MIB, 70 * GIB), max_size=6),
    place=st.integers(0, 6),
)
def test_this_process_is_found_or_missed_by_less_than_its_context(
    allocated: int, unallocated: int, context: int, others: list[int], place: int
) -> None:
    own = allocated + unallocated + context
    listed = [*others[:place], own, *others[place:]]
    numbers = read_error(a_container_text(listed, allocated, unallocated))
    assert numbers.process_bytes is not None
    slack = context + 0.02 * own + ROUNDING_BYTES
    assert own - slack <= numbers.process_bytes <= own + ROUNDING_BYTES
    near = [size for size in others if own - slack <= size <= own]
    if not near:
        assert abs(numbers.process_bytes - own) <= ROUNDING_BYTES
        total = sum(others)
        assert abs((numbers.others_bytes or 0) - total) <= ROUNDING_BYTES * (1 + len(others))


@given(
    listed=st.lists(st.integers(MIB, 70 * GIB), min_size=2, max_size=6),
    allocated=st.integers(0, 60 * GIB),
)
def test_others_are_never_named_without_this_process_taken_off(listed: list[int], allocated: int) -> None:
    text = a_container_text(listed, allocated, 0)
    numbers = read_error(text)
    assert (numbers.process_bytes is None) == (numbers.others_bytes is None)
    if numbers.process_bytes is not None and numbers.others_bytes is not None:
        whole = sum(float(n) * (GIB if u == "GiB" else MIB) for n, u in _LISTED.findall(text))
        assert abs(numbers.process_bytes + numbers.others_bytes - whole) <= len(listed)


_LISTED = re.compile(r"Process \d+ has ([\d.]+) (GiB|MiB)")
