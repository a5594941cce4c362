"""Training loops at random, as a person could write them: the parts that each of them has."""

import random
from enum import StrEnum
from typing import Any, NamedTuple


class Network(StrEnum):
    """The kind of model."""

    MLP = "MLP"
    CNN = "CNN"
    RNN = "RNN with a hidden state"
    TRANSFORMER = "transformer"
    GAN = "GAN"
    HEADS = "encoder with two heads"


class Source(StrEnum):
    """The origin of the batches."""

    LOADER = "loader"
    DROP_LAST = "loader with drop_last"
    WORKERS = "loader with 2 workers"
    SAMPLER = "batch_sampler"
    ITERABLE = "iterable dataset"
    ZIP = "zip of two loaders"
    CYCLE = "cycle over a loader"
    NEXT = "next and StopIteration"
    LIST = "list of tensors"
    SLICES = "slices of a permutation"


LOADERLESS = frozenset({Source.LIST, Source.SLICES})
ENDLESS = frozenset({Source.CYCLE, Source.NEXT})


class Updates(StrEnum):
    """The optimizers that step in an iteration."""

    ONE = "one optimizer"
    CLOSURE = "LBFGS with a closure"
    EACH = "two optimizers"
    TURNS = "two optimizers in turns"
    CRITIC = "n critic"


class Tail(StrEnum):
    """The use of micro-batches that are left at the end of an epoch."""

    FLUSH = "last update smaller"
    CARRY = "carried to the next epoch"
    DROP = "dropped at the end of the epoch"


class Clearing(StrEnum):
    """The place where gradients are cleared."""

    BEFORE = "zero_grad before"
    LATE = "zero_grad before the backward pass"
    AFTER = "zero_grad after"
    ZEROS = "zero_grad(set_to_none=False) after"
    MODEL = "model.zero_grad before"


class Precision(StrEnum):
    """Autocast, and a GradScaler."""

    FULL = "float32"
    AUTOCAST = "autocast"
    SCALER_OFF = "GradScaler(enabled=False)"
    SCALER = "GradScaler"


class Times(StrEnum):
    """The times of evaluations."""

    NEVER = "never"
    EPOCH = "per epoch"
    BEFORE = "before the first step and per epoch"
    MIDDLE = "every few steps"


class Mode(StrEnum):
    """The way in which a model is evaluated."""

    NO_GRAD = "eval, no_grad"
    INFERENCE = "eval, inference_mode"
    EVAL = "eval alone"
    NO_GRAD_ALONE = "no_grad alone"
    TRAINING = "training mode"


class Evaluated(StrEnum):
    """The model and the data of an evaluation."""

    OTHER = "another loader"
    SAME = "the same data"
    AVERAGE = "average of the weights"


class Skip(StrEnum):
    """Batches that a loop skips."""

    NEVER = "none"
    BEFORE = "continue before the call"
    NAN = "continue after a NaN"
    ERROR = "caught error before the call"
    FORWARD_ERROR = "caught error after the call"
    LATE_ERROR = "caught error after the backward pass"
    NORM = "continue after the backward pass"


class Second(StrEnum):
    """A second training."""

    NONE = "none"
    MODEL = "new optimizer"
    HEAD = "last layer alone"
    COPY = "copy of the model"


class Ending(StrEnum):
    """The end of the script."""

    NORMAL = "normal"
    CODE = "exit code 3"
    ERROR = "error"


