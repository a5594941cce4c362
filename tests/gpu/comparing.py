"""The worth of settings in one warm process: throughput and peak memory against the default, in turns.

Each round takes a block of every variant, in an order drawn anew; a variant is held against the default's
block of the same round, so that clocks and heat, which drift, fall on both. A block begins with steps that
are left out: what a change of settings sets off (an allocator that grows, a choice of algorithms) is over by
then.
"""

import gc
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch

from harness.data.source import Batch as SourceBatch
from harness.data.source import DataSource, Indices
from harness.data.synthetic import SyntheticSource, open_source
from harness.device.protocol import Device
from harness.errors import SettingError
from harness.models.building import build_model
from harness.settings import Settings
from harness.settings.resolve import check_fit, resolve
from harness.settings.spec import change, check_device
from harness.train.workload import Workload
from harness.watch.oom.errors import is_out_of_memory, release_frames
from tests.gpu.measures.prediction import take_plain_step

DEFAULT = "default"


class Plan(NamedTuple):
    """Duration of the measurement of one preset: `seconds` for rounds beyond the least number of them, up to
    `most_s` where those alone take longer."""

    seconds: float = 5.0
    most_s: float = 30.0
    block_s: float = 0.25
    settle: int = 1
    least_rounds: int = 3
    most_rounds: int = 9


QUICK = Plan(block_s=0.01, least_rounds=2, most_rounds=2)


class Block(NamedTuple):
    """One block of steps: the time per step, and the highest allocation within it."""

    step_s: float
    peak_bytes: int


class HostSource:
    """Noise in the host's memory: one batch, made once, for every request. Takes the loading out of what is
    measured and leaves the copy in."""

    def __init__(self, source: SyntheticSource) -> None:
        self.shape = source.shape
        self.note: str | None = None
        self._source = source
        self._batch: SourceBatch | None = None

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, indices: Indices) -> SourceBatch:
        """The batch, whichever samples are asked for."""
        if self._batch is None or len(self._batch.inputs) != len(indices):
            self._batch = self._source.fetch(indices)
        return self._batch


