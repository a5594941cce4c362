"""Comparison of a failed request with the memory that it could have used: below the cap, free on the device,
and in use by something that no list names."""

from harness import words
from harness.analysis.oom.error import is_likely_of_shared_memory, is_of_host, is_of_shared_memory
from harness.analysis.oom.report import MemoryAtFailure, OomFacts, OomPhase
from harness.records.run import DeviceKind

# As in harness.device.cpu.cap: thread stacks and the interpreter's arenas shift the cap by this much.
CPU_CAP_SLACK_BYTES = 64 << 20
# Of a cap on a GPU: the request and, where a script has set it, the cap are printed in GiB with two decimals.
GPU_CAP_SLACK_BYTES = 11 << 20
# Of free memory: the driver needs page tables for an allocation, other processes allocate between the failure
# and the reading, and a size printed with two decimals is up to 1 % off.
FREE_SLACK_BYTES, FREE_SLACK_SHARE = 64 << 20, 0.01
# Below this, memory that is neither free nor listed is the process's own context, of up to 1 GiB with the
# libraries, and the driver's reserve, of up to 1 GiB.
LEAST_UNLISTED_BYTES, LEAST_UNLISTED_SHARE = 2 << 30, 0.1
# As a share of the machine's memory: with less free, a request of unknown size may have found none.
LEAST_FREE_SHARE = 0.25


def hits_cap(facts: OomFacts) -> bool:
    """Return whether the cap refused the request. On CUDA the cap covers reserved memory; on the CPU nothing
    else refuses a request while the machine has free memory."""
    memory, most = facts.memory, facts.request.most_bytes
    if not memory.is_capped or memory.cap_bytes is None:
        return False
    base = memory.reserved_bytes if memory.reserved_bytes is not None else memory.allocated_bytes
    if facts.device is DeviceKind.CPU and (
        most is None or (memory.device_free_bytes is not None and most <= memory.device_free_bytes)
    ):
        return True
    slack = CPU_CAP_SLACK_BYTES if facts.device is DeviceKind.CPU else GPU_CAP_SLACK_BYTES
    requested = facts.request.error_bytes or 0
    return base is None or base + requested > memory.cap_bytes - slack


def hits_limit(facts: OomFacts) -> bool:
    """Return whether the cap or a limit of the process refused the request."""
    return facts.memory.is_limited or hits_cap(facts)


def shared_memory(facts: OomFacts) -> str | None:
    """Return a sentence if the request was one for shared memory. The sharing strategy is no remedy: torch's
    "file_system" has its files in /dev/shm too."""
    if not is_of_shared_memory(facts.error):
        return None
    memory = facts.memory
    verb = "had most likely" if is_likely_of_shared_memory(facts.error) else "had"
    size = "; its size is not known"
    if memory.shared_total_bytes is not None:
        size = (
            f": of its {words.size(memory.shared_total_bytes)}, {words.size(memory.shared_free_bytes)} were "
            "free when it was read after the error"
        )
    return (
        f"The host's shared memory, /dev/shm, {verb} too little free space{size}. Loader workers pass their "
        "batches on in it: use fewer workers, fewer batches ahead (prefetch_factor) or smaller batches, or "
        "enlarge it (in a container with docker run --shm-size or --ipc=host)."
    )


def host_request(facts: OomFacts) -> str | None:
    """Return a sentence if the request was one for the host's memory, in a training on a GPU."""
    is_host = is_of_host(facts.error, is_worker=facts.request.phase is OomPhase.WORKER)
    if facts.device is DeviceKind.CPU or not is_host:
        return None
    most = facts.request.most_bytes
    size = "; its size is not known" if most is None else f": {words.size(most)}"
    return f"The request was for the host's memory, not for that of {facts.device_name}{size}."


def refused_request(facts: OomFacts) -> str | None:
    """Return a sentence if the request was smaller than the free memory of the device and below the cap."""
    request, free = facts.request.error_bytes or facts.request.most_bytes, facts.memory.device_free_bytes
    if free is None or hits_limit(facts):
        return None
    if request is None:
        return _refused_unknown(facts, free)
    if free < request * (1 + FREE_SLACK_SHARE) + FREE_SLACK_BYTES:
        return None
    if facts.device is DeviceKind.CPU:
        return (
            f"The system refused the request for {words.size(request)} although {words.size(free)} of the "
            "machine's memory were available: a limit of the process (ulimit -d, -v), of overcommitment or "
            "of the number of mappings (vm.max_map_count) applies."
        )
    return (
        f"The driver refused the request for {words.size(request)} although {words.size(free)} of "
        f"{facts.device_name} were free: a limit of the driver or of the process applies (the size of one "
        "allocation, memory that can be mapped), or the memory was freed after the request."
    )


def _refused_unknown(facts: OomFacts, free_bytes: int) -> str | None:
    """Return a sentence on a request of unknown size, as of Python's MemoryError, that the CPU refused while
    much memory was free: nothing shows that the run needs more than the machine has."""
    total = facts.memory.device_total_bytes
    if facts.device is not DeviceKind.CPU or total is None or free_bytes < LEAST_FREE_SHARE * total:
        return None
    return (
        f"The system refused a request of unknown size although {words.size(free_bytes)} of the machine's "
        "memory were available: the request was for more, or a limit of overcommitment or of the number of "
        "mappings (vm.max_map_count) applies."
    )


def unlisted_memory(facts: OomFacts) -> str | None:
    """Return a sentence if much of the device was neither free nor in use by a known process, and the request
    would have fit into it."""
    memory, most = facts.memory, facts.request.most_bytes
    own, total = _own_bytes(memory), memory.device_total_bytes
    if (
        facts.device in (DeviceKind.CPU, DeviceKind.MPS)
        or own is None
        or total is None
        or most is None
        or hits_cap(facts)
    ):
        return None
    accounted = own + (memory.others_bytes or 0)
    unlisted = total - accounted - (memory.device_free_bytes or 0)
    is_much = unlisted >= max(LEAST_UNLISTED_BYTES, LEAST_UNLISTED_SHARE * total)
    if not is_much or accounted + most > total:
        return None
    users = "this process" if memory.process_bytes is not None else "PyTorch in this process"
    users += " or the listed ones" if memory.others_bytes else ""
    size, whole = words.size(unlisted), f"the {words.size(total)} of {facts.device_name}"
    if memory.device_free_bytes is None:
        return (
            f"{size} of {whole} were not in use by {users}; how much of it was free is not known. Had it "
            f"been free, the request for {words.size(most)} would have fit."
        )
    return (
        f"{size} of {whole} were neither free nor in use by {users}: something uses them that is not listed, "
        f"such as another library or a process outside the container. Without it the request for "
        f"{words.size(most)} would have fit."
    )


def exceeds_device(memory: MemoryAtFailure, device: DeviceKind) -> bool:
    """Return whether the allocator has reserved more memory than the device has: drivers with a fallback to
    the host's memory, such as CUDA's under Windows (WSL), allow it."""
    reserved, total = memory.reserved_bytes, memory.device_total_bytes
    return device is not DeviceKind.CPU and reserved is not None and total is not None and reserved > total


def _own_bytes(memory: MemoryAtFailure) -> int | None:
    sizes = (memory.process_bytes, memory.reserved_bytes, memory.allocated_bytes)
    return max((size for size in sizes if size is not None), default=None)
