"""Measure whether the largest batch that is said to fit a memory cap on the CPU runs, and a quarter more does
not.

Real training processes, 50 steps each. Each time the seed is another one, which is printed; the variable
STEPSCOPE_BENCH_SEED sets it. STEPSCOPE_BENCH_KEEP names a file in which an interrupted measurement is kept,
and continued from.
"""

import os
import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from harness.catalog import MODELS
from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.predict.advising import find_largest_batch
from harness.predict.answer import Prediction, Target, available_bytes
from harness.predict.asking import Predictor
from harness.predict.process import COMMAND, AnsweringProcess
from harness.settings import Settings
from harness.settings.resolve import resolve
from tests.bench.capped_runs import run_capped
from tests.bench.figures import Figure
from tests.bench.stored_results import StoredResults

STEPS = 50
LEAST_RUNNING_PCT = 95.0
TOO_MUCH = 1.25
_TRIES, _QUICK_TRIES = 45, 4
_PATIENCE_S = 600.0
_AT_A_TIME = 2
_MODELS = ("mlp", "cnn", "resnet", "lstm", "rnn", "transformer", "seq2seq", "hf-gpt2", "hf-vit")
"""Models whose batches of 100 to 200 MiB take well under a second per step."""


class Try(NamedTuple):
    """Settings with a cap and torch's threads; `batch` is the largest batch said to fit."""

    values: dict[str, Any]
    threads: int
    batch: int


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The share of the largest batches that ran, and of those a quarter larger that did not."""
    seed = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    print(f"seed {seed}", flush=True)
    draws = draw_caps(_QUICK_TRIES if is_quick else _TRIES, seed)
    return judged_figures(draws, f"largest batch under a cap, seed {seed}")


def judged_figures(draws: Sequence[tuple[dict[str, Any], int]], name: str) -> list[Figure]:
    """The figures, called `name`, over settings with caps and numbers of threads."""
    retained = StoredResults.named_in_environment()
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        judged = list(pool.map(lambda drawn: _judged(drawn[0], drawn[1], retained), draws))
    tried = [flags for flags in judged if flags is not None]
    running, stopping = ([flags[at] for flags in tried] for at in (0, 1))
    name = f"{name}, {len(running)} tries"
    return [
        Figure(f"{name}: it runs {STEPS} steps", [_percent(running)], "%", LEAST_RUNNING_PCT, is_least=True),
        Figure(
            f"{name}: {TOO_MUCH:g} × runs out", [_percent(stopping)], "%", LEAST_RUNNING_PCT, is_least=True
        ),
    ]


def _judged(values: dict[str, Any], threads: int, retained: StoredResults) -> tuple[bool, bool] | None:
    """Return whether the largest batch runs, and whether a quarter more stops; None where the cap is no
    limit."""
    name = f"{values} {threads}"
    if name not in retained:
        one = find_try(values, threads)
        flags = None if one is None else judge(one)
        if flags is not None:
            runs, stops = flags
            words = f"{'runs' if runs else 'RUNS OUT'}, {TOO_MUCH:g} × {'stops' if stops else 'RUNS'}"
            print(f"{one}: {words}", flush=True)
        retained.put(name, flags)
    result = retained[name]
    return None if result is None else (result[0], result[1])


def draw_caps(count: int, seed: int) -> list[tuple[dict[str, Any], int]]:
    """Settings with caps at random, and numbers of threads; models and threads take turns."""
    source = random.Random(seed)
    drawn = []
    for number in range(count):
        model = _MODELS[number % len(_MODELS)]
        values: dict[str, Any] = {
            "model": model,
            "memory_cap_gib": round(source.uniform(0.14, 0.2), 3),
            "amp": source.choice(("off", "off", "bf16")),
            "optimizer": source.choice(("sgd", "adamw")),
            "num_workers": 0,
            "seed": source.randrange(1000),
        }
        if MODELS[model].can_checkpoint:
            values["activation_checkpointing"] = source.random() < 0.2
        drawn.append((values, 1 + number // len(_MODELS) % 2))
    return drawn


def find_try(values: dict[str, Any], threads: int) -> Try | None:
    """Find the largest batch said to fit; None where the cap is no limit to it."""
    settings, target = resolve(values), Target.of(cpu_facts(open_heap()))
    variables = {"OMP_NUM_THREADS": str(threads)}
    with Predictor(None, AnsweringProcess(COMMAND, variables), timeout_s=_PATIENCE_S) as predictor:

        def predicted(changed: Settings) -> Prediction:
            answer = predictor.wait(changed, target, _PATIENCE_S)
            assert isinstance(answer, Prediction), answer
            return answer

        prediction = predicted(settings)
        room = available_bytes(prediction, settings, target)
        assert room is not None
        tries = find_largest_batch(settings, target, prediction, room)
        question = next(tries)
        while True:
            try:
                question = tries.send(predicted(question.settings.model_copy(update=_cap(values))))
            except StopIteration as end:
                batch: int = end.value
                break
    return Try(values, threads, batch) if 0 < batch <= 65536 / TOO_MUCH else None


def _cap(values: dict[str, Any]) -> dict[str, Any]:
    return {"memory_cap_gib": values["memory_cap_gib"]}


def judge(one: Try) -> tuple[bool, bool]:
    """Return whether the largest batch takes all steps, and whether a quarter more runs out of memory."""
    common = {**one.values, "device": "cpu", "oom_policy": "stop", "max_steps": STEPS}
    sizes = (one.batch, -(-one.batch * 5 // 4))
    cases = [{**common, "batch_size": size} for size in sizes]
    environ = {"OMP_NUM_THREADS": str(one.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    runs, runs_with_more = run_capped(cases, environ)
    return runs, not runs_with_more


def _percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / max(1, len(flags))
