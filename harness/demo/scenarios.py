"""The named scenarios: settings, changes, faults and outcome.

The demo, the tests of the pages and the benchmarks use them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.demo.machine import GIB, Faults
from harness.errors import UsageError
from harness.records.run import RunState
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


class ScenarioChange(NamedTuple):
    """A user's action at a share of the run's length: new values of settings, or empty_cache() without
    any."""

    at: float
    values: Mapping[str, Any] = {}


class Scenario(NamedTuple):
    """One simulated run."""

    key: str
    summary: str
    steps: int
    end: RunState
    settings: Settings = Settings(**_BASE)
    changes: tuple[ScenarioChange, ...] = ()
    # Over the whole run.
    leaked_bytes: float = 0.0
    fragmented_bytes: float = 0.0

    def faults(self, steps: int) -> Faults:
        """Return the faults, distributed over this number of steps."""
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
            ScenarioChange(0.34, {"amp": "bf16"}),
            ScenarioChange(0.54, {"batch_size": 48}),
            ScenarioChange(0.74),
            ScenarioChange(0.86, {"pin_memory": True, "non_blocking": True}),
        ),
    ),
    Scenario(
        key="leak",
        summary="Tensors of every step are retained: allocated memory rises steadily.",
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
            ScenarioChange(0.4, {"batch_size": 48}),
            ScenarioChange(0.8, {"batch_size": 72}),
            ScenarioChange(1.0, {"batch_size": 96}),
        ),
    ),
    Scenario(
        key="slow-loader",
        summary="The GPU waits for a slow loader, until workers load in parallel.",
        steps=2_000,
        end=RunState.FINISHED,
        settings=Settings(**{**_BASE, "slow_loader_ms": 90.0}),
        changes=(ScenarioChange(0.6, {"num_workers": 4}),),
    ),
    Scenario(
        key="stalled",
        summary="No step has ended for a minute; the process is alive.",
        steps=800,
        end=RunState.STALLED,
    ),
    Scenario(
        key="lost",
        summary="The process disappeared without an exit, as after a reboot.",
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
        summary="A run of one step.",
        steps=1,
        end=RunState.FINISHED,
    ),
)

SCENARIOS: Mapping[str, Scenario] = {scenario.key: scenario for scenario in _ALL}


def scenario(key: str) -> Scenario:
    """Return the scenario `key`; raises UsageError."""
    if key not in SCENARIOS:
        raise UsageError(f"There is no scenario {key!r}; choose one of: {', '.join(SCENARIOS)}.")
    return SCENARIOS[key]
