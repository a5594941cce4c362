"""Leak detection in a run: readings from the rows of steps, and a verdict about once a second.

Nothing of it runs on the training thread. The writer's thread adds rows; everything else is a job of the
sampler. While the log cannot be written, the waiting rows grow in memory: readings from that time are no
evidence, and detection restarts afterwards.
"""

import gc
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.leak import wording
from harness.analysis.leak.detector import LeakDetector, ReadingFilter
from harness.analysis.leak.growth import CALM, LEAST_RISE, RISING
from harness.analysis.leak.headroom import Limits
from harness.device.allocated import allocated_bytes
from harness.device.host.memory import read_host_memory
from harness.device.host.probe import rss_of_each
from harness.device.host.process_limits import left_to_all
from harness.device.protocol import AllocatorReading, Device
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import DeviceKind, EventKind, EventRow, Severity, StepRow
from harness.watch.capture.hunting import HuntResult
from harness.watch.context import RunContext
from harness.watch.memory import MOST_SHARE

READ_PERIOD_S = 0.125
# Host readings per judgment.
READS_PER_JUDGMENT = 8
# Those in the first ten seconds, in which a run with a leak may already run out of memory.
EARLY_READS_PER_JUDGMENT = 2
EARLY_READS = 80

# Period at which the row of a continuing leak is written again.
AGAIN_NS = 10_000_000_000

# Other rows are written again once the detection limit has halved.
LIMIT_SHARE = 0.5

# Readings waiting for the sampler: more than a minute of them.
_CAPACITY = 4_096

_WORKERS_PER_READ = 2

_LABELS = {
    LeakSeries.ALLOCATED: "leak",
    LeakSeries.FRAGMENTATION: "fragmentation",
    LeakSeries.HOST: "host leak",
    LeakSeries.WORKERS: "workers leak",
}


class HostReading(NamedTuple):
    """Host memory for the detector; each field is None where unknown. `heap_free_bytes` is free memory in the
    CPU's heap, `cap_left_bytes` the memory available under a cap or a limit of the process on the CPU,
    and `data_bytes` what the cap or limit counts outside live objects, up to a constant. `forward_end_bytes`
    are those of `AllocatorReading`."""

    workers_rss_bytes: int | None
    heap_free_bytes: int | None
    cap_left_bytes: int | None = None
    data_bytes: int | None = None
    forward_end_bytes: Sequence[int] = ()


class Readings:
    """Readings from the rows of steps on their way to the log.

    Attributes:
        is_behind: returns whether rows pile up in memory because the log is not written.
        outages: how often that began.
    """

    def __init__(self, is_behind: Callable[[], bool] = lambda: False) -> None:
        self._filter = ReadingFilter()
        self._rows: deque[StepRow] = deque(maxlen=_CAPACITY)
        self._was_behind = False
        self.is_behind = is_behind
        self.outages = 0

    def add_rows(self, rows: Iterable[StepRow]) -> None:
        """Add the readings in `rows`. Called on the writer's thread."""
        is_behind = self.is_behind()
        self.outages += is_behind and not self._was_behind
        self._was_behind = is_behind
        if not is_behind:
            self._rows.extend(self._filter.pick(rows))

    def drain(self) -> list[StepRow]:
        """Return the readings since the last call. Called on the sampler's thread."""
        rows = self._rows
        return [rows.popleft() for _ in range(len(rows))]


