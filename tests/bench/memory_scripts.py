"""Training scripts at random, each with one behavior of its memory, and the truth about it."""

from random import Random
from textwrap import indent
from typing import NamedTuple

from tests.bench.memory_behaviors import HEALTHY, LEAKING
from tests.bench.memory_parts import TASKS, Behavior, Plan, Task

_KIB, _MIB = 2**10, 2**20
# Of what a leaking script retains until its end.
_MOST_BYTES = 700 * _MIB
_SHORT_S, _LONG_S, _CAPPED_S = 14, 32, 60
_SECONDS_OF_ENDLESS_LENGTHS = 24
# A verdict requires so many readings, of which a step has at most one, and a busy machine takes few steps.
_LEAST_UPDATES, _LEAST_UPDATES_WHERE_STEPS_DIFFER, _MOST_S = 200, 460, 150
# More than the cap allows.
_ENDLESS = 10**6
# A cap may not be reached by these.
_UNKNOWN_RATES = (
    "losses_with_graphs",
    "sum_of_losses",
    "retained_graphs",
    "gradient_penalties",
    "gradients_stored",
)


class MemoryScript(NamedTuple):
    """A script, its truth, and how it is run: `limit` is an option of ulimit and KiB."""

    seed: int
    words: str
    text: str
    behavior: Behavior
    limit: tuple[str, int] | None
    is_two_lines: bool
    seconds: int

    @property
    def leaks(self) -> bool:
        """Return whether memory is retained for good."""
        return self.behavior.leaks is not None

    def lines(self) -> set[int]:
        """Return the lines that retain memory."""
        return {number for number, line in enumerate(self.text.splitlines(), 1) if line.endswith("# retains")}


