"""Error of predictions of memory on the CPU over configurations drawn at random, and the time of each.

The whole measurement also writes the figures in docs/prediction.md. Each time the seed is another, which is
printed; the variable STEPSCOPE_BENCH_SEED sets it. STEPSCOPE_BENCH_KEEP names a file in which an
interrupted measurement is kept, and continued from.
"""

import os
import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from harness import words
from harness.device.cpu.facts import cpu_facts
from harness.predict.answer import Prediction, Target
from harness.predict.asking import Predictor
from harness.predict.process import COMMAND, AnsweringProcess
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve
from tests.bench.draws import Draw, compile_library, draw
from tests.bench.figures import Figure, machine
from tests.bench.real_peaks import real_peaks
from tests.bench.stored_results import StoredResults

MOST_ERROR_PCT = 5.0
MOST_COLD_S, MOST_CACHED_S = 5.0, 1.0
DOCUMENT = Path(__file__).parents[2] / "docs" / "prediction.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"
_DRAWS, _QUICK_DRAWS = 150, 10
_WORST = 10
_AT_A_TIME = 2
_PATIENCE_S = 600.0

_GPT2_SMALL = (
    ("transformer, GPT-2 small", {"model": "transformer", "preset": "h200"}),
    ("hf-gpt2, workstation", {"model": "hf-gpt2", "preset": "workstation"}),
)
_GROUPS: Sequence[tuple[str, Callable[[Draw], str]]] = (
    ("processor", lambda one: one.processor.name),
    ("threads", lambda one: str(one.threads)),
    ("precision", lambda one: "bf16" if one.values["amp"] == "bf16" else "float32"),
    ("model", lambda one: one.model),
)


class Case(NamedTuple):
    """A prediction beside the real peak."""

    draw: Draw
    predicted_bytes: int
    real_bytes: int

    @property
    def error_pct(self) -> float:
        """The error of the prediction; negative: too low."""
        return 100 * (self.predicted_bytes / self.real_bytes - 1)


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """Errors over the draws, then times."""
    seed = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    print(f"seed {seed}", flush=True)
    draws = draw(_QUICK_DRAWS if is_quick else _DRAWS, seed)
    cases, impossible = compare(draws, folder, StoredResults.named_in_environment())
    if not is_quick:
        _write(cases, impossible, seed)
    errors_pct = [abs(case.error_pct) for case in cases]
    return [
        Figure(
            f"prediction: mean absolute error on the CPU, {len(cases)} draws, seed {seed}",
            [statistics.fmean(errors_pct)],
            "%",
            MOST_ERROR_PCT,
        ),
        Figure("prediction: largest absolute error", [max(errors_pct)], "%"),
        Figure("prediction: cases further off than 5 %", [sum(e > 5 for e in errors_pct)], "cases"),
        *_times(folder, 1 if is_quick else 3),
    ]


def compare(draws: Sequence[Draw], folder: Path, retained: StoredResults) -> tuple[list[Case], int]:
    """Predict and measure each, two at a time; the cases, and how many draws oneDNN has no kernel for. What
    is among the `retained` results is taken from there."""
    places: dict[tuple[str, int], list[Draw]] = defaultdict(list)
    for one in draws:
        if one.words not in retained:
            places[one.processor.name, one.threads].append(one)
    for name in ("peak", "intel_mkl"):
        compile_library(name, folder)
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for _ in pool.map(lambda group: _compare(group, folder, retained), places.values()):
            pass
    cases = [Case(one, *retained[one.words]) for one in draws if retained[one.words] is not None]
    return cases, len(draws) - len(cases)


def _compare(group: Sequence[Draw], folder: Path, retained: StoredResults) -> None:
    """Predict and measure draws for one processor with one number of threads; each result is bytes predicted
    and bytes measured, or None without a kernel."""
    target = Target(DeviceKind.CPU, "the CPU")
    environ = group[0].processor.environ(group[0].threads, folder)
    with Predictor(None, AnsweringProcess(COMMAND, environ), timeout_s=_PATIENCE_S) as predictor:
        real = real_peaks([one.values for one in group], folder, environ)
        for one, real_bytes in zip(group, real, strict=True):
            if real_bytes is None:
                retained.put(one.words, None)
                continue
            answer = predictor.wait(resolve(one.values), target, _PATIENCE_S)
            assert isinstance(answer, Prediction), (one, answer)
            retained.put(one.words, [answer.peak_allocated_bytes, real_bytes])


def _times(folder: Path, repeats: int) -> Iterator[Figure]:
    """From asking to having the answer: with a child process to start, and from the files of the cache."""
    target = Target.of(cpu_facts(None))
    for name, values in _GPT2_SMALL:
        settings = resolve(values)
        cold_s: list[float] = []
        cached_s: list[float] = []
        for repeat in range(repeats):
            home = folder / f"{name}-{repeat}"
            for result in (cold_s, cached_s):
                begin_s = time.perf_counter()
                with Predictor(home) as predictor:
                    predictor.wait(settings, target)
                    result.append(time.perf_counter() - begin_s)
        yield Figure(f"prediction: {name}, from cold", cold_s, "s", MOST_COLD_S)
        yield Figure(f"prediction: {name}, from the cache", cached_s, "s", MOST_CACHED_S)


def _write(cases: Sequence[Case], impossible: int, seed: int) -> None:
    """Put the figures into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    lines = "".join(report(cases, impossible, seed))
    DOCUMENT.write_text(before + _BEGIN + lines + _END + after, encoding="utf-8")


def report(cases: Sequence[Case], impossible: int, seed: int) -> Iterator[str]:
    """The figures as Markdown: all, by group, and the worst ten."""
    yield f"Measured on: {machine()}; `STEPSCOPE_BENCH_SEED={seed} python -m tests.bench predict`.\n\n"
    yield f"{len(cases)} configurations: {_summary(cases)}."
    if impossible:
        yield f" {impossible} more were drawn for which oneDNN has no kernel under the limits drawn."
    yield "\n\n| | | configurations | mean absolute error | largest |\n|---|---|---:|---:|---:|\n"
    for title, key in _GROUPS:
        groups: dict[str, list[float]] = defaultdict(list)
        for case in cases:
            groups[key(case.draw)].append(abs(case.error_pct))
        for name in sorted(groups):
            errors = groups[name]
            yield f"| {title} | {name} | {len(errors)} | {statistics.fmean(errors):.1f} % | "
            yield f"{max(errors):.1f} % |\n"
    yield f"\nThe worst {_WORST}:\n\n| error | real peak | configuration |\n|---:|---:|---|\n"
    for case in sorted(cases, key=lambda one: -abs(one.error_pct))[:_WORST]:
        yield f"| {case.error_pct:+.1f} % | {words.size(case.real_bytes)} | {case.draw.words} |\n"


def _summary(cases: Sequence[Case]) -> str:
    errors = sorted(case.error_pct for case in cases)
    sizes = [abs(error) for error in errors]
    low, high = errors[round(0.05 * (len(errors) - 1))], errors[round(0.95 * (len(errors) - 1))]
    far = sum(size > MOST_ERROR_PCT for size in sizes)
    return (
        f"mean absolute error {statistics.fmean(sizes):.1f} %, nine in ten between {low:+.1f} % and "
        f"{high:+.1f} %, largest {max(sizes):.1f} %, {far} further off than {MOST_ERROR_PCT:g} %"
    )
