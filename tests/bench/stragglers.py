"""Measure how often the rank that others wait for is named: real process groups over Gloo, with DDP.

Each trial has a model, a batch and a straggler of its own (or none), drawn at random: one rank does more in
one phase, by a share of its steps' time; in the backward pass it does so in the middle of its layers. Half of
the models have batch normalization, whose buffers are broadcast at the begin of each forward pass. The steps
are timed as by the watch of a script.
"""

import multiprocessing
import os
import random
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from harness.analysis.ranks.stragglers import WINDOW, compare_ranks
from harness.analysis.timing.phases import StepPart
from harness.records.run import StepRow
from harness.watch.rank_waits import RankWaits
from harness.watch.timing import StepTimer
from tests.bench.figures import Figure
from tests.store_factories import a_step

_TRIALS, _QUICK_TRIALS = 40, 6
_SHARE = 0.2
_WARM_UP = 20
_SIZES = (2, 4)
_TIMEOUT_S = 1_800.0
_PARTS = (StepPart.DATA_WAIT, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER)
MOST_MISSED_PCT, MOST_CALLED_PCT = 5.0, 0.0


class Trial(NamedTuple):
    """One training of all ranks. `rank` None: no straggler."""

    width: int
    depth: int
    has_norm: bool
    batch: int
    rank: int | None
    part: StepPart
    share: float


class _Late(nn.Module):
    """A layer that computes nothing, and takes time in its backward pass.

    Attributes:
        extra_ns: how long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.extra_ns = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `inputs`."""
        outputs = inputs.view_as(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda _gradient: _work(self.extra_ns))
        return outputs


def figures(
    folder: Path, is_quick: bool, seed: int | None = None, ranks: int | None = None
) -> Iterator[Figure]:
    """The rates at which stragglers are named, with the right phase, and at which one is named without any.
    The runs have `ranks` ranks; by default each number in `_SIZES`."""
    del folder
    chance = random.Random(seed if seed is not None else time.time_ns())
    count = _QUICK_TRIALS if is_quick else _TRIALS
    for size in _SIZES if ranks is None else (ranks,):
        trials = [_draw(chance, size, is_healthy=number % 2 == 1) for number in range(2 * count)]
        outcomes = list(zip(trials, _measure(trials, size), strict=True))
        named = [_is_named(trial, rows) for trial, rows in outcomes if trial.rank is not None]
        called = [_verdict(rows) is not None for trial, rows in outcomes if trial.rank is None]
        yield _share(f"{size} ranks: stragglers of {_SHARE:.0%} not named with their phase", named, False)
        yield _share(f"{size} ranks: healthy runs in which a rank is named", called, True)


def _draw(chance: random.Random, size: int, *, is_healthy: bool) -> Trial:
    return Trial(
        chance.choice((256, 512, 1024)),
        chance.randint(1, 4),
        chance.random() < 0.5,
        chance.choice((64, 128, 256)),
        None if is_healthy else chance.randrange(size),
        chance.choice(_PARTS),
        _SHARE,
    )


def _share(name: str, values: Sequence[bool], counts: bool) -> Figure:
    wrong = sum(value is counts for value in values)
    limit = MOST_CALLED_PCT if counts else MOST_MISSED_PCT
    return Figure(f"{name} ({wrong} of {len(values)})", [100 * wrong / len(values)], "%", limit)


def _verdict(rows: dict[int, list[StepRow]]) -> tuple[int, StepPart] | None:
    comparison = compare_ranks(rows)
    late = None if comparison is None else comparison.straggler
    return None if late is None else (late.rank, late.part)


def _is_named(trial: Trial, rows: dict[int, list[StepRow]]) -> bool:
    return _verdict(rows) == (trial.rank, trial.part)


