"""Snapshot files: written for PyTorch's memory_viz up to a size, and read as untrusted data."""

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

from harness import words
from harness.errors import StepscopeError
from harness.files.regular import create_private, read_whole
from harness.records.memory import AllocationRow
from harness.tracking.allocator_trace import (
    SnapshotFormatError,
    check,
    devices,
    event_count,
    reserved_bytes,
    traced_blocks,
)
from harness.tracking.blocks import summarize as sum_up
from harness.tracking.frames import shorten
from harness.tracking.plain_pickle import MOST_BYTES, PickleError, load_plain
from harness.tracking.tracked_blocks import alive_at, high_water_mark, to_live_block

# The largest snapshot that is written; memory_viz loads such a file in a few seconds.
MOST_FILE_BYTES = 32 << 20


class WrittenFile(NamedTuple):
    """A snapshot on disk; `cut` is a sentence about missing data, or empty."""

    size_bytes: int
    cut: str


class FileSummary(NamedTuple):
    """The contents of a snapshot file for one device, at the high-water mark of its trace."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    # At the end of the trace.
    end_allocated_bytes: int
    sites: int
    events: int
    file_bytes: int


def write(path: Path, snapshot: dict[str, Any], most_bytes: int = MOST_FILE_BYTES) -> WrittenFile:
    """Write `snapshot` as a pickle of protocol 4, cut to `most_bytes`: first the oldest events, then stacks,
    then the smallest segments. Raises OSError."""
    data, cut = _cut_down(snapshot, most_bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    create_private(partial)
    partial.write_bytes(data)
    os.replace(partial, path)
    return WrittenFile(len(data), cut)


def without_folders(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Shorten the snapshot's paths in place, so that no home folder is in them."""
    lists = [entry.get("frames", []) for trace in snapshot.get("device_traces", []) for entry in trace]
    for segment in snapshot.get("segments", []):
        lists.append(segment.get("frames", []))
        lists += [block.get("frames", []) for block in segment["blocks"]]
    for frames in lists:
        for frame in frames:
            frame["filename"] = shorten(frame["filename"])
    return snapshot


def _cut_down(snapshot: dict[str, Any], most_bytes: int) -> tuple[bytes, str]:
    data = pickle.dumps(snapshot, protocol=4)
    if len(data) <= most_bytes:
        return data, ""
    traces = snapshot.get("device_traces", [])
    before = sum(len(trace) for trace in traces)
    retained = before
    while len(data) > most_bytes and retained:
        share = 0 if retained < 100 else min(0.5, 0.8 * most_bytes / len(data))
        traces = [trace[len(trace) - int(len(trace) * share) :] for trace in traces]
        retained = sum(len(trace) for trace in traces)
        data = pickle.dumps(snapshot | {"device_traces": traces}, protocol=4)
    cut = f"The raw snapshot was cut to {words.size(most_bytes)}: {before - retained:,} of {before:,} events"
    if len(data) <= most_bytes:
        return data, f"{cut} are left out."
    bare = [_bare(segment) for segment in snapshot.get("segments", [])]
    bare.sort(key=lambda segment: -segment["total_size"])
    data = _without_traces(snapshot, bare)
    if len(data) <= most_bytes:
        return data, f"{cut} and all stacks are left out."
    while len(data) > most_bytes and bare:
        bare = bare[: len(bare) // 2]
        data = _without_traces(snapshot, bare)
    return data, f"{cut}, all stacks and the smallest segments are left out."


def _without_traces(snapshot: dict[str, Any], segments: list[dict[str, Any]]) -> bytes:
    empty: list[list[Any]] = [[] for _ in snapshot.get("device_traces", [])]
    return pickle.dumps(snapshot | {"segments": segments, "device_traces": empty}, protocol=4)


def _bare(segment: dict[str, Any]) -> dict[str, Any]:
    return segment | {"frames": [], "blocks": [block | {"frames": []} for block in segment["blocks"]]}


def summarize(path: Path) -> tuple[FileSummary, list[AllocationRow]]:
    """Summarize a snapshot file for the device with the most reserved memory.

    Raises StepscopeError when the file cannot be read, is too large, contains anything but plain data, or is
    not a snapshot.
    """
    read, size_bytes = _read(path)
    try:
        snapshot = check(read)
        device = max(devices(snapshot), key=lambda d: reserved_bytes(snapshot, d), default=0)
        blocks = traced_blocks(snapshot, device)
        moment, allocated = high_water_mark(blocks)
        end_bytes = sum(block.size_bytes for block in blocks if block.died is None)
        summary = sum_up(0, [to_live_block(block) for block in alive_at(blocks, moment)], None)
        reserved = reserved_bytes(snapshot, device)
        file_summary = FileSummary(
            device, allocated, reserved, end_bytes, summary.sites, event_count(snapshot), size_bytes
        )
    except SnapshotFormatError as error:
        raise StepscopeError(f"{path} cannot be read. {error}") from None
    return file_summary, summary.rows


def _read(path: Path) -> tuple[Any, int]:
    try:
        # The user may name a link; its target must be a regular file.
        file = path.resolve(strict=True)
        size_bytes = file.stat().st_size
        if size_bytes > MOST_BYTES:
            raise StepscopeError(
                f"{path} has {words.size(size_bytes)}; snapshots of at most {words.size(MOST_BYTES)} are "
                "read. Record fewer events (max_entries)."
            )
        return load_plain(read_whole(file, MOST_BYTES)), size_bytes
    except OSError as error:
        raise StepscopeError(f"{path} cannot be read: {error.strerror or error}.") from None
    except PickleError as error:
        raise StepscopeError(f"{path} is no snapshot that can be read. {error}") from None
