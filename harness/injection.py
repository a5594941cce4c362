"""Faults a run can be given on purpose, as the setting `inject` names them. Free of torch."""

import re
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.errors import SettingError

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20}
# What leaks a step when no size is given.
DEFAULT_BYTES = 2**20


class Fault(StrEnum):
    """What goes wrong. The leaks are named after what keeps the memory."""

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
    """A fault: `step_bytes` a step for leaks, fragmentation and what is copied from elsewhere, at `step` for
    an out-of-memory error."""

    fault: Fault
    step_bytes: int = 0
    step: int = 0


def parse_injection(text: str | None) -> Injection | None:
    """The fault that `text` names, None for none. Raises SettingError with what can be written."""
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
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(B|KiB|MiB)", tail, re.IGNORECASE)
    if head.lower() in sized and size and (step_bytes := int(float(size[1]) * _UNITS[size[2].upper()])):
        return Injection(sized[head.lower()], step_bytes)
    known = ", ".join(sized)
    raise SettingError(
        "inject",
        f"inject {text!r} names no fault; write one of {known}, with a size as in "
        "leak:list:256KiB, or sync, or oom:STEP.",
    )


def check_injection(text: str | None, num_workers: int) -> None:
    """Raise SettingError when `text` names no fault, or one that these settings have no place for."""
    injection = parse_injection(text)
    if injection is not None and injection.fault is Fault.LEAK_WORKER and num_workers == 0:
        raise SettingError(
            "inject", "leak:worker leaks in the loader's workers, and there are none; ask for num_workers=1."
        )


_MEANINGS = {
    Fault.LEAK_GRAPH: "losses are added up with their graphs",
    Fault.LEAK_HIDDEN: "a hidden state goes from step to step without detach()",
    Fault.LEAK_LIST: "the outputs of every step are collected in a list",
    Fault.LEAK_CACHE: "a cache gets a new entry with every step",
    Fault.LEAK_HOST: "lines of text are kept, outside torch",
    Fault.LEAK_WORKER: "the loader's workers keep something of every batch",
    Fault.FRAGMENTATION: "requests outgrow the holes that earlier ones left",
    Fault.ELSEWHERE: "a buffer of the model lies in the host's memory and is copied in every pass",
    Fault.SYNC: "the loss is read off the device between the forward and the backward pass",
}


def described(injection: Injection) -> str:
    """What is wrong on purpose, in one sentence."""
    if injection.fault is Fault.OOM:
        return f"Injected: step {words.count(injection.step)} asks for more memory than there is."
    if injection.fault is Fault.SYNC:
        return f"Injected: {_MEANINGS[Fault.SYNC]} ({Fault.SYNC})."
    size = words.size(injection.step_bytes)
    return f"Injected: {_MEANINGS[injection.fault]}, {size} a step ({injection.fault})."
