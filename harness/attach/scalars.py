"""The numbers that a script logs, on their way to the log. Device tensors are read later, without waiting."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.records.floats import encode_float
from harness.records.script import ScalarRow
from harness.watch.readback import LossReader, SlotTicket, plain_scalar
from harness.words import clip

_LONGEST_NAME = 200
# Each name is a line of its own in the charts, and a choice in their lists.
_MOST_NAMES = 1_000
_SHOWN_CHARACTERS = 60
# Some errors of torch list all backends in one line.
_LONGEST_REASON = 200
# The largest integer of SQLite.
_LAST_STEP = 2**63 - 1
_ZERO: Any = 0
# Those with events: what such a device has computed can be read without waiting for it.
_WITH_EVENTS = ("cuda", "mps", "xpu")
# As ScalarRow._make, without a call into Python for every number.
new_row: Callable[[tuple[Any, ...]], ScalarRow] = partial(tuple.__new__, ScalarRow)


class ScalarFault(StrEnum):
    """The reasons for which a number cannot be recorded."""

    NAME = "name"
    MANY_NAMES = "many names"
    VALUE = "value"
    STEP = "step"


# Those of the limits of a run: other recorders take such names.
NAME_FAULTS = frozenset({ScalarFault.NAME, ScalarFault.MANY_NAMES})


def check_name(name: object, prefix: str = "", noun: str = "scalar") -> str:
    """Return the name of a scalar that `noun` has, which begins with `prefix`. Raises ValueError for one
    that no chart can show."""
    longest = _LONGEST_NAME - len(prefix)
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > longest:
        text = clip(repr(name), _SHOWN_CHARACTERS)
        raise ValueError(f"{text} cannot name a {noun}; use printable text of up to {longest} letters.")
    return f"{prefix}{name}"


def check_names(names: Iterable[str], run_names: set[str]) -> None:
    """Add `names` to those of a run, `run_names`. Raises ValueError for one that cannot be logged."""
    for name in names:
        if name in run_names:
            continue
        check_name(name)
        if len(run_names) >= _MOST_NAMES:
            raise ValueError(
                f"{name!r} would be scalar number {_MOST_NAMES + 1:,}; a run has scalars of up to "
                f"{_MOST_NAMES:,} names: log fewer of them, such as the mean of a group."
            )
        run_names.add(name)


def check_step(noun: str, step: Any) -> int | None:
    """Return the number of a step, converted by `int()`; None: none is given. Raises ValueError, with the
    `noun` of the argument, for one that is fractional or that no log can have."""
    if step is None:
        return None
    try:
        number = int(step)
        is_whole = not isinstance(step, bool) and bool(number == step)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # The last one: torch's.
        is_whole = False
    if not is_whole or not 0 <= number <= _LAST_STEP:
        text = clip(repr(step), _SHOWN_CHARACTERS)
        raise ValueError(f"{noun} cannot be {text}; give a whole number from 0 to 2**63 - 1, or none.")
    return number


def number_of(name: str, value: object) -> float | Tensor:
    """Return `value` as a float, or as a scalar tensor that is still on its device. Raises ValueError for
    anything but a number."""
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        try:
            if value.numel() == 1 and value.is_cpu and type(item := value.item()) is not complex:
                return float(item)
        except RuntimeError as error:  # Such as one within torch.vmap.
            reason = clip(str(error).strip().partition("\n")[0], _LONGEST_REASON)
            raise _no_number(name, f"a tensor that cannot be read ({reason})") from error
        what = f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
        if value.numel() == 1 and not value.is_cpu and not value.is_complex() and not value.is_meta:
            if (scalar := plain_scalar(value.detach())) is not None:
                return scalar.reshape(())
            what = f"a {type(value).__name__} of which this process has only a part"
        raise _no_number(name, what)
    if isinstance(value, Real):
        return _as_float(name, value)
    read: Callable[[], Any] | None = getattr(value, "item", None)
    if read is not None and getattr(value, "size", None) == 1 and isinstance(number := read(), Real):
        return _as_float(name, number)
    raise _no_number(name, clip(repr(value), _SHOWN_CHARACTERS))


def _no_number(name: str, what: str) -> ValueError:
    return ValueError(f"{name} cannot be {what}; log numbers, or tensors with one real element.")


def _as_float(name: str, number: Real) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > _ZERO else -math.inf
    except TypeError:  # NumPy counts its timedelta64 among the integers.
        raise _no_number(name, clip(repr(number), _SHOWN_CHARACTERS)) from None


class _Target(NamedTuple):
    step: int
    name: str
    t_ns: int


class DeviceReads:
    """Numbers on their way from an asynchronous device, each call's behind an event of its own."""

    def __init__(
        self,
        reader: LossReader,
        open_event: Callable[[], Any],
        current_stream: Callable[[], Any] | None = None,
    ) -> None:
        """`open_event` returns a new event of the device, such as `torch.cuda.Event`, and `current_stream`
        the stream of the device, which may not be torch's current one; None: it has no streams."""
        self._reader = reader
        self._open_event = open_event
        self._current_stream = current_stream
        self._free: list[Any] = []
        self._awaited: deque[tuple[Any, list[tuple[_Target, SlotTicket]]]] = deque()

    @classmethod
    def of(cls, device: torch.device) -> "DeviceReads | None":
        """Return the reads from `device`; None for the CPU, whose numbers are read at once."""
        if device.type == "cpu":
            return None
        module = torch.get_device_module(device)
        current_stream = getattr(module, "current_stream", None)
        return cls(LossReader.of(device), module.Event, current_stream and (lambda: current_stream(device)))

    def request(self, numbers: list[tuple[_Target, Tensor]]) -> None:
        """Copy numbers to the host, behind the work that the device has."""
        tickets = [(target, ticket) for target, one in numbers if (ticket := self._reader.take_slot(one))]
        event = self._free.pop() if self._free else self._open_event()
        event.record(*(() if self._current_stream is None else (self._current_stream(),)))
        self._awaited.append((event, tickets))

    def arrived(self) -> list[tuple[_Target, float]]:
        """Return the numbers that the device has copied by now, in order. Does not wait."""
        values: list[tuple[_Target, float]] = []
        while self._awaited and self._awaited[0][0].query():
            event, tickets = self._awaited.popleft()
            values += [(target, ticket()) for target, ticket in tickets]
            self._free.append(event)
        return values


