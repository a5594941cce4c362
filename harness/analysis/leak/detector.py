"""Is it leaking? The four series of a run that are watched, which of them explains which, and what is said.

A pure detector: step rows and readings of the host go in, verdicts come out. The same one serves real runs
(`harness.watch.jobs.leaks`) and simulated ones (`harness.demo`).
"""

from collections import deque
from collections.abc import Iterable

from harness.analysis.leak import wording
from harness.analysis.leak.growth import (
    DOUBTFUL_Z,
    LEAST_FOR_LEAK,
    LEAST_RISE,
    SURE_Z,
    GrowthJudge,
    Judgement,
)
from harness.analysis.leak.headroom import NO_LIMITS, Headroom, Limits
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import MAX_SHARED_READING_NS, StepRow

AT_LIMIT = 0.98
"""From this share of the limit on, what is reserved can grow no more: such readings say nothing."""

MOST = 0.5
"""A series explains another when it grows by at least this share of its slope."""

LEAST_WHERE_STEPS_DIFFER = 4 * LEAST_FOR_LEAK
"""Readings before a leak is called one where steps differ in size: every new largest step, and every new
order of sizes, leaves other holes, and the rise of a healthy run lasts that much longer."""
DIFFERENT = 0.35
"""Steps differ when the middle eight tenths of what they need while they run spread over this share of the
median: in runs of the catalog with batches all alike it is 0.0 to 0.3, with lengths drawn at random 0.4 to
1.6."""
_PASSING = 64

RISING = frozenset({LeakVerdict.WATCH, LeakVerdict.LEAK})
CALM = frozenset({LeakVerdict.STEADY, LeakVerdict.SAWTOOTH})


class ReadingFilter:
    """Finds the steps whose memory columns are a reading of their own."""

    def __init__(self) -> None:
        self._due_ns = 0
        self._last: tuple[int | None, int | None] = (None, None)

    def pick(self, rows: Iterable[StepRow]) -> list[StepRow]:
        """The rows, in order, that bring a new reading. Costs a fraction of a microsecond a row."""
        picked = []
        for row in rows:
            if row.t_ns >= self._due_ns or (row.allocated_bytes, row.rss_bytes) != self._last:
                self._due_ns = row.t_ns + MAX_SHARED_READING_NS
                self._last = row.allocated_bytes, row.rss_bytes
                picked.append(row)
        return picked