class LeakWatch:
    """Feeds the detector and writes its verdicts."""

    def __init__(
        self,
        put: Callable[[LeakRow | EventRow], None],
        clock_ns: Callable[[], int],
        last_step: Callable[[], int],
        detector: LeakDetector,
        readings: Readings,
        read_host: Callable[[], HostReading],
        limits: Callable[[], Limits],
        *,
        on_leak: Callable[[LeakRow, HuntResult | None], None] = lambda _leak, _result: None,
        collect_garbage: Callable[[], object] | None = None,
        hunt_result: Callable[[], HuntResult | None] = lambda: None,
    ) -> None:
        """`on_leak` is called at each judgment that live tensors leak, or would but for inputs that may grow,
        with the result of the newest hunt, which `hunt_result` returns. `collect_garbage` is called once, at
        their first verdict "watch"."""
        self._detector = detector
        self._readings = readings
        self._read_host = read_host
        self._limits = limits
        self._put = put
        self._clock_ns = clock_ns
        self._last_step = last_step
        self._on_leak = on_leak
        self._collect_garbage = collect_garbage
        self._hunt_result = hunt_result
        self._host_reads = 0
        self._before_collection: StepRow | None = None
        self._reported: dict[str, LeakRow] = {}
        self._open_leaks: dict[str, LeakRow] = {}
        self._began_steps: dict[str, int] = {}
        self._outages = 0
        # The version of the settings at the newest of them.
        self._interrupted_version: int | None = None

    def check(self) -> None:
        """Read the host and, every few readings, judge. A job of the sampler."""
        if self._readings.is_behind():
            return
        self._detector.add_host(self._last_step(), *self._read_host())
        self._host_reads += 1
        is_early = self._host_reads <= EARLY_READS
        if self._host_reads % (EARLY_READS_PER_JUDGMENT if is_early else READS_PER_JUDGMENT) == 0:
            self.judge()

    def verdicts(self) -> list[LeakRow]:
        """Return the current verdict on every series."""
        limits = self._limits()
        outages = self._readings.outages
        rows = self._readings.drain()
        if outages != self._outages:
            self._outages, self._interrupted_version = outages, self._detector.settings_version
            self._detector.restart()
        self._detector.add_steps(rows, limits)
        if (result := self._hunt_result()) is not None:
            self._detector.set_copy(result.step, result.copied_bytes)
            self._detector.set_retained(result.step, result.retained_bytes_per_step)
        return [self._with_hunt(row) for row in self._detector.judge(self._clock_ns(), limits)]

    def _with_hunt(self, row: LeakRow) -> LeakRow:
        """Return `row` with the cause that a hunt during its growth found."""
        result, is_leak = self._hunt_result(), row.verdict == LeakVerdict.LEAK
        if row.series != LeakSeries.ALLOCATED or not is_leak or result is None:
            return row
        if result.step < row.since_step:
            return row
        if result.is_beside_tensors:
            return row._replace(cause=wording.BESIDE_TENSORS)
        if result.refusal is not None and row.cause is None:
            return row._replace(cause=wording.no_site(result.refusal))
        return row

    def judge(self) -> None:
        """Judge, and write new verdicts."""
        rows = self.verdicts()
        for row in rows:
            if self._is_news(row):
                self._write(row)
            is_open = row.verdict == LeakVerdict.LEAK or self._detector.doubts_leak
            if row.series == LeakSeries.ALLOCATED and is_open:
                self._on_leak(row, self._hunt_result())
        watched = any(row.series == LeakSeries.ALLOCATED and row.verdict in RISING for row in rows)
        if self._before_collection is not None:
            self._compare(self._before_collection)
        elif watched and self._collect_garbage is not None:
            collect, self._collect_garbage = self._collect_garbage, None
            self._before_collection = self._detector.newest_reading
            collect()

    def finish(self) -> None:
        """Judge at the end of the training, and write each verdict with its newest figures."""
        if self._readings.is_behind():
            return
        for row in self.verdicts():
            reported = self._reported.get(row.series)
            if self._is_news(row) or (reported is not None and reported.verdict == row.verdict):
                self._write(row)

    def _write(self, row: LeakRow) -> None:
        self._reported[row.series] = row
        self._put(row)
        self._put_events(row)

    def _is_news(self, row: LeakRow) -> bool:
        reported = self._reported.get(row.series)
        if row.series in self._open_leaks and row.withdraws(self._open_leaks[row.series]):
            return True
        if row.series in self._open_leaks and row.verdict == LeakVerdict.TOO_EARLY:
            # Other settings may have ended the leak, an outage of the log has not.
            return self._detector.settings_version != self._interrupted_version
        if reported is None or reported.verdict != row.verdict:
            return True
        if reported.cause is None and row.cause is not None:
            return True
        if row.verdict == LeakVerdict.LEAK or row.steps_to_oom is not None:
            is_stated = reported.steps_to_oom is None and row.steps_to_oom is not None
            return is_stated or row.t_ns - reported.t_ns >= AGAIN_NS
        if reported.steps_to_oom is not None:
            return True
        if row.detection_limit is None:
            return False
        return (
            reported.detection_limit is None or row.detection_limit <= LIMIT_SHARE * reported.detection_limit
        )

    def _put_events(self, row: LeakRow) -> None:
        """Write an event when a leak begins, and when it is cleared. One cause has one warning: the first of
        several series that grow together has it, and live tensors take it over from the others."""
        series, is_open = LeakSeries(row.series), row.series in self._open_leaks
        # The newer half of the history may be the clearer evidence of a growth that began long before.
        began = min(self._detector.began(row), self._began_steps.get(series, row.since_step))
        if row.verdict in RISING:
            self._began_steps[series] = began
        elif row.verdict in CALM:
            self._began_steps.pop(series, None)
        if row.verdict == LeakVerdict.LEAK and not is_open:
            from_begin = row._replace(since_step=began)
            together = [one for one in self._open_leaks.values() if one.has_one_cause_with(from_begin)]
            is_named_better = bool(together) and series is LeakSeries.ALLOCATED
            if is_named_better:
                self._open_leaks = {
                    name: one for name, one in self._open_leaks.items() if one not in together
                }
            if is_named_better or not together:
                self._open_leaks[row.series] = row
                severity = Severity.INFO if is_named_better else Severity.WARNING
                self._put_event(EventKind.LEAK, severity, _LABELS[series], row)
        elif is_open and row.withdraws(self._open_leaks[row.series]):
            del self._open_leaks[row.series]
            self._put_event(EventKind.LEAK_CLEARED, Severity.INFO, f"{_LABELS[series]}: cleared", row)

    def _put_event(self, kind: EventKind, severity: Severity, label: str, row: LeakRow) -> None:
        detail = json.dumps(row._asdict())
        self._put(EventRow(row.t_ns, row.step, kind, severity, label, row.message, detail, None))

    def _compare(self, before: StepRow) -> None:
        """Write an event if the collection freed memory, once a later step has a reading."""
        newest = self._detector.newest_reading
        if newest is None or newest.step <= before.step + 1:
            return
        self._before_collection = None
        if before.allocated_bytes is None or newest.allocated_bytes is None:
            return
        freed_bytes = before.allocated_bytes - newest.allocated_bytes
        if freed_bytes < LEAST_RISE:
            return
        message = (
            "Memory in live tensors rose, so Python's garbage collector ran once: it freed "
            f"{words.size(freed_bytes)} of objects in reference cycles."
        )
        detail = json.dumps({"freed_bytes": freed_bytes})
        event = (EventKind.WARNING, Severity.INFO, "reference cycles", message, detail, None)
        self._put(EventRow(newest.t_ns, newest.step, *event))