class ScalarWriter:
    """Puts values into the log. Used on the training thread."""

    def __init__(
        self, put: Callable[[ScalarRow], None], clock_ns: Callable[[], int], reads: DeviceReads | None
    ) -> None:
        """`reads` are those of the training's device; None: it is the CPU."""
        self._put = put
        self._clock_ns = clock_ns
        self._reads = reads

    def write(self, step: int, numbers: Mapping[str, float | Tensor]) -> None:
        """Put numbers of `step` into the log, those on a device later."""
        t_ns, put, remote = self._clock_ns(), self._put, []
        for name, number in numbers.items():
            if not isinstance(number, float):
                remote.append((_Target(step, name, t_ns), number))
            elif isfinite(number):
                put(new_row((step, name, t_ns, number, 0)))
            else:
                put(ScalarRow(step, name, t_ns, *encode_float(number)))
        if self._reads is None and remote and (device := remote[0][1].device).type in _WITH_EVENTS:
            # All weights are on the CPU, and the training computes on this device.
            self._reads = DeviceReads.of(device)
        if self._reads is not None:
            if remote:
                self._reads.request(remote)
            self.collect()
        else:
            for target, tensor in remote:
                put(ScalarRow(*target, *encode_float(float(tensor))))

    def collect(self) -> None:
        """Put into the log what the device has copied by now."""
        if self._reads is not None:
            for target, number in self._reads.arrived():
                self._put(ScalarRow(*target, *encode_float(number)))
