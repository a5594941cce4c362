"""Computation of a prediction, in the child process."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.nn.modules.conv import _ConvNd

from harness.catalog.own import is_own, model_and_size
from harness.data.order import order_bytes
from harness.errors import SettingError, StepscopeError
from harness.predict.allocator import least_cap, replay
from harness.predict.answer import CATEGORIES, Answer, Impossible, PartBytes, Prediction
from harness.predict.footprints import Meter, extrapolated, measure, size_ratio, with_footprints
from harness.predict.kernels import KernelsError
from harness.predict.question import Question
from harness.predict.reading import TraceSummary, summarize
from harness.predict.recurrent import is_single, recurrent_layers
from harness.predict.scratch import KernelRun
from harness.predict.tracing import STEPS, Trace, trace, trace_kernels
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.words import clip

# Of torch and of libraries of models; a person's own code may raise anything.
_TRACING_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, ImportError)
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
# Of the message of an error.
_MOST_LETTERS = 300
_CUDA_CONTEXT = (
    "The CUDA context and the kernels loaded come on top, some 0.3 to 0.7 GiB by GPU and driver; they are "
    "not included."
)
_CPU_CONTEXT = "The context is Python, torch and their libraries, before the model is built; measured here."


class _Traced(NamedTuple):
    """A trace, read, and how its kernels were measured: `batches` are the smaller ones from which they were
    extrapolated, None where that was not needed; `is_measured` is false where there was nothing to measure
    with. `network`, `samples` and `assumes_checks` are those of the trace."""

    network: nn.Module
    samples: int | None
    assumes_checks: bool
    summary: TraceSummary
    is_measured: bool
    batches: tuple[int, int] | None = None


def predict(question: Question, context_bytes: int | None, meter: Meter | None = None) -> Answer:
    """Predict the memory of a run; Impossible if it depends on computed values. On the CPU `context_bytes` is
    the memory of a process with torch, and kernels' own memory is excluded without `meter`."""
    try:
        traced = _traced(question, meter)
    except _NEEDS_VALUES as error:
        return Impossible(
            "This model's shapes depend on the values it computes, so its memory cannot be predicted without "
            f"running it ({error})."
        )
    except SettingError as error:
        return Impossible(str(error))
    except Exception as error:
        if not (is_own(question.settings.model) or isinstance(error, _TRACING_ERRORS)):
            raise
        return Impossible(_failure(question.settings, error))
    return _prediction(question, traced, context_bytes)


def _failure(settings: Settings, error: Exception) -> str:
    """Return the sentence on an error while the model was built or traced."""
    if isinstance(error, StepscopeError):
        return str(error)
    kind = f"{type(error).__name__}: "
    if is_own(settings.model):
        message = clip(" ".join(str(error).split()), _MOST_LETTERS) or "no message"
        start = f"The memory of {model_and_size(settings.model, settings.preset)} cannot be predicted: "
        if "Uninitialized" in message:  # torch.nn.parameter.UninitializedParameter or UninitializedBuffer.
            return f"{start}torch has no lazy modules without data; give the sizes, as in nn.Linear(4, 16)."
        return f"{start}without data, its code raises {kind}{message}"
    first = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, RuntimeError):  # It is a sentence by itself.
        kind = ""
    return f"This model cannot be traced without running it: {kind}{first}"


def _traced(question: Question, meter: Meter | None) -> _Traced:
    """Trace `question` and measure its kernels; without measurements if they are not possible."""
    whole = trace(question)
    if meter is not None and question.kind is DeviceKind.CPU:
        try:
            return _measured(question, whole, meter)
        except KernelsError:
            pass
    return _Traced(
        whole.model, whole.samples, whole.assumes_checks, summarize(whole, question.kind), is_measured=False
    )


