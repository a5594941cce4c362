"""The cards of the System page: samples of the machine in, texts and sparklines out.

Metrics that are not reported read "n/a", with the reason below.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from dashboard.buckets import sparkpoint
from dashboard.charts.cards import Card
from harness import words
from harness.analysis.machine.notices import DEVICE_FULL, RAM_FULL
from harness.analysis.machine.throttle import SEVERE, THROTTLE_TEXTS, active_reasons, throttle_clause
from harness.device.machine import GpuSample, HostMachineSample, MachineSample
from harness.records.telemetry import PcieMethod

_PERCENT = (0.0, 100.0)
_UNKNOWN = "not reported"


def gpu_cards(uuid: str, moments: Sequence[MachineSample]) -> list[Card]:
    """Build the cards of one GPU, newest sample last; none if it does not answer."""
    samples = [moment.gpus.get(uuid) for moment in moments]
    now = samples[-1] if samples else None
    if now is None:
        return []
    makers = (_busy, _memory, _power, _temperature, _clock, _pcie, _tensor)
    return [maker(now, samples) for maker in makers]


def _series(
    samples: Sequence[GpuSample | None], figure: Callable[[GpuSample], float | None]
) -> list[float | None]:
    return [None if moment is None else sparkpoint(figure(moment)) for moment in samples]


def _none(key: str, label: str, color: str, reason: str) -> Card:
    return Card(key, label, words.NOT_AVAILABLE, reason, "plain", reason, color, [], missing=True)


def _why(now: GpuSample, field: str) -> str:
    return now.missing.get(field, _UNKNOWN)


def _busy(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    share = now.sample.util_pct
    if share is None:
        return _none("busy", "GPU util", "util", _why(now, "util_pct"))
    note = ""
    if now.details.sm_active_pct is not None:
        note = f"SMs {words.percent(now.details.sm_active_pct)} active"
    text = (
        "Share of the last second in which at least one kernel ran; the note is the average share of active "
        "multiprocessors."
    )
    spark = _series(samples, lambda moment: moment.sample.util_pct)
    return Card("busy", "GPU util", words.percent(share), note, "plain", text, "util", spark, _PERCENT)


def _memory(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    used, total = now.sample.memory_used_bytes, now.sample.memory_total_bytes
    if used is None:
        return _none("memory", "Memory", "reserved", _why(now, "memory_used_bytes"))
    note = "" if total is None else f"of {words.size(total)}"
    tone = "warn" if total and used >= DEVICE_FULL * total else "plain"
    text = "Memory in use on the GPU, by all processes."
    spark = _series(samples, lambda moment: moment.sample.memory_used_bytes)
    bounds = None if total is None else (0.0, float(total))
    return Card("memory", "Memory", words.size(used), note, tone, text, "reserved", spark, bounds)


def _power(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    power, limit = now.sample.power_w, now.sample.power_limit_w
    if power is None:
        return _none("power", "Power", "peak", _why(now, "power_w"))
    note = "" if limit is None else f"limit {limit:.0f} W"
    text = "Power draw, averaged by the driver, and the power limit in effect."
    spark = _series(samples, lambda moment: moment.sample.power_w)
    bounds = None if limit is None else (0.0, limit)
    return Card("power", "Power", f"{power:.0f} W", note, "plain", text, "peak", spark, bounds)


def _temperature(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    celsius = now.sample.temperature_c
    if celsius is None:
        return _none("temperature", "Temperature", "data_wait", _why(now, "temperature_c"))
    hot = [reason for reason in active_reasons(now.sample.throttle_reasons) if reason & SEVERE]
    note, tone = (THROTTLE_TEXTS[hot[0]], "bad") if hot else ("", "plain")
    text = "GPU core temperature."
    spark = _series(samples, lambda moment: moment.sample.temperature_c)
    return Card("temperature", "Temperature", f"{celsius:.0f} °C", note, tone, text, "data_wait", spark)


def _clock(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    clock = now.sample.sm_clock_mhz
    if clock is None:
        return _none("clock", "Clock", "step", _why(now, "sm_clock_mhz"))
    reasons = active_reasons(now.sample.throttle_reasons)
    throttled = throttle_clause(now.sample.throttle_reasons)
    if now.sample.throttle_reasons is None:
        note, tone = "", "plain"
    elif not reasons:
        note, tone = "not throttled", "plain"
    else:
        note, tone = throttled, "bad" if any(reason & SEVERE for reason in reasons) else "plain"
    text = f"Clock of the multiprocessors{f'; throttled: {throttled}' if throttled else ''}."
    spark = _series(samples, lambda moment: moment.sample.sm_clock_mhz)
    return Card("clock", "Clock", f"{words.count(clock)} MHz", note, tone, text, "step", spark)


def _pcie(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    received, sent = now.details.pcie_received_bytes_per_s, now.details.pcie_sent_bytes_per_s
    if received is None:
        return _none("pcie", "PCIe to GPU", "h2d", _why(now, "pcie_received_bytes_per_s"))
    note = f"from GPU {words.size(sent)}/s"
    text = "PCIe traffic to and from the GPU, " + (
        "measured by the driver over 20 ms of each second."
        if now.details.pcie_method == PcieMethod.WINDOW
        else "since the sample before."
    )
    spark = _series(samples, lambda moment: moment.details.pcie_received_bytes_per_s)
    return Card("pcie", "PCIe to GPU", f"{words.size(received)}/s", note, "plain", text, "h2d", spark)


def _tensor(now: GpuSample, samples: Sequence[GpuSample | None]) -> Card:
    share = now.details.tensor_active_pct
    if share is None:
        return _none("tensor", "Tensor cores", "loss", _why(now, "tensor_active_pct"))
    note = f"DRAM {words.percent(now.details.dram_active_pct)}"
    text = (
        "Share of the last second in which tensor cores were active; the note is the memory bandwidth used, "
        "relative to its maximum. Occupancy (resident warps relative to the maximum): "
        f"{words.percent(now.details.sm_occupancy_pct)}."
    )
    spark = _series(samples, lambda moment: moment.details.tensor_active_pct)
    value = words.percent(share)
    return Card("tensor", "Tensor cores", value, note, "plain", text, "loss", spark, _PERCENT)


def host_cards(moments: Sequence[MachineSample]) -> list[Card]:
    """Build the cards of the host, newest sample last."""
    if not moments:
        return []
    samples = [moment.host for moment in moments]
    now = samples[-1]
    celsius = "" if now.temperature_c is None else f"{now.temperature_c:.0f} °C"
    ram_share = now.ram_used_bytes / max(now.ram_total_bytes, 1)
    return [
        _host(
            samples,
            lambda host: host.cpu_pct,
            ("cpu", "CPU", words.percent, "util", _PERCENT),
            celsius,
            "Load of all CPU cores together.",
        ),
        _host(
            samples,
            lambda host: host.ram_used_bytes,
            ("ram", "RAM", words.size, "reserved", (0.0, float(now.ram_total_bytes))),
            f"of {words.size(now.ram_total_bytes)}",
            "Memory in use on the host, without memory that can be reclaimed at once.",
            "bad" if ram_share >= RAM_FULL else "plain",
        ),
        _host(
            samples,
            lambda host: host.disk_read_bytes_per_s,
            ("read", "Disk reads", _rate, "data_wait", None),
            "",
            "Read from all disks of the host.",
        ),
        _host(
            samples,
            lambda host: host.disk_written_bytes_per_s,
            ("written", "Disk writes", _rate, "optimizer", None),
            "",
            "Written to all disks of the host.",
        ),
        _host(
            samples,
            lambda host: host.network_received_bytes_per_s,
            ("received", "Network in", _rate, "h2d", None),
            "",
            "Received by all network interfaces, without loopback.",
        ),
        _host(
            samples,
            lambda host: host.network_sent_bytes_per_s,
            ("sent", "Network out", _rate, "forward", None),
            "",
            "Sent by all network interfaces, without loopback.",
        ),
        _cost(moments),
    ]


def _host(
    samples: Sequence[HostMachineSample],
    figure: Callable[[HostMachineSample], float | None],
    spec: tuple[str, str, Callable[[float | None], str], str, tuple[float, float] | None],
    note: str,
    text: str,
    tone: str = "plain",
) -> Card:
    key, label, word, color, bounds = spec
    value = figure(samples[-1])
    if value is None:
        reason = "needs two samples" if len(samples) < 2 else "not reported by this system"
        return _none(key, label, color, reason)
    spark = [sparkpoint(figure(host)) for host in samples]
    return Card(key, label, word(value), note, tone, text, color, spark, bounds)


def _rate(value_bytes_per_s: float | None) -> str:
    return f"{words.size(value_bytes_per_s)}/s"


def _cost(moments: Sequence[MachineSample]) -> Card:
    """Build the card of this dashboard's sampling overhead; the overhead in a run is in its log."""
    shares: list[float | None] = [None]
    for earlier, later in pairwise(moments):
        shares.append(100 * later.cost_ns / max(later.t_ns - earlier.t_ns, 1))
    label = "This page's sampling"
    if shares[-1] is None:
        return _none("cost", label, "residual", "needs two samples")
    text = "CPU time of sampling this machine, as a share of one core; only while this page is open."
    value = f"{shares[-1]:.2f} %"
    spark = [sparkpoint(share) for share in shares]
    return Card("cost", label, value, "of one core", "plain", text, "residual", spark)
