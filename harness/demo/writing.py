"""Writes scenarios as logs with the same tables, rollups and transactions as a real run, marked as
simulated."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import harness
from harness import words
from harness.demo.leaks import SimulatedLeakWatch
from harness.demo.machine import FACTS, FLOPS, PARAMETERS, SimulatedGpu
from harness.demo.memory import SimulatedMemory
from harness.demo.oom import Failure, OomHistory
from harness.demo.profiles import SimulatedProfiles
from harness.demo.scenarios import SCENARIOS, Scenario, ScenarioChange, scenario
from harness.demo.telemetry import SimulatedTelemetry
from harness.files.regular import write_private
from harness.records.run import (
    AckRow,
    CommandState,
    EventKind,
    EventRow,
    RunRow,
    RunState,
    SettingsRow,
    Severity,
)
from harness.settings import Settings, labels
from harness.settings.spec import change, change_title
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import Row, StateChange

_BLOCK = 4_096
_STEP_ESTIMATE_NS = 70_000_000
_BETWEEN_RUNS_NS = 60_000_000_000
_OUTPUT = "Simulated by `stepscope demo`: nothing was trained, and every number is synthetic.\n"


def write(
    key: str, home: Home, steps: int | None = None, seed: int = 0, ended_unix_ns: int | None = None
) -> RunFolder:
    """Write the scenario `key` as a run of `home`, with `steps` steps (by default its own number), which
    ended about now, or at `ended_unix_ns`.

    Raises UsageError for an unknown scenario, HomeError when the home cannot be written.
    """
    chosen = scenario(key)
    count = chosen.steps if steps is None else steps
    if chosen.end is RunState.FINISHED and count > 0:
        chosen = chosen._replace(settings=change(chosen.settings, {"max_steps": count}))
    begun_unix_ns = (ended_unix_ns or time.time_ns()) - count * _STEP_ESTIMATE_NS
    folder = home.create(_free_name(home, key), chosen.settings, begun_unix_ns)
    try:
        write_private(folder.output, _OUTPUT)
        with LogAppender(folder.log, _run_row(folder, chosen, begun_unix_ns)) as appender:
            _Simulation(chosen, count, seed, begun_unix_ns, appender).write()
    except BaseException:
        home.remove(folder)
        raise
    return folder


def write_all(
    home: Home, keys: Iterable[str] = SCENARIOS, steps: int | None = None, seed: int = 0
) -> Iterator[RunFolder]:
    """Write these scenarios as consecutive runs on one GPU, the first as the newest."""
    ended_unix_ns = time.time_ns()
    for key in keys:
        folder = write(key, home, steps, seed, ended_unix_ns)
        ended_unix_ns = folder.request().created_unix_ns - _BETWEEN_RUNS_NS
        yield folder


def _free_name(home: Home, key: str) -> str:
    names = {folder.request().name for folder in home.runs()}
    name, number = f"demo: {key}", 1
    while name in names:
        number += 1
        name = f"demo: {key} {number}"
    return name


def _run_row(folder: RunFolder, chosen: Scenario, begun_unix_ns: int) -> RunRow:
    return RunRow(
        run_id=folder.run_id,
        name=folder.request().name,
        started_unix_ns=begun_unix_ns,
        harness_version=harness.__version__,
        settings=chosen.settings.model_dump_json(),
        device=json.dumps(FACTS._asdict()),
        model_parameters=PARAMETERS,
        versions=json.dumps({"python": None, "torch": None, "cuda": None, "cudnn": None}),
        host="simulated",
        simulated=1,
        state=RunState.RUNNING,
        state_message="Simulated.",
        ended_unix_ns=None,
    )


class _Segment(NamedTuple):
    """Steps [first, end) under one version of the settings, which `change` began unless it is the first."""

    first: int
    end: int
    change: ScenarioChange | None


def _segments(changes: tuple[ScenarioChange, ...], steps: int) -> Iterator[_Segment]:
    first, begun_by = 1, None
    for item in changes:
        at = max(first, round(item.at * steps) + 1)
        yield _Segment(first, at, begun_by)
        first, begun_by = at, item
    yield _Segment(first, steps + 1, begun_by)


class _Simulation:
    """The simulation of one run."""

    def __init__(
        self, chosen: Scenario, steps: int, seed: int, begun_unix_ns: int, appender: LogAppender
    ) -> None:
        self._chosen = chosen
        self._steps = steps
        self._begun_unix_ns = begun_unix_ns
        self._appender = appender
        self._gpu = SimulatedGpu(seed, chosen.faults(steps))
        self._telemetry = SimulatedTelemetry(seed)
        self._oom_history = OomHistory()
        self._memory = SimulatedMemory(chosen.key, steps, chosen.faults(steps))
        self._profiles = SimulatedProfiles(chosen.key, steps)
        self._leaks = SimulatedLeakWatch(chosen.settings, FACTS.memory_bytes)
        self._settings = chosen.settings
        self._version = 1
        self._commands = 0

    def write(self) -> None:
        """Write the whole run."""
        self._state(RunState.RUNNING, "Training.", 0)
        self._appender.append(rows=[self._settings_row(1, "{}", None), *FLOPS])
        since_change = 0
        for segment in _segments(self._chosen.changes, self._steps):
            if segment.change is not None:
                self._appender.append(rows=self._apply(segment.change, segment.first))
                since_change = 0
            for first in range(segment.first, segment.end, _BLOCK):
                count = min(_BLOCK, segment.end - first)
                trained = self._gpu.train(self._settings, self._version, first, count, since_change)
                rows = self._profiles.marked(trained)
                self._oom_history.add_rows(rows, self._settings.batch_size)
                memory = self._memory.rows(rows, self._settings)
                leaks = self._leaks.rows(rows, self._settings)
                profiles = self._profiles.rows(rows, self._settings)
                self._appender.append(rows, chain(self._telemetry.samples(rows), memory, leaks, profiles))
                since_change += count
        self._end()

    def _apply(self, item: ScenarioChange, step: int) -> list[Row]:
        self._commands += 1
        command_id = f"demo-{self._commands}"
        if not item.values:
            freed = self._gpu.empty_cache()
            message = f"Gave back {freed / 2**20:,.1f} MiB of reserved memory."
            figures = {"freed_bytes": freed, "took_ns": 2_300_000}
            event = self._event(EventKind.EMPTY_CACHE, "empty_cache()", message, step, figures, command_id)
            return [event, self._ack(command_id, step, message)]
        before, self._settings = self._settings, change(self._settings, item.values)
        self._version += 1
        old, new = before.model_dump(mode="json"), dict(item.values)
        message = labels.sentence(old, new)
        self._oom_history.changed(step, message, command_id)
        detail = {"from": {name: old[name] for name in new}, "to": new, "version": self._version}
        return [
            self._settings_row(step, json.dumps(new), command_id),
            self._event(EventKind.SETTING, change_title(new), message, step, detail, command_id),
            self._ack(command_id, step, message),
        ]

    def _end(self) -> None:
        """Write the outcome of the scenario."""
        state, step = self._chosen.end, self._steps
        if state is RunState.OUT_OF_MEMORY:
            failure = self._failure(self._settings, step + 1)
            message = failure.error
            event = self._event(EventKind.OOM, "out of memory", message, step + 1, {}, None, Severity.ERROR)
            self._appender.append(rows=[self._oom_history.report(failure, self._settings), event])
            self._state(state, message, step)
        elif state is RunState.STALLED:
            self._gpu.t_ns += int(self._settings.stall_after_s * 1e9)
            message = f"No step has ended for {self._settings.stall_after_s:.0f} s at step {step:,}."
            event = self._event(EventKind.STALL, "stalled", message, step, {}, None, Severity.WARNING)
            self._appender.append(rows=[event])
            self._state(state, message, step)
        elif state is RunState.LOST:
            message = (
                f"The process disappeared at step {step:,}, and its exit is unknown. The log is complete up "
                f"to step {step:,}."
            )
            self._state(state, message, step)
        elif state is RunState.STOPPED:
            where = f"after step {step:,}" if step else "before its first step"
            self._state(state, f"Stopped by request {where}.", step)
        else:
            self._state(state, f"Took all {step:,} steps." if step > 1 else "Took its one step.", step)

    def _failure(self, settings: Settings, step: int) -> Failure:
        requested = settings.batch_size * 36 * 2**20
        cap = settings.memory_cap_bytes or 0
        allocated = int(min(self._gpu.peak_bytes(settings), cap) - requested / 2)
        message = (
            f"Out of memory in step {step:,}: {words.size(allocated)} were allocated when it failed. CUDA "
            f"out of memory. Tried to allocate {words.size(requested)}; the cap is {words.size(cap)}."
        )
        return Failure(step, self._gpu.t_ns, requested, allocated, cap, message)

    def _state(self, state: RunState, message: str, step: int) -> None:
        ended = self._begun_unix_ns + self._gpu.t_ns if state.is_over else None
        severe = state in (RunState.OUT_OF_MEMORY, RunState.LOST)
        severity = Severity.ERROR if severe else Severity.INFO
        event = self._event(EventKind.STATE, state.replace("_", " "), message, step, {}, None, severity)
        self._appender.append(states=[StateChange(state, message, ended, event)], durable=True)

    def _event(
        self,
        kind: EventKind,
        label: str,
        message: str,
        step: int,
        detail: Mapping[str, object],
        command_id: str | None,
        severity: Severity = Severity.INFO,
    ) -> EventRow:
        text = json.dumps(detail)
        return EventRow(self._gpu.t_ns, step, kind, severity, label, message, text, command_id)

    def _settings_row(self, step: int, changed: str, command_id: str | None) -> SettingsRow:
        settings = self._settings.model_dump_json()
        return SettingsRow(self._version, step, self._gpu.t_ns, settings, changed, command_id)

    def _ack(self, command_id: str, step: int, message: str) -> AckRow:
        return AckRow(command_id, CommandState.APPLIED, step, self._gpu.t_ns, message)