def _measure(trials: Sequence[Trial], size: int) -> list[dict[int, list[StepRow]]]:
    """Run the trials one after the other in one group of processes; return the steps of each, by rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = [
        context.Process(target=_train, args=(rank, size, port, trials, results)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    outcomes: list[dict[int, list[StepRow]]] = [{} for _ in trials]
    deadline_s = time.monotonic() + _TIMEOUT_S
    for _ in range(size * len(trials)):
        while True:
            try:
                number, rank, rows = results.get(timeout=5.0)
                break
            except Empty:
                if time.monotonic() > deadline_s or not all(process.is_alive() for process in processes):
                    raise RuntimeError("a rank of the bench has ended or hangs") from None
        outcomes[number][rank] = [a_step(row[0])._replace(**row[1]) for row in rows]
    for process in processes:
        process.join()
    return outcomes


def _train(rank: int, size: int, port: int, trials: Sequence[Trial], results: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    for number, trial in enumerate(trials):
        results.put((number, rank, _take_steps(trial, rank)))
    results.close()
    results.join_thread()
    distributed.barrier()
    os._exit(0)  # See docs/decisions.md on the end of ranks.


def _take_steps(trial: Trial, rank: int) -> list[tuple[int, dict[str, int | None]]]:
    torch.manual_seed(rank)
    layers: list[nn.Module] = [
        layer for _ in range(trial.depth) for layer in (nn.Linear(trial.width, trial.width), nn.ReLU())
    ]
    middle = _Late()
    layers.insert(trial.depth, middle)
    if trial.has_norm:
        layers.insert(1, nn.BatchNorm1d(trial.width))
    model = DistributedDataParallel(nn.Sequential(*layers))
    waits = RankWaits(StepTimer(time.perf_counter_ns))
    waits.follow(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows: list[tuple[int, dict[str, int | None]]] = []
    # Of the newest steps, without what is added to them.
    steps_ns: deque[int] = deque(maxlen=_WARM_UP)
    clock_ns = time.perf_counter_ns
    end_ns = clock_ns()
    for step in range(1, _WARM_UP + WINDOW + 1):
        began_ns = clock_ns()
        is_late = step > _WARM_UP and rank == trial.rank
        extra_ns, part = (int(trial.share * median(steps_ns)), trial.part) if is_late else (0, None)
        inputs = torch.randn(trial.batch, trial.width)
        _work(extra_ns if part is StepPart.DATA_WAIT else 0)
        arrived_ns = clock_ns()
        loss = model(inputs).square().mean()
        _work(extra_ns if part is StepPart.FORWARD else 0)
        middle.extra_ns = extra_ns if part is StepPart.BACKWARD else 0
        forward_ns = clock_ns()
        loss.backward()
        backward_ns = clock_ns()
        optimizer.step()
        optimizer.zero_grad()
        _work(extra_ns if part is StepPart.OPTIMIZER else 0)
        end_ns = clock_ns()
        steps_ns.append(end_ns - began_ns - extra_ns)
        wait_ns = waits.take()
        columns = _columns(began_ns, arrived_ns, forward_ns, backward_ns, end_ns)
        columns |= {"all_reduce_wait_ns": wait_ns.all_reduce_ns, "broadcast_wait_ns": wait_ns.broadcast_ns}
        rows.append((step, columns))
    waits.close()
    return rows[_WARM_UP:]


def _columns(
    began_ns: int, arrived_ns: int, forward_ns: int, backward_ns: int, end_ns: int
) -> dict[str, Any]:
    return {
        "t_ns": end_ns,
        "step_ns": end_ns - began_ns,
        "data_wait_ns": arrived_ns - began_ns,
        "h2d_ns": 0,
        "forward_ns": forward_ns - arrived_ns,
        "backward_ns": backward_ns - forward_ns,
        "optimizer_ns": end_ns - backward_ns,
        "device_step_ns": None,
        "flags": 0,
    }


def _work(duration_ns: int) -> None:
    """Compute for so long."""
    end_ns = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end_ns:
        pass
