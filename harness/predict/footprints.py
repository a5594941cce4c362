"""Footprints of the kernels of a trace: measured, or extrapolated from smaller batches if that takes long."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.predict.calls import Call
from harness.predict.kernels import Footprint
from harness.predict.scratch import KernelRun
from harness.predict.tracing import Trace

# Together some 0.5 s on one core in float32, twice; several times that where bfloat16 is emulated.
MOST_FLOPS = 6_000_000_000
MOST_CALL_BYTES = 64 << 20

# One for each run of a kernel, in the order of the trace; None where it is not known.
Footprints = Sequence[Footprint | None]


class Meter(Protocol):
    """Protocol of `harness.predict.metering.KernelMeter`, which measures calls by running them."""

    def measure(self, calls: Sequence[Call]) -> Footprints:
        """Return the footprint of each of the distinct `calls`, in this order; None for one that cannot be
        run. Raises KernelsError."""
        ...


def size_ratio(runs: Sequence[KernelRun]) -> float:
    """Return the cost of all distinct calls as a multiple of the limits for a short measurement."""
    first = _first_runs(runs)
    together = sum(run.flops for run in first) / MOST_FLOPS
    return max((together, *map(_own_ratio, first)))


def measure(runs: Sequence[KernelRun], meter: Meter, *, skips_large: bool = False) -> Footprints:
    """Return the footprints of `runs`; each distinct call is measured once. With `skips_large`, calls that
    exceed the limits by themselves are not measured. Raises KernelsError."""
    calls = [run.call for run in _first_runs(runs) if not (skips_large and _own_ratio(run) > 1)]
    measured = dict(zip(calls, meter.measure(calls), strict=True))
    return [measured.get(run.call) for run in runs]


def extrapolated(near: Footprints, far: Footprints, batches: tuple[int, int], batch: int) -> Footprints:
    """Extrapolate the footprints of two traces with the smaller `batches` linearly to `batch`: copies and
    workspaces grow with the batch; permanently retained memory (code, packing buffers) does not. A footprint
    that is smaller at the larger batch stays constant: the library then uses another algorithm."""
    if len(near) != len(far):
        return [None] * len(far)
    share = (batch - batches[0]) / (batches[1] - batches[0])
    return [_on_line(one, two, share) for one, two in zip(near, far, strict=True)]


def with_footprints(trace: Trace, footprints: Footprints) -> Trace:
    """Return `trace` with the sizes of its kernels' own memory; unchanged if the footprints are those of a
    trace with other kernel runs."""
    births = list(trace.births)
    is_alike = len(footprints) == len(trace.kernels)
    for run, footprint in zip(trace.kernels, footprints, strict=True) if is_alike else ():
        for number, size_bytes in _sizes(run, footprint):
            births[number] = births[number]._replace(size_bytes=size_bytes)
    return trace._replace(births=births)


def _first_runs(runs: Sequence[KernelRun]) -> list[KernelRun]:
    first: dict[Call, KernelRun] = {}
    for run in runs:
        first.setdefault(run.call, run)
    return list(first.values())


def _own_ratio(run: KernelRun) -> float:
    return max(run.flops / MOST_FLOPS, (run.call.input_bytes + run.result_bytes) / MOST_CALL_BYTES)


def _on_line(near: Footprint | None, far: Footprint | None, share: float) -> Footprint | None:
    if near is None or far is None or len(near.result_sizes) != len(far.result_sizes):
        return None

    def line(one: int, two: int) -> int:
        return max(two, round(one + (two - one) * share))

    return Footprint(
        far.retained_bytes,
        line(near.temporary_bytes, far.temporary_bytes),
        tuple(map(line, near.result_sizes, far.result_sizes)),
    )


def _sizes(run: KernelRun, footprint: Footprint | None) -> Iterator[tuple[int, int]]:
    """Yield the log's numbers of a kernel's own memory, with their sizes in bytes."""
    if footprint is None:
        return
    yield run.temporary, footprint.temporary_bytes
    if run.retained is not None:
        yield run.retained, footprint.retained_bytes
    if run.workspace is not None:
        yield run.workspace, footprint.result_sizes[-1]
