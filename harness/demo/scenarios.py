"""The named scenarios: what is trained, what is changed on the way, what goes wrong, and how it ends.

They feed the demo, the tests of the pages and the benchmarks alike.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.demo.machine import GIB, Faults
from harness.errors import UsageError
from harness.records import RunState
from harness.settings import Settings

_BASE: Mapping[str, Any] = {
    "model": "transformer",
    "preset": "h200",
    "data": "stdlib-text",
    "device": "cuda:0",
    "sequence_length": 1024,
    "batch_size": 32,
    "matmul_precision": "high",
    "learning_rate": 6e-4,
    "memory_cap_gib": 48.0,
}


class Change(NamedTuple):
    """Something a person did while the run went on, at a share of its length: new values of settings, or
    empty_cache() when there are none."""

    at: float
    values: Mapping[str, Any] = {}


class Scenario(NamedTuple):
    """One simulated run."""

    key: str
    summary: str
    steps: int
    end: RunState
    settings: Settings = Settings(**_BASE)
    changes: tuple[Change, ...] = ()
    # Over the whole run.
    leaked_bytes: float = 0.0
    fragmented_bytes: float = 0.0

    def faults(self, steps: int) -> Faults:
        """What is wrong, spread over a run of so many steps."""
        return Faults(self.leaked_bytes / max(steps, 1), self.fragmented_bytes / max(steps, 1))


_ALL = (
    Scenario(
        key="steady",
        summary="A healthy run: memory flat, steps even, the loss falling.",
        steps=5_000,
        end=RunState.FINISHED,
    ),
    Scenario(
        key="amp",
        summary="AMP switched on, a larger batch, empty_cache() and pinned memory, one after the other.",
        steps=20_400,
        end=RunState.FINISHED,
        changes=(
            Change(0.34, {"amp": "bf16"}),
            Change(0.54, {"batch_size": 48}),
            Change(0.74),
            Change(0.86, {"pin_memory": True, "non_blocking": True}),
        ),
    ),
    Scenario(
        key="leak",
        summary="Something keeps tensors of every step: allocated memory rises and never comes back.",
        steps=4_000,
        end=RunState.STOPPED,
        leaked_bytes=11 * GIB,
    ),
    Scenario(
        key="fragmentation",
        summary="Allocated memory stays flat while reserved memory climbs to the cap, and retries begin.",
        steps=4_000,
        end=RunState.FINISHED,
        fragmented_bytes=34 * GIB,
    ),
    Scenario(
        key="oom",
        summary="The batch is raised until it no longer fits under the cap.",
        steps=1_500,
        end=RunState.OUT_OF_MEMORY,
        changes=(
            Change(0.4, {"batch_size": 48}),
            Change(0.8, {"batch_size": 72}),
            Change(1.0, {"batch_size": 96}),
        ),
    ),
    Scenario(
        key="slow-loader",
        summary="A loader that takes longer than the step starves the GPU, until workers load beside it.",
        steps=2_000,
        end=RunState.FINISHED,
        settings=Settings(**{**_BASE, "slow_loader_ms": 90.0}),
        changes=(Change(0.6, {"num_workers": 4}),),
    ),
    Scenario(
        key="stalled",
        summary="No step has ended for a minute; the process is there.",
        steps=800,
        end=RunState.STALLED,
    ),
    Scenario(
        key="lost",
        summary="The process vanished without a word, as after a reboot.",
        steps=1_200,
        end=RunState.LOST,
    ),
    Scenario(
        key="empty",
        summary="Stopped before its first step.",
        steps=0,
        end=RunState.STOPPED,
    ),
    Scenario(
        key="one-step",
        summary="One step, and done.",
        steps=1,
        end=RunState.FINISHED,
    ),
)

SCENARIOS: Mapping[str, Scenario] = {scenario.key: scenario for scenario in _ALL}


def scenario(key: str) -> Scenario:
    """The scenario called `key`; raises UsageError."""
    if key not in SCENARIOS:
        raise UsageError(f"There is no scenario {key!r}; choose one of: {', '.join(SCENARIOS)}.")
    return SCENARIOS[key]
