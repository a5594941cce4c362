"""Measure runs of several processes: how they end when one is killed, and where commands take effect.

Real runs of two and four ranks over Gloo on the CPU. Kills fall at random moments, from the start of the
processes on; commands are drawn at random and sent at random moments, several of them at once.
"""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import LogError
from harness.records.run import CommandKind
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.bench.figures import Figure
from tests.supervision import last_step, until

_KILLS, _QUICK_KILLS = 50, 4
_TRIES, _QUICK_TRIES = 200, 10
_TRIES_PER_RUN = 50
_SIZES = (2, 4)
_MODELS = ("mlp", "cnn", "lstm")
_LATEST_KILL_S = 10.0
_LONGEST_WAIT_S = 60.0
MOST_UNNAMED_S = 5.0
# torchrun gives processes 30 s to end after its SIGTERM, before it kills them.
MOST_HANGING_S = 30.0


class _Kill(NamedTuple):
    """The result of one kill. Times are from the kill, in seconds."""

    gone_s: float
    # None: the state of the run names another cause, which is printed.
    named_s: float | None
    is_whole: bool


def figures(folder: Path, is_quick: bool, seed: int | None = None) -> Iterator[Figure]:
    """The ends of runs of which a rank was killed, and the steps at which ranks applied commands."""
    chance = random.Random(seed if seed is not None else time.time_ns())
    supervisor = Supervisor(Home(folder))
    kills = [_kill(supervisor, chance) for _ in range(_QUICK_KILLS if is_quick else _KILLS)]
    name = f"{len(kills)} kills of a rank"
    yield Figure(
        f"{name}: until no rank is left, the longest",
        [max(kill.gone_s for kill in kills)],
        "s",
        MOST_HANGING_S,
    )
    yield Figure(f"{name}: until no rank is left", [kill.gone_s for kill in kills], "s")
    named_s = [kill.named_s for kill in kills if kill.named_s is not None]
    yield Figure(f"{name}: the rank is not named", [len(kills) - len(named_s)], "", 0)
    later_s = [kill.named_s - kill.gone_s for kill in kills if kill.named_s is not None]
    yield Figure(f"{name}: until the rank is named", named_s, "s")
    yield Figure(
        f"{name}: named after the last rank is gone, the longest", [max(later_s)], "s", MOST_UNNAMED_S
    )
    damaged = sum(not kill.is_whole for kill in kills)
    yield Figure(f"{name}: runs with a damaged log or a missing step", [damaged], "", 0)
    tries = _QUICK_TRIES if is_quick else _TRIES
    apart, refused = _command(supervisor, chance, tries)
    yield Figure(f"{tries} commands: not applied before the same step on all ranks", [apart], "", 0)
    yield Figure(f"{tries} commands: refused on all ranks", [refused], "")


def _start(supervisor: Supervisor, chance: random.Random) -> tuple[RunFolder, list[RunFolder]]:
    size = chance.choice(_SIZES)
    values = {"model": chance.choice(_MODELS), "device": "cpu", "slow_loader_ms": chance.choice((0.0, 5.0))}
    folder = supervisor.start(None, resolve(values), ranks=size)
    ranks = [RunFolder(folder.path, rank) for rank in range(size)]
    until(lambda: all(rank.process.exists() for rank in ranks), bool)
    return folder, ranks


def _kill(supervisor: Supervisor, chance: random.Random) -> _Kill:
    """Start a run, kill one of its ranks at a random moment, and wait for the others' end."""
    folder, ranks = _start(supervisor, chance)
    victim = chance.choice(ranks)
    time.sleep(chance.uniform(0, _LATEST_KILL_S))
    os.kill(json.loads(victim.process.read_text())["pid"], signal.SIGKILL)
    began_s = time.monotonic()
    named, named_s, gone_s = f"Rank {victim.rank}: Killed by SIGKILL", None, None
    while (now_s := time.monotonic() - began_s) < _LONGEST_WAIT_S and (named_s is None or gone_s is None):
        if named_s is None and named in supervisor.status(folder).message:
            named_s = now_s
        if gone_s is None and not any(is_alive(rank.alive) for rank in ranks):
            gone_s = now_s
        time.sleep(0.02)
    if named_s is None:
        print(f"not named: {victim}, {supervisor.status(folder)}", flush=True)
    is_whole = all(_is_whole(rank.log) for rank in ranks if rank.log.exists())
    return _Kill(_LONGEST_WAIT_S if gone_s is None else gone_s, named_s, is_whole)


def _is_whole(path: Path) -> bool:
    """Return whether the log can be read and has every step up to its last."""
    try:
        with LogReader(path) as log:
            log.run()
            extent = log.extent()
    except LogError:
        return False
    return extent.last is None or (extent.first, extent.steps) == (1, extent.last)


def _command(supervisor: Supervisor, chance: random.Random, tries: int) -> tuple[int, int]:
    """Send random commands; return how many ranks applied at different steps, and how many were refused."""
    apart = refused = 0
    while tries > 0:
        folder, ranks = _start(supervisor, chance)
        until(partial(_have_steps, ranks), bool)
        count = min(tries, _TRIES_PER_RUN)
        sent = []
        for _ in range(count):
            sent.append(supervisor.send(folder, *_draw(chance)))
            time.sleep(chance.choice((0.0, chance.uniform(0, 2.0))))
        answers = until(partial(_answers, ranks, sent), lambda found: found is not None)
        for by_rank in answers or []:
            apart += len(set(by_rank)) > 1
            refused += all(state != "applied" for state, _ in by_rank)
        supervisor.stop(folder)
        tries -= count
    return apart, refused


def _draw(chance: random.Random) -> tuple[CommandKind, dict[str, Any]]:
    return CommandKind.SET, chance.choice(
        (
            {"learning_rate": chance.uniform(1e-4, 1e-2)},
            {"batch_size": chance.choice((8, 16, 32, 64))},
            {"amp": chance.choice(("off", "bf16"))},
            {"grad_accumulation": chance.choice((1, 2, 3))},
            {"num_workers": chance.choice((0, 1))},
        )
    )


def _have_steps(ranks: list[RunFolder]) -> bool:
    return all(last_step(rank) > 0 for rank in ranks)


def _answers(ranks: list[RunFolder], sent: list[str]) -> list[list[tuple[str, int]]] | None:
    """The last answer of each rank to each command: its state and step; None until all have answered."""
    by_rank = []
    for rank in ranks:
        with LogReader(rank.log) as log:
            by_rank.append({row.command_id: (str(row.state), row.step) for row in log.acks()})
    if any(command_id not in answers for answers in by_rank for command_id in sent):
        return None
    return [[answers[command_id] for answers in by_rank] for command_id in sent]
