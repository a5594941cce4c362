"""The profiles of a simulated run: the operators of a few steps, summed as in a real profile."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.analysis.profiles import sentence
from harness.demo.profile_work import Work, work
from harness.records.profile import (
    OperatorKind,
    ProfileModuleRow,
    ProfileOpRow,
    ProfileReason,
    ProfileRow,
    ProfileStackRow,
)
from harness.records.run import AmpMode, EventKind, EventRow, Phase, Severity, StepFlag, StepRow
from harness.settings import Settings
from harness.store.inserts import ProfilingRow

STEPS = 3
# Profiles of each scenario, at shares of its length: before and after the change that speeds it up.
_PROFILES: Mapping[str, Sequence[float]] = {"amp": (0.2, 0.45), "slow-loader": (0.3, 0.8)}
# Self CPU time of one call.
_OPERATOR_NS, _CALLER_NS, _LAUNCH_NS = 7_400, 3_900, 4_600
_LAUNCH = "cudaLaunchKernel"
_LOOP = "harness/train/loop.py:122 take_step"


class _Cost(NamedTuple):
    """Work with its times over all steps, in nanoseconds; `launch_ns` is the driver's part."""

    work: Work
    calls: int
    device_ns: int
    operator_ns: int
    caller_ns: int
    launch_ns: int

    @property
    def cpu_ns(self) -> int:
        return self.operator_ns + self.caller_ns + self.launch_ns


class SimulatedProfiles:
    """Generates the profiles of the scenario `key` as its steps pass."""

    def __init__(self, key: str, steps: int) -> None:
        firsts = [max(1, round(at * steps)) for at in _PROFILES.get(key, ())]
        self._firsts = {first: number for number, first in enumerate(firsts, 1) if first + STEPS <= steps}
        self._recorded: list[StepRow] = []

    def marked(self, rows: Sequence[StepRow]) -> list[StepRow]:
        """Return the steps with flags for those under the profiler, which starts one step earlier."""
        on = {step for first in self._firsts for step in range(first - 1, first + STEPS)}
        return [
            row._replace(flags=row.flags | StepFlag.PROFILED.value) if row.step in on else row for row in rows
        ]

    def rows(self, steps: Sequence[StepRow], settings: Settings) -> Iterator[ProfilingRow | EventRow]:
        """Yield the rows due by the end of `steps`, under `settings`."""
        for step in steps:
            if self._recorded or step.step in self._firsts:
                self._recorded.append(step)
            if len(self._recorded) == STEPS:
                recorded, self._recorded = self._recorded, []
                yield from _profile(self._firsts[recorded[0].step], recorded, settings)


def _profile(number: int, steps: Sequence[StepRow], settings: Settings) -> Iterator[ProfilingRow | EventRow]:
    costs = _costs(steps, settings.amp is not AmpMode.OFF)
    operators = _operators(number, costs)
    yield from operators
    yield from _modules(number, costs)
    yield from _stacks(number, costs)
    head = _head(number, steps, operators)
    yield head
    kind, severity = EventKind.PROFILE, Severity.INFO
    yield EventRow(head.t_ns, steps[-1].step, kind, severity, "profile", head.message or "", "{}", None)


def _costs(steps: Sequence[StepRow], is_amp: bool) -> list[_Cost]:
    """Distribute the device times of the steps' phases over all work."""
    parts = work(is_amp)
    weights: defaultdict[Phase, float] = defaultdict(float)
    for part in parts:
        weights[part.phase] += part.weight
    times = {
        phase: sum(getattr(step, f"device_{phase.value}_ns") or 0 for step in steps) for phase in weights
    }
    costs = []
    for part in parts:
        calls = part.calls * len(steps)
        device_ns = int(times[part.phase] * part.weight / weights[part.phase])
        caller_ns = calls * _CALLER_NS if part.caller else 0
        costs.append(_Cost(part, calls, device_ns, calls * _OPERATOR_NS, caller_ns, calls * _LAUNCH_NS))
    return costs