class LoopDraw(NamedTuple):
    """One loop."""

    seed: int
    network: Network
    source: Source
    samples: int
    batch: int
    epochs: int
    updates: Updates
    accumulation: int = 1
    tail: Tail = Tail.FLUSH
    clearing: Clearing = Clearing.BEFORE
    optimizer: str = "SGD"
    precision: Precision = Precision.FULL
    times: Times = Times.NEVER
    mode: Mode = Mode.NO_GRAD
    evaluated: Evaluated = Evaluated.OTHER
    skip: Skip = Skip.NEVER
    second: Second = Second.NONE
    ending: Ending = Ending.NORMAL
    breaks: str = ""
    calls: int = 1
    clips: bool = False
    schedules: bool = False
    samples_between: bool = False
    has_penalty: bool = False
    peeks: bool = False
    logs: bool = False
    saves: bool = False
    compiles: bool = False
    is_function: bool = False

    @property
    def has_loader(self) -> bool:
        """Return whether a loader of torch feeds the training."""
        return self.source not in LOADERLESS

    @property
    def is_endless(self) -> bool:
        """Return whether batches are taken by `next`, without epochs."""
        return self.source in ENDLESS

    @property
    def batches(self) -> int:
        """The batches of an epoch."""
        if self.source is Source.DROP_LAST:
            return self.samples // self.batch
        return -(-self.samples // self.batch)

    @property
    def skipped(self) -> str:
        """The condition of the batches that are skipped: those of fewer than half of the steps."""
        if self.skip in (Skip.BEFORE, Skip.ERROR):
            return f"updates > 4 and index % {6 * self.accumulation} == 4"
        if self.accumulation == 1:
            return "index % 6 == 4"
        return f"index == {4 * self.accumulation}" if self.is_endless else "epoch == 1 and index == 4"

    @property
    def words(self) -> str:
        """The parts of the loop that differ from a plain one, in one line."""
        plain = LoopDraw(0, self.network, self.source, 0, 0, 0, Updates.ONE)
        parts = [f"{self.network}, {self.source}"]
        for name, value in self._asdict().items():
            if name not in _SIZES and value != getattr(plain, name):
                parts.append((name if value is True else f"{name} {value}").replace("_", " "))
        return "; ".join(parts)


_SIZES = {"seed", "network", "source", "samples", "batch", "epochs"}


def draw_loop(seed: int) -> LoopDraw:
    """The loop of `seed`."""
    chance = random.Random(seed)
    network = chance.choice(list(Network))

    def has(share: float) -> bool:
        return chance.random() < share

    draw = LoopDraw(
        seed,
        network,
        chance.choice(list(Source)),
        samples=chance.randint(50, 130),
        batch=chance.choice((4, 6, 8, 12)),
        epochs=chance.randint(2, 4),
        updates=chance.choice(_updates(network)),
        accumulation=chance.choice((2, 3, 4)) if has(0.3) else 1,
        tail=chance.choice(list(Tail)),
        clearing=chance.choice(list(Clearing)),
        optimizer=chance.choice(("SGD", "Adam", "AdamW", "RMSprop")),
        precision=chance.choice(list(Precision)) if has(0.4) else Precision.FULL,
        times=chance.choice(list(Times)),
        mode=chance.choice(list(Mode)),
        evaluated=chance.choice(list(Evaluated)),
        skip=chance.choice(list(Skip)) if has(0.4) else Skip.NEVER,
        second=chance.choice(list(Second)) if has(0.3) else Second.NONE,
        ending=chance.choice(list(Ending)) if has(0.2) else Ending.NORMAL,
        breaks=chance.choice(("before the call", "after the update")) if has(0.2) else "",
        calls=2 if has(0.15) else 1,
        clips=has(0.3),
        schedules=has(0.3),
        samples_between=has(0.2),
        has_penalty=has(0.1),
        peeks=has(0.1),
        logs=has(0.4),
        saves=has(0.2),
        compiles=has(0.05),
        is_function=has(0.4),
    )
    return _fitting(draw)


def _updates(network: Network) -> list[Updates]:
    if network is Network.GAN:
        return [Updates.EACH, Updates.TURNS, Updates.CRITIC]
    if network is Network.HEADS:
        return [Updates.ONE, Updates.EACH, Updates.TURNS]
    return [Updates.ONE] * 5 + [Updates.CLOSURE]


def _fitting(draw: LoopDraw) -> LoopDraw:
    """Return the loop without parts that do not go together, or that the documentation calls ambiguous."""
    for fit in (_fit_models, _fit_source, _fit_accumulation, _fit_skips, _fit_compiling, _fit_evaluation):
        draw = draw._replace(**fit(draw))
    return draw


def _fit_models(draw: LoopDraw) -> dict[str, Any]:
    """Loops with several models or optimizers are plain otherwise."""
    changes: dict[str, Any] = {}
    if draw.updates is not Updates.ONE:
        changes |= {"accumulation": 1, "precision": Precision.FULL, "skip": Skip.NEVER, "clips": False}
    if draw.updates is Updates.CLOSURE:
        changes["optimizer"] = "SGD"
    has_several = draw.network in (Network.GAN, Network.HEADS)
    if has_several or draw.updates is not Updates.ONE:
        changes |= {"has_penalty": False, "calls": 1, "second": Second.NONE, "compiles": False}
    if has_several and draw.clearing is Clearing.MODEL:
        changes["clearing"] = Clearing.BEFORE
    if has_several and draw.evaluated is Evaluated.AVERAGE:
        changes["evaluated"] = Evaluated.OTHER
    if draw.network in (Network.RNN, Network.TRANSFORMER):
        changes["has_penalty"] = False
    return changes


def _fit_source(draw: LoopDraw) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if draw.network is Network.HEADS and draw.source is Source.ZIP:
        changes["source"] = Source.LOADER
    if not draw.has_loader:
        changes["peeks"] = False
        # Two that take turns cannot be distinguished from two updates.
        if draw.updates in (Updates.TURNS, Updates.CRITIC):
            changes["updates"] = Updates.EACH
    if draw.is_endless:
        changes["breaks"] = ""
    return changes


def _fit_accumulation(draw: LoopDraw) -> dict[str, Any]:
    if draw.accumulation == 1:
        return {"tail": Tail.FLUSH}
    changes: dict[str, Any] = {}
    if draw.skip in (Skip.LATE_ERROR, Skip.NORM):
        changes["skip"] = Skip.NAN
    if draw.clearing is Clearing.LATE:
        changes["clearing"] = Clearing.AFTER
    if draw.skip is not Skip.NEVER or draw.is_endless or (draw.breaks and draw.tail is Tail.FLUSH):
        changes["tail"] = Tail.CARRY
    return changes


def _fit_skips(draw: LoopDraw) -> dict[str, Any]:
    # Slices of one tensor count together; a further call may be for the batch that was skipped.
    if draw.source is Source.LIST and draw.skip in (Skip.NAN, Skip.FORWARD_ERROR):
        return {"skip": Skip.NEVER}
    return {"calls": 1} if draw.skip in (Skip.BEFORE, Skip.ERROR) else {}


def _fit_compiling(draw: LoopDraw) -> dict[str, Any]:
    changes: dict[str, Any] = {"has_penalty": False} if draw.compiles else {}
    if draw.compiles and draw.second is Second.COPY:  # It would not be compiled.
        changes["second"] = Second.MODEL
    return changes


def _fit_evaluation(draw: LoopDraw) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not draw.has_loader:
        # A few calls may compute a target.
        if draw.mode in (Mode.TRAINING, Mode.NO_GRAD_ALONE):
            changes["mode"] = Mode.NO_GRAD
        if draw.evaluated is Evaluated.AVERAGE:
            changes["evaluated"] = Evaluated.OTHER
    elif draw.mode is Mode.TRAINING:
        # Before such an evaluation there has to be an update, and no batch of the training since.
        is_uneven = draw.tail is not Tail.FLUSH or draw.skip is not Skip.NEVER or draw.breaks
        if draw.times is Times.BEFORE or draw.evaluated is Evaluated.SAME:
            changes["mode"] = Mode.EVAL
        elif is_uneven or draw.updates is Updates.CRITIC:
            changes["mode"] = Mode.NO_GRAD_ALONE
    return changes
