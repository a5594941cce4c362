"""Injected faults: parsing of the setting `inject`. Free of torch."""

import re
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.errors import SettingError

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20}
# Bytes per step of a leak without a size.
DEFAULT_BYTES = 2**20


class Fault(StrEnum):
    """The kinds of fault. Leaks are named after what retains the memory."""

    LEAK_GRAPH = "leak:graph"
    LEAK_HIDDEN = "leak:hidden"
    LEAK_LIST = "leak:list"
    LEAK_CACHE = "leak:cache"
    LEAK_HOST = "leak:host"
    LEAK_WORKER = "leak:worker"
    FRAGMENTATION = "fragmentation"
    ELSEWHERE = "elsewhere"
    SYNC = "sync"
    OOM = "oom"


class Injection(NamedTuple):
    """A fault: `step_bytes` per step for leaks, fragmentation and host copies, `step` for an out-of-memory
    error."""

    fault: Fault
    step_bytes: int = 0
    step: int = 0


def parse_injection(text: str | None) -> Injection | None:
    """Parse a fault, None for none. Raises SettingError with the allowed values."""
    if not text:
        return None
    head, _, tail = text.strip().rpartition(":")
    if head.lower() == Fault.OOM:
        if re.fullmatch(r"[1-9][0-9]{0,11}", tail):
            return Injection(Fault.OOM, step=int(tail))
        raise SettingError("inject", f"inject {text!r} names no step; write oom:STEP, such as oom:100.")
    if text.strip().lower() == Fault.SYNC:
        return Injection(Fault.SYNC)
    sized = {fault.value: fault for fault in Fault if fault not in (Fault.OOM, Fault.SYNC)}
    whole = sized.get(text.strip().lower())
    if whole is not None:
        return Injection(whole, DEFAULT_BYTES)
    size = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?) ?(B|KiB|MiB)", tail, re.IGNORECASE | re.ASCII)
    if head.lower() in sized and size and (step_bytes := int(float(size[1]) * _UNITS[size[2].upper()])):
        return Injection(sized[head.lower()], step_bytes)
    names = ", ".join(sized)
    raise SettingError(
        "inject",
        f"inject {text!r} names no fault; write one of {names}, with a size as in "
        "leak:list:256KiB, or sync, or oom:STEP.",
    )


def check_injection(text: str | None, num_workers: int) -> None:
    """Raise SettingError when `text` names no fault, or one that needs loader workers without any."""
    injection = parse_injection(text)
    if injection is not None and injection.fault is Fault.LEAK_WORKER and num_workers == 0:
        raise SettingError(
            "inject", "leak:worker leaks in the loader's workers, and there are none; set num_workers=1."
        )


_MEANINGS = {
    Fault.LEAK_GRAPH: "losses are summed with their graphs",
    Fault.LEAK_HIDDEN: "a hidden state is passed from step to step without detach()",
    Fault.LEAK_LIST: "the outputs of every step are appended to a list",
    Fault.LEAK_CACHE: "a cache gets a new entry in every step",
    Fault.LEAK_HOST: "text accumulates in a list, outside torch",
    Fault.LEAK_WORKER: "the loader's workers retain a part of every batch",
    Fault.FRAGMENTATION: "requests outgrow the gaps that earlier ones left",
    Fault.ELSEWHERE: "a buffer of the model is in host memory and is copied in every pass",
    Fault.SYNC: "the loss is read from the device between the forward and the backward pass",
}


def describe(injection: Injection) -> str:
    """Describe the injected fault in one sentence."""
    if injection.fault is Fault.OOM:
        return f"Injected: step {words.count(injection.step)} allocates more memory than is available."
    if injection.fault is Fault.SYNC:
        return f"Injected: {_MEANINGS[Fault.SYNC]} ({Fault.SYNC})."
    size = words.size(injection.step_bytes)
    return f"Injected: {_MEANINGS[injection.fault]}, {size} per step ({injection.fault})."
