"""Judges why memory ran out, from facts alone: each verdict has its own evidence, and the first one wins."""

from collections.abc import Callable, Sequence

from harness import words
from harness.analysis.oom.fit import counterfactuals
from harness.analysis.oom.report import OomFacts, OomPhase, OomReport, OomVerdict, PredictedChange
from harness.records.memory import LeakSeries
from harness.records.run import DeviceKind

LEAST_OTHERS_BYTES = 64 << 20
"""Less than this held by others is a desktop's or a context's share, not somebody in the way."""
FRAGMENTED_SHARE = 0.01
"""Below this share of what is reserved, free remainders are what every run has."""
HUGE_SHARE = 0.25
"""Of the limit, in one request."""
LEAST_LEAKED_SHARE = 0.25
"""Of the limit: a leak that holds as much as a huge request is why memory ran out; less is said beside."""
LEAST_OUTSIDE_SHARE = 0.1
"""Of a cap on the CPU, beside the heap: a run without a leak there has a hundredth."""
LEAST_HOLES_SHARE = 0.25
"""Of a cap on the CPU, in holes of the heap: a quarter is more than a step's passing tensors leave between
what lasts, in the runs of the catalog."""
CPU_CAP_SLACK_BYTES = 64 << 20
"""As in harness.device.cpu.cap: thread stacks and the interpreter's arenas shift the cap by so much."""


def explain(facts: OomFacts, predicted: Sequence[PredictedChange] = (), outcome: str = "") -> OomReport:
    """The report on what was gathered. `predicted` are changes that a prediction has looked at."""
    found = [(verdict, sentence) for verdict, look in _LOOKS if (sentence := look(facts)) is not None]
    found.append((OomVerdict.TOO_BIG, _too_big(facts)))
    verdict, why = found[0]
    also = [f"Also: {sentence}" for _, sentence in found[1:-1]]
    return OomReport(
        facts=facts,
        verdict=verdict,
        why=why,
        evidence=(*_evidence(facts), *_about_the_leak(facts, [one for one, _ in found]), *also),
        counterfactuals=counterfactuals(facts, verdict, predicted),
        outcome=outcome,
    )


def _other_process(facts: OomFacts) -> str | None:
    held, most = facts.held, facts.asked.most_bytes
    others, free = held.others_bytes, held.device_free_bytes
    if others is None or free is None or most is None or _hits_cap(facts):
        return None
    if most <= free or others < max(most - free, LEAST_OTHERS_BYTES):
        return None
    return (
        f"Other processes hold {words.size(others)} of {facts.device_name}; without them "
        f"{words.size(most)} would have had room."
    )


def _private_pools(facts: OomFacts) -> str | None:
    private, least = facts.held.private_free_bytes, facts.asked.least_bytes
    if not private or least is None or private < least:
        return None
    return (
        f"{words.size(private)} lie free in the private pools of CUDA graphs, where this request could not "
        "use them."
    )


def _other_stream(facts: OomFacts) -> str | None:
    waiting, least = facts.held.waiting_bytes, facts.asked.least_bytes
    if not waiting or least is None or waiting < least:
        return None
    return (
        f"{words.size(waiting)} were freed but held until another stream is done with them, and could not be "
        "used again yet."
    )


def _fragmentation(facts: OomFacts) -> str | None:
    held, most = facts.held, facts.asked.most_bytes
    if held.unused_bytes is None or held.reserved_bytes is None or _leaked(facts) > held.unused_bytes:
        return None
    if facts.device is DeviceKind.CPU:
        return _holes(facts, held.unused_bytes)
    if facts.device is not DeviceKind.CUDA:
        return None
    scattered = held.unused_bytes - (held.private_free_bytes or 0) - (held.waiting_bytes or 0)
    if most is None or scattered < max(most, held.reserved_bytes * FRAGMENTED_SHARE):
        return None
    if held.largest_free_bytes is not None and held.largest_free_bytes >= most:
        return None
    largest = held.largest_free_bytes
    pieces = "in pieces" if largest is None else f"in pieces of {words.size(largest)} and less"
    return (
        f"{words.size(scattered)} were reserved and in no tensor, enough for the {words.size(most)} asked "
        f"for, but {pieces}: memory is fragmented."
    )


