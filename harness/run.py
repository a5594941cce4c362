"""One training process: builds the workload of a run's settings, and trains it under a watch.

Every exit of `execute` records an outcome in the log: finished, stopped, out of memory or failed; after a
kill there is none, and the supervisor derives it.
"""

import faulthandler
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from types import FrameType
from typing import TYPE_CHECKING

import torch

from harness.catalog.own import is_own
from harness.data.source import open_source
from harness.device.cpu.heap import separate_large_blocks
from harness.device.find import open_device
from harness.errors import OUT_OF_MEMORY_CODE, HomeError, StepscopeError
from harness.identity import identify_self, write_identity
from harness.models.building import build_model, import_code
from harness.ranks.group import process_group, rank_device
from harness.ranks.place import read_place
from harness.records.run import (
    DeviceKind,
    EventKind,
    EventRow,
    ModelSizeRow,
    RunState,
    SettingsRow,
    Severity,
)
from harness.settings import Settings
from harness.settings.declaration import Parallelism
from harness.settings.injection import describe, parse_injection
from harness.settings.resolve import check_fit
from harness.settings.spec import check_device, parse
from harness.store.folder import RunFolder, RunRequest
from harness.store.folder_handle import FolderHandle
from harness.store.inserts import Row
from harness.store.liveness import Liveness
from harness.train.flops import flops_rows
from harness.train.loop import train
from harness.train.recovery import Recovery
from harness.train.warming import warm_up
from harness.train.workload import Workload
from harness.watch.compiler import has_compiled
from harness.watch.context import Journal, RunContext
from harness.watch.inbox import Inbox
from harness.watch.jobs.judging import Judging
from harness.watch.live_settings import LiveSettings
from harness.watch.measuring import Measuring
from harness.watch.run_row import first_row
from harness.watch.watch import RunFiles, Watch

if TYPE_CHECKING:
    from harness.ranks.member import RankMember
    from harness.train.replica import Replica

_COUNTER = "FLOP counter"
# Within a mode such as that of the counter torch.compile compiles nothing, nor later.
_HAS_COMPILED = (
    "The model's floating-point operations are not counted, because torch.compile was called in this "
    "process: a function with fullgraph=True would fail from then on."
)

EXIT_OK = 0


