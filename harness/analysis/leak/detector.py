"""Leak detector for the four memory series of a run, with attribution among the series.

A pure function of its inputs: step rows and host readings in, verdicts out. Used for real runs
(`harness.watch.jobs.leaks`) and simulated ones (`harness.demo`).
"""

from collections.abc import Iterable, Sequence

from harness.analysis.leak import wording
from harness.analysis.leak.growth import (
    DOUBTFUL_Z,
    LEAST_FOR_LEAK,
    RISING,
    GrowthJudge,
    Judgment,
)
from harness.analysis.leak.headroom import NO_LIMITS, Headroom, Limits
from harness.analysis.leak.needs import StepNeeds
from harness.analysis.leak.refill import Refill
from harness.analysis.leak.settling import LiveRange, settled
from harness.analysis.leak.variation import StepVariation
from harness.records.memory import TOGETHER, LeakRow, LeakSeries, LeakVerdict
from harness.records.run import MAX_SHARED_READING_NS, RECORDED_FLAGS, StepRow

# Above this share of the limit reserved memory cannot grow further, so such readings are ignored.
AT_LIMIT = 0.98

# A series explains another if its slope is at least this share of the other's.
MOST = 0.5

# Readings required for a leak if steps differ in size: each new largest step, and each new order of sizes,
# leaves other holes, so the rise of a healthy run lasts longer.
LEAST_WHERE_STEPS_DIFFER = 4 * LEAST_FOR_LEAK

# Live memory is read rarely if that of the process, in microseconds, was read so many times as often.
RARELY = 2

# Before the verdict "leak" the steps until memory runs out are stated up to this multiple of those analyzed.
NEAR = 4


class ReadingFilter:
    """Selects the steps with a memory reading of their own; short steps share one."""

    def __init__(self) -> None:
        self._due_ns = 0
        self._last: tuple[int | None, ...] = ()

    def pick(self, rows: Iterable[StepRow]) -> list[StepRow]:
        """Return the rows, in order, with a new reading. Takes a fraction of a microsecond per row."""
        picked = []
        for row in rows:
            reading = row.allocated_bytes, row.reserved_bytes, row.rss_bytes
            if row.t_ns >= self._due_ns or reading != self._last:
                self._due_ns = row.t_ns + MAX_SHARED_READING_NS
                self._last = reading
                picked.append(row)
        return picked