def _holes(facts: OomFacts, holes: int) -> str | None:
    """The same on the CPU: under a cap, free memory in the heap that the request could not use. The size of
    the largest hole is not known: that it did not fit is what the error says."""
    held, least = facts.held, facts.asked.least_bytes or 0
    if (
        held.cap_bytes is None
        or not _hits_cap(facts)
        or holes < max(least, held.cap_bytes * LEAST_HOLES_SHARE)
    ):
        return None
    return (
        f"Of the memory cap of {words.size(held.cap_bytes)}, {words.size(holes)} lay free in the heap, in "
        f"pieces that did not fit, and {words.size(held.allocated_bytes)} were allocated: the heap is "
        "fragmented."
    )


def _cap(facts: OomFacts) -> str | None:
    if not _hits_cap(facts):
        return None
    return f"The memory cap of {words.size(facts.held.cap_bytes)} was reached: {_allocated_and_asked(facts)}"


def _leak(facts: OomFacts) -> str | None:
    leak, limit = facts.leak, facts.held.limit_bytes
    if leak is None or leak.series == LeakSeries.FRAGMENTATION:
        return None
    if limit and leak.leaked_bytes is not None and leak.leaked_bytes < limit * LEAST_LEAKED_SHARE:
        return None
    if leak.leaked_bytes is None and not leak.is_certain:
        return None
    if leak.leaked_bytes is None:
        return f"A leak had filled the memory: how much it took is not known. {leak.message}"
    of = "" if not limit else f" of {_limit(facts)}"
    had = "had" if leak.is_certain else "had most likely"
    return f"A leak {had} filled the memory: {words.size(leak.leaked_bytes)}{of}. {leak.message}"


def _leaked(facts: OomFacts) -> int:
    """What a leak of anything but holes had taken; 0 where that is not known."""
    leak = facts.leak
    if leak is None or leak.series == LeakSeries.FRAGMENTATION or (not leak.is_certain and not _leak(facts)):
        return 0
    return leak.leaked_bytes or 0


def _huge_request(facts: OomFacts) -> str | None:
    limit, least = facts.held.limit_bytes, facts.asked.least_bytes
    if not limit or least is None or least < limit * HUGE_SHARE:
        return None
    asked = words.size(facts.asked.most_bytes)
    if least > limit:
        return f"A single request for {asked} is more than all of {_limit(facts)}."
    return f"A single request for {asked} is {words.percent(100 * least / limit)} of {_limit(facts)}."


def _first_update(facts: OomFacts) -> str | None:
    if facts.asked.phase is not OomPhase.OPTIMIZER or not facts.is_first_update:
        return None
    return (
        "The optimizer makes its state in its first step, and that no longer fitted beside weights and "
        f"gradients: {_allocated_and_asked(facts)}"
    )


_LOOKS: tuple[tuple[OomVerdict, Callable[[OomFacts], str | None]], ...] = (
    (OomVerdict.OTHER_PROCESS, _other_process),
    (OomVerdict.PRIVATE_POOLS, _private_pools),
    (OomVerdict.OTHER_STREAM, _other_stream),
    (OomVerdict.FRAGMENTATION, _fragmentation),
    (OomVerdict.LEAK, _leak),
    (OomVerdict.CAP, _cap),
    (OomVerdict.HUGE_REQUEST, _huge_request),
    (OomVerdict.FIRST_UPDATE, _first_update),
)


def _too_big(facts: OomFacts) -> str:
    building = facts.asked.phase is OomPhase.BUILD
    what = "Building the model" if building else f"Training with batch {facts.batch_size:,}"
    limit = "there is" if facts.held.limit_bytes is None else _limit(facts)
    return f"{what} needs more than {limit}: {_allocated_and_asked(facts)}"