class LeakDetector:
    """Watches one run. For one thread at a time."""

    def __init__(self, *, on_cpu: bool) -> None:
        """`on_cpu`: tensors lie on the heap of the process, so its RSS is theirs too."""
        self._on_cpu = on_cpu
        self._judges = {series: GrowthJudge() for series in LeakSeries}
        self._headroom = Headroom(on_cpu=on_cpu)
        self._passing: deque[int] = deque(maxlen=_PASSING)
        self._needs = GrowthJudge()
        self._version: int | None = None
        self._newest: StepRow | None = None
        self._is_settled = False
        self._host_step = 0
        self._heap_is_told = False

    @property
    def newest(self) -> StepRow | None:
        """The newest row taken, None before the first."""
        return self._newest

    def take(self, rows: Iterable[StepRow], limits: Limits = NO_LIMITS) -> None:
        """Take readings in the order of their steps. Flagged steps are left out; a change of settings starts
        anew, since what is held may be another amount from then on."""
        for row in rows:
            if row.settings_version != self._version:
                self._version = row.settings_version
                self.restart()
            self._newest = row
            self._is_settled = not row.flags
            if row.flags:
                continue
            self._headroom.take(row)
            # On the CPU peaks are sampled: a short step of which none was caught shows what it left.
            passing = _less(row.peak_allocated_bytes, row.allocated_bytes)
            if passing:
                self._passing.append(passing)
                self._needs.add(row.step, passing)
            allocated, reserved, rss = row.allocated_bytes, row.reserved_bytes, row.rss_bytes
            self._add(LeakSeries.ALLOCATED, row.step, allocated)
            if self._on_cpu:
                self._heap_is_told = self._heap_is_told or allocated is not None
                self._add(LeakSeries.HOST, row.step, _less(rss, allocated) if self._heap_is_told else rss)
            else:
                self._add(LeakSeries.HOST, row.step, rss)
                if reserved is not None and reserved < AT_LIMIT * (limits.device_bytes or float("inf")):
                    self._add(LeakSeries.FRAGMENTATION, row.step, _less(reserved, allocated))

    def take_host(
        self,
        step: int,
        workers_rss_bytes: int | None,
        heap_free_bytes: int | None,
        cap_left_bytes: int | None = None,
    ) -> None:
        """Take what the loader's workers hold and, on the CPU, what lies free in the heap and what a cap
        leaves."""
        if not self._is_settled or step <= self._host_step:
            return
        self._host_step = step
        self._add(LeakSeries.WORKERS, step, workers_rss_bytes)
        self._headroom.take_heap(heap_free_bytes, cap_left_bytes)
        if self._on_cpu:
            self._add(LeakSeries.FRAGMENTATION, step, heap_free_bytes)

    def judge(self, t_ns: int, limits: Limits = NO_LIMITS) -> list[LeakRow]:
        """The verdict on every series that has readings, the most telling first."""
        newest = self._newest
        if newest is None:
            return []
        exact = {LeakSeries.WORKERS} if self._on_cpu else {LeakSeries.WORKERS, LeakSeries.ALLOCATED}
        least = LEAST_WHERE_STEPS_DIFFER if self._steps_differ() else LEAST_FOR_LEAK
        judgements = {
            series: self._apart(series, judge.judge(LEAST_FOR_LEAK if series in exact else least))
            for series, judge in self._judges.items()
        }
        needs = self._needs.judge()
        judgements = {series: _beside_needs(judgement, needs) for series, judgement in judgements.items()}
        rising = {series for series, judgement in judgements.items() if judgement.verdict in RISING}
        if self._on_cpu:
            _attribute_to_holes(judgements)
        return [
            self._row(series, self._explained(series, judgement, judgements), rising, newest, t_ns, limits)
            for series, judgement in judgements.items()
            if self._judges[series].samples or (series is LeakSeries.ALLOCATED)
        ]

    def _add(self, series: LeakSeries, step: int, value: int | None) -> None:
        self._judges[series].add(step, value)

    def restart(self) -> None:
        """Judge by what comes from here on: what is held may be another amount."""
        for judge in self._judges.values():
            judge.restart()
        self._headroom.restart()
        self._passing.clear()
        self._needs.restart()

    def _steps_differ(self) -> bool:
        """Whether what a step needs while it runs differs widely from step to step, as it does where batches
        differ in length."""
        if len(self._passing) < _PASSING // 2:
            return False
        ordered = sorted(self._passing)
        low, middle, high = (ordered[len(ordered) * tenths // 10] for tenths in (1, 5, 9))
        return middle >= LEAST_RISE and high - low >= DIFFERENT * middle

    def _apart(self, series: LeakSeries, judgement: Judgement) -> Judgement:
        """While the first steps are under way nothing is judged."""
        settling = not self._is_settled and not self._judges[series].samples
        return judgement._replace(verdict=LeakVerdict.WARM_UP) if settling else judgement

    def _explained(
        self, series: LeakSeries, judgement: Judgement, all_of_them: dict[LeakSeries, Judgement]
    ) -> Judgement:
        """What only follows from the growth of live tensors is not called a leak of its own: what they take
        is reserved and resident, too."""
        if judgement.verdict not in RISING or series in (LeakSeries.ALLOCATED, LeakSeries.WORKERS):
            return judgement
        if _explains(all_of_them[LeakSeries.ALLOCATED], judgement):
            return judgement._replace(verdict=LeakVerdict.STEADY)
        holes = self._judges[LeakSeries.FRAGMENTATION]
        is_open = self._on_cpu and holes.samples and all_of_them[LeakSeries.FRAGMENTATION].trend is None
        if series is LeakSeries.HOST and is_open and judgement.verdict is LeakVerdict.LEAK:
            return judgement._replace(verdict=LeakVerdict.WATCH)  # It may all be holes.
        return judgement

    def _row(
        self,
        series: LeakSeries,
        judgement: Judgement,
        rising: set[LeakSeries],
        newest: StepRow,
        t_ns: int,
        limits: Limits,
    ) -> LeakRow:
        found = judgement.trend
        is_leak = judgement.verdict is LeakVerdict.LEAK
        left = self._headroom.steps_left(series, found, limits) if is_leak and found is not None else None
        told = wording.Told(
            series, judgement, self._judges[series].samples, left, self._on_cpu, series in rising
        )
        return LeakRow(
            t_ns=t_ns,
            step=newest.step,
            series=series,
            verdict=judgement.verdict,
            since_step=judgement.since_step,
            bytes_per_step=None if found is None else found.slope,
            low=None if found is None else found.low,
            high=None if found is None else found.high,
            risen_bytes=None if judgement.risen_bytes is None else round(judgement.risen_bytes),
            steps_to_oom=left,
            detection_limit=judgement.detection_limit,
            message=wording.sentence(told),
            cause=wording.cause(told, rising, newest) if is_leak else None,
        )


def _beside_needs(judgement: Judgement, needs: Judgement) -> Judgement:
    """Where steps came to need ever more, as with inputs that grow, what they leave behind may have grown
    with them, and levels off with them: too early to call that a leak."""
    if judgement.verdict is not LeakVerdict.LEAK or needs.trend is None or needs.trend.z <= SURE_Z:
        return judgement
    slope = 0.0 if judgement.trend is None else judgement.trend.slope
    return judgement._replace(verdict=LeakVerdict.WATCH) if needs.trend.slope >= MOST * slope else judgement


def _attribute_to_holes(judgements: dict[LeakSeries, Judgement]) -> None:
    """What lies free in the heap is part of the process's memory outside of live objects. When most of the
    growth there is of such holes, the verdict is about them; they are looked at in the middle of steps, where
    they come and go, so their own series is the noisier one."""
    host, holes = judgements[LeakSeries.HOST], judgements[LeakSeries.FRAGMENTATION]
    if host.verdict not in RISING or holes.trend is None or host.trend is None:
        return
    if holes.trend.z > DOUBTFUL_Z and holes.trend.slope >= MOST * host.trend.slope:
        judgements[LeakSeries.FRAGMENTATION] = host
        judgements[LeakSeries.HOST] = host._replace(verdict=LeakVerdict.STEADY)


def _explains(cause: Judgement, effect: Judgement) -> bool:
    """Whether one rises as well, and fast enough to account for most of the other's rise."""
    if cause.verdict not in RISING or cause.trend is None:
        return False
    return effect.trend is None or cause.trend.slope >= MOST * effect.trend.slope


def _less(value: int | None, by: int | None) -> int | None:
    return None if value is None or by is None else value - by
