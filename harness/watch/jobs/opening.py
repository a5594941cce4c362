"""The jobs that watch a training from the sampler's thread."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from harness.device.host.probe import HostProbe
from harness.watch.capture.hunting import HuntResult, LeakHunt
from harness.watch.instruments import Instruments
from harness.watch.jobs.device_sources import open_memory_share, open_sources
from harness.watch.jobs.leaks import READ_PERIOD_S, open_leak_watch
from harness.watch.jobs.memory import MemorySampler
from harness.watch.jobs.peak import PeakWatch
from harness.watch.jobs.sampler import Job, every
from harness.watch.jobs.stall import StallWatch, dump_stacks, line_of_this_thread
from harness.watch.jobs.telemetry import TelemetryRecorder
from harness.watch.training import Training

SAMPLE_PERIOD_S = 1.0


def open_jobs(
    stack: ExitStack,
    instruments: Instruments,
    training: Training,
    is_paused: Callable[[], bool],
    hunt_result: Callable[[], HuntResult | None],
) -> list[Job]:
    """Create the jobs that read memory, devices and host; `stack` closes their sources. `hunt_result` returns
    the result of the newest hunt for a leak."""
    context, device = instruments.context, instruments.context.device
    sources = [stack.enter_context(closing(source)) for source in open_sources(context)]
    telemetry = TelemetryRecorder(context, sources, HostProbe(training.worker_pids))
    sampler = MemorySampler(context, stack.enter_context(closing(open_memory_share(device))))
    hunt = LeakHunt(instruments.inbox, lambda: training.settings.hunt_leaks, time.monotonic)
    leaks = open_leak_watch(
        context,
        instruments.readings,
        training.worker_pids,
        lambda: training.settings.memory_cap_bytes,
        hunt.on_leak,
        hunt_result,
    )
    find_cause = line_of_this_thread() if training.computes_between_calls else dump_stacks
    stall = StallWatch(
        context, is_paused, training.settings.stall_after_s, find_cause, lambda: training.last_event_ns
    )
    jobs = [
        Job("memory samples", sampler.pause_s, sampler.sample),
        Job("leak detector", every(READ_PERIOD_S), leaks.check, leaks.finish),
        Job("telemetry", every(SAMPLE_PERIOD_S), telemetry.sample),
        Job("stall watch", every(SAMPLE_PERIOD_S), stall.check),
    ]
    if device.samples_peak:
        peak = PeakWatch(context, instruments.memory)
        jobs.append(Job("peak", peak.pause_s, peak.sample))
    return jobs
