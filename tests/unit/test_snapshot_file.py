"""Snapshot files: written within a size, read without trusting them."""

import io
import os
import pickle
import pickletools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import StepscopeError
from harness.tracking.allocator_trace import traced_blocks
from harness.tracking.frames import shorten
from harness.tracking.plain_pickle import PickleError, load_plain
from harness.tracking.snapshot_file import summarize, without_folders, write
from harness.tracking.tracked_blocks import high_water_mark
from tests.snapshot_factories import FORWARD, RecordedAllocator


def a_snapshot(events: int = 4) -> dict[str, Any]:
    allocator = RecordedAllocator()
    allocator.follow()
    allocator.allocate(0, 1 << 20, 1, FORWARD)
    for number in range(events):
        allocator.allocate(1 << 30, 4 << 20, 10 + 2 * number, FORWARD)
        allocator.free(1 << 30, 11 + 2 * number)
    return allocator.snapshot()


def test_a_written_snapshot_is_a_pickle_of_protocol_4_that_holds_the_same(tmp_path: Path) -> None:
    snapshot = a_snapshot()
    written = write(tmp_path / "captures" / "s.pickle", snapshot)
    path = tmp_path / "captures" / "s.pickle"
    data = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (written.size_bytes, written.cut) == (len(data), "")
    assert next(pickletools.genops(data))[1] == 4
    assert load_plain(data) == snapshot
    assert os.listdir(tmp_path / "captures") == ["s.pickle"]


def test_the_summary_is_that_of_the_fullest_moment(tmp_path: Path) -> None:
    write(tmp_path / "s.pickle", a_snapshot())
    message, rows = summarize(tmp_path / "s.pickle")
    assert (message.allocated_bytes, message.end_allocated_bytes) == (5 << 20, 1 << 20)
    assert message.reserved_bytes == 2 << 20
    assert [(row.site, row.held_bytes, row.blocks) for row in rows] == [
        ("project/net.py:40 forward", 5 << 20, 2)
    ]


def test_events_of_an_earlier_window_are_left_out() -> None:
    allocator = RecordedAllocator()
    allocator.follow()
    allocator.allocate(1, 9 << 20, 10)
    allocator.free(1, 20)
    allocator.allocate(2, 1 << 20, 30)
    whole, late = traced_blocks(allocator.snapshot(), 0), traced_blocks(allocator.snapshot(), 0, since_us=25)
    assert [high_water_mark(result)[1] for result in (whole, late)] == [9 << 20, 1 << 20]


def test_of_a_trace_that_is_too_long_the_newest_events_are_read() -> None:
    block = {"address": 5, "size": 512, "state": "active_allocated"}
    allocation = {"action": "alloc", "addr": 5, "size": 512, "time_us": 7}
    trace = [{"action": "segment_map"}] * 2_000_000 + [allocation]
    segments = [{"address": 5, "total_size": 512, "blocks": [block]}]
    (read,) = traced_blocks({"segments": segments, "device_traces": [trace]}, 0)
    assert read.born == len(trace)


def test_paths_lose_the_folders_before_the_package() -> None:
    snapshot = without_folders(a_snapshot())
    assert "someone" not in str(snapshot)
    assert shorten("/home/me/.venv/lib/python3.12/site-packages/torch/nn/a.py") == "torch/nn/a.py"
    assert shorten("/usr/lib/python3.12/threading.py") == "threading.py"
    assert shorten("/home/me/x/y.py") == "x/y.py"
    assert shorten(shorten("/home/me/x/y.py")) == "x/y.py"
    assert shorten("<frozen runpy>") == "<frozen runpy>"


