"""Verdict on the cause of an out-of-memory error: each has its own test, and the first that applies wins."""

from collections.abc import Callable, Sequence

from harness import words
from harness.analysis.oom.budget import budget
from harness.analysis.oom.fit import counterfactuals
from harness.analysis.oom.limits import (
    exceeds_device,
    hits_cap,
    hits_limit,
    host_request,
    refused_request,
    shared_memory,
    unlisted_memory,
)
from harness.analysis.oom.report import (
    LiveVariable,
    OomFacts,
    OomPhase,
    OomReport,
    OomVerdict,
    PredictedChange,
)
from harness.records.memory import LeakSeries
from harness.records.run import DeviceKind

# Below this, memory of other processes is that of a desktop or a context, not the cause.
LEAST_OTHERS_BYTES = 64 << 20
# As a share of reserved memory: below this, free remainders are normal.
FRAGMENTED_SHARE = 0.01
# As a share of the limit, in one request.
HUGE_SHARE = 0.25
# As a share of the limit: a leak as large as a huge request is the cause, a smaller one additional evidence.
LEAST_LEAKED_SHARE = 0.25
# As a share of a cap or a limit on the CPU: its parts are printed with three digits.
LEAST_SHOWN = 0.002
_UNKNOWN_REQUEST = "the size of the request is not known"
# As a share of the limit, held by a variable.
LEAST_VARIABLE_SHARE = 0.1
# As a share of what the limit leaves to the run, saved for a backward pass behind one variable: where all
# graphs could be read, and where there may be more.
_LEAST_KEPT_SHARE, _LEAST_READ_SHARE = 0.25, 0.1
# What needed the memory, where it was not training.
_UNTRAINED = {
    OomPhase.SETUP: "The run",
    OomPhase.BUILD: "Building the model",
    OomPhase.EVALUATION: "Evaluation",
}
# As a share of a cap on the CPU, in holes of the heap: more than a step's transient tensors leave between
# retained blocks in the runs of the catalog.
LEAST_HOLES_SHARE = 0.25


def explain(facts: OomFacts, predicted: Sequence[PredictedChange] = (), outcome: str = "") -> OomReport:
    """Return the report on `facts`. `predicted` are changes of settings with a prediction."""
    causes = _causes(facts)
    verdict, why = causes[0]
    also = [f"Also: {sentence}" for _, sentence in causes[1:]]
    return OomReport(
        facts=facts,
        verdict=verdict,
        why=why,
        evidence=(*_evidence(facts, verdict), *_leak_evidence(facts, [one for one, _ in causes]), *also),
        counterfactuals=counterfactuals(facts, verdict, predicted),
        outcome=outcome,
    )


def _causes(facts: OomFacts) -> list[tuple[OomVerdict, str]]:
    """Return the causes that apply, with their sentences. Of a request that the device had memory for, no
    other is the cause: all others are reasons why it was full."""
    for verdict, test in _NOT_FULL:
        if (sentence := test(facts)) is not None:
            return [(verdict, sentence)]
    causes = [(verdict, sentence) for verdict, test in _TESTS if (sentence := test(facts)) is not None]
    return causes or [(OomVerdict.TOO_BIG, _too_big(facts))]


def _other_process(facts: OomFacts) -> str | None:
    memory, most = facts.memory, facts.request.most_bytes
    others, free = memory.others_bytes, memory.device_free_bytes
    if others is None or free is None or most is None or hits_limit(facts):
        return None
    if most <= free or others < max(most - free, LEAST_OTHERS_BYTES):
        return None
    return (
        f"Other processes use {words.size(others)} of {facts.device_name}; without them the request for "
        f"{words.size(most)} would have fit."
    )


def _private_pools(facts: OomFacts) -> str | None:
    private, least = facts.memory.private_free_bytes, facts.request.least_bytes
    if not private or least is None or private < least:
        return None
    return (
        f"{words.size(private)} were free in private pools (CUDA graphs, torch.cuda.MemPool), where this "
        "request could not use them."
    )


def _other_stream(facts: OomFacts) -> str | None:
    waiting, least = facts.memory.waiting_bytes, facts.request.least_bytes
    if not waiting or least is None or waiting < least:
        return None
    return (
        f"{words.size(waiting)} were freed but still in use by another stream, so they could not be reused "
        "yet."
    )