def draw_script(seed: int) -> MemoryScript:
    """Return the script of a seed."""
    draw = Random(seed)
    is_leaking = draw.random() < 0.6
    group = LEAKING if is_leaking else HEALTHY
    kind = draw.choice(sorted(group))
    with_lengths = [task for task in TASKS if task.has_lengths]
    task = draw.choice(with_lengths if kind in ("growing_lengths", "checkpointing") else TASKS)
    lengths = (
        draw.choice(("constant", "constant", "varying", "curriculum", "buckets")) if task.has_lengths else ""
    )
    is_capped = is_leaking and kind not in _UNKNOWN_RATES and draw.random() < 0.4
    varies = lengths not in ("", "constant")
    seconds = _CAPPED_S if is_capped else _LONG_S if varies else _SHORT_S
    if kind == "growing_lengths":
        seconds = _SECONDS_OF_ENDLESS_LENGTHS
    micro_batches = draw.choice((1, 1, 1, 2, 4))
    batch_size = draw.choice((8, 16, 32))
    step_bytes = int(2 ** draw.uniform(14, 22)) // 64 * 64
    pace_s = draw.choice((0.004, 0.008, 0.015, 0.03))
    lasts_s = 20 if is_capped else seconds
    pace_s = max(pace_s, step_bytes * lasts_s / _MOST_BYTES)
    steps = int(lasts_s / pace_s)
    plan = Plan(draw, step_bytes // 4, steps, micro_batches, batch_size)
    behavior = group[kind](plan)
    workers = 1 if kind == "in_a_worker" else draw.choice((0, 0, 0, 1))
    limit = None
    if is_capped:
        limit = draw.choice(("-d", "-d", "-v")), 0
        room_kib = max(120 * _KIB, step_bytes * steps // _KIB)
        limit = (limit[0], (380 * _KIB if limit[0] == "-d" else 2300 * _KIB) + min(room_kib, 700 * _KIB))
    is_two_lines = draw.random() < 0.2
    # Without workers an evaluation would leak in the process of the training.
    evaluates = draw.random() < 0.4 and kind != "in_a_worker"
    text = _text(
        task,
        behavior,
        plan,
        lengths,
        workers,
        evaluates,
        is_two_lines,
        pace_s,
        seconds,
        _least_updates(is_capped, varies),
        draw.choice((200, 1000)),
    )
    words = ", ".join(
        [
            task.name,
            behavior.name,
            *([f"{lengths} lengths"] if lengths else []),
            f"{step_bytes / _KIB:.0f} KiB",
            f"{1000 * pace_s:.0f} ms",
            f"batches of {batch_size}",
            *([f"{micro_batches} micro-batches"] if micro_batches > 1 else []),
            *(["a worker"] if workers else []),
            *(["evaluations"] if evaluates else []),
            *(["two lines"] if is_two_lines else []),
            *([f"ulimit {limit[0]} {limit[1] // _KIB} MiB"] if limit else []),
        ]
    )
    return MemoryScript(seed, words, text, behavior, limit, is_two_lines, seconds)


def _least_updates(is_capped: bool, varies: bool) -> int:
    if is_capped:
        return _ENDLESS
    return _LEAST_UPDATES_WHERE_STEPS_DIFFER if varies else _LEAST_UPDATES


def _length(behavior: Behavior, lengths: str) -> str:
    if behavior.lengths is not None:
        return behavior.lengths
    return {
        "varying": "random.randint(LENGTH // 4, LENGTH)",
        "buckets": "random.choice((LENGTH // 4, LENGTH // 2, LENGTH))",
        "curriculum": "min(LENGTH, LENGTH // 4 + 4 * epoch)",
    }.get(lengths, "LENGTH")


def _text(
    task: Task,
    behavior: Behavior,
    plan: Plan,
    lengths: str,
    workers: int,
    evaluates: bool,
    is_two_lines: bool,
    pace_s: float,
    seconds: int,
    least_updates: int,
    samples: int,
) -> str:
    samples = max(samples, plan.batch_size * plan.micro_batches * 4)
    encode = "checkpoint(self.body, x, use_reentrant=False)" if behavior.checkpoints else "self.body(x)"
    persistent = ", persistent_workers=True" if workers else ""
    gan = task.name == "gan"
    batch = behavior.batch
    if task.has_lengths:
        batch = f"length = {_length(behavior, lengths)}\nx = x[:, : max(2, length)]\n{batch}"
    divide = f"loss = loss / {plan.micro_batches}\n" if plan.micro_batches > 1 else ""
    step = "optimizer.step()\noptimizer.zero_grad()\n"
    if gan:
        step = (
            "optimizer.step()\noptimizer.zero_grad()\n"
            "fooled = F.softplus(-model(generator(torch.randn(len(x), 16)))).mean()\n"
            "fooled.backward()\nother.step()\nother.zero_grad()\noptimizer.zero_grad()\n"
        )
    if "weight.grad.clone()" in behavior.after_step:
        step, after_step = f"{behavior.after_step}\n{step}", ""
    else:
        after_step = behavior.after_step
    step += f"updates += 1\n{after_step}\nrecord(updates)\nwait(started)\nstarted = time.monotonic()\n"
    if plan.micro_batches > 1:
        step = f"if (number + 1) % {plan.micro_batches} == 0:\n{indent(step, '    ')}"
    inner = "\n".join((batch, task.forward, divide + behavior.after_loss, behavior.backward, step))
    evaluation = (
        "model.eval()\nwith torch.no_grad():\n    for x, y in others:\n        model(x)\nmodel.train()\n"
        if evaluates
        else ""
    )
    batches = "run.steps(loader)" if is_two_lines else "loader"
    return f"""import copy
import ctypes
import json
import os
import random
import sys
import time
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

{"import stepscope" if is_two_lines else ""}
torch.manual_seed({plan.steps})
random.seed({plan.steps})
torch.set_num_threads(1)
WIDTH, LENGTH = {task.width}, 32
{behavior.top}

class Samples(Dataset):
    def __init__(self, count):
        self.count = count
        self.past = []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        {behavior.in_sample or "pass"}
        return {task.sample}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.GRU(16, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        states, _ = {encode}
        return self.head(states[:, -1])


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = self.embed(x)
        return self.head({encode}.mean(1))


FILE = open(os.environ["MEMORY_RECORD"], "w", buffering=1)
PAGE = os.sysconf("SC_PAGE_SIZE")
class Malloc(ctypes.Structure):
    _names = "arena pieces fast maps mapped most cached used free top".split()
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Malloc


def record(updates):
    if updates % 10 == 0:
        with open("/proc/self/statm") as statm:
            resident_bytes = int(statm.read().split()[1]) * PAGE
        malloc = mallinfo2()
        FILE.write(f"{{updates}} {{resident_bytes}} {{malloc.used + malloc.mapped}}\\n")


def wait(started):
    time.sleep(max(0.0, {pace_s} - (time.monotonic() - started)))


def main():
    model = {task.model}
    generator = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 64))
    optimizer = torch.optim.{plan.draw.choice(("Adam", "SGD", "AdamW"))}(model.parameters(), lr=1e-3)
    other = torch.optim.Adam(generator.parameters(), lr=1e-3)
    loader = DataLoader(
        Samples({samples}),
        batch_size={plan.batch_size},
        shuffle=True,
        drop_last=True,
        num_workers={workers}{persistent},
    )
    others = DataLoader(Samples(64), batch_size={plan.batch_size})
{indent("run = stepscope.watch(model, optimizer)" if is_two_lines else "", "    ")}
{indent(behavior.setup, "    ")}
    updates = epoch = 0
    began = started = time.monotonic()

    def goes_on():
        lasted_s = time.monotonic() - began
        return lasted_s < {seconds} or (updates < {least_updates} and lasted_s < {_MOST_S})

    while goes_on():
        for number, (x, y) in enumerate({batches}):
{indent(inner, " " * 12)}
            if not goes_on():
                break
{indent(evaluation, " " * 8)}
{indent(behavior.after_epoch, " " * 8)}
        epoch += 1
{indent("run.close()" if is_two_lines else "", "    ")}


if __name__ == "__main__":
    main()
"""
