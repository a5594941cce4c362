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
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import torch
from torch import nn

import harness
from harness.catalog import load, model
from harness.config import check_device, from_json
from harness.data.source import DataSource, open_source
from harness.device.find import open_device
from harness.device.host import CpuTelemetry, HostProbe
from harness.device.nvml import Nvml, NvmlUnavailableError
from harness.device.nvml_telemetry import NvmlTelemetry
from harness.device.protocol import Device, Telemetry
from harness.identity import identify_self, write_identity
from harness.models.base import LossModel
from harness.observers.commands import CommandPoll
from harness.observers.dispatch import Dispatcher, Guard
from harness.observers.ending import LastWords
from harness.observers.recorder import Recorder
from harness.observers.sampler import Job, Sampler
from harness.observers.stall import StallWatch
from harness.observers.telemetry import TelemetryRecorder
from harness.records import (
    DeviceFacts,
    DeviceKind,
    EventKind,
    EventRow,
    ModelSizeRow,
    RunRow,
    RunState,
    SettingsRow,
    Severity,
)
from harness.settings import Settings
from harness.store.control import ControlLog
from harness.store.folder import Request, RunFolder
from harness.store.liveness import Liveness
from harness.store.writer import LogWriter
from harness.train.control import Controller, Ending, Marks
from harness.train.inbox import Inbox
from harness.train.loop import train
from harness.train.readback import LossReader
from harness.train.timing import StepTimer
from harness.train.workload import Workload

EXIT_OK = 0
EXIT_OUT_OF_MEMORY = 3

COMMAND_PERIOD_S = 0.1
SAMPLE_PERIOD_S = 1.0
HEARTBEAT_PERIOD_S = 1.0
PEAK_PERIOD_S = 0.02
"""How often the CPU's heap is looked at within a step; the phases' ends are always looked at."""


def execute(folder: RunFolder) -> int:
    """Train the run that `folder` asks for; returns the exit code for the process.

    Raises StepscopeError when the run cannot even start, and what training raised, after recording it, so
    that the traceback reaches the run's output.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = folder.request()
    settings = from_json(request.settings_json)
    inbox, marks = Inbox(), Marks()
    _stop_on_signals(inbox)
    with ExitStack() as stack:
        alive = stack.enter_context(Liveness.hold(folder.alive))
        write_identity(folder.process, identify_self(os.environ))
        device = open_device(settings.device)
        check_device(settings, device.facts)
        zero_ns = time.perf_counter_ns()

        def clock_ns() -> int:
            return time.perf_counter_ns() - zero_ns

        recorder = Recorder(device, marks, put_event=lambda event: journal.put(event))
        journal = stack.enter_context(
            LogWriter(folder.log, _run_row(request, settings, device), recorder.collect, clock_ns)
        )

        def warn(name: str, error: str) -> None:
            message = f"{name} stopped working and was dropped ({error}); training goes on."
            journal.put(
                EventRow(
                    clock_ns(),
                    recorder.last_step,
                    EventKind.WARNING,
                    Severity.WARNING,
                    name,
                    message,
                    "{}",
                    None,
                )
            )

        last_words = stack.enter_context(
            LastWords(journal, device, clock_ns, time.time_ns, lambda: recorder.last_step)
        )
        guard = Guard(warn)
        poll = CommandPoll(ControlLog(folder), inbox)
        vital = [
            Job("heartbeat", HEARTBEAT_PERIOD_S, alive.beat),
            Job("commands", COMMAND_PERIOD_S, poll.poll),
        ]
        stack.enter_context(Sampler(vital, guard, time.monotonic))

        source = open_source(settings)
        _load_lazy_parts(device.torch_device)
        torch.manual_seed(settings.seed)
        if device.facts.kind is not DeviceKind.CPU:
            device.cap_memory(_cap_bytes(settings))
        device.begin_memory()
        network = _build_model(settings, source, device)
        journal.put(ModelSizeRow(sum(p.numel() for p in network.parameters() if p.requires_grad)))
        workload = Workload(settings, device, network, source)
        stack.callback(workload.close)
        on_cpu = device.facts.kind is DeviceKind.CPU
        timer = StepTimer(time.perf_counter_ns, zero_ns, device.clock(), device.note_peak if on_cpu else None)
        controller = Controller(workload, device, journal, inbox, marks, timer, clock_ns)
        stack.callback(lambda: controller.expire(recorder.last_step))

        telemetry = TelemetryRecorder(
            _telemetry(device.facts, warn),
            HostProbe(workload.worker_pids),
            journal,
            clock_ns,
            lambda: recorder.last_step,
        )
        stall = StallWatch(recorder, lambda: controller.is_paused, journal, clock_ns, settings.stall_after_s)
        watching = [Job("telemetry", SAMPLE_PERIOD_S, telemetry.sample), Job("stall watch", 1.0, stall.check)]
        if on_cpu:
            watching.append(Job("peak", PEAK_PERIOD_S, device.sample_peak))
        stack.enter_context(Sampler(watching, guard, time.monotonic))

        journal.put(_first_settings(settings))
        journal.set_state(RunState.RUNNING, "Training.", timeout_s=0)
        timer.restart()
        train(
            workload,
            controller,
            timer,
            LossReader(device.torch_device),
            Dispatcher({"recorder": recorder}, guard),
        )
        device.synchronize()
        last_words.say(controller.ending or Ending(RunState.FINISHED, "The loop ended."))
    return EXIT_OUT_OF_MEMORY if last_words.state is RunState.OUT_OF_MEMORY else EXIT_OK


def _stop_on_signals(inbox: Inbox) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        inbox.stop(f"Stopped by {signal.Signals(number).name}.")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _load_lazy_parts(device: torch.device) -> None:
    """Take one step with a model of one weight, so that what torch loads at its first backward pass and its
    first optimizer (tens of megabytes) is not counted as the model's memory."""
    weight = nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.AdamW([weight])
    (weight * 1.0).sum().backward()
    optimizer.step()


def _build_model(settings: Settings, source: DataSource, device: Device) -> LossModel:
    spec = model(settings.model)
    build = load(spec.builder)
    with device.torch_device:
        network: LossModel = build(spec.preset(settings.preset).params, source.shape)
    return network.to(device.torch_device).train()


def _telemetry(facts: DeviceFacts, warn: Callable[[str, str], None]) -> list[Telemetry]:
    """The CPU always, and the GPU trained on when NVML lets us ask it."""
    sources: list[Telemetry] = [CpuTelemetry()]
    if facts.uuid is not None:
        try:
            sources.append(NvmlTelemetry(Nvml(), [facts.uuid], lambda text: warn("NVML", text)))
        except NvmlUnavailableError as error:
            warn("NVML", str(error))
    return sources


def _cap_bytes(settings: Settings) -> int | None:
    return None if settings.memory_cap_gib is None else int(settings.memory_cap_gib * 2**30)


def _first_settings(settings: Settings) -> SettingsRow:
    return SettingsRow(1, 1, 0, settings.model_dump_json(), "{}", None)


def _run_row(request: Request, settings: Settings, device: Device) -> RunRow:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
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