def test_a_snapshot_too_large_loses_its_oldest_events_then_its_stacks(tmp_path: Path) -> None:
    snapshot = a_snapshot(events=2_000)
    whole = len(pickle.dumps(snapshot, protocol=4))
    some = write(tmp_path / "a.pickle", snapshot, whole // 2)
    assert some.size_bytes <= whole // 2
    assert "events are left out" in some.cut
    retained = load_plain((tmp_path / "a.pickle").read_bytes())
    assert retained["device_traces"][0][-1] == snapshot["device_traces"][0][-1]
    most = len(pickle.dumps(snapshot | {"device_traces": [[]]}, protocol=4)) - 1
    bare = write(tmp_path / "b.pickle", snapshot, most)
    assert bare.size_bytes <= most
    assert "all stacks" in bare.cut
    assert load_plain((tmp_path / "b.pickle").read_bytes())["segments"][0]["blocks"][0]["frames"] == []


_SEGMENT: dict[str, Any] = {"device": 0, "address": 0, "total_size": 512, "blocks": []}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /nonexistent/owned",)


class Plain:
    pass


@pytest.mark.parametrize("value", [Evil(), {"segments": [Evil()]}, Plain(), {1, 2}, os.system, 1 + 2j])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_what_is_more_than_data_is_refused_and_nothing_runs(value: Any, protocol: int) -> None:
    with pytest.raises(PickleError):
        load_plain(pickle.dumps(value, protocol=protocol))


def test_the_refusal_says_what_the_file_wanted(tmp_path: Path) -> None:
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Evil(), protocol=4))
    with pytest.raises(StepscopeError, match=r"evil\.pickle .* nothing was run"):
        summarize(tmp_path / "evil.pickle")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle at all",
        pickle.dumps(a_snapshot(), protocol=4)[:-40],
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a huge frame
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # huge bytes
        b"\x80\x04]r\xff\xff\xff\xff.",  # a huge memo place is cheap, and the value no snapshot
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",  # deep nesting
        b"\x80\x04}]K\x01s.",  # a list as a key
        b"\x80\x04(((t.",
        b"\x80\x04h\x07.",  # never memorized
        pickle.dumps({"segments": 3}, protocol=4),
        pickle.dumps({"segments": [{"device": 0, "address": "x"}]}, protocol=4),
        pickle.dumps([1, 2, 3], protocol=4),
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]}, protocol=4),
        pickle.dumps({"segments": [], "device_traces": [[7]]}, protocol=4),
        pickle.dumps({"segments": [_SEGMENT | {"device": -3}], "device_traces": [[]]}, protocol=4),
        pickle.dumps({"segments": [_SEGMENT | {"total_size": 10**400}]}, protocol=4),
        pickle.dumps({"segments": [_SEGMENT | {"blocks": [[]]}]}, protocol=4),
        b"\x80\x04}K\x01\x86.",  # a tuple of more than there is
        b"\x80\x04\x8c\x04\xff\xff\xff\xff.",  # no UTF-8
        b"\x80\x04}(\x8a\x09" + b"\x01" * 9 + b"K\x01u.",  # a key of 65 bits
    ],
)
def test_foreign_and_damaged_files_are_refused_in_words(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.pickle").write_bytes(data)
    with pytest.raises(StepscopeError, match=r"bad\.pickle") as refusal:
        summarize(tmp_path / "bad.pickle")
    assert "Error" not in str(refusal.value)


def test_the_segments_alone_are_read(tmp_path: Path) -> None:
    """As `pickle.dump(torch.cuda.memory_snapshot(), file)` writes them."""
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(a_snapshot()["segments"], protocol=4))
    message, rows = summarize(tmp_path / "s.pickle")
    assert (message.allocated_bytes, message.end_allocated_bytes) == (1 << 20, 1 << 20)
    assert [(row.site, row.held_bytes) for row in rows] == [("project/net.py:40 forward", 1 << 20)]


def test_a_stack_is_read_from_the_history_of_a_block(tmp_path: Path) -> None:
    """Before torch 2.1 (`_block_extra_legacy` in torch/cuda/_memory_viz.py)."""
    snapshot = a_snapshot(events=0)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            frames = block.pop("frames")
            block["history"] = [{"addr": 0, "real_size": block["size"], "frames": frames}]
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot | {"device_traces": []}, protocol=4))
    _, rows = summarize(tmp_path / "s.pickle")
    assert [row.site for row in rows] == ["project/net.py:40 forward"]


def test_a_device_beyond_the_traces_has_none(tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(
        pickle.dumps({"segments": [_SEGMENT | {"device": 5}], "device_traces": [[]]}, protocol=4)
    )
    assert summarize(tmp_path / "s.pickle")[0].device == 5


_LISTS: list[Any] = []
for _ in range(40):  # As text it would have a trillion characters.
    _LISTS = [_LISTS, _LISTS]


@pytest.mark.parametrize("field", ["device", "total_size", "address"])
def test_what_would_be_endless_as_text_is_named_by_its_kind(field: str, tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [_SEGMENT | {field: _LISTS}]}, protocol=4))
    with pytest.raises(StepscopeError, match="a list stands where a size or an address belongs"):
        summarize(tmp_path / "s.pickle")


def test_50_million_marks_are_refused_at_once() -> None:
    data = b"\x80\x04" + b"(" * 50_000_000
    begun_s = time.process_time()
    with pytest.raises(PickleError, match="within each other"):
        load_plain(data)
    assert time.process_time() - begun_s < 1.0


def test_containers_are_counted() -> None:
    many = b"\x80\x04]" + b"](" * 40 + b"e" * 40 + b"."
    with pytest.raises(PickleError, match="more than 30 lists and dicts"):
        load_plain(many, most_containers=30)
    with pytest.raises(PickleError, match="more than 30 lists and dicts"):
        load_plain(b"\x80\x04K\x01" + b"\x85" * 31 + b".", most_containers=30)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "s.pickle")
    with pytest.raises(StepscopeError, match="not a regular file"):
        summarize(tmp_path / "s.pickle")


def test_a_link_to_a_snapshot_is_read(tmp_path: Path) -> None:
    write(tmp_path / "s.pickle", a_snapshot())
    (tmp_path / "link.pickle").symlink_to("s.pickle")
    assert summarize(tmp_path / "link.pickle") == summarize(tmp_path / "s.pickle")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="No such file"):
        summarize(tmp_path / "none.pickle")


def test_too_many_parts_are_not_read() -> None:
    with pytest.raises(PickleError, match="more than 100 parts"):
        load_plain(pickle.dumps(list(range(300)), protocol=4), most_opcodes=100)


def test_what_pickle_writes_of_plain_data_is_read_back() -> None:
    value = {"a": [1, -1, 255, 70_000, 2**40, -(2**70), 1.5, None, True, False, "ü" * 300, b"x" * 300, ()]}
    shared = [value, value, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"k": {2: 3}}]
    for protocol in (3, 4):
        assert load_plain(pickle.dumps(shared, protocol=protocol)) == shared
    stream = io.BytesIO()
    pickle.Pickler(stream, protocol=4).dump(list(range(5_000)))
    assert load_plain(stream.getvalue()) == list(range(5_000))