def _fragmentation(facts: OomFacts) -> str | None:
    memory, most = facts.memory, facts.request.most_bytes
    if memory.unused_bytes is None or memory.reserved_bytes is None:
        return None
    if max(_leaked(facts), _kept_bytes(facts)) > memory.unused_bytes:
        return None
    if facts.device is DeviceKind.CPU:
        return _holes(facts, memory.unused_bytes)
    if facts.device is not DeviceKind.CUDA:
        return None
    scattered = memory.unused_bytes - (memory.private_free_bytes or 0) - (memory.waiting_bytes or 0)
    if most is None or scattered < max(most, memory.reserved_bytes * FRAGMENTED_SHARE):
        return None
    if memory.largest_free_bytes is not None and memory.largest_free_bytes >= most:
        return None
    largest = memory.largest_free_bytes
    pieces = "in pieces" if largest is None else f"in pieces of at most {words.size(largest)}"
    return (
        f"{words.size(scattered)} were reserved but unallocated, enough for the request for "
        f"{words.size(most)}, but {pieces}: memory is fragmented."
    )


def _holes(facts: OomFacts, holes: int) -> str | None:
    """Test fragmentation on the CPU: under a cap or a limit of the process, free memory in the heap that the
    request could not use. The size of the largest hole is unknown; the error implies that it was too small.
    Holes as large as it by now are those of what has been freed since."""
    memory, least = facts.memory, facts.request.least_bytes or 0
    holes -= memory.large_hole_bytes or 0
    limit = memory.run_limit_bytes
    if limit is None or not hits_limit(facts) or holes < max(least, limit * LEAST_HOLES_SHARE):
        return None
    return (
        f"Of {_limit(facts)}, {words.size(holes)} were free in the heap, in pieces too small for the "
        f"request, and {words.size(memory.allocated_bytes)} were allocated: the heap is fragmented."
    )


def _cap(facts: OomFacts) -> str | None:
    if not hits_cap(facts):
        return None
    cap = words.size(facts.memory.cap_bytes)
    return f"The memory cap of {cap} was reached: {_allocated_and_requested(facts)}"


def _process_limit(facts: OomFacts) -> str | None:
    if not facts.memory.is_limited:
        return None
    limit = _limit(facts)
    if facts.request.phase is OomPhase.WORKER:
        return (
            f"A loader worker reached {limit}, which it inherits and which counts its own memory: "
            f"{_allocated_and_requested(facts)}"
        )
    return f"{limit[0].upper()}{limit[1:]} was reached: {_allocated_and_requested(facts)}"


def _leak(facts: OomFacts) -> str | None:
    leak, limit = facts.leak, facts.memory.run_limit_bytes
    if leak is None or leak.series == LeakSeries.FRAGMENTATION:
        return None
    if limit and leak.leaked_bytes is not None and leak.leaked_bytes < limit * LEAST_LEAKED_SHARE:
        return None
    if leak.leaked_bytes is None and not leak.is_certain:
        return None
    if leak.leaked_bytes is None:
        return f"A leak had filled the memory: its size is not known. {leak.message}"
    had = "had" if leak.is_certain else "had most likely"
    if leak.series == LeakSeries.WORKERS:  # The sum over all workers, each with the limit for itself.
        size = words.size(leak.leaked_bytes)
        return f"A leak {had} filled the memory of the loader's workers: {size}. {leak.message}"
    of = "" if not limit else f" of {_run_limit(facts)}"
    return f"A leak {had} filled the memory: {words.size(leak.leaked_bytes)}{of}. {leak.message}"


def _leaked(facts: OomFacts) -> int:
    """Return the leaked bytes, except of a leak of holes; 0 if unknown."""
    leak = facts.leak
    if leak is None or leak.series == LeakSeries.FRAGMENTATION or (not leak.is_certain and not _leak(facts)):
        return 0
    return leak.leaked_bytes or 0


def _kept_graphs(facts: OomFacts) -> str | None:
    if not (kept_bytes := _kept_bytes(facts)):
        return None
    variable, limit = facts.variables[0], facts.memory.run_limit_bytes
    size = f"{'' if variable.is_complete else 'at least '}{words.size(kept_bytes)}"
    of = "" if not limit else f" of {_run_limit(facts)}"
    return (
        f"The autograd graphs behind the variable {variable.name} in {variable.site} kept {size}{of} for a "
        f"backward pass, and none has followed the last {facts.calls_without_backward:,} calls of the model: "
        "call it under torch.no_grad(), or keep values without a graph (loss.item(), output.detach())."
    )


