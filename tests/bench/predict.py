"""How near predictions of memory come to the real peak on the CPU, and how soon they are there.

The whole measurement also writes the table in docs/prediction.md.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import words
from harness.catalog import MODELS
from harness.device.cpu_facts import cpu_facts
from harness.predict.asking import Predictor
from harness.prediction import Prediction, Target
from harness.records import DeviceKind
from harness.selection import resolve
from tests.bench.figures import Figure, machine
from tests.bench.real_peaks import real_peaks

MOST_ERROR_PCT = 5.0
MOST_COLD_S, MOST_CACHED_S = 5.0, 1.0
DOCUMENT = Path(__file__).parents[2] / "docs" / "prediction.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"

_VARIANTS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("as it is", {}),
    ("batch 64", {"batch_size": 64}),
    ("AMP bf16", {"amp": "bf16"}),
    ("checkpointing", {"activation_checkpointing": True}),
    ("accumulation 4", {"grad_accumulation": 4}),
    ("SGD", {"optimizer": "sgd"}),
)
_GPT2_SMALL = (
    ("transformer, GPT-2 small", {"model": "transformer", "preset": "h200"}),
    ("hf-gpt2, workstation", {"model": "hf-gpt2", "preset": "workstation"}),
)


class Case(NamedTuple):
    """A prediction beside what was measured."""

    model: str
    variant: str
    predicted_bytes: int
    real_bytes: int

    @property
    def error_pct(self) -> float:
        """How far off the prediction is; negative: too low."""
        return 100 * (self.predicted_bytes / self.real_bytes - 1)


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """Errors over the catalogue (quick: as it is, and AMP), then times."""
    asked = list(combinations(_VARIANTS[::2][:2] if is_quick else _VARIANTS))
    cases = compared(asked, folder)
    if not is_quick:
        _write(cases)
    errors_pct = [abs(case.error_pct) for case in cases]
    mean_pct = statistics.fmean(errors_pct)
    return [
        Figure("prediction: mean absolute error on the CPU", [mean_pct], "%", MOST_ERROR_PCT),
        Figure("prediction: largest absolute error", [max(errors_pct)], "%"),
        Figure("prediction: cases further off than 5 %", [sum(e > 5 for e in errors_pct)], "cases"),
        *_times(folder, 1 if is_quick else 3),
    ]


def combinations(
    variants: Sequence[tuple[str, Mapping[str, Any]]], models: Sequence[str] = tuple(MODELS)
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every model in every variant it can take, in its smallest size: its name, the variant's, the values."""
    for model in models:
        for name, changes in variants:
            if "activation_checkpointing" not in changes or MODELS[model].can_checkpoint:
                yield model, name, {"model": model, **changes}


def compared(asked: Sequence[tuple[str, str, Mapping[str, Any]]], folder: Path) -> list[Case]:
    """Predict and measure each."""
    real = real_peaks([values for _, _, values in asked], folder)
    target = Target(DeviceKind.CPU, "the CPU")
    cases = []
    with Predictor(None) as predictor:
        for (model, name, values), real_bytes in zip(asked, real, strict=True):
            answer = predictor.wait(resolve(values), target)
            assert isinstance(answer, Prediction), answer
            cases.append(Case(model, name, answer.peak_allocated_bytes, real_bytes))
    return cases


def _times(folder: Path, repeats: int) -> Iterator[Figure]:
    """From asking to having the answer: with a child process to start, and from the files of the cache."""
    target = Target.of(cpu_facts(None))
    for name, values in _GPT2_SMALL:
        settings = resolve(values)
        cold_s: list[float] = []
        cached_s: list[float] = []
        for repeat in range(repeats):
            home = folder / f"{name}-{repeat}"
            for found in (cold_s, cached_s):
                begin_s = time.perf_counter()
                with Predictor(home) as predictor:
                    predictor.wait(settings, target)
                    found.append(time.perf_counter() - begin_s)
        yield Figure(f"prediction: {name}, from cold", cold_s, "s", MOST_COLD_S)
        yield Figure(f"prediction: {name}, from the cache", cached_s, "s", MOST_CACHED_S)


def _write(cases: Sequence[Case]) -> None:
    """Put the table into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    DOCUMENT.write_text(before + _BEGIN + "".join(_table(cases)) + _END + after, encoding="utf-8")


def _table(cases: Sequence[Case]) -> Iterator[str]:
    errors_pct = [abs(case.error_pct) for case in cases]
    mean_pct, most_pct = statistics.fmean(errors_pct), max(errors_pct)
    far = sum(error > MOST_ERROR_PCT for error in errors_pct)
    yield f"Measured on: {machine()}.\n\n"
    yield (
        f"{len(cases)} cases: mean absolute error {mean_pct:.1f} %, largest {most_pct:.1f} %, {far} further "
        f"off than {MOST_ERROR_PCT:g} %.\n\n"
    )
    names = [name for name, _ in _VARIANTS]
    yield f"| model | real peak as it is | {' | '.join(names)} |\n|---|---:|{'---:|' * len(names)}\n"
    for model in dict.fromkeys(case.model for case in cases):
        found = {case.variant: case for case in cases if case.model == model}
        cells = (f"{found[name].error_pct:+.1f} %" if name in found else "" for name in names)
        yield f"| {model} | {words.size(found[names[0]].real_bytes)} | {' | '.join(cells)} |\n"
