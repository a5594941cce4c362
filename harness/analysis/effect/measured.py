"""The measured effect of a change of settings, from blocks of steps in randomized pairs.

A warm run switches between its settings (arm A) and the changed ones (arm B) in pairs of neighboring
blocks, half of them in the order AB and half BA (`harness.watch.measuring`). Each pair gives one difference
per figure, of logarithms where the figure is a ratio: what both blocks share, such as the speed of the
machine at that moment, cancels out within the pair, and a steady drift between the two orders.
`harness.analysis.effect.pairs` documents the interval.

`measure_effect` is the whole interface: blocks to a `MeasuredEffect`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from harness import words
from harness.analysis.effect.pairs import LEAST_PAIRS, PairedDifference, paired_difference
from harness.records.measurement import Arm

# A difference within this share is of no practical use.
PRACTICAL = 0.01
# The quantile of the steps of a block that stands for a step which nothing delayed. Higher ones follow what
# else the machine does: of A/A pairs of an mlp on four cores with a load of 6, the logarithms of the ratios
# had a (robust) deviation of 3.6 % at this quantile, 9 % at the median and 48 % for the mean; next to a
# process that works half of the time 7 %, 22 % and 43 %.
UNDISTURBED = 0.05


class Word(StrEnum):
    """The verdict on one figure."""

    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"
    LOWER = "lower"
    HIGHER = "higher"
    NO_PRACTICAL_DIFFERENCE = "no practical difference"
    INCONCLUSIVE = "inconclusive"
    NOT_AVAILABLE = "n/a"


class BlockFigures(NamedTuple):
    """The figures of one block of steps. None: not measured, or not finite."""

    pair: int
    arm: Arm
    # The duration of a step that other processes did not delay.
    step_ns: float
    # All steps together, on the clock of `step_ns`.
    total_ns: float
    steps: int
    samples: int
    loss: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    energy_j: float | None


class FigureKind(NamedTuple):
    """A compared figure: how it is computed, shown and judged."""

    name: str
    value: Callable[[BlockFigures], float | None]
    text: Callable[[float | None], str]
    # The verdicts on less and on more of it.
    less: Word
    more: Word
    # Whether its arms differ by a ratio, else by a difference.
    is_ratio: bool = True


class MeasuredFigure(NamedTuple):
    """One figure under both arms, and the effect with its 95 % interval: a share of arm A's value, or for the
    loss a difference. None: not available, and `note` says why."""

    kind: FigureKind
    before: float | None
    after: float | None
    effect: float | None
    low: float | None
    high: float | None
    word: Word
    # Pairs that would probably be conclusive, in addition; None if the verdict is, or if it cannot be said.
    more_pairs: int | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.word is Word.NOT_AVAILABLE:
            return self.note
        if self.word is not Word.INCONCLUSIVE:
            return self.word.value
        if self.more_pairs is None:
            return "inconclusive"
        return f"inconclusive: about {words.plural(self.more_pairs, 'more pair')}"


class MeasuredEffect(NamedTuple):
    """The effect of arm B against arm A over `pairs` pairs of blocks; `figures` in the order of a table. The
    first is the undisturbed step, or time per sample if the batch size differs. Where that effect is not the
    one over all steps (a loader keeps some steps waiting), it is the time per sample over all steps."""

    pairs: int
    figures: tuple[MeasuredFigure, ...]

    @property
    def main(self) -> MeasuredFigure:
        """The figure that the verdict is about."""
        return self.figures[0]

    @property
    def is_conclusive(self) -> bool:
        """True when the verdict is not that more pairs are needed."""
        return self.main.word not in (Word.INCONCLUSIVE, Word.NOT_AVAILABLE)

    @property
    def is_better(self) -> bool:
        """True when arm B is faster, and not slower with all steps counted."""
        throughput = next(figure for figure in self.figures if figure.kind is THROUGHPUT)
        return self.main.word is Word.FASTER and throughput.word is not Word.SLOWER

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        main = self.main
        if main.effect is None or main.low is None or main.high is None:
            return f"{main.note[:1].upper()}{main.note[1:]}."
        word = main.verdict[:1].upper() + main.verdict[1:]
        interval = f"{words.relative(main.low)} to {words.relative(main.high)}"
        measured = (
            f"{main.kind.name} {main.kind.text(main.before)} → {main.kind.text(main.after)} "
            f"({words.relative(main.effect)}, 95 % interval {interval})"
        )
        limit = f" Less than {100 * PRACTICAL:g} % either way counts as none."
        tail = limit if main.word is Word.NO_PRACTICAL_DIFFERENCE else ""
        return f"{word}: {measured}, {words.plural(self.pairs, 'pair')} of blocks.{tail}"


def measure_effect(blocks: Sequence[BlockFigures], judgments: int = 1) -> MeasuredEffect:
    """Compare the blocks of both arms, pair by pair, in a measurement that is judged `judgments` times. A
    pair that lacks a block is left out."""
    pairs = _paired(blocks)
    differs = any(a.samples * b.steps != b.samples * a.steps for a, b in pairs)
    kinds = (_SAMPLE_TIME, _STEP_TIME, *_OTHERS) if differs else (_STEP_TIME, *_OTHERS)
    figures = [_figure(kind, pairs, judgments) for kind in kinds]
    of_all = _figure(_ALL_STEPS, pairs, judgments)
    if _are_apart(figures[0], of_all):
        figures.insert(0, of_all)
    return MeasuredEffect(len(pairs), tuple(figures))


def _are_apart(one: MeasuredFigure, other: MeasuredFigure) -> bool:
    """Return whether the intervals of two figures do not overlap."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low