def _kept_bytes(facts: OomFacts) -> int:
    """Return what autograd has saved behind the largest variable, if that is much and so many calls of the
    model without a backward pass are not usual in the run; else 0."""
    if not facts.variables or not facts.calls_without_backward:
        return 0
    variable, limit = facts.variables[0], facts.memory.run_limit_bytes or 0
    share = _LEAST_KEPT_SHARE if variable.is_complete else _LEAST_READ_SHARE
    is_much = _is_mostly_saved(variable) and variable.saved_bytes >= share * limit
    return variable.saved_bytes if is_much else 0


def _huge_request(facts: OomFacts) -> str | None:
    limit, least = facts.memory.limit_bytes, facts.request.least_bytes
    if not limit or least is None or least < limit * HUGE_SHARE:
        return None
    size = words.size(facts.request.most_bytes)
    if least > limit:
        return f"A single request for {size} exceeds {_limit(facts)}."
    return f"A single request for {size} is {words.percent(100 * least / limit)} of {_limit(facts)}."


def _first_update(facts: OomFacts) -> str | None:
    if facts.request.phase is not OomPhase.OPTIMIZER or not facts.is_first_update:
        return None
    text = (
        "The optimizer allocates its state in its first step, and it did not fit in addition to weights and "
        "gradients"
    )
    # The sentence on a limit has the parts.
    return f"{text}." if hits_limit(facts) else f"{text}: {_allocated_and_requested(facts)}"


_NOT_FULL: tuple[tuple[OomVerdict, Callable[[OomFacts], str | None]], ...] = (
    (OomVerdict.SHARED_MEMORY, shared_memory),
    (OomVerdict.HOST, host_request),
    (OomVerdict.REFUSED, refused_request),
)
_TESTS: tuple[tuple[OomVerdict, Callable[[OomFacts], str | None]], ...] = (
    (OomVerdict.OTHER_PROCESS, _other_process),
    (OomVerdict.PRIVATE_POOLS, _private_pools),
    (OomVerdict.OTHER_STREAM, _other_stream),
    (OomVerdict.FRAGMENTATION, _fragmentation),
    (OomVerdict.LEAK, _leak),
    (OomVerdict.KEPT_GRAPHS, _kept_graphs),
    (OomVerdict.CAP, _cap),
    (OomVerdict.PROCESS_LIMIT, _process_limit),
    (OomVerdict.UNLISTED, unlisted_memory),
    (OomVerdict.HUGE_REQUEST, _huge_request),
    (OomVerdict.FIRST_UPDATE, _first_update),
)


def _too_big(facts: OomFacts) -> str:
    batch = "" if facts.batch_size is None else f" with batch {facts.batch_size:,}"
    action = _UNTRAINED.get(facts.request.phase, f"Training{batch}")
    limit = "is available" if facts.memory.limit_bytes is None else _limit(facts)
    return f"{action} needs more than {limit}: {_allocated_and_requested(facts)}"


def _allocated_and_requested(facts: OomFacts) -> str:
    memory, most = facts.memory, facts.request.most_bytes
    requested = "" if most is None else f"{_requested_size(facts)} more requested"
    if facts.device is DeviceKind.CPU and memory.limit_left_bytes is not None and memory.allocated_bytes:
        end = f"{_requested_size(facts)} more were requested" if requested else _UNKNOWN_REQUEST
        return f"{_parts(facts)}; {end}."
    used = "" if memory.allocated_bytes is None else f"{words.size(memory.allocated_bytes)} were allocated"
    text = " and ".join(part for part in (used, requested) if part)
    if not text:
        return "allocated memory and the size of the request are not known."
    unknown = _UNKNOWN_REQUEST if used else "how much was allocated is not known"
    return f"{text}." if used and requested else f"{text}; {unknown}."


def _parts(facts: OomFacts) -> str:
    """Return the parts of a cap or a limit of the process on the CPU, which sum to it."""
    parts = budget(facts)
    listed = [part for part in parts if abs(part.size_bytes) >= LEAST_SHOWN * (facts.memory.limit_bytes or 0)]
    texts = [part.phrase for part in listed if part.size_bytes > 0]
    excess = -sum(part.size_bytes for part in listed if part.size_bytes < 0)
    return f"{', '.join(texts)}{f', {words.size(excess)} more than it' if excess else ''}"


def _requested_size(facts: OomFacts) -> str:
    request = facts.request
    if request.least_bytes == request.most_bytes or request.error_bytes == request.most_bytes:
        return words.size(request.most_bytes)
    return f"up to {words.size(request.most_bytes)}"


