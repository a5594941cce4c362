"""From a question to its answer. This is what the child process does."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

from harness.catalog import model
from harness.data.text import STANDARD_LIBRARY_BYTES
from harness.errors import SettingError
from harness.predict.allocator import least_cap, replay
from harness.predict.answer import CATEGORIES, Answer, Impossible, ModuleBytes, PartBytes, Prediction
from harness.predict.footprints import Meter, continued, measure, size_ratio, with_footprints
from harness.predict.kernels import KernelsError
from harness.predict.question import Question
from harness.predict.reading import Parts, Reading, read
from harness.predict.scratch import KernelRun
from harness.predict.tracing import Trace, trace
from harness.records.memory import MemoryCategory
from harness.records.run import DataKind, DeviceKind
from harness.settings import Settings

# Of an unrolled model: a trace of every time step would take minutes.
_UNROLL_TOKENS = 32
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
_CUDA_CONTEXT = (
    "The CUDA context and the kernels loaded come on top, some 0.3 to 0.7 GiB by GPU and driver; they are "
    "not included."
)
_CPU_CONTEXT = "The context is Python, torch and their libraries, before the model is built; measured here."


class _Traced(NamedTuple):
    """A trace, read, and how its kernels were measured: `batches` are the smaller ones from which they were
    continued, None where that was not needed; `is_measured` is false where there was nothing to measure
    with."""

    reading: Reading
    is_measured: bool
    batches: tuple[int, int] | None = None


def predict(question: Question, context_bytes: int | None, meter: Meter | None = None) -> Answer:
    """The memory that a run would take; Impossible where it cannot be known without values. On the CPU
    `context_bytes` is what a process with torch holds, and kernels' own memory is left out without
    `meter`."""
    try:
        if question.kind is DeviceKind.CPU and _is_long(question.settings):
            traced = _extrapolated(question, meter)
        else:
            traced = _traced(question, meter)
    except _NEEDS_VALUES as error:
        return Impossible(
            "This model's shapes depend on the values it computes, so its memory cannot be told without "
            f"running it ({error})."
        )
    except SettingError as error:
        return Impossible(str(error))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, ImportError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Impossible(f"This model cannot be traced without running it: {first}")
    return _prediction(question, traced, context_bytes)


def _traced(question: Question, meter: Meter | None) -> _Traced:
    """`question` traced with its kernels measured; without them where they cannot be."""
    whole = trace(question)
    if meter is not None and question.kind is DeviceKind.CPU:
        try:
            return _measured(question, whole, meter)
        except KernelsError:
            pass
    return _Traced(read(whole, question.kind), is_measured=False)


def _measured(question: Question, whole: Trace, meter: Meter) -> _Traced:
    """`whole`, the trace of `question`, with its kernels measured: as they are, or, where that would take too
    long, with two smaller batches."""
    batch = far = question.settings.batch_size
    runs, ratio = whole.kernels, size_ratio(whole.kernels)
    if ratio <= 1:
        footprints = measure(runs, meter)
        return _Traced(read(with_footprints(whole, footprints), question.kind), is_measured=True)
    while ratio > 1 and far > 2:
        far = max(2, min(far - 1, int(far / ratio)))
        runs = _kernel_runs(_at_batch(question, far))
        ratio = size_ratio(runs)
    # One sequence for both: what kernels keep is that of the larger batch, which comes first.
    both = [*runs, *_kernel_runs(_at_batch(question, far // 2))]
    measured = measure(both, meter, skips_large=ratio > 1)
    batches = (far // 2, far)
    footprints = continued(measured[len(runs) :], measured[: len(runs)], batches, batch)
    reading = read(with_footprints(whole, footprints), question.kind)
    return _Traced(reading, is_measured=True, batches=batches)


@lru_cache(maxsize=8)  # Advice comes to the same small batches from several large ones.
def _kernel_runs(question: Question) -> Sequence[KernelRun]:
    return trace(question).kernels


def _at_batch(question: Question, batch: int) -> Question:
    return question._replace(settings=question.settings.model_copy(update={"batch_size": batch}))


def _is_long(settings: Settings) -> bool:
    return model(settings.model).is_unrolled and settings.sequence_length > 2 * _UNROLL_TOKENS


def _extrapolated(question: Question, meter: Meter | None) -> _Traced:
    """Two short sequences traced, and everything continued on a straight line: all that a recurrent layer
    keeps grows with the number of its time steps."""
    wanted = question.settings.sequence_length

    def traced(tokens: int) -> _Traced:
        settings = question.settings.model_copy(update={"sequence_length": tokens})
        return _traced(question._replace(settings=settings), meter)

    longer = traced(2 * _UNROLL_TOKENS)
    near, far = traced(_UNROLL_TOKENS).reading, longer.reading
    share = (wanted - _UNROLL_TOKENS) / _UNROLL_TOKENS

    def line(one: Parts, two: Parts) -> Parts:
        return tuple(max(0, round(a + (b - a) * share)) for a, b in zip(one, two, strict=True))

    modules = tuple(
        ModuleBytes(a.module, a.kind, *line(a[2:], b[2:]))
        for a, b in zip(near.modules, far.modules, strict=True)
    )
    peaks = {name: line(near.peaks[name], far.peaks[name]) for name in near.peaks}
    return longer._replace(reading=Reading(peaks, line(near.static, far.static), modules, (), ()))


def _prediction(question: Question, traced: _Traced, context_bytes: int | None) -> Prediction:
    reading = traced.reading
    phase = max(reading.peaks, key=lambda name: sum(reading.peaks[name]))
    parts = list(reading.peaks[phase])
    static = sum(reading.static)
    is_cuda = question.kind is DeviceKind.CUDA
    if not is_cuda:
        order = _order_bytes(question.settings)
        parts[list(CATEGORIES).index(MemoryCategory.INPUTS)] += order
        static += order
    reserved = replay(reading.sizes, reading.events).peak_reserved_bytes if is_cuda else None
    return Prediction(
        target=question.kind,
        peak_allocated_bytes=sum(parts),
        peak_reserved_bytes=reserved,
        least_reserved_bytes=least_cap(reading.sizes, reading.events) if is_cuda else None,
        parts=tuple(PartBytes(*part) for part in zip(CATEGORIES, parts, strict=True)),
        phase=phase,
        static_bytes=static,
        context_bytes=None if is_cuda else context_bytes,
        context_note=_CUDA_CONTEXT if is_cuda else _CPU_CONTEXT,
        modules=reading.modules,
        notes=tuple(_notes(question, traced)),
    )


def _order_bytes(settings: Settings) -> int:
    """What the loader keeps to draw samples in: eight bytes for each. Only the standard library's number of
    samples is known without opening the source, and large enough to matter."""
    if settings.data != "stdlib-text":
        return 0
    return 8 * (STANDARD_LIBRARY_BYTES // settings.sequence_length)


def _notes(question: Question, traced: _Traced) -> Iterator[str]:
    """What is not in the figures, or less sure than the rest."""
    settings = question.settings
    is_cuda = question.kind is DeviceKind.CUDA
    spec = model(settings.model)
    if settings.compile:
        yield "torch.compile is left out: compiled, a model usually needs less than this."
    if is_cuda:
        yield "Traced with the CPU's kernels, whose temporaries can differ from those of the GPU."
        if spec.accepts is DataKind.IMAGE:
            yield "cuDNN's workspaces for convolutions are not included: up to some hundred MiB for a moment."
        if spec.is_recurrent:
            yield "What cuDNN's recurrent layers keep for backward is an estimate."
        if settings.offload_saved_tensors:
            yield "Offloaded tensors lie in the host's memory, which is not included."
        return
    if not traced.is_measured:
        yield "The memory of the CPU's kernels themselves could not be measured, and is not included."
    elif traced.batches is not None:
        near, far = traced.batches
        yield f"The kernels' own memory was measured with batches of {near} and {far}, and continued."
    if _is_long(settings):
        yield f"Continued from sequences of {_UNROLL_TOKENS} and {2 * _UNROLL_TOKENS} tokens."