def undisturbed_ns(times_ns: Sequence[int]) -> float:
    """Return the duration of a step that nothing delayed, from those of a block."""
    ordered = sorted(times_ns)
    return float(ordered[int(UNDISTURBED * (len(ordered) - 1))])


def _paired(blocks: Sequence[BlockFigures]) -> list[tuple[BlockFigures, BlockFigures]]:
    arms: dict[int, dict[Arm, BlockFigures]] = {}
    for block in blocks:
        arms.setdefault(block.pair, {})[block.arm] = block
    return [(pair[Arm.A], pair[Arm.B]) for pair in arms.values() if len(pair) == len(Arm)]


def _figure(
    kind: FigureKind, pairs: Sequence[tuple[BlockFigures, BlockFigures]], judgments: int
) -> MeasuredFigure:
    """Compare one figure."""

    def missing(note: str) -> MeasuredFigure:
        return MeasuredFigure(kind, None, None, None, None, None, Word.NOT_AVAILABLE, note=note)

    if len(pairs) < LEAST_PAIRS:
        return missing(f"not compared: {words.plural(len(pairs), 'pair')}, {LEAST_PAIRS} are needed")
    values = list(_values(kind, pairs))
    if len(values) < LEAST_PAIRS:
        return missing("not measured")
    if kind.is_ratio:
        difference = paired_difference([math.log(after / before) for before, after in values], judgments)
        effect, low, high = (math.expm1(value) for value in difference[:3])
    else:
        difference = paired_difference([after - before for before, after in values], judgments)
        effect, low, high = difference[:3]
    before = median(before for before, _ in values)
    after = before * (1 + effect) if kind.is_ratio else before + effect
    word = _word(kind, low, high)
    more = difference.more_pairs(_target(kind, difference)) if word is Word.INCONCLUSIVE else None
    return MeasuredFigure(kind, before, after, effect, low, high, word, more)


def _values(
    kind: FigureKind, pairs: Iterable[tuple[BlockFigures, BlockFigures]]
) -> Iterator[tuple[float, float]]:
    """Yield the values of the pairs that have both."""
    for a, b in pairs:
        before, after = kind.value(a), kind.value(b)
        if before is None or after is None or not math.isfinite(before) or not math.isfinite(after):
            continue
        if not kind.is_ratio or min(before, after) > 0:
            yield before, after


def _word(kind: FigureKind, low: float, high: float) -> Word:
    limit = PRACTICAL if kind.is_ratio else 0.0
    if -limit <= low and high <= limit:
        return Word.NO_PRACTICAL_DIFFERENCE
    if low > 0:
        return kind.more
    return kind.less if high < 0 else Word.INCONCLUSIVE


def _target(kind: FigureKind, difference: PairedDifference) -> float:
    """Return the half-width of an interval that would be conclusive with this difference."""
    size = abs(difference.typical)
    return max(size, math.log1p(PRACTICAL) - size) if kind.is_ratio else size


def _per_sample(value: Callable[[BlockFigures], float | None]) -> Callable[[BlockFigures], float | None]:
    def per_sample(block: BlockFigures) -> float | None:
        total = value(block)
        return None if total is None or not block.samples else total / block.samples

    return per_sample


_STEP_TIME = FigureKind(
    "undisturbed step", lambda b: b.step_ns, words.fine_duration, Word.FASTER, Word.SLOWER
)
_SAMPLE_TIME = FigureKind(
    "undisturbed time per sample",
    _per_sample(lambda b: b.step_ns * b.steps),
    words.fine_duration,
    Word.FASTER,
    Word.SLOWER,
)
_ALL_STEPS = FigureKind(
    "time per sample, all steps",
    _per_sample(lambda b: b.total_ns),
    words.fine_duration,
    Word.FASTER,
    Word.SLOWER,
)
THROUGHPUT = FigureKind(
    "samples/s, all steps",
    lambda b: 1e9 * b.samples / b.total_ns if b.samples and b.total_ns else None,
    words.fine_rate,
    Word.SLOWER,
    Word.FASTER,
)
_OTHERS = (
    THROUGHPUT,
    FigureKind("peak allocated", lambda b: b.peak_allocated_bytes, words.size, Word.LESS, Word.MORE),
    FigureKind("peak reserved", lambda b: b.peak_reserved_bytes, words.size, Word.LESS, Word.MORE),
    FigureKind("energy per sample", _per_sample(lambda b: b.energy_j), words.energy, Word.LESS, Word.MORE),
    FigureKind("loss", lambda b: b.loss, words.figure, Word.LOWER, Word.HIGHER, is_ratio=False),
)
