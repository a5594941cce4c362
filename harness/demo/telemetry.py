"""What the simulated card and its host say about themselves, once a simulated second."""

import math
import random
from collections.abc import Iterator, Sequence

from harness.demo.machine import CONTEXT_BYTES, FACTS, GIB
from harness.records import DeviceSampleRow, HostSampleRow, StepRow

_SECOND_NS = 1_000_000_000
_IDLE_W, _BUSY_W = 118.0, 640.0
_WARM_UP_S = 45.0


class Sampler:
    """Takes a sample of the card and the host at every full second that the steps pass."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seq = 0

    def samples(self, steps: Sequence[StepRow]) -> Iterator[DeviceSampleRow | HostSampleRow]:
        """The samples due by the end of `steps`."""
        for step in steps:
            while self._seq * _SECOND_NS < step.t_ns:
                yield self._of_device(step)
                yield self._of_host(step)
                self._seq += 1

    def _of_device(self, step: StepRow) -> DeviceSampleRow:
        busy = (step.device_step_ns or 0) / max(step.step_ns, 1)
        busy = min(1.0, max(0.0, busy + self._chance.gauss(0, 0.012)))
        warmth = 1.0 - math.exp(-self._seq / _WARM_UP_S)
        power_w = _IDLE_W + (_BUSY_W - _IDLE_W) * busy + self._chance.gauss(0, 6)
        return DeviceSampleRow(
            device=FACTS.uuid or "",
            seq=self._seq,
            t_ns=self._seq * _SECOND_NS,
            step=step.step,
            util_pct=round(100 * busy),
            memory_util_pct=round(58 * busy),
            memory_used_bytes=(step.reserved_bytes or 0) + CONTEXT_BYTES,
            memory_total_bytes=FACTS.memory_bytes,
            power_w=round(power_w, 1),
            power_limit_w=FACTS.power_limit_w,
            temperature_c=round(33 + 34 * warmth * busy),
            sm_clock_mhz=1980.0 - 15 * self._chance.randint(0, 3),
            memory_clock_mhz=3201.0,
            throttle_reasons=0,
        )

    def _of_host(self, step: StepRow) -> HostSampleRow:
        return HostSampleRow(
            seq=self._seq,
            t_ns=self._seq * _SECOND_NS,
            step=step.step,
            cpu_pct=round(7 + self._chance.random() * 3, 1),
            process_cpu_pct=round(99 + self._chance.random() * 8, 1),
            rss_bytes=step.rss_bytes,
            peak_rss_bytes=int(4.6 * GIB),
            workers_rss_bytes=0,
            ram_used_bytes=int((61 + self._chance.random()) * GIB),
            ram_total_bytes=512 * GIB,
        )
