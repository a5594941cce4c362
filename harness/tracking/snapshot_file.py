"""Snapshot files: written for PyTorch's memory_viz within a size, and read without trusting them."""

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

from harness import words
from harness.errors import StepscopeError
from harness.memory_records import AllocationRow
from harness.regular_files import read_whole
from harness.tracking.allocator_trace import (
    SnapshotFormatError,
    births,
    check,
    devices,
    event_count,
    reserved_bytes,
)
from harness.tracking.births import alive_at, fullest, to_block
from harness.tracking.blocks import summarise as sum_up
from harness.tracking.frames import shorten
from harness.tracking.plain_pickle import MOST_BYTES, PickleError, load_plain

# How large a snapshot is written; memory_viz loads such a file in a few seconds.
MOST_FILE_BYTES = 32 << 20


class WrittenFile(NamedTuple):
    """A snapshot on disk; `cut` says in a sentence what was left out of it, empty when nothing was."""

    size_bytes: int
    cut: str


class FileSummary(NamedTuple):
    """What a snapshot's file holds of one device, at the fullest moment of its trace."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    # At the moment the file was written.
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
    partial.write_bytes(data)
    os.replace(partial, path)
    return WrittenFile(len(data), cut)


def without_folders(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The same snapshot, its paths shortened in place to where no person's folder shows."""
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
    kept = before
    while len(data) > most_bytes and kept:
        share = 0 if kept < 100 else min(0.5, 0.8 * most_bytes / len(data))
        traces = [trace[len(trace) - int(len(trace) * share) :] for trace in traces]
        kept = sum(len(trace) for trace in traces)
        data = pickle.dumps(snapshot | {"device_traces": traces}, protocol=4)
    cut = f"The raw snapshot was cut to {words.size(most_bytes)}: {before - kept:,} of {before:,} events"
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


def summarise(path: Path) -> tuple[FileSummary, list[AllocationRow]]:
    """What a snapshot's file holds on the device that holds most.

    Raises StepscopeError, in words for people, when the file cannot be read, is too large, holds anything but
    plain data, or is no snapshot.
    """
    read, size_bytes = _read(path)
    try:
        snapshot = check(read)
        device = max(devices(snapshot), key=lambda d: reserved_bytes(snapshot, d), default=0)
        found = births(snapshot, device)
        moment, allocated = fullest(found)
        end_bytes = sum(birth.size_bytes for birth in found if birth.died is None)
        summary = sum_up(0, [to_block(birth) for birth in alive_at(found, moment)], None)
        held = reserved_bytes(snapshot, device)
        told = FileSummary(
            device, allocated, held, end_bytes, summary.sites, event_count(snapshot), size_bytes
        )
    except SnapshotFormatError as error:
        raise StepscopeError(f"{path} cannot be read. {error}") from None
    return told, summary.rows


def _read(path: Path) -> tuple[Any, int]:
    try:
        # A person may name a link; the file it leads to has to be a regular one.
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
