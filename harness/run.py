"""One training process: builds everything a run needs, trains, and says how it ended.

`execute` is the composition root. Every way out of it leaves a last word in the log: finished, stopped, out
of memory or failed; a kill leaves none, and the supervisor finds the words for that.
"""

import faulthandler
import json
import os
import platform
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from types import FrameType
from typing import NamedTuple

import torch

import harness
from harness.analysis.timing.own_cost import ASYNCHRONOUS, SYNCHRONOUS
from harness.config import check_device, parse
from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.heap import separate_large_blocks
from harness.device.host import HostProbe
from harness.device.protocol import Device
from harness.errors import HomeError, StepscopeError
from harness.identity import identify_self, write_identity
from harness.injection import described, parse_injection
from harness.models.building import build_model
from harness.observers.commands import CommandPoll
from harness.observers.device_sources import open_memory_share, open_sources
from harness.observers.dispatch import Dispatcher, Guard, Progress
from harness.observers.ending import LastWords
from harness.observers.folder import FolderWatch
from harness.observers.leaks import LOOK_PERIOD_S, Readings, open_leak_watch
from harness.observers.memory import MemorySampler
from harness.observers.own_cost import OwnCostMeter
from harness.observers.passing import passing
from harness.observers.peak import PeakWatch
from harness.observers.recorder import Recorder
from harness.observers.sampler import Job, Sampler, every
from harness.observers.stall import StallWatch
from harness.observers.telemetry import TelemetryRecorder
from harness.records import (
    DeviceKind,
    EventKind,
    EventRow,
    ModelSizeRow,
    RunRow,
    RunState,
    SettingsRow,
    Severity,
    StepRow,
)
from harness.selection import check_fit
from harness.settings import Settings
from harness.store.folder import Request, RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.inserts import Row
from harness.store.liveness import Liveness
from harness.store.writer import LogWriter
from harness.train.compiling import watching_compiler
from harness.train.control import Controller, Ending, expire
from harness.train.flops import flops_rows
from harness.train.hunting import LeakHunt
from harness.train.inbox import Inbox
from harness.train.inspection import open_inspection
from harness.train.journal import Marks
from harness.train.loop import train
from harness.train.memory import MemoryWatch
from harness.train.oom_reporter import OomReporter, live_sites
from harness.train.profiles import Profiles
from harness.train.readback import LossReader
from harness.train.recovery import Recovery
from harness.train.snapshots import Snapshots
from harness.train.timing import StepTimer
from harness.train.unobserved import Unobserved
from harness.train.warming import warm_up
from harness.train.workload import Workload

EXIT_OK = 0
EXIT_OUT_OF_MEMORY = 3

COMMAND_PERIOD_S = 0.2
SAMPLE_PERIOD_S = 1.0
HEARTBEAT_PERIOD_S = 1.0


