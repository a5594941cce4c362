"""Independent NVML queries of one device, with the reason for each missing value.

A query that the device does not support or permit is not repeated; one that takes longer than 100 ms is
repeated every 30 s, to spare a slow driver; a lost device ends all queries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

SLOW_NS = 100_000_000
SLOW_EVERY_NS = 30_000_000_000

UNSUPPORTED = "this device does not support it"
FORBIDDEN = "this user has no permission"
TOO_OLD = "the driver is too old"
SLOW = "it is queried every 30 s, because the driver is slow"


class Query(NamedTuple):
    """One NVML query and the fields that its result fills, in order. `read` takes the module pynvml and a
    device's handle; the value of a field may be a `Missing`."""

    fields: tuple[str, ...]
    read: Callable[[Any, Any], tuple[Any, ...]]
    # The reason when the device does not support it.
    unsupported: str = UNSUPPORTED


class Missing(NamedTuple):
    """A missing value of one field among several."""

    reason: str


class LostDeviceError(Exception):
    """The device or the driver is lost."""


class NvmlQueries:
    """The queries of one device, without those that it does not support.

    Attributes:
        missing: the reasons of the fields that were missing last time, as clauses: field → reason.
    """

    def __init__(
        self, library: Any, handle: Any, queries: Iterable[Query], clock_ns: Callable[[], int]
    ) -> None:
        self._lib = library
        self._handle = handle
        self._clock_ns = clock_ns
        self._due_ns = dict.fromkeys(queries, 0)
        self.missing: dict[str, str] = {}

    def run(self) -> Mapping[str, Any]:
        """Return the available values by field. Raises LostDeviceError."""
        lib = self._lib
        values: dict[str, Any] = {}
        for query in tuple(self._due_ns):
            began_ns = self._clock_ns()
            if began_ns < self._due_ns[query]:
                self._set_missing(query, SLOW)
                continue
            try:
                result = query.read(lib, self._handle)
            except lib.NVMLError_NotSupported:
                self._drop(query, query.unsupported)
            except lib.NVMLError_NoPermission:
                self._drop(query, FORBIDDEN)
            except lib.NVMLError_FunctionNotFound:
                self._drop(query, TOO_OLD)
            except (
                lib.NVMLError_GpuIsLost,
                lib.NVMLError_Uninitialized,
                lib.NVMLError_ResetRequired,
            ) as error:
                raise LostDeviceError(str(error)) from error
            except lib.NVMLError as error:  # A timeout, a busy driver: missing this time only.
                self._set_missing(query, f"the driver reported: {error}")
            else:
                self._store(query, result, values)
                self._postpone_if_slow(query, began_ns)
        return values

    def _store(self, query: Query, result: Sequence[Any], values: dict[str, Any]) -> None:
        for field, value in zip(query.fields, result, strict=True):
            if isinstance(value, Missing):
                self.missing[field] = value.reason
            else:
                values[field] = value
                self.missing.pop(field, None)

    def _set_missing(self, query: Query, reason: str) -> None:
        self.missing.update(dict.fromkeys(query.fields, reason))

    def _drop(self, query: Query, reason: str) -> None:
        del self._due_ns[query]
        self._set_missing(query, reason)

    def _postpone_if_slow(self, query: Query, began_ns: int) -> None:
        now_ns = self._clock_ns()
        if now_ns - began_ns > SLOW_NS:
            self._due_ns[query] = now_ns + SLOW_EVERY_NS
