"""Samples devices and the host about once a second; a job of the sampler."""

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.device.host import HostProbe
from harness.device.protocol import Telemetry
from harness.records import DeviceSampleRow, HostSampleRow


class SampleSink(Protocol):
    """Where samples go; never blocks."""

    def put(self, row: DeviceSampleRow | HostSampleRow) -> None:
        """Record a sample."""
        ...


class TelemetryRecorder:
    """Asks every source once a call and records what it said, beside the step reached by then."""

    def __init__(
        self,
        sources: Sequence[Telemetry],
        host: HostProbe,
        sink: SampleSink,
        clock_ns: Callable[[], int],
        last_step: Callable[[], int],
    ) -> None:
        self._sources = sources
        self._host = host
        self._sink = sink
        self._clock_ns = clock_ns
        self._last_step = last_step
        self._seq = 0

    def sample(self) -> None:
        """Take one sample of everything."""
        t_ns, step = self._clock_ns(), self._last_step()
        for source in self._sources:
            for sample in source.sample():
                self._sink.put(DeviceSampleRow(sample.device, self._seq, t_ns, step, *sample[1:]))
        host = self._host.sample()
        self._sink.put(HostSampleRow(self._seq, t_ns, step, *host))
        self._seq += 1