def _limit(facts: OomFacts) -> str:
    memory = facts.memory
    if memory.is_capped:
        return f"the memory cap of {words.size(memory.cap_bytes)}"
    if memory.process_limit is not None and memory.is_limited:
        limit = memory.process_limit
        return f"the limit of the process ({limit.option}) of {words.size(limit.limit_bytes)}"
    return f"the {words.size(memory.device_total_bytes)} of {facts.device_name}"


def _run_limit(facts: OomFacts) -> str:
    """Return the limit in words, with the part of it that the run can use where that is known to be less."""
    memory = facts.memory
    if memory.run_limit_bytes == memory.limit_bytes:
        return _limit(facts)
    return f"the {words.size(memory.run_limit_bytes)} that {_limit(facts)} left to the run"


def _leak_evidence(facts: OomFacts, verdicts: Sequence[OomVerdict]) -> list[str]:
    """Return sentences on a leak that is not the verdict, on its usual cause, and on the allocation site in
    its snapshot."""
    leak = facts.leak
    if leak is None or (not leak.is_certain and OomVerdict.LEAK not in verdicts):
        return []
    sentences = [] if OomVerdict.LEAK in verdicts else [f"Memory leaks: {leak.message}"]
    if leak.cause is not None:
        sentences.append(f"About the leak: {leak.cause}")
    return sentences if leak.hunt is None else [*sentences, f"Snapshot of the leak: {leak.hunt}"]


def _is_mostly_saved(variable: LiveVariable) -> bool:
    return 2 * variable.saved_bytes > variable.held_bytes


def _saved(facts: OomFacts, variable: LiveVariable) -> str:
    """Return a clause on what the autograd graphs behind a variable keep; empty if they keep little of it. In
    a step's own forward or backward pass they are needed."""
    if not _is_mostly_saved(variable):
        return ""
    clause = (
        f", of which the autograd graphs of its tensors keep {'' if variable.is_complete else 'at least '}"
        f"{words.size(variable.saved_bytes)} saved for a backward pass"
    )
    is_in_step = facts.request.phase in (OomPhase.FORWARD, OomPhase.BACKWARD)
    if is_in_step and not facts.calls_without_backward:
        return clause
    return f"{clause}: where none follows, call the model under torch.no_grad(), or keep detached tensors"


def _evidence(facts: OomFacts, verdict: OomVerdict) -> list[str]:
    request, memory, change = facts.request, facts.memory, facts.change
    sentences = []
    if request.error_bytes is not None and request.error_bytes != request.most_bytes:
        sentences.append(
            f"The {words.size(request.error_bytes)} in the error are the segment that CUDA's allocator "
            f"requested; the tensor itself has up to {words.size(request.most_bytes)}."
        )
    if memory.unused_bytes and facts.device is DeviceKind.CUDA:
        sentences.append(f"{words.size(memory.unused_bytes)} were reserved but unallocated.")
    if exceeds_device(memory, facts.device) and facts.device is not DeviceKind.MPS:
        sentences.append(
            f"{words.size(memory.reserved_bytes)} were reserved, more than the device has: the driver keeps "
            "the rest in the host's memory, which is much slower."
        )
    is_device_limit = not memory.is_capped and not memory.is_limited
    if memory.device_free_bytes is not None and is_device_limit:
        free, total = words.size(memory.device_free_bytes), words.size(memory.device_total_bytes)
        sentences.append(f"The device had {free} of {total} free.")
    if memory.others_bytes and is_device_limit:
        sentences.append(f"Other processes used {words.size(memory.others_bytes)} of it.")
    largest = facts.variables[0] if facts.variables else None
    if (
        largest is not None
        and verdict is not OomVerdict.KEPT_GRAPHS
        and (
            largest.held_bytes >= LEAST_VARIABLE_SHARE * (memory.limit_bytes or 0)
            # Of many small graphs only a part was read.
            or (not largest.is_complete and _is_mostly_saved(largest))
        )
    ):
        sentences.append(
            f"The variable {largest.name} in {largest.site} held "
            f"{'' if largest.is_complete else 'at least '}{words.size(largest.held_bytes)}, in "
            f"{words.plural(largest.blocks, 'object')}{_saved(facts, largest)}."
        )
    if change is not None:
        ago = words.plural(change.steps_ago, "step") + " before the failure"
        when = ago if change.steps_ago else "the failed step was its first"
        sentences.append(f"Settings were changed before step {change.step:,} ({when}): {change.message}")
    return sentences
