"""Sums over a profiler's events: by operator and kernel, by module and phase, by stack. Pure.

Events of one thread are nested, so one pass over each thread, in time order, finds the parents of every
event. Backward events belong to the module of the operator that created their node: both have the node's
number (`sequence`) and thread.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.profiling.events import NODE, Event, Role
from harness.records.run import Phase

# The phase of the time between two steps, and of the residual.
OTHER = "other"
# The place of events outside of all modules, by phase.
_OUTSIDE = {
    Phase.DATA_WAIT.value: "<data wait>",
    Phase.H2D.value: "<copy>",
    Phase.FORWARD.value: "<loss>",
    Phase.BACKWARD.value: "<loss>",
    Phase.OPTIMIZER.value: "<optimizer>",
    OTHER: "<other>",
}

_RANGES = (Role.STEP, Role.PHASE, Role.MODULE)
# The times of a trace are in microseconds.
_ROUNDING_NS = 1_000

# A module's path and a phase.
ModulePhase = tuple[str, str]
# An operator or kernel, and whether the optimizer ran it, which determines its kind.
OperatorKey = tuple[str, bool]
Frames = tuple[str, ...]


@dataclass(slots=True)
class OperatorSum:
    """All calls of an operator or kernel; nanoseconds and bytes."""

    calls: int = 0
    self_cpu_ns: int = 0
    total_cpu_ns: int = 0
    self_device_ns: int = 0
    total_device_ns: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class SelfSum:
    """The self times of a module or a stack, in nanoseconds."""

    calls: int = 0
    self_cpu_ns: int = 0
    self_device_ns: int = 0


@dataclass
class ProfileSums:
    """The sums of a profile. `modules` sum to `operators` on the CPU and to `kernels` on the device."""

    wall_ns: int | None = None
    busy_ns: int | None = None
    # The duration of the shortest step.
    fastest_ns: int | None = None
    operators: dict[OperatorKey, OperatorSum] = field(default_factory=lambda: defaultdict(OperatorSum))
    kernels: dict[OperatorKey, OperatorSum] = field(default_factory=lambda: defaultdict(OperatorSum))
    modules: dict[ModulePhase, SelfSum] = field(default_factory=lambda: defaultdict(SelfSum))
    stacks: dict[Frames, SelfSum] = field(default_factory=lambda: defaultdict(SelfSum))


class _Open:
    """An open event; `operator` is itself, or the innermost operator around it."""

    __slots__ = (
        "bytes",
        "child_cpu",
        "child_device",
        "event",
        "frames",
        "module",
        "operator",
        "outer",
        "phase",
    )

    def __init__(self, event: Event | None, outer: "_Open | None") -> None:
        self.event = event
        self.outer: _Open | None = None if outer is None else outer.operator
        self.operator: _Open | None = self.outer
        self.module: str | None = None if outer is None else outer.module
        self.phase: str | None = None if outer is None else outer.phase
        self.frames: Frames = () if outer is None else outer.frames
        self.child_cpu = self.child_device = self.bytes = 0


def sum_events(
    events: Sequence[Event], is_on_device: bool, show: Callable[[str], str | None] = lambda name: name
) -> ProfileSums:
    """Sum `events`. `is_on_device`: kernels were recorded, and determine the busy time; `show` formats a
    Python function in a stack, None: hidden."""
    walk = _Walk(events, show)
    threads: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.role is not Role.KERNEL:
            threads[event.thread].append(event)
    # The training thread comes first: it creates nodes before other threads run them.
    for thread in sorted(threads, key=lambda one: (one != walk.main_thread, threads[one][0].start_ns)):
        walk.visit(sorted(threads[thread], key=lambda one: (one.start_ns, -one.end_ns)))
    sums = walk.finish()
    steps = [event for event in events if event.role is Role.STEP]
    if steps:
        window = (min(step.start_ns for step in steps), max(step.end_ns for step in steps))
        spans = walk.kernel_spans if is_on_device else walk.operator_spans
        sums.wall_ns = window[1] - window[0]
        sums.fastest_ns = min(step.end_ns - step.start_ns for step in steps)
        sums.busy_ns = union_ns(spans, *window)
    return sums


def union_ns(spans: Sequence[tuple[int, int]], first_ns: int, last_ns: int) -> int:
    """Return the part of [first_ns, last_ns) that the spans cover, with overlaps counted once."""
    covered, reached = 0, first_ns
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, last_ns)
        if end > start:
            covered += end - start
            reached = end
    return covered


class _Walk:
    """One pass over each thread."""

    def __init__(self, events: Sequence[Event], show: Callable[[str], str | None]) -> None:
        self._show = show
        self._sums = ProfileSums()
        self._frames: dict[str, str | None] = {}
        self._active: Counter[str] = Counter()
        self._nodes: dict[tuple[int, int], tuple[str | None, Frames]] = {}
        self._kernels: defaultdict[int, list[Event]] = defaultdict(list)
        self._launches: dict[int, ModulePhase] = {}
        self._last_node: tuple[str | None, Frames] = (None, ())
        self.operator_spans: list[tuple[int, int]] = []
        self.kernel_spans = [(e.start_ns, e.end_ns) for e in events if e.role is Role.KERNEL]
        for event in events:
            if event.role is Role.KERNEL:
                self._kernels[event.linked].append(event)
        phases = sorted((e for e in events if e.role is Role.PHASE), key=lambda event: event.start_ns)
        self._phase_starts = [event.start_ns for event in phases]
        self._phases = phases
        self.main_thread = phases[0].thread if phases else None

    def visit(self, events: Sequence[Event]) -> None:
        """Process the events of one thread, in time order, parents first."""
        stack = [_Open(None, None)]
        self._last_node = (None, ())
        for event in events:
            while (top := stack[-1]).event is not None and not _may_contain(top.event, event):
                self._end(stack.pop())
            if event.role is Role.MEMORY:
                if top.operator is not None:
                    top.operator.bytes += event.size_bytes
            else:
                stack.append(self._begin(event, top))
        while len(stack) > 1:
            self._end(stack.pop())

    def _begin(self, event: Event, top: _Open) -> _Open:
        begun = _Open(event, top)
        role = event.role
        if begun.phase is None:
            begun.phase = self._phase_at(event.start_ns)
        if role is Role.OPERATOR or role is Role.NODE or role is Role.LAUNCH:
            self._begin_operator(event, begun)
        elif role is Role.MODULE:
            begun.module = event.name
            if begun.phase != Phase.BACKWARD.value:
                self._sums.modules[event.name, begun.phase].calls += 1
        elif role is Role.PHASE:
            begun.phase = event.name
            if event.name not in (Phase.FORWARD, Phase.BACKWARD):
                self._sums.modules[_place(begun)].calls += 1
        elif role is Role.FRAME:
            frame = self._frame(event.name)
            if frame is not None:
                begun.frames = (*begun.frames, frame)
        return begun

    def _begin_operator(self, event: Event, begun: _Open) -> None:
        begun.operator = begun
        self._active[event.name] += 1
        if event.role is Role.NODE:
            self._place_node(event, begun)
        elif event.sequence >= 0 and not event.forward_thread:
            self._nodes[event.thread, event.sequence] = (begun.module, begun.frames)
        if event.role is Role.LAUNCH:
            self._launches[event.correlation] = _place(begun)

    def _place_node(self, event: Event, begun: _Open) -> None:
        """Assign a node to its module. A node without a number accumulates a gradient, right after the node
        that computed it."""
        if event.sequence >= 0:
            unknown = (begun.module, begun.frames)
            self._last_node = self._nodes.get((event.forward_thread, event.sequence), unknown)
        begun.module, frames = self._last_node
        begun.frames = (*(frames or begun.frames), event.name.removeprefix(NODE))

    def _phase_at(self, moment_ns: int) -> str:
        """Return the phase at this moment, on any thread."""
        at = bisect_right(self._phase_starts, moment_ns) - 1
        return self._phases[at].name if at >= 0 and moment_ns < self._phases[at].end_ns else OTHER

    def _frame(self, name: str) -> str | None:
        if name not in self._frames:
            self._frames[name] = self._show(name)
        return self._frames[name]

    def _end(self, ended: _Open) -> None:
        if ended.operator is not ended:
            return
        event = ended.event
        assert event is not None
        launched = self._kernels.pop(event.correlation, ()) if event.role is not Role.LAUNCH else ()
        place = _place(ended)
        device_ns = self._count(launched, place)
        cpu_ns = event.end_ns - event.start_ns
        self_ns = max(0, cpu_ns - ended.child_cpu)
        total_device_ns = device_ns + ended.child_device
        sums_of_operator = self._sums.operators[event.name, place[1] == Phase.OPTIMIZER]
        sums_of_operator.calls += 1
        sums_of_operator.self_cpu_ns += self_ns
        sums_of_operator.self_device_ns += device_ns
        sums_of_operator.size_bytes += ended.bytes
        self._active[event.name] -= 1
        if not self._active[event.name]:  # A nested call of the same operator is counted once.
            sums_of_operator.total_cpu_ns += cpu_ns
            sums_of_operator.total_device_ns += total_device_ns
        self._sums.modules[place].self_cpu_ns += self_ns
        stack = self._sums.stacks[(*ended.frames, event.name)]
        stack.calls += 1
        stack.self_cpu_ns += self_ns
        stack.self_device_ns += device_ns
        if ended.outer is not None:
            ended.outer.child_cpu += cpu_ns
            ended.outer.child_device += total_device_ns
        else:
            self.operator_spans.append((event.start_ns, event.end_ns))

    def finish(self) -> ProfileSums:
        """Return the sums; kernels without an operator belong to the place of their launch."""
        for kernels in self._kernels.values():
            for kernel in kernels:
                self._count([kernel], self._launches.get(kernel.correlation, (_OUTSIDE[OTHER], OTHER)))
        return self._sums

    def _count(self, kernels: Sequence[Event], place: ModulePhase) -> int:
        """Count kernels that were launched from `place`; return their total time, overlaps included."""
        total_ns = 0
        for kernel in kernels:
            kernel_sum = self._sums.kernels[kernel.name, place[1] == Phase.OPTIMIZER]
            took_ns = kernel.end_ns - kernel.start_ns
            kernel_sum.calls += 1
            kernel_sum.self_device_ns += took_ns
            kernel_sum.total_device_ns += took_ns
            total_ns += took_ns
        if total_ns:
            self._sums.modules[place].self_device_ns += total_ns
        return total_ns


def _may_contain(outer: Event, event: Event) -> bool:
    """Return whether `event` lies within `outer`, which began before. Under a dispatch mode the call that
    opens a range is an operator: the range begins within it, and ends later."""
    if outer.end_ns <= event.start_ns:
        return False
    is_opened_within = event.role in _RANGES and outer.role is Role.OPERATOR
    return not is_opened_within or event.end_ns <= outer.end_ns + _ROUNDING_NS


def _place(opened: _Open) -> ModulePhase:
    phase = opened.phase or OTHER
    module = opened.module
    return (_OUTSIDE.get(phase, _OUTSIDE[OTHER]) if module is None else module), phase