def execute(folder: RunFolder) -> int:
    """Train the run of `folder`, as one of its ranks where torchrun has started this process; return the exit
    code of the process.

    Raises StepscopeError if the run cannot start, and errors of training after recording them, so that the
    traceback reaches the run's output.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = folder.request()
    settings = _requested_settings(folder, request)
    place = read_place(os.environ)
    if place is not None:
        folder = RunFolder(folder.path, place.local_rank)
    with ExitStack() as stack:
        handle = stack.enter_context(FolderHandle(folder))
        alive = stack.enter_context(Liveness.hold(handle.steady.alive))
        write_identity(handle.steady.process, identify_self(os.environ))
        member = None
        if place is not None:
            from harness.ranks.member import RankMember  # Not every build of torch has torch.distributed.

            member = RankMember.join(place, handle.steady, os.environ)
        inbox = Inbox() if member is None else member.inbox
        _stop_on_signals(inbox.stop if member is None else member.inbox.stop_together)
        device = open_device(settings.device if place is None else rank_device(settings.device, place))
        check_device(settings, device.facts)
        if device.facts.kind is DeviceKind.CPU:
            torch.set_flush_denormal(settings.flush_denormal)  # Threads that torch starts later take it over.
            if settings.memory_cap_gib is not None:
                separate_large_blocks()
        files = RunFiles(folder.path, handle, alive)
        row = first_row(request.run_id, request.name, settings.model_dump_json(), device)
        watch = Watch(files, device, row, settings, inbox, commands=member and member.commands)
        try:
            with watch:
                _train(watch, settings, member)
        except (RuntimeError, MemoryError, StepscopeError):
            if watch.state is not RunState.OUT_OF_MEMORY:  # That is a recorded outcome, with its own code.
                raise
    if watch.lost_folder is not None:
        raise HomeError(f"{watch.lost_folder} The run was stopped.")
    return OUT_OF_MEMORY_CODE if watch.state is RunState.OUT_OF_MEMORY else EXIT_OK


def _train(watch: Watch, settings: Settings, member: "RankMember | None") -> None:
    """Build the workload and train it."""
    context = watch.context
    if member is not None:
        _train_as_rank(watch, settings, member)
        return
    with closing(_build_workload(settings, context)) as workload:
        _record_start(settings, context)
        live = LiveSettings(context, workload)
        measuring = Measuring(context, live)
        judging = Judging(context, watch.folder, measuring.to_judge)
        with watch.observe(workload, [live, measuring], jobs=[judging.job]) as steps:
            train(workload, steps, Recovery(workload, live, steps, watch.reporter))


def _train_as_rank(watch: Watch, settings: Settings, member: "RankMember") -> None:
    """Like `_train`, together with the other ranks. They end at a time limit together too; when memory runs
    out on one of them, the run ends."""
    from harness.train.replica import Replica  # Not every build of torch has torch.distributed.

    context, place = watch.context, member.place
    with process_group(place, context.device.facts):
        replica = Replica(place, context.device.torch_device, settings.parallel)
        with closing(_build_workload(settings, context, replica)) as workload:
            torch.manual_seed(settings.seed + place.rank)  # From here on each rank draws its own numbers.
            _record_start(settings, context)
            live = LiveSettings(context, workload, member.consent)
            actions = [live, member.commands.agreement(context)]
            with watch.observe(workload, actions, end_in_time=member.commands.end_in_time) as steps:
                if settings.parallel is Parallelism.DDP:
                    steps.follow_ranks(workload.model)
                train(workload, steps)


def _record_start(settings: Settings, context: RunContext) -> None:
    context.journal.put(_first_settings(settings))
    if (injection := parse_injection(settings.inject)) is not None:
        kind, text = EventKind.INJECTED, describe(injection)
        context.journal.put(EventRow(0, 0, kind, Severity.INFO, "injected", text, "{}", None))


def _requested_settings(folder: RunFolder, request: RunRequest) -> Settings:
    """Return the requested settings. Raises StepscopeError if they cannot be read or do not fit."""
    values = json.loads(request.settings_json)
    if not isinstance(values, dict) or not values:
        raise StepscopeError(f"{folder.path} does not say what to train (request.json); start a new run.")
    settings = parse(values)
    check_fit(settings)
    return settings


def _build_workload(settings: Settings, context: RunContext, replica: "Replica | None" = None) -> Workload:
    """Allocate the workload on the device, under the cap where it can be set before training."""
    device, journal = context.device, context.journal
    source = open_source(settings)
    if source.note is not None:
        context.warn("data left out", source.note)
    warm_up(device.torch_device)
    import_code(settings)  # Before the baseline: what it imports is no part of the model's memory.
    if not is_own(settings.model):
        context.guard.run(_COUNTER, lambda: _put_all(journal, flops_rows(settings, source.shape)))
    torch.manual_seed(settings.seed)
    if device.facts.kind is not DeviceKind.CPU:
        device.cap_memory(settings.memory_cap_bytes)
    device.begin_memory()
    with device.torch_device:
        network = build_model(settings, source.shape)
    if is_own(settings.model):
        if has_compiled():
            context.warn("operations not counted", _HAS_COMPILED)
        else:
            context.guard.run(
                _COUNTER, lambda: _put_all(journal, flops_rows(settings, source.shape, network))
            )
    journal.put(ModelSizeRow(sum(p.numel() for p in network.parameters() if p.requires_grad)))
    return Workload(settings, device, network, source, replica=replica)


def _put_all(journal: Journal, rows: Sequence[Row]) -> None:
    for row in rows:
        journal.put(row)


def _stop_on_signals(stop: Callable[[str], None]) -> None:
    def receive(number: int, _frame: FrameType | None) -> None:
        stop(f"Stopped by {signal.Signals(number).name}.")

    signal.signal(signal.SIGTERM, receive)
    signal.signal(signal.SIGINT, receive)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As it is under nohup.
        signal.signal(signal.SIGHUP, receive)


def _first_settings(settings: Settings) -> SettingsRow:
    return SettingsRow(1, 1, 0, settings.model_dump_json(), "{}", None)
