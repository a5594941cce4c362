"""Footprints of the kernels of a trace: measured, or continued from smaller batches where that takes long."""

from collections.abc import Sequence
from typing import Protocol

from harness.predict.calls import Call
from harness.predict.kernels import Footprint

# Together some 0.5 s on one core in float32, twice; several times that where bfloat16 is emulated.
MOST_FLOPS = 6_000_000_000
MOST_CALL_BYTES = 64 << 20


class Meter(Protocol):
    """Runs one call and measures it, as `harness.predict.kernels.Kernels` does."""

    def measure(self, call: Call) -> Footprint | None:
        """The footprint of `call`; None where it cannot be run."""
        ...


class Footprints(Protocol):
    """Tells the footprints of a trace's calls, in the order of the trace."""

    def next(self, call: Call, flops: int, result_bytes: int) -> Footprint | None:
        """The footprint of the next call; None where it is not known."""
        ...


class Measured:
    """Runs each different call once it comes, while all of them together are small enough. `sequence` has the
    footprint of every call so far, `ratio` their size as a multiple of what can be run."""

    def __init__(self, meter: Meter, *, skips_large: bool = False) -> None:
        """Once the calls are too large to be run, none is any more; with `skips_large`, only those that are
        too large by themselves are not."""
        self._meter = meter
        self._skips_large = skips_large
        self._known: dict[Call, Footprint | None] = {}
        self._flops = 0
        self.ratio = 0.0
        self.sequence: list[Footprint | None] = []

    def next(self, call: Call, flops: int, result_bytes: int) -> Footprint | None:
        """The footprint of `call`, measured at its first occurrence. Raises KernelsError."""
        if call not in self._known:
            self._known[call] = self._measure(call, flops, result_bytes)
        self.sequence.append(self._known[call])
        return self._known[call]

    def _measure(self, call: Call, flops: int, result_bytes: int) -> Footprint | None:
        own_ratio = max(flops / MOST_FLOPS, (call.input_bytes + result_bytes) / MOST_CALL_BYTES)
        if self._skips_large and own_ratio > 1:
            return None
        self._flops += flops
        self.ratio = max(self.ratio, own_ratio, self._flops / MOST_FLOPS)
        return self._meter.measure(call) if self.ratio <= 1 or self._skips_large else None


class Continued:
    """Continues the footprints of two traces with smaller batches on straight lines to a larger one: copies
    and workspaces grow with the batch; what is kept for good (code, packing buffers) does not."""

    def __init__(
        self,
        near: Sequence[Footprint | None],
        far: Sequence[Footprint | None],
        batches: tuple[int, int],
        batch: int,
    ) -> None:
        """`near` and `far` were measured with the two `batches`, and are continued to `batch`."""
        is_alike = len(near) == len(far)
        self._pairs = list(zip(near, far, strict=True)) if is_alike else []
        self._share = (batch - batches[0]) / (batches[1] - batches[0])
        self._at = -1

    def next(self, call: Call, flops: int, result_bytes: int) -> Footprint | None:  # noqa: ARG002
        """The footprint at the same place of the traces with smaller batches, continued."""
        self._at += 1
        if self._at >= len(self._pairs):
            return None
        near, far = self._pairs[self._at]
        if near is None or far is None or len(near.result_sizes) != len(far.result_sizes):
            return None
        sizes = zip(near.result_sizes, far.result_sizes, strict=True)
        return Footprint(
            far.kept_bytes,
            self._line(near.temporary_bytes, far.temporary_bytes),
            tuple(self._line(a, b) for a, b in sizes),
        )

    def _line(self, near: int, far: int) -> int:
        return max(0, round(near + (far - near) * self._share))