def collect_cycles() -> None:
    """Run Python's collector once if it is enabled: then it may run in any thread at any time anyway. Takes
    tens of milliseconds."""
    if gc.isenabled():
        gc.collect()


class HeapGauge:
    """The CPU's heap, read less often where a reading takes long: it walks malloc's free blocks with the
    interpreter's lock held, 15 to 20 ms with 80,000 of them."""

    def __init__(
        self, read: Callable[[], AllocatorReading], cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        """`cpu_s` returns the processor time of the calling thread."""
        self._read = read
        self._cpu_s = cpu_s
        self._skip = 0

    def read(self) -> AllocatorReading | None:
        """Return the reading; None between two. Called every `READ_PERIOD_S`."""
        if self._skip:
            self._skip -= 1
            return None
        began_s = self._cpu_s()
        reading = self._read()
        self._skip = int((self._cpu_s() - began_s) / (MOST_SHARE * READ_PERIOD_S))
        return reading


class WorkersGauge:
    """The RSS of the loader's workers, read less often the more there are: each takes about 0.1 ms."""

    def __init__(self, worker_pids: Callable[[], Iterable[int]]) -> None:
        self._worker_pids = worker_pids
        self._skip = 0

    def read(self) -> int | None:
        """Return the sum of their RSS; None without workers, between two readings, and if one has ended, as
        at the end of a loader: what the others have is less without being freed."""
        if self._skip:
            self._skip -= 1
            return None
        pids = list(self._worker_pids())
        self._skip = len(pids) // _WORKERS_PER_READ
        sizes = rss_of_each(pids)
        return sum(sizes) if sizes and len(sizes) == len(pids) else None


def open_leak_watch(
    context: RunContext,
    readings: Readings,
    worker_pids: Callable[[], Iterable[int]],
    cap_bytes: Callable[[], int | None],
    on_leak: Callable[[LeakRow, HuntResult | None], None] = lambda _leak, _result: None,
    hunt_result: Callable[[], HuntResult | None] = lambda: None,
) -> LeakWatch:
    """Create the leak watch of a run: readings of its device and the host, against the cap in effect."""
    device = context.device
    on_cpu = device.facts.kind is DeviceKind.CPU
    workers, gauge = WorkersGauge(worker_pids), HeapGauge(device.read_allocator)

    def read_host() -> HostReading:
        if not on_cpu or (heap := gauge.read()) is None:
            return HostReading(workers.read(), None)
        data = heap.data_outside_bytes(allocated_bytes(heap))
        return HostReading(
            workers.read(), heap.free_bytes, heap.limit_left_bytes, data, heap.forward_end_bytes
        )

    return LeakWatch(
        context.journal.put,
        context.clock_ns,
        lambda: context.last_step,
        LeakDetector(on_cpu=on_cpu),
        readings,
        read_host,
        lambda: read_limits(device, cap_bytes(), worker_pids()),
        on_leak=on_leak,
        collect_garbage=collect_cycles,
        hunt_result=hunt_result,
    )


def read_limits(device: Device, cap_bytes: int | None, worker_pids: Iterable[int] = ()) -> Limits:
    """Return the limits in effect; `cap_bytes` is the cap of the settings."""
    limits = [limit for limit in (cap_bytes, device.limit_bytes()) if limit is not None]
    limit_bytes = min(limits, default=device.facts.memory_bytes)
    on_cpu = device.facts.kind is DeviceKind.CPU
    free_bytes = None if on_cpu else device.read_memory_info().free_bytes
    return Limits(limit_bytes, read_host_memory().free_bytes, free_bytes, left_to_all(worker_pids))