def execute(folder: RunFolder) -> int:
    """Train the run that `folder` asks for; returns the exit code for the process.

    Raises StepscopeError when the run cannot even start, and what training raised, after recording it, so
    that the traceback reaches the run's output.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = folder.request()
    settings = _asked_settings(folder, request)
    inbox, marks = Inbox(), Marks()
    _stop_on_signals(inbox)
    with ExitStack() as stack:
        place = stack.enter_context(FolderHandle(folder))
        folder_watch = FolderWatch(place.locate, folder.path, inbox)
        folder = place.steady
        alive = stack.enter_context(Liveness.hold(folder.alive))
        write_identity(folder.process, identify_self(os.environ))
        device = open_device(settings.device)
        check_device(settings, device.facts)
        if device.facts.kind is DeviceKind.CPU and settings.memory_cap_gib is not None:
            separate_large_blocks()
        zero_ns = time.perf_counter_ns()
        progress = Progress(zero_ns)

        def clock_ns() -> int:
            return time.perf_counter_ns() - zero_ns

        memory = MemoryWatch(device)
        recorder = Recorder(
            memory,
            marks,
            lambda event: journal.put(event),
            zero_ns,
            has_device_clock=(clock := device.clock()) is not None,
        )
        readings = Readings()
        plan = SYNCHRONOUS if device.facts.kind is DeviceKind.CPU else ASYNCHRONOUS
        meter = OwnCostMeter(plan, lambda row: journal.put(row))
        feed = passing(
            _feed(recorder, device),
            lambda name, take: guard.run(name, take),
            {"leak readings": readings.take, "own cost": meter.take},
        )
        journal = stack.enter_context(
            LogWriter(
                place.locate_log() or folder.log,
                _run_row(request, settings, device),
                feed,
                clock_ns,
                locate=place.locate_log,
                report=alive.signs.set_unwritten,
            )
        )

        readings.is_behind = lambda: journal.is_behind

        def warn(label: str, message: str) -> None:
            step, kind = progress.last_step, EventKind.WARNING
            journal.put(EventRow(clock_ns(), step, kind, Severity.WARNING, label, message, "{}", None))

        last_words = stack.enter_context(
            LastWords(journal, device, clock_ns, time.time_ns, lambda: progress.last_step)
        )
        reporter = OomReporter(journal, device, folder, settings, clock_ns)
        reporter.level_bytes = lambda: memory.level_bytes
        last_words.reporter = reporter
        last_words.has_failures = memory.has_failures
        guard = Guard(
            lambda name, error: warn(
                name, f"{name} stopped working and was dropped ({error}); training goes on."
            )
        )
        poll = CommandPoll(folder, inbox)
        stack.callback(poll.close)
        stack.callback(lambda: expire(inbox, journal, progress.last_step, clock_ns()))
        stack.callback(lambda: guard.run("commands", poll.poll))
        vital = [
            Job("heartbeat", every(HEARTBEAT_PERIOD_S), alive.beat),
            Job("folder watch", every(HEARTBEAT_PERIOD_S), folder_watch.check),
            Job("commands", every(COMMAND_PERIOD_S), poll.poll),
        ]
        stack.enter_context(Sampler(vital, guard, time.monotonic))

        stack.enter_context(watching_compiler(lambda text: warn("torch.compile", text)))
        workload = stack.enter_context(closing(_build_workload(settings, device, journal, warn, guard)))
        reporter.workload = workload
        on_cpu = device.facts.kind is DeviceKind.CPU
        timer = StepTimer(time.perf_counter_ns, clock, memory if on_cpu else None)
        snapshots = Snapshots(workload, device, journal, memory, folder.captures, guard.run, clock_ns)
        reporter.live_sites = lambda: live_sites(snapshots.holders())
        stack.callback(lambda: snapshots.abort(progress.last_step, "The run ended before it was taken."))
        profiles = Profiles(workload, device, journal, marks, folder.captures, guard.run, clock_ns)
        stack.callback(lambda: profiles.abort(progress.last_step, "The run ended before it was taken."))
        inspection = open_inspection(workload, device, journal, guard.run, clock_ns)
        if inspection is not None:
            stack.callback(inspection.abort)
        controller = Controller(
            workload,
            device,
            journal,
            inbox,
            marks,
            timer,
            memory,
            clock_ns,
            snapshots,
            profiles,
            inspection,
            alive.signs.step_finished,
        )
        unobserved = Unobserved(
            plan,
            workload,
            timer,
            marks,
            progress,
            meter.block_ended,
            lambda: snapshots.is_busy or profiles.is_busy,
            zero_ns,
        )
        stack.callback(unobserved.close)
        recovery = Recovery(workload, device, controller, timer, memory, reporter, journal, clock_ns)
        ground = _Ground(device, journal, warn, clock_ns, lambda: progress.last_step)
        watching = _watchers(stack, ground, workload, readings, inbox)
        stall = StallWatch(progress, lambda: controller.is_paused, journal, clock_ns, settings.stall_after_s)
        watching.append(Job("stall watch", every(SAMPLE_PERIOD_S), stall.check))
        if device.samples_peak:
            peak = PeakWatch(device, progress, clock_ns)
            watching.append(Job("peak", peak.pause_s, peak.look))

        journal.put(_first_settings(settings))
        if (injection := parse_injection(settings.inject)) is not None:
            kind, text = EventKind.INJECTED, described(injection)
            journal.put(EventRow(0, 0, kind, Severity.INFO, "injected", text, "{}", None))
        journal.set_state(RunState.RUNNING, "Training.", timeout_s=0)
        losses = LossReader.of(device.torch_device if clock is not None else torch.device("cpu"))
        dispatcher = Dispatcher({"recorder": recorder}, guard, progress)
        with Sampler(watching, guard, time.monotonic):
            last_words.is_training = True
            try:
                train(workload, controller, timer, losses, dispatcher, recovery, unobserved)
            except (RuntimeError, MemoryError):
                if on_cpu:  # What tidies up now needs memory too, in every thread.
                    device.lift_cap_for_recovery()
                raise
            device.synchronize()
        last_words.say(controller.ending or Ending(RunState.FINISHED, "The loop ended."))
    if folder_watch.is_gone:
        raise HomeError(folder_watch.message)
    return EXIT_OUT_OF_MEMORY if last_words.state is RunState.OUT_OF_MEMORY else EXIT_OK


class _Ground(NamedTuple):
    """What everything that watches a run stands on."""

    device: Device
    journal: LogWriter
    warn: Callable[[str, str], None]
    clock_ns: Callable[[], int]
    last_step: Callable[[], int]


def _watchers(
    stack: ExitStack, ground: _Ground, workload: Workload, readings: Readings, inbox: Inbox
) -> list[Job]:
    """The jobs of the sampler that look at memory, devices and host; what they open, `stack` closes."""
    device, journal, clock_ns, last_step = ground.device, ground.journal, ground.clock_ns, ground.last_step
    sources = [stack.enter_context(closing(source)) for source in open_sources(device, ground.warn)]
    telemetry = TelemetryRecorder(sources, HostProbe(workload.worker_pids), journal, clock_ns, last_step)
    share = stack.enter_context(closing(open_memory_share(device)))
    sampler = MemorySampler(device, share, journal, clock_ns, last_step)
    leaks = open_leak_watch(
        readings,
        device,
        workload.worker_pids,
        lambda: workload.settings.memory_cap_bytes,
        journal,
        clock_ns,
        last_step,
        LeakHunt(inbox, lambda: workload.settings.hunt_leaks).on_leak,
    )
    return [
        Job("memory samples", sampler.pause_s, sampler.sample),
        Job("leak detector", every(LOOK_PERIOD_S), leaks.check),
        Job("telemetry", every(SAMPLE_PERIOD_S), telemetry.sample),
    ]


def _asked_settings(folder: RunFolder, request: Request) -> Settings:
    """The settings asked for. Raises StepscopeError when they cannot be read or do not fit: nothing
    else is trained."""
    asked = json.loads(request.settings_json)
    if not isinstance(asked, dict) or not asked:
        raise StepscopeError(f"{folder.path} does not say what to train (request.json); start a new run.")
    settings = parse(asked)
    check_fit(settings)
    return settings


def _build_workload(
    settings: Settings, device: Device, journal: LogWriter, warn: Callable[[str, str], None], guard: Guard
) -> Workload:
    """Everything that takes memory, on the device, and under the cap where it can be set cold."""
    source = open_source(settings)
    if source.note is not None:
        warn("data left out", source.note)
    warm_up(device.torch_device)
    guard.run("FLOP counter", lambda: _put_all(journal, flops_rows(settings, source.shape)))
    torch.manual_seed(settings.seed)
    if device.facts.kind is not DeviceKind.CPU:
        device.cap_memory(settings.memory_cap_bytes)
    device.begin_memory()
    with device.torch_device:
        network = build_model(settings, source.shape)
    journal.put(ModelSizeRow(sum(p.numel() for p in network.parameters() if p.requires_grad)))
    return Workload(settings, device, network, source)


def _put_all(journal: LogWriter, rows: Sequence[Row]) -> None:
    for row in rows:
        journal.put(row)


def _feed(recorder: Recorder, device: Device) -> Callable[[], Sequence[StepRow]]:
    """What the writer's thread polls. torch's current GPU is each thread's own."""
    if device.facts.kind is DeviceKind.CPU:
        return recorder.collect

    def collect() -> Sequence[StepRow]:
        device.activate()
        return recorder.collect()

    return collect


def _stop_on_signals(inbox: Inbox) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        inbox.stop(f"Stopped by {signal.Signals(number).name}.")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As it is under nohup.
        signal.signal(signal.SIGHUP, stop)


def _first_settings(settings: Settings) -> SettingsRow:
    return SettingsRow(1, 1, 0, settings.model_dump_json(), "{}", None)


def _run_row(request: Request, settings: Settings, device: Device) -> RunRow:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torch_threads": torch.get_num_threads(),
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    }
    return RunRow(
        run_id=request.run_id,
        name=request.name,
        started_unix_ns=time.time_ns(),
        harness_version=harness.__version__,
        settings=settings.model_dump_json(),
        device=json.dumps(device.facts._asdict()),
        model_parameters=None,
        versions=json.dumps(versions),
        host=socket.gethostname(),
        simulated=0,
        state=RunState.LAUNCHING,
        state_message="Building the model.",
        ended_unix_ns=None,
    )
