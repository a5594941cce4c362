"""Asks NVML a list of questions, each failing by itself, and says why an answer is missing.

A question that a device does not support, or may not answer, is not asked again; one that takes longer than
100 ms is asked every 30 s, so that a struggling driver is not made worse; a lost device ends all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

SLOW_NS = 100_000_000
SLOW_EVERY_NS = 30_000_000_000

UNSUPPORTED = "this device does not tell"
FORBIDDEN = "this user may not ask"
TOO_OLD = "the driver is too old"
SLOW = "asked every 30 s, because the driver takes long to answer"


class Query(NamedTuple):
    """One question to NVML and the fields that its answer fills, in order. `ask` takes the module pynvml and
    a device's handle; a field may be answered by a `Missing`."""

    fields: tuple[str, ...]
    ask: Callable[[Any, Any], tuple[Any, ...]]
    # What to say when the device does not support it.
    unsupported: str = UNSUPPORTED


class Missing(NamedTuple):
    """The answer to one field of several, when it alone is missing."""

    reason: str


class LostDeviceError(Exception):
    """The device, or the driver, is gone."""


class Questions:
    """The questions to one device, and what has been learnt about how it answers them.

    Attributes:
        missing: why a field was not told the last time: field → reason, in a clause.
    """

    def __init__(
        self, library: Any, handle: Any, queries: Iterable[Query], clock_ns: Callable[[], int]
    ) -> None:
        self._lib = library
        self._handle = handle
        self._clock_ns = clock_ns
        self._due_ns = dict.fromkeys(queries, 0)
        self.missing: dict[str, str] = {}

    def ask(self) -> Mapping[str, Any]:
        """The answers that came, by field. Raises LostDeviceError."""
        lib = self._lib
        told: dict[str, Any] = {}
        for query in tuple(self._due_ns):
            began_ns = self._clock_ns()
            if began_ns < self._due_ns[query]:
                self._miss(query, SLOW)
                continue
            try:
                answer = query.ask(lib, self._handle)
            except lib.NVMLError_NotSupported:
                self._give_up(query, query.unsupported)
            except lib.NVMLError_NoPermission:
                self._give_up(query, FORBIDDEN)
            except lib.NVMLError_FunctionNotFound:
                self._give_up(query, TOO_OLD)
            except (
                lib.NVMLError_GpuIsLost,
                lib.NVMLError_Uninitialized,
                lib.NVMLError_ResetRequired,
            ) as error:
                raise LostDeviceError(str(error)) from error
            except lib.NVMLError as error:  # A timeout, a busy driver: missing this time only.
                self._miss(query, f"the driver said: {error}")
            else:
                self._take(query, answer, told)
                self._postpone_if_slow(query, began_ns)
        return told

    def _take(self, query: Query, answer: Sequence[Any], told: dict[str, Any]) -> None:
        for field, value in zip(query.fields, answer, strict=True):
            if isinstance(value, Missing):
                self.missing[field] = value.reason
            else:
                told[field] = value
                self.missing.pop(field, None)

    def _miss(self, query: Query, reason: str) -> None:
        self.missing.update(dict.fromkeys(query.fields, reason))

    def _give_up(self, query: Query, reason: str) -> None:
        del self._due_ns[query]
        self._miss(query, reason)

    def _postpone_if_slow(self, query: Query, began_ns: int) -> None:
        now_ns = self._clock_ns()
        if now_ns - began_ns > SLOW_NS:
            self._due_ns[query] = now_ns + SLOW_EVERY_NS
