"""From a question to its answer. This is what the child process does."""

from collections.abc import Iterator

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

from harness.catalog import model
from harness.data.text import STANDARD_LIBRARY_BYTES
from harness.errors import SettingError
from harness.memory_records import MemoryCategory
from harness.predict.allocator import least_cap, replay
from harness.predict.question import Question
from harness.predict.reading import Parts, Reading, read
from harness.predict.tracing import trace
from harness.prediction import CATEGORIES, Answer, Impossible, ModuleBytes, PartBytes, Prediction
from harness.records import AmpMode, DataKind, DeviceKind
from harness.settings import Settings

# Of an unrolled model: a trace of every time step would take minutes.
_UNROLL_TOKENS = 32
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
_CUDA_CONTEXT = (
    "The CUDA context and the kernels loaded come on top, some 0.3 to 0.7 GiB by GPU and driver; they are "
    "not included."
)
_CPU_CONTEXT = "The context is Python, torch and their libraries, before the model is built; measured here."


def predict(question: Question, context_bytes: int | None) -> Answer:
    """The memory that a run would take; Impossible where it cannot be known without values. On the CPU
    `context_bytes` is what a process with torch holds."""
    try:
        if question.kind is DeviceKind.CPU and _is_long(question.settings):
            reading = _extrapolated(question)
        else:
            reading = read(trace(question), question.kind)
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedFakeTensorException,
    ) as error:
        return Impossible(
            "This model's shapes depend on the values it computes, so its memory cannot be told without "
            f"running it ({error})."
        )
    except SettingError as error:
        return Impossible(str(error))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, ImportError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Impossible(f"This model cannot be traced without running it: {first}")
    return _prediction(question, reading, context_bytes)


def _is_long(settings: Settings) -> bool:
    return model(settings.model).is_unrolled and settings.sequence_length > 2 * _UNROLL_TOKENS


def _extrapolated(question: Question) -> Reading:
    """Two short sequences traced, and everything continued on a straight line: all that a recurrent layer
    keeps grows with the number of its time steps."""
    wanted = question.settings.sequence_length

    def traced(tokens: int) -> Reading:
        settings = question.settings.model_copy(update={"sequence_length": tokens})
        return read(trace(question._replace(settings=settings)), question.kind)

    near, far = traced(_UNROLL_TOKENS), traced(2 * _UNROLL_TOKENS)
    share = (wanted - _UNROLL_TOKENS) / _UNROLL_TOKENS

    def line(one: Parts, two: Parts) -> Parts:
        return tuple(max(0, round(a + (b - a) * share)) for a, b in zip(one, two, strict=True))

    modules = tuple(
        ModuleBytes(a.module, a.kind, *line(a[2:], b[2:]))
        for a, b in zip(near.modules, far.modules, strict=True)
    )
    peaks = {name: line(near.peaks[name], far.peaks[name]) for name in near.peaks}
    return Reading(peaks, line(near.static, far.static), modules, (), ())


def _prediction(question: Question, reading: Reading, context_bytes: int | None) -> Prediction:
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
        notes=tuple(_notes(question)),
    )


def _order_bytes(settings: Settings) -> int:
    """What the loader keeps to draw samples in: eight bytes for each. Only the standard library's number of
    samples is known without opening the source, and large enough to matter."""
    if settings.data != "stdlib-text":
        return 0
    return 8 * (STANDARD_LIBRARY_BYTES // settings.sequence_length)


def _notes(question: Question) -> Iterator[str]:
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
    if spec.can_channels_last or settings.model == "lstm" or settings.amp is not AmpMode.OFF:
        yield "The scratch memory of oneDNN's kernels is an estimate, made for processors with AVX-512."
    if _is_long(settings):
        yield f"Continued from sequences of {_UNROLL_TOKENS} and {2 * _UNROLL_TOKENS} tokens."