def _hits_cap(facts: OomFacts) -> bool:
    """Whether it was the cap that said no. On CUDA the cap counts what is reserved; on the CPU nothing else
    says no as long as the machine has room."""
    held, most = facts.held, facts.asked.most_bytes
    if not held.is_capped or held.cap_bytes is None:
        return False
    base = held.reserved_bytes if held.reserved_bytes is not None else held.allocated_bytes
    if facts.device is DeviceKind.CPU and (
        most is None or (held.device_free_bytes is not None and most <= held.device_free_bytes)
    ):
        return True
    slack = CPU_CAP_SLACK_BYTES if facts.device is DeviceKind.CPU else 0
    wanted = facts.asked.error_bytes or 0
    return base is None or base + wanted > held.cap_bytes - slack


def _allocated_and_asked(facts: OomFacts) -> str:
    allocated, most = facts.held.allocated_bytes, facts.asked.most_bytes
    held = "" if allocated is None else f"{words.size(allocated)} were allocated{_outside(facts)}"
    asked = "" if most is None else f"{_asked_size(facts)} more asked for"
    said = " and ".join(part for part in (held, asked) if part)
    if not said:
        return "how much was held and asked for is not known."
    open_ = "how much was allocated" if allocated is None else "the size of the request"
    return f"{said}." if held and asked else f"{said}; {open_} is not known."


def _outside(facts: OomFacts) -> str:
    """What a cap on the CPU counts beside the heap, where that is no small part of it."""
    held = facts.held
    if facts.device is not DeviceKind.CPU or held.cap_bytes is None or held.cap_left_bytes is None:
        return ""
    outside_bytes = held.cap_bytes - held.cap_left_bytes - (held.reserved_bytes or held.cap_bytes)
    is_much = held.is_capped and outside_bytes >= LEAST_OUTSIDE_SHARE * held.cap_bytes
    return f" in the heap, {words.size(outside_bytes)} outside it," if is_much else ""


def _asked_size(facts: OomFacts) -> str:
    asked = facts.asked
    if asked.least_bytes == asked.most_bytes or asked.error_bytes == asked.most_bytes:
        return words.size(asked.most_bytes)
    return f"up to {words.size(asked.most_bytes)}"


def _limit(facts: OomFacts) -> str:
    held = facts.held
    if held.is_capped:
        return f"the memory cap of {words.size(held.cap_bytes)}"
    return f"the {words.size(held.device_total_bytes)} of {facts.device_name}"


def _about_the_leak(facts: OomFacts, verdicts: Sequence[OomVerdict]) -> list[str]:
    """A leak that is no verdict of its own, and the line that its hunt found."""
    leak = facts.leak
    if leak is None or (not leak.is_certain and OomVerdict.LEAK not in verdicts):
        return []
    said = [] if OomVerdict.LEAK in verdicts else [f"Something leaks: {leak.message}"]
    return said if leak.hunt is None else [*said, f"The hunt for the leak: {leak.hunt}"]


def _evidence(facts: OomFacts) -> list[str]:
    asked, held, change = facts.asked, facts.held, facts.change
    said = []
    if asked.error_bytes is not None and asked.error_bytes != asked.most_bytes:
        said.append(
            f"The {words.size(asked.error_bytes)} in the error are the segment that CUDA's allocator asked "
            f"for; the tensor itself has up to {words.size(asked.most_bytes)}."
        )
    if held.unused_bytes and facts.device is DeviceKind.CUDA:
        said.append(f"{words.size(held.unused_bytes)} were reserved and in no tensor.")
    if held.device_free_bytes is not None and not held.is_capped:
        free, total = words.size(held.device_free_bytes), words.size(held.device_total_bytes)
        said.append(f"The device had {free} of {total} free.")
    if held.others_bytes and not held.is_capped:
        said.append(f"Other processes held {words.size(held.others_bytes)} of it.")
    if change is not None:
        ago = words.plural(change.steps_ago, "step") + " before it failed"
        when = ago if change.steps_ago else "the step that failed was its first"
        said.append(f"Before step {change.step:,} a setting was changed ({when}): {change.message}")
    return said
