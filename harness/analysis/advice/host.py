"""Rules on the CPU that a run shares: other processes that take it, and more threads than cores."""

import statistics
from typing import NamedTuple

from harness import words
from harness.analysis.advice.known import Known
from harness.analysis.advice.suggestion import Finding, Gain, Rule, pct

# Of all processors: from here on a process that wants a core waits for one.
FULL_SHARE = 0.85
# Of all processors: a run that can have three quarters of the machine is as if a quarter of its cores were
# gone, more than the share of 10 % that a phase must be worth.
OTHERS_SHARE = 0.25
# One a second; as long as the counters of the GPU's clocks are looked at.
LEAST_SAMPLES = 10


class _Share(NamedTuple):
    """Means over the samples of the host, in cores."""

    busy: float
    own: float
    cores: int
    samples: int

    @property
    def others(self) -> float:
        return max(0.0, self.busy - self.own)


def find_busy_host(known: Known) -> Finding | None:
    """All processors together are at least 85 % busy, and processes beside the training and its workers take
    at least 25 % of them, in the mean over at least ten samples, one a second. Only in runs on the CPU, whose
    steps are the processor's work."""
    share = _share(known)
    if share is None or share.busy < FULL_SHARE * share.cores or share.others < OTHERS_SHARE * share.cores:
        return None
    threads = known.torch_threads
    free = max(1, int(share.cores - share.others))
    details = [
        ("all processors, busy", f"{pct(share.busy / share.cores)} of {words.plural(share.cores, 'core')}"),
        ("this run and its workers", f"{words.figure(share.own, 2)} cores"),
        ("other processes", f"{words.figure(share.others, 2)} cores"),
        ("torch's threads", words.count(threads)),
        ("samples of the host", words.count(share.samples)),
    ]
    advice = "End the other programs, or train when they are done."
    if threads is None or threads > free:
        advice += (
            f" Until then start with OMP_NUM_THREADS={free}: a thread that waits for a core keeps all of "
            "torch's others waiting."
        )
    return Finding(
        Gain(None, "a CPU of one's own; how much time that wins cannot be told"),
        f"Other processes take {words.figure(share.others, 2)} of the {words.plural(share.cores, 'core')} "
        f"while this run gets {words.figure(share.own, 2)}; together they are "
        f"{pct(share.busy / share.cores)} busy.",
        details,
        "A step waits whenever another program has the core. Step times and their spread are then the "
        "machine's and not this run's, and comparisons of settings drown in them.",
        by_hand=advice,
    )


def find_threads(known: Known) -> Finding | None:
    """torch computes with more threads than there are cores for the run, on the CPU."""
    cores, threads = known.device.multiprocessors, known.torch_threads
    if known.is_gpu or not cores or threads is None or threads <= cores:
        return None
    usual = statistics.median(row.step_ns for row in known.settled)
    return Finding(
        Gain(None, "no waiting for threads without a core; how much time that takes cannot be told"),
        f"torch computes with {threads:,} threads on {words.plural(cores, 'core')}.",
        [
            ("torch's threads", words.count(threads)),
            ("cores for this run", words.count(cores)),
            ("median step", words.duration(usual)),
        ],
        "At the end of every operation the threads wait for the last one. One that has no core comes last by "
        "a whole time slice, some milliseconds, and steps can take many times as long.",
        by_hand=f"Start the run with OMP_NUM_THREADS={cores}, or one less for what else the machine does.",
    )


def _share(known: Known) -> _Share | None:
    """None without enough samples, or where the run computes elsewhere."""
    cores = known.device.multiprocessors
    if known.is_gpu or not cores:
        return None
    told = [
        (one.cpu_pct * cores / 100, (one.process_cpu_pct + (known.workers_cpu_pct.get(one.seq) or 0.0)) / 100)
        for one in known.hosts
        if one.cpu_pct is not None and one.process_cpu_pct is not None
    ]
    if len(told) < LEAST_SAMPLES:
        return None
    return _Share(
        statistics.fmean(busy for busy, _ in told), statistics.fmean(own for _, own in told), cores, len(told)
    )


RULES = (
    Rule(
        "busy-host",
        "Have the CPU to yourself",
        f"on the CPU: all processors at least {pct(FULL_SHARE)} busy, and at least {pct(OTHERS_SHARE)} of "
        f"them with other processes, in the mean of at least {LEAST_SAMPLES} samples",
        "a process that wants a core then waits for one; a quarter of the cores is more than a phase must be "
        "worth",
        "processor time of the host, of this process and its workers, sampled once a second; torch's threads",
        "none",
        find_busy_host,
    ),
    Rule(
        "threads",
        "Use no more threads than cores",
        "on the CPU: torch computes with more threads than there are cores for the run",
        "OpenMP's threads wait for each other at the end of every parallel region (OMP_NUM_THREADS)",
        "torch's threads and the cores of the process",
        "none",
        find_threads,
    ),
)