def compare(
    device: Device,
    values: Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any]],
    plan: Plan,
    seed: int,
    from_host: bool = False,
) -> dict[str, Any]:
    """Measure the variants (changes of settings, by name) of the configuration `values`.

    Where the default does not fit the device, or is too slow for the least number of rounds in time, the
    batch is halved until it does; `batch_size` in the result says what was measured. Raises what training
    raises, and SettingError for values that do not go together.
    """
    settings = resolve({"data": "synthetic", "device": device.facts.torch_name, **values})
    check_fit(settings)
    while True:
        result = _attempt(device, settings, variants, plan, seed, from_host)
        if isinstance(result, dict):
            return result
        if settings.batch_size == 1:
            return {"problem": result}
        settings = change(settings, {"batch_size": settings.batch_size // 2})


def _attempt(
    device: Device,
    settings: Settings,
    variants: Mapping[str, Mapping[str, Any]],
    plan: Plan,
    seed: int,
    from_host: bool,
) -> dict[str, Any] | str:
    """The result, or why a smaller batch is needed."""
    # A workload's functions refer to it, so that it goes, with its memory, in a collection alone.
    gc.collect()
    device.empty_cache()
    torch.manual_seed(settings.seed)
    source = open_source(settings)
    try:
        with device.torch_device:
            network = build_model(settings, source.shape)
        chosen: DataSource = HostSource(source) if from_host else source
        with closing(Workload(settings, device, network, chosen)) as workload:
            step_s = _first_steps_s(workload, device)
            # Most variants are faster than the default, so that half of its time is about their mean.
            rounds_s = plan.least_rounds * (plan.settle + 1) * step_s * (1 + len(variants) / 2)
            if rounds_s > plan.most_s and settings.batch_size > 1:
                return f"a step takes {step_s:.1f} s"
            return _measure(workload, device, variants, plan, seed) | {"batch_size": settings.batch_size}
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        release_frames(error)
        return "it does not fit the device"


def _first_steps_s(workload: Workload, device: Device) -> float:
    """The time of a step behind the first, which loads kernels and makes the optimizer's state."""
    take_plain_step(workload)
    device.synchronize()
    began_s = time.perf_counter()
    take_plain_step(workload)
    device.synchronize()
    return time.perf_counter() - began_s


def _measure(
    workload: Workload, device: Device, variants: Mapping[str, Mapping[str, Any]], plan: Plan, seed: int
) -> dict[str, Any]:
    base, began_s = workload.settings, time.perf_counter()
    settings: dict[str, Settings] = {DEFAULT: base}
    refused: dict[str, str] = {}
    steps: dict[str, int] = {}
    warm_up_s: dict[str, float] = {}
    for name, changes in {DEFAULT: {}, **variants}.items():
        tried_s = time.perf_counter()
        chosen = _changed(base, changes, device)
        refusal = chosen if isinstance(chosen, str) else _try_out(workload, chosen, device)
        if isinstance(refusal, str):
            refused[name] = refusal
            continue
        assert isinstance(chosen, Settings)
        settings[name], steps[name] = chosen, max(1, round(plan.block_s / max(refusal, 1e-6)))
        warm_up_s[name] = time.perf_counter() - tried_s
    chance, rounds = random.Random(seed), list[dict[str, Block]]()
    while len(rounds) < plan.most_rounds:
        if len(rounds) >= plan.least_rounds and time.perf_counter() - began_s > plan.seconds:
            break
        order = list(settings)
        chance.shuffle(order)
        rounds.append(
            {name: _block(workload, device, settings[name], plan.settle, steps[name]) for name in order}
        )
    return summary([DEFAULT, *variants], rounds, refused) | {"warm_up_s": warm_up_s}


def _changed(base: Settings, changes: Mapping[str, Any], device: Device) -> Settings | str:
    """The settings of a variant, or why this device or model cannot have them."""
    try:
        result = change(base, changes)
        check_fit(result)
        check_device(result, device.facts)
    except SettingError as error:
        return str(error)
    return result


def _try_out(workload: Workload, settings: Settings, device: Device) -> float | str:
    """The time of a warm step with `settings`, or why it cannot be taken."""
    try:
        workload.reconfigure(settings)
        return min(_first_steps_s(workload, device) for _ in range(2))
    except (RuntimeError, SettingError) as error:
        if not isinstance(error, SettingError):
            workload.abandon_step()
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _block(workload: Workload, device: Device, settings: Settings, settle: int, steps: int) -> Block:
    workload.reconfigure(settings)
    for _ in range(settle):
        take_plain_step(workload)
    device.synchronize()
    device.read_memory()
    began_s = time.perf_counter()
    for _ in range(steps):
        take_plain_step(workload)
    device.synchronize()
    step_s = (time.perf_counter() - began_s) / steps
    return Block(step_s, device.read_memory().peak_allocated_bytes or 0)


def summary(
    names: Sequence[str], rounds: Sequence[Mapping[str, Block]], refused: Mapping[str, str]
) -> dict[str, Any]:
    """Medians over the rounds. By variant: `speed`, how many times the default's throughput, with the lowest
    and the highest of the rounds; `memory`, its peak over the default's."""
    variants: dict[str, Any] = {}
    for name in names:
        if name in refused:
            variants[name] = {"refused": refused[name]}
            continue
        speeds = [row[DEFAULT].step_s / row[name].step_s for row in rounds]
        variants[name] = {
            "step_ms": _median(row[name].step_s for row in rounds) * 1e3,
            "peak_bytes": _median(row[name].peak_bytes for row in rounds),
            "speed": statistics.median(speeds),
            "speed_low": min(speeds),
            "speed_high": max(speeds),
            "memory": statistics.median(_ratio(row[name], row[DEFAULT]) for row in rounds),
        }
    return {"rounds": len(rounds), "variants": variants}


def _ratio(block: Block, default: Block) -> float:
    return block.peak_bytes / default.peak_bytes if default.peak_bytes else float("nan")


def _median(values: Any) -> float:
    return float(statistics.median(values))