def _operators(number: int, costs: Sequence[_Cost]) -> list[ProfileOpRow]:
    """Return operators and kernels by name, ranked together."""
    sums: dict[tuple[str, OperatorKind, int], list[int]] = {}

    def add(name: str, kind: OperatorKind, is_kernel: int, *figures: int) -> None:
        sums_of_name = sums.setdefault((name, kind, is_kernel), [0] * len(figures))
        sums_of_name[:] = [before + more for before, more in zip(sums_of_name, figures, strict=True)]

    for cost in costs:
        part, inner_ns = cost.work, cost.operator_ns + cost.launch_ns
        add(part.kernel, part.kind, 1, cost.calls, 0, 0, cost.device_ns, cost.device_ns)
        own = (cost.calls, cost.operator_ns, inner_ns, cost.device_ns, cost.device_ns)
        add(part.operator, part.kind, 0, *own)
        add(_LAUNCH, OperatorKind.OTHER, 0, cost.calls, cost.launch_ns, cost.launch_ns, 0, 0)
        if part.caller:
            add(part.caller, part.kind, 0, cost.calls, cost.caller_ns, cost.cpu_ns, 0, cost.device_ns)
    ranked = sorted(sums.items(), key=lambda one: (-one[1][3], -one[1][1]))
    return [
        ProfileOpRow._make((number, rank, *named, *figures, None))
        for rank, (named, figures) in enumerate(ranked, 1)
    ]


def _modules(number: int, costs: Sequence[_Cost]) -> Iterator[ProfileModuleRow]:
    """Yield self times, and totals that include children."""
    classes = {cost.work.module: cost.work.class_name for cost in costs}
    classes |= {"blocks": "ModuleList", "embedding": "TokenEmbedding"}
    own: dict[tuple[str, Phase], list[int]] = {}
    total: defaultdict[tuple[str, Phase], list[int]] = defaultdict(lambda: [0, 0])
    for cost in costs:
        module, phase = cost.work.module, cost.work.phase
        mine = own.setdefault((module, phase), [0, 0])
        for sums in (mine, *(total[path, phase] for path in _with_ancestors(module))):
            sums[0] += cost.cpu_ns
            sums[1] += cost.device_ns
    for (module, phase), (cpu_ns, device_ns) in total.items():
        calls = 0 if module == "blocks" else STEPS
        self_cpu_ns, self_device_ns = own.get((module, phase), (0, 0))
        name = classes[module]
        times = (self_cpu_ns, cpu_ns, self_device_ns, device_ns)
        yield ProfileModuleRow(number, module, phase.value, name, calls, *times)


def _with_ancestors(module: str) -> list[str]:
    """Return the module and its parents, up to the model; of a place in angle brackets, only itself."""
    if module.startswith("<"):
        return [module]
    parts = module.split(".") if module else []
    return [".".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _stacks(number: int, costs: Sequence[_Cost]) -> Iterator[ProfileStackRow]:
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for cost in costs:
        part = cost.work
        folder = "train" if part.module.startswith("<") else "models"
        frames = [_LOOP, f"harness/{folder}/{part.line}", part.caller, part.operator]
        figures = sums["\n".join(frame for frame in frames if frame)]
        figures[0] += cost.calls
        figures[1] += cost.cpu_ns
        figures[2] += cost.device_ns
    ranked = sorted(sums.items(), key=lambda one: (-one[1][2], -one[1][1]))
    for rank, (stack, (calls, cpu_ns, device_ns)) in enumerate(ranked, 1):
        yield ProfileStackRow(number, rank, stack, calls, cpu_ns, device_ns)


def _head(number: int, steps: Sequence[StepRow], operators: Sequence[ProfileOpRow]) -> ProfileRow:
    busy_ns = sum(row.self_device_ns or 0 for row in operators if row.is_kernel)
    row = ProfileRow(
        profile_id=number,
        t_ns=steps[-1].t_ns,
        first_step=steps[0].step,
        steps=len(steps),
        settings_version=steps[0].settings_version,
        reason=ProfileReason.REQUESTED,
        on_device=1,
        wall_ns=sum(step.step_ns for step in steps),
        busy_ns=busy_ns,
        took_ns=640_000_000,
        slowdown=1.06,
        with_memory=0,
        with_stacks=1,
        file=None,
        file_bytes=None,
        message="",
        left_out="It is simulated: there is no trace.",
    )
    return row._replace(message=sentence(operators, row))