def _measured(question: Question, whole: Trace, meter: Meter) -> _Traced:
    """Measure the kernels of `whole`, the trace of `question`: as they are, or with two smaller batches if
    that would take too long."""
    batch = far = question.settings.batch_size
    runs, ratio = whole.kernels, size_ratio(whole.kernels)
    if ratio <= 1:
        footprints = measure(runs, meter)
        summary = summarize(with_footprints(whole, footprints), question.kind)
        return _Traced(whole.model, whole.samples, whole.assumes_checks, summary, is_measured=True)
    has_equal_steps = _has_equal_steps(whole)
    while ratio > 1 and far > 2:
        far = max(2, min(far - 1, int(far / ratio)))
        runs = _kernel_runs(_at_batch(question, far), has_equal_steps)
        ratio = size_ratio(runs)
    # One sequence for both: kernels retain the memory of the larger batch, which comes first.
    both = [*runs, *_kernel_runs(_at_batch(question, far // 2), has_equal_steps)]
    measured = measure(both, meter, skips_large=ratio > 1)
    batches = (far // 2, far)
    footprints = extrapolated(measured[len(runs) :], measured[: len(runs)], batches, batch)
    summary = summarize(with_footprints(whole, footprints), question.kind)
    return _Traced(
        whole.model, whole.samples, whole.assumes_checks, summary, is_measured=True, batches=batches
    )


def _has_equal_steps(whole: Trace) -> bool:
    """Return whether each step runs the same kernels; the first one of some models runs more."""
    calls = [run.call for run in whole.kernels]
    return calls == calls[: len(calls) // STEPS] * STEPS


@lru_cache(maxsize=8)  # Advice comes to the same small batches from several large ones.
def _kernel_runs(question: Question, has_equal_steps: bool) -> Sequence[KernelRun]:
    """Return the runs of kernels in the trace of `question`."""
    return [*trace_kernels(question)] * STEPS if has_equal_steps else trace(question).kernels


def _at_batch(question: Question, batch: int) -> Question:
    return question._replace(settings=question.settings.model_copy(update={"batch_size": batch}))


def _prediction(question: Question, traced: _Traced, context_bytes: int | None) -> Prediction:
    summary = traced.summary
    phase = max(summary.peaks, key=lambda name: sum(summary.peaks[name]))
    parts = list(summary.peaks[phase])
    static = sum(summary.static)
    is_cuda = question.kind is DeviceKind.CUDA
    if not is_cuda:
        order = order_bytes(traced.samples or 0)
        parts[list(CATEGORIES).index(MemoryCategory.INPUTS)] += order
        static += order
    reserved = replay(summary.sizes, summary.events).peak_reserved_bytes if is_cuda else None
    return Prediction(
        target=question.kind,
        peak_allocated_bytes=sum(parts),
        peak_reserved_bytes=reserved,
        least_reserved_bytes=least_cap(summary.sizes, summary.events) if is_cuda else None,
        parts=tuple(PartBytes(*part) for part in zip(CATEGORIES, parts, strict=True)),
        phase=phase,
        static_bytes=static,
        context_bytes=None if is_cuda else context_bytes,
        context_note=_CUDA_CONTEXT if is_cuda else _CPU_CONTEXT,
        modules=summary.modules,
        notes=tuple(_notes(question, traced)),
    )


def _notes(question: Question, traced: _Traced) -> Iterator[str]:
    """Yield notes on parts that are excluded, or less accurate than the rest."""
    settings = question.settings
    is_cuda = question.kind is DeviceKind.CUDA
    if settings.compile:
        yield "torch.compile is not modeled: a compiled model usually needs less memory."
    if traced.assumes_checks:
        yield "The model decides by values that it computes; its checks of them were taken to pass."
    if is_cuda:
        yield "Traced with the CPU's kernels, whose temporaries can differ from those of the GPU."
        if any(isinstance(module, _ConvNd) for module in traced.network.modules()):
            yield "cuDNN's transient workspaces for convolutions, up to some hundred MiB, are not included."
        if recurrent := recurrent_layers(traced.network):
            of = "" if all(map(is_single, recurrent)) else " of single layers in one direction"
            yield f"The memory of cuDNN's recurrent layers follows measurements{of} on an H100."
        if settings.offload_saved_tensors:
            yield "Offloaded tensors are in the host's memory, which is not included."
        return
    if not traced.is_measured:
        yield "The memory of the CPU's kernels themselves could not be measured, and is not included."
    elif traced.batches is not None:
        near, far = traced.batches
        yield f"The kernels' own memory was measured with batches of {near} and {far}, and extrapolated."
