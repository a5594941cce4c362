"""Rules on the CPU of a run: load from other processes, and more threads than cores."""

import statistics
from typing import NamedTuple

from harness import words
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.suggestion import Diagnosis, Gain, Rule, pct

# Share of all processors from which a process that is ready to run waits for a core.
BUSY_SHARE = 0.85
# Share of all processors used by other processes. A quarter of the cores is more than the 10 % of time from
# which a phase is worth a change.
OTHERS_SHARE = 0.25
# One sample per second; fewer may all be of one burst.
MIN_SAMPLES = 5


class _CpuLoad(NamedTuple):
    """Means over the host's samples, in cores, of which the machine has `cores`."""

    busy: float
    own: float
    cores: int
    samples: int

    @property
    def others(self) -> float:
        return max(0.0, self.busy - self.own)


def find_busy_host(run: RunEvidence) -> Diagnosis | None:
    """All processors together are at least 85 % busy, and processes other than the training and its workers
    use at least 25 % of them, averaged over at least five samples, one per second. Only for runs on the CPU,
    where the step time is processor time."""
    load = _cpu_load(run)
    if load is None or load.busy < BUSY_SHARE * load.cores or load.others < OTHERS_SHARE * load.cores:
        return None
    threads = run.torch_threads
    free = max(1, min(int(load.cores - load.others), run.device.multiprocessors or load.cores))
    details = [
        ("processors busy", f"{pct(load.busy / load.cores)} of {words.plural(load.cores, 'core')}"),
        ("this run and its workers", f"{words.figure(load.own, 2)} cores"),
        ("other processes", f"{words.figure(load.others, 2)} cores"),
        ("torch threads", words.count(threads)),
        ("host samples", words.count(load.samples)),
    ]
    by_hand = "Stop the other programs, or train when they have finished."
    if threads is None or threads > free:
        by_hand += (
            f" Until then start the run with OMP_NUM_THREADS={free}: a thread that waits for a core delays "
            "all other torch threads."
        )
    return Diagnosis(
        Gain(None, "a CPU without competing processes; the time saved cannot be estimated"),
        f"Other processes use {words.figure(load.others, 2)} of the {words.plural(load.cores, 'core')} "
        f"while this run gets {words.figure(load.own, 2)}; all processors are "
        f"{pct(load.busy / load.cores)} busy.",
        details,
        "A step stalls whenever another program has the core. Step times and their spread then reflect the "
        "machine's load, and the effect of a change of settings is lost in the noise.",
        by_hand=by_hand,
    )


def find_threads(run: RunEvidence) -> Diagnosis | None:
    """torch uses more threads than the run has cores, on the CPU: those of its affinity, or of a container's
    quota of processor time."""
    cores, threads = run.device.multiprocessors, run.torch_threads
    if run.is_gpu or not cores or threads is None or threads <= cores:
        return None
    median_ns = statistics.median(row.step_ns for row in run.settled)
    fewer = ", or one less to leave a core for other work" if cores > 1 else ""
    return Diagnosis(
        Gain(None, "no threads waiting for a core; the time saved cannot be estimated"),
        f"torch uses {threads:,} threads on {words.plural(cores, 'core')}.",
        [
            ("torch threads", words.count(threads)),
            ("cores available to this run", words.count(cores)),
            ("median step", words.duration(median_ns)),
        ],
        "Every parallel operation ends when its last thread ends. A thread without a core ends a scheduler "
        "time slice of some milliseconds later, so a step can take many times as long. Where a container's "
        "quota of processor time is the limit, all threads wait for its next period, mostly of 100 ms.",
        by_hand=f"Start the run with OMP_NUM_THREADS={cores}{fewer}.",
    )


def is_load_unknown(run: RunEvidence) -> bool:
    """Return whether the load by other processes is sampled, and not known yet, of a run on the CPU."""
    return not run.is_gpu and 0 < len(run.host_samples) < MIN_SAMPLES


def _cpu_load(run: RunEvidence) -> _CpuLoad | None:
    """None with too few samples, or where the run does not compute on the CPU."""
    cores = run.machine_cores or run.device.multiprocessors
    if run.is_gpu or not cores:
        return None
    loads = [
        (row.cpu_pct * cores / 100, (row.process_cpu_pct + (run.workers_cpu_pct.get(row.seq) or 0.0)) / 100)
        for row in run.host_samples
        if row.cpu_pct is not None and row.process_cpu_pct is not None
    ]
    if len(loads) < MIN_SAMPLES:
        return None
    return _CpuLoad(
        statistics.fmean(busy for busy, _ in loads),
        statistics.fmean(own for _, own in loads),
        cores,
        len(loads),
    )


RULES = (
    Rule(
        "busy-host",
        "Reduce other load on the CPU",
        f"on the CPU: all processors at least {pct(BUSY_SHARE)} busy, and at least {pct(OTHERS_SHARE)} of "
        f"them with other processes, averaged over at least {MIN_SAMPLES} samples",
        "a process that is ready to run then waits for a core; a quarter of the cores is more than the 10 % "
        "from which a phase is worth a change",
        "processor time of the host, of this process and its workers, sampled once per second; torch threads",
        "none",
        find_busy_host,
    ),
    Rule(
        "threads",
        "Use no more threads than cores",
        "on the CPU: torch uses more threads than the run has cores, by its affinity or a container's quota",
        "OpenMP threads wait for each other at the end of every parallel region (OMP_NUM_THREADS)",
        "torch threads and the cores available to the process",
        "none",
        find_threads,
    ),
)
