"""Figures of a training process that survive a kill: in a mapped page of `alive`.

A store into the page is a store into memory, and the kernel retains the page when the process is killed. So
the exact number of finished steps is known, independent of the log, and so is the outcome of a process that
ended in order while its log could not be written.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from harness.files.regular import read_start

PAGE_BYTES = 4_096
_MAGIC = 0x3153_4C41_5449_5653  # "SVITALS1"
_HEAD = struct.Struct("<QQQQQ")
_MAGIC_CELL, _FINISHED_CELL, _UNWRITTEN_CELL, _CAUGHT_AT_CELL, _CAUGHT_CELL = range(5)
_REASON_AT = 64
_LONGEST_REASON = 400
_STATE_AT, _LONGEST_STATE = 512, 32
_MESSAGE_AT, _LONGEST_MESSAGE = 544, 2_000


class VitalSigns(NamedTuple):
    """The last figures of a training process.

    `finished_step` is its last finished step, 0 before the first. `unwritten_since_unix_ns` is the start of
    an outage of the log, None without one, and `reason` its cause, empty while unknown. `state` is the final
    state, None before the end, and `message` its explanation. `stops_caught` is the number of stops that a
    script has caught and gone on after, and `stop_caught_unix_ns` the time of the newest, None without one.
    """

    finished_step: int
    unwritten_since_unix_ns: int | None
    reason: str
    state: str | None = None
    message: str = ""
    stops_caught: int = 0
    stop_caught_unix_ns: int | None = None


class VitalPage:
    """The page, for writing. If the file cannot be mapped, stores are lost."""

    def __init__(self, descriptor: int) -> None:
        """Create the page in the file of `descriptor`, which the caller still owns."""
        self._map = _mapped(descriptor, bytes(PAGE_BYTES))
        self._old_maps: list[mmap.mmap] = []
        self._cells = _cells(self._map)
        self._cells[_MAGIC_CELL] = _MAGIC

    def move_to(self, descriptor: int) -> None:
        """Continue in another file. The old page stays mapped: a thread may be storing into it."""
        mapped = _mapped(descriptor, bytes(self._cells))
        if self._map is not None:
            self._old_maps.append(self._map)
        self._map, self._cells = mapped, _cells(mapped)

    def step_finished(self, step: int) -> None:
        """Store the number of the last finished step. Takes 0.1 µs; never waits."""
        self._cells[_FINISHED_CELL] = step

    def set_unwritten(self, since_unix_ns: int, reason: str) -> None:
        """Store the start of an outage of the log, 0: none, and its cause, empty while that is unknown."""
        self._set_text(_REASON_AT, _LONGEST_REASON, reason)
        self._cells[_UNWRITTEN_CELL] = since_unix_ns

    def stop_caught(self, unix_ns: int) -> None:
        """Store that the script caught a stop and goes on."""
        self._cells[_CAUGHT_AT_CELL] = unix_ns
        self._cells[_CAUGHT_CELL] += 1

    def set_outcome(self, state: str, message: str) -> None:
        """Store the final state and its explanation."""
        self._set_text(_MESSAGE_AT, _LONGEST_MESSAGE, message)
        self._set_text(_STATE_AT, _LONGEST_STATE, state)

    @property
    def has_outcome(self) -> bool:
        """Whether `set_outcome` has stored a state."""
        mapped = self._map
        return mapped is not None and mapped[_STATE_AT] != 0

    def _set_text(self, at: int, longest: int, text: str) -> None:
        mapped = self._map
        if mapped is not None:
            part = text.encode("utf-8", "replace")[:longest].decode("utf-8", "ignore")  # No half characters.
            mapped[at : at + longest] = part.encode().ljust(longest, b"\0")

    def close(self) -> None:
        """Drop the mapping. Idempotent. It is unmapped once no thread is storing into it any more."""
        self._map, self._cells = None, _cells(None)


def _mapped(descriptor: int, page: bytes) -> mmap.mmap | None:
    try:
        # Written, not only extended: on a disk that fills up later, stores into a hole would fail.
        os.pwrite(descriptor, page, 0)
        return mmap.mmap(descriptor, PAGE_BYTES)
    except (OSError, ValueError):
        return None


def _cells(mapped: mmap.mmap | None) -> memoryview:
    return memoryview(bytearray(PAGE_BYTES) if mapped is None else mapped).cast("Q")


def read_vital_signs(path: Path) -> VitalSigns | None:
    """Return the last vital signs of the process that holds or held `path`; None without any.

    Not for that process itself: closing any descriptor of the file releases its lock.
    """
    try:
        page = read_start(path, PAGE_BYTES)
    except OSError:
        return None
    if len(page) < PAGE_BYTES:
        return None
    magic, finished, since_unix_ns, caught_unix_ns, caught = _HEAD.unpack_from(page)
    if magic != _MAGIC:
        return None
    reason = _text(page, _REASON_AT, _LONGEST_REASON)
    state, message = _text(page, _STATE_AT, _LONGEST_STATE), _text(page, _MESSAGE_AT, _LONGEST_MESSAGE)
    return VitalSigns(
        finished, since_unix_ns or None, reason, state or None, message, caught, caught_unix_ns or None
    )


def _text(page: bytes, at: int, longest: int) -> str:
    return page[at : at + longest].rstrip(b"\0").decode("utf-8", "replace")
