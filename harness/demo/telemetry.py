"""Telemetry of the simulated GPU and its host, once per simulated second."""

import math
import random
from collections.abc import Iterator, Sequence

from harness.demo.machine import CONTEXT_BYTES, FACTS, GIB
from harness.records.run import DeviceSampleRow, HostSampleRow, StepRow
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, HostDetailRow, PcieMethod

Sample = DeviceSampleRow | DeviceDetailRow | DeviceProcessRow | HostSampleRow | HostDetailRow

_SECOND_NS = 1_000_000_000
_IDLE_W, _BUSY_W = 118.0, 640.0
_WARM_UP_S = 45.0
_PID = 4711
# Token ids are copied as 64-bit integers.
_BYTES_PER_TOKEN = 8
# The device's energy counter at the start of the run.
_START_J = 48_200_000.0


class SimulatedTelemetry:
    """Generates a sample of the device and the host for every full second of the steps."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seq = 0
        self._energy_j = _START_J
        self._process_bytes = -1

    def samples(self, steps: Sequence[StepRow]) -> Iterator[Sample]:
        """Yield the samples due by the end of `steps`."""
        for step in steps:
            while self._seq * _SECOND_NS < step.t_ns:
                device = self._device_sample(step)
                yield device
                yield from self._device_details(step, device)
                yield self._host_sample(step)
                yield self._host_details(step)
                self._seq += 1

    def _device_sample(self, step: StepRow) -> DeviceSampleRow:
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

    def _host_sample(self, step: StepRow) -> HostSampleRow:
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

    def _device_details(
        self, step: StepRow, device: DeviceSampleRow
    ) -> Iterator[DeviceDetailRow | DeviceProcessRow]:
        busy = (device.util_pct or 0.0) / 100
        rate = _BYTES_PER_TOKEN * (step.tokens or 0) / max(step.step_ns, 1) * 1e9
        self._energy_j += device.power_w or 0.0
        used_bytes = device.memory_used_bytes or 0
        yield DeviceDetailRow(
            device=device.device,
            seq=self._seq,
            t_ns=device.t_ns,
            step=step.step,
            energy_j=round(self._energy_j, 3),
            pcie_sent_bytes_per_s=rate / 50,
            pcie_received_bytes_per_s=rate,
            pcie_method=PcieMethod.GPM,
            held_power_ns=0,
            held_thermal_ns=0,
            held_hw_thermal_ns=0,
            held_power_brake_ns=0,
            held_sync_boost_ns=0,
            ecc_corrected=0,
            ecc_uncorrected=0,
            processes=1,
            processes_bytes=used_bytes,
            sm_active_pct=round(88 * busy, 1),
            sm_occupancy_pct=round(34 * busy, 1),
            tensor_active_pct=round(37 * busy, 1),
            dram_active_pct=round(52 * busy, 1),
        )
        if used_bytes != self._process_bytes:
            self._process_bytes = used_bytes
            yield DeviceProcessRow(device.device, self._seq, _PID, device.t_ns, "python", used_bytes, 1)

    def _host_details(self, step: StepRow) -> HostDetailRow:
        cost_ns = 1_100_000 + 100_000 * (self._seq % 5)
        return HostDetailRow(
            seq=self._seq,
            t_ns=self._seq * _SECOND_NS,
            step=step.step,
            workers=0,
            workers_cpu_pct=None,
            disk_read_bytes_per_s=0.0,
            disk_written_bytes_per_s=60_000.0 + 1_000 * (self._seq % 7),
            network_received_bytes_per_s=4_000.0,
            network_sent_bytes_per_s=2_500.0,
            sampling_wall_ns=cost_ns + 300_000,
            sampling_cpu_ns=cost_ns,
            sampling_pct=None if self._seq == 0 else 100 * cost_ns / _SECOND_NS,
        )