class LeakDetector:
    """Detects leaks of one run. Not thread-safe.

    Attributes:
        newest_reading: the newest row with the memory of live tensors; None before the first.
        settings_version: the version of the settings of the newest row; None before the first.
        doubts_leak: whether live memory leaks by the newest judgment, unless growing inputs explain it.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        """`on_cpu`: tensors are on the heap of the process, so its RSS includes them."""
        self._on_cpu = on_cpu
        self._judges = {series: GrowthJudge() for series in LeakSeries}
        # The whole process, see `_with_process`.
        self._process, self._judges_process = GrowthJudge(), False
        # Whether the process leaked by the newest judgment on it in place of live memory.
        self._process_leaks = False
        # That judgment as it was before the newest recording, until there is another one.
        self._process_before_recording: Judgment | None = None
        self._headroom = Headroom(on_cpu=on_cpu)
        self._refill = Refill()
        self._live = LiveRange()
        self._variation = StepVariation()
        self._needs, self._inputs_grow = StepNeeds(), False
        self.settings_version: int | None = None
        self.newest_reading: StepRow | None = None
        self.doubts_leak = False
        self._newest: StepRow | None = None
        self._is_settled = self._is_recorded = False
        self._host_step = 0
        self._is_heap_measured = False
        # The first step after the newest recording, and the judgment on the host before it.
        self._recorded_step = 0
        self._before_recording: Judgment | None = None
        # That judgment if it is a leak, until there is another one.
        self._host_leak: Judgment | None = None

    def add_steps(self, rows: Iterable[StepRow], limits: Limits = NO_LIMITS) -> None:
        """Add readings in the order of their steps. Flagged steps are excluded; a change of settings restarts
        the detection, since it may change the baseline."""
        for row in rows:
            if row.settings_version != self.settings_version:
                self.settings_version = row.settings_version
                self.restart()
            self._newest = row
            if row.allocated_bytes is not None:
                self.newest_reading = row
            self._is_settled = not row.flags
            if row.flags:
                self._is_recorded |= bool(row.flags & RECORDED_FLAGS)
                continue
            if self._is_recorded:
                # The profiler retains memory of its own, which is no leak of the run.
                self._is_recorded = False
                judge = self._judges[LeakSeries.HOST]
                self._before_recording = host = judge.judge(judge.least_for_leak)
                self._host_leak = host if host.verdict is LeakVerdict.LEAK else self._host_leak
                self._recorded_step = row.step
                judge.restart()
                process = self._process.judge(self._process.least_for_leak)
                if self._process_leaks and process.verdict is LeakVerdict.LEAK:
                    self._process_before_recording = process
                self._process.restart()
            self._headroom.add_step(row)
            # On the CPU peaks are sampled: without a sample a short step's peak is its allocated memory.
            transient = _less(row.peak_allocated_bytes, row.allocated_bytes)
            self._variation.add_step(row, transient)
            if transient:
                self._needs.add_peak(row.step, transient)
            allocated, reserved, rss = row.allocated_bytes, row.reserved_bytes, row.rss_bytes
            self._add(LeakSeries.ALLOCATED, row.step, allocated)
            self._live.add(allocated)
            if self._on_cpu:
                self._process.add(row.step, rss)
                self._is_heap_measured = self._is_heap_measured or allocated is not None
                outside = _less(rss, allocated) if self._is_heap_measured else rss
                self._add(LeakSeries.HOST, row.step, outside)
                self._refill.add_resident(outside)
            else:
                self._add(LeakSeries.HOST, row.step, rss)
                if reserved is not None and reserved < AT_LIMIT * (limits.device_bytes or float("inf")):
                    self._add(LeakSeries.FRAGMENTATION, row.step, _less(reserved, allocated))

    def add_host(
        self,
        step: int,
        workers_rss_bytes: int | None,
        heap_free_bytes: int | None,
        cap_left_bytes: int | None = None,
        data_bytes: int | None = None,
        forward_end_bytes: Sequence[int] = (),
    ) -> None:
        """Add the RSS of the loader's workers and, on the CPU, free memory in the heap and under a cap, the
        data outside live objects under a cap (see `Refill.add_data`), and the transient memory of the newest
        steps at the ends of their phases."""
        if not self._is_settled or step <= self._host_step:
            return
        self._host_step = step
        self._add(LeakSeries.WORKERS, step, workers_rss_bytes)
        if heap_free_bytes is None:  # On a GPU, or not read this time.
            return
        self._headroom.add_heap(step, heap_free_bytes, cap_left_bytes, data_bytes)
        self._variation.set_forward_ends(forward_end_bytes)
        if forward_end_bytes:
            self._needs.add_forward_end(step, forward_end_bytes[-1])
        if self._on_cpu:
            self._add(LeakSeries.FRAGMENTATION, step, heap_free_bytes)
            self._refill.add_data(step, data_bytes)

    def set_copy(self, step: int, copied_bytes: int) -> None:
        """Set the size, after `step`, of a tensor that steps replace by larger ones; 0: there is none."""
        self._needs.set_copy(step, copied_bytes)

    def set_retained(self, step: int, bytes_per_step: float) -> None:
        """Set what each step up to `step` retained, as a hunt has found; 0: nothing."""
        self._needs.set_retained(step, bytes_per_step)

    def judge(self, t_ns: int, limits: Limits = NO_LIMITS) -> list[LeakRow]:
        """Return the verdict on every series with readings, the most specific first."""
        newest = self._newest
        if newest is None:
            return []
        exact = {LeakSeries.WORKERS} if self._on_cpu else {LeakSeries.WORKERS, LeakSeries.ALLOCATED}
        least = LEAST_WHERE_STEPS_DIFFER if self._variation.differs() else LEAST_FOR_LEAK
        judgments = {
            series: self._after_warm_up(series, judge.judge(LEAST_FOR_LEAK if series in exact else least))
            for series, judge in self._judges.items()
        }
        host = judgments[LeakSeries.HOST]
        judgments[LeakSeries.HOST] = host.retaining(self._host_leak)
        if judgments[LeakSeries.HOST] is host:
            self._host_leak = None
        judgments[LeakSeries.ALLOCATED] = self._with_process(judgments, least)
        before = judgments
        judgments = {series: self._needs.without_growth(series, one) for series, one in judgments.items()}
        self._inputs_grow = any(
            judgments[series].verdict is not one.verdict for series, one in before.items()
        )
        live, live_before = judgments[LeakSeries.ALLOCATED], before[LeakSeries.ALLOCATED]
        self.doubts_leak = live.verdict is not live_before.verdict
        judgments[LeakSeries.HOST] = self._refill.without(judgments[LeakSeries.HOST])
        if self._on_cpu:
            judgments = settled(judgments, self._headroom.transient_bytes, self._live.grown_bytes)
        rising = {series for series, judgment in judgments.items() if judgment.verdict in RISING}
        if self._on_cpu:
            _attribute_to_holes(judgments)
        outside_slope = _outside_slope(judgments) if self._on_cpu else None
        return [
            self._row(
                series,
                self._explained(series, judgment, judgments),
                rising,
                newest,
                t_ns,
                limits,
                outside_slope,
                judgments,
            )
            for series, judgment in judgments.items()
            if self._judges[series].samples or (series is LeakSeries.ALLOCATED)
        ]

    def _with_process(self, judgments: dict[LeakSeries, Judgment], least: int) -> Judgment:
        """Return the verdict on live memory, or that on the memory of the process where live memory was read
        too rarely: on the CPU a reading takes long where malloc has many blocks, as of what each step leaves
        behind. Growth that holes explain is none of live memory. A recording, which restarts the series of
        the process, withdraws no leak: memory that goes on growing needs no readings for it again."""
        live, holes = judgments[LeakSeries.ALLOCATED], judgments[LeakSeries.FRAGMENTATION]
        own, process = self._judges[LeakSeries.ALLOCATED].samples, self._process
        before = self._process_before_recording if live.verdict is LeakVerdict.TOO_EARLY else None
        is_rare = process.samples >= RARELY * own or before is not None
        is_rare = self._is_heap_measured and own < least and is_rare
        # A leak that fills holes does not show in the process: no size is certain to be detected.
        current = process.judge(least)._replace(detection_limit=None) if is_rare else live
        judgment = current.retaining(before)
        if judgment is current:
            self._process_before_recording = None
        self._judges_process = is_rare and judgment.trend is not None and not _explains(holes, judgment)
        if is_rare:
            self._process_leaks = self._judges_process and judgment.verdict is LeakVerdict.LEAK
        elif self._process_leaks and own < least and live.verdict is LeakVerdict.WATCH:
            return live if live.full_since is not None else live._replace(verdict=LeakVerdict.LEAK)
        return judgment if self._judges_process else live

    def _add(self, series: LeakSeries, step: int, value: int | None) -> None:
        self._judges[series].add(step, value)

    def restart(self) -> None:
        """Discard all readings: the baseline may have changed."""
        for judge in (*self._judges.values(), self._process):
            judge.restart()
        self._before_recording = self._process_before_recording = self._host_leak = None
        self._process_leaks = False
        self._headroom.restart()
        self._refill.restart()
        self._variation.restart()
        self._needs.restart()

    def began(self, row: LeakRow) -> int:
        """Return the step at which the growth in `row` may have begun: a recording restarts the series of the
        host, which may have grown before, unless that much would have been seen."""
        before = self._before_recording
        if row.series != LeakSeries.HOST or before is None or row.bytes_per_step is None:
            return row.since_step
        if row.since_step - self._recorded_step > TOGETHER * (row.step - self._recorded_step):
            return row.since_step
        limit = before.detection_limit
        is_unseen = before.verdict in RISING or limit is None or row.bytes_per_step < limit
        return before.since_step if is_unseen else row.since_step

    def _after_warm_up(self, series: LeakSeries, judgment: Judgment) -> Judgment:
        """Replace the verdict by "warm-up" during the first steps."""
        settling = not self._is_settled and not self._judges[series].samples
        return judgment._replace(verdict=LeakVerdict.WARM_UP) if settling else judgment

    def _explained(
        self, series: LeakSeries, judgment: Judgment, judgments: dict[LeakSeries, Judgment]
    ) -> Judgment:
        """Replace the verdict by "steady" if the growth of live tensors explains it: tensors also count as
        reserved and resident memory. What it would explain is not detectable."""
        if series in (LeakSeries.ALLOCATED, LeakSeries.WORKERS):
            return judgment
        judgment = _beside(judgments[LeakSeries.ALLOCATED], judgment)
        if judgment.verdict not in RISING:
            return judgment
        if _explains(judgments[LeakSeries.ALLOCATED], judgment):
            return judgment._replace(verdict=LeakVerdict.STEADY)
        holes = self._judges[LeakSeries.FRAGMENTATION]
        is_unknown = self._on_cpu and holes.samples and judgments[LeakSeries.FRAGMENTATION].trend is None
        if series is LeakSeries.HOST and is_unknown and judgment.verdict is LeakVerdict.LEAK:
            return judgment._replace(verdict=LeakVerdict.WATCH)  # The growth may be holes.
        return judgment

    def _row(
        self,
        series: LeakSeries,
        judgment: Judgment,
        rising: set[LeakSeries],
        newest: StepRow,
        t_ns: int,
        limits: Limits,
        outside_slope: float | None,
        judgments: dict[LeakSeries, Judgment],
    ) -> LeakRow:
        judgment = judgment.from_onset()
        fit, is_leak = judgment.trend, judgment.verdict is LeakVerdict.LEAK
        faster = None if fit is None else self._headroom.faster_slope(series, fit.slope)
        # Without a cap memory lasts longer than the heap takes to settle.
        settles = (
            self._on_cpu
            and faster is not None
            and not self._headroom.has_cap
            and judgments[LeakSeries.FRAGMENTATION].verdict is not LeakVerdict.LEAK
        )
        left = self._steps_left(series, judgment, limits, is_sure=is_leak and not settles)
        judge = self._judges[series]
        context = wording.VerdictContext(
            series,
            judgment,
            judge.least_for_leak,
            left,
            self._on_cpu,
            series in rising,
            self._inputs_grow and judgment.verdict is LeakVerdict.WATCH,
            outside_slope,
            judgments[LeakSeries.ALLOCATED].verdict,
            faster_slope=faster,
            is_process=series is LeakSeries.ALLOCATED and self._judges_process,
        )
        return LeakRow(
            t_ns=t_ns,
            step=newest.step,
            series=series,
            verdict=judgment.verdict,
            since_step=judgment.since_step,
            bytes_per_step=None if fit is None else fit.slope,
            low=None if fit is None else fit.low,
            high=None if fit is None else fit.high,
            risen_bytes=None if judgment.risen_bytes is None else round(judgment.risen_bytes),
            steps_to_oom=left,
            detection_limit=judgment.detection_limit,
            message=wording.sentence(context),
            cause=wording.cause(context, rising, newest) if is_leak else None,
        )

    def _steps_left(
        self, series: LeakSeries, judgment: Judgment, limits: Limits, *, is_sure: bool
    ) -> int | None:
        """Return the steps until memory runs out. Unless the growth `is_sure`, only if that is near: a run
        may end before the verdict "leak", or before its heap has settled."""
        if judgment.verdict not in RISING or judgment.trend is None:
            return None
        copy = self._needs.copy(series, judgment, self._headroom.transient_bytes)
        inputs_grow = not copy.slope and self._needs.are_growing(judgment.trend.slope)
        left = self._headroom.steps_left(series, judgment.trend, limits, copy, inputs_grow=inputs_grow)
        is_near = (
            series is LeakSeries.ALLOCATED
            and left is not None
            and left <= NEAR * (judgment.last_step - judgment.since_step)
        )
        return left if is_sure or is_near else None


def _attribute_to_holes(judgments: dict[LeakSeries, Judgment]) -> None:
    """Move the verdict from the host series to fragmentation if holes account for most of its growth. Free
    memory in the heap is part of the process's memory outside live objects; it is read in the middle of
    steps, so its own series is the noisier one."""
    host, holes = judgments[LeakSeries.HOST], judgments[LeakSeries.FRAGMENTATION]
    if host.verdict not in RISING or holes.trend is None or host.trend is None:
        return
    if holes.trend.z > DOUBTFUL_Z and holes.trend.slope >= MOST * host.trend.slope:
        judgments[LeakSeries.FRAGMENTATION] = host
        judgments[LeakSeries.HOST] = _beside(holes, host)._replace(verdict=LeakVerdict.STEADY)


def _outside_slope(judgments: dict[LeakSeries, Judgment]) -> float | None:
    """Return a lower bound of the growth of the process outside the heap; None if it does not rise, or while
    the holes in the heap, a part of what is outside live objects, have too few readings."""
    host, holes = judgments[LeakSeries.HOST], judgments[LeakSeries.FRAGMENTATION]
    if host.verdict not in RISING or host.trend is None or holes.trend is None:
        return None
    return host.trend.low - max(0.0, holes.trend.high)


def _explains(cause: Judgment, effect: Judgment) -> bool:
    """Return whether `cause` also rises, fast enough to account for most of the rise of `effect`."""
    if cause.verdict not in RISING or cause.trend is None:
        return False
    return effect.trend is None or cause.trend.slope >= MOST * effect.trend.slope


def _beside(cause: Judgment, effect: Judgment) -> Judgment:
    """Return `effect` with the detection limit that holds beside growth of `cause`."""
    if effect.detection_limit is None or cause.verdict not in RISING or cause.trend is None:
        return effect
    return effect._replace(detection_limit=max(effect.detection_limit, cause.trend.slope / MOST))


def _less(value: int | None, by: int | None) -> int | None:
    return None if value is None or by is None else value - by
