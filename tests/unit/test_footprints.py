"""The memory of kernels themselves: measured where it can be, extrapolated from smaller batches where not."""

from collections.abc import Sequence

import pytest
import torch

from harness.predict import footprints
from harness.predict.answer import Target
from harness.predict.calls import Call, TensorSpec, flops
from harness.predict.footprints import extrapolated, measure, size_ratio, with_footprints
from harness.predict.kernels import Footprint
from harness.predict.question import Question
from harness.predict.scratch import KernelRun
from harness.predict.tracing import trace
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

aten = torch.ops.aten


def product(rows: int, inner: int = 64, columns: int = 32) -> Call:
    call = Call.of(aten.mm.default, [torch.zeros(rows, inner), torch.zeros(inner, columns)], {})
    assert call is not None
    return call


def run(rows: int, operations: int = 1, result_bytes: int = 4) -> KernelRun:
    return KernelRun(product(rows), operations, result_bytes, None, 0, None)


class Meter:
    """Takes 10 bytes for each element of the first argument."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def measure(self, calls: Sequence[Call]) -> list[Footprint | None]:
        self.calls += calls
        return [Footprint(100, 10 * call.arguments[0].extent, (8,)) for call in calls]


def test_a_call_is_described_by_its_layout_and_made_again_of_zeros() -> None:
    weight = torch.ones(8, 4).t()
    call = Call.of(aten.addmm.default, [torch.ones(8).expand(3, 8), torch.ones(3, 4), weight], {"beta": 2})
    assert call is not None
    assert call.arguments[0] == TensorSpec((3, 8), (0, 1), torch.float32)
    arguments, keywords = call.materialize()
    assert [tensor.stride() for tensor in arguments] == [(0, 1), (4, 1), (1, 4)]
    assert call.function(*arguments, **keywords).shape == (3, 8)
    assert call.input_bytes == 4 * (8 + 12 + 32)


def test_an_argument_that_cannot_be_made_again_makes_no_call() -> None:
    assert Call.of(aten.mm.default, [torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2)], {}) is None
    assert Call.of(aten.normal_.default, [torch.zeros(2)], {"generator": torch.Generator()}) is None


def test_operations_are_counted_with_torchs_formulas() -> None:
    left, right = torch.zeros(5, 7), torch.zeros(7, 3)
    assert flops(aten.mm.default, [left, right], {}, left @ right) == 2 * 5 * 7 * 3
    assert flops(aten.relu.default, [left], {}, left) == 0


def test_each_different_call_is_measured_once() -> None:
    meter = Meter()
    result = measure([run(4), run(8), run(4)], meter)
    assert [call.arguments[0].shape[0] for call in meter.calls] == [4, 8]
    assert [footprint and footprint.temporary_bytes for footprint in result] == [2560, 5120, 2560]


def test_how_much_too_large_calls_are_is_known_before_any_is_run() -> None:
    most = footprints.MOST_FLOPS
    assert size_ratio([run(4, most), run(4, most)]) == pytest.approx(1)
    assert size_ratio([run(4, most), run(8, most)]) == pytest.approx(2)
    assert size_ratio([run(4, 1, footprints.MOST_CALL_BYTES)]) > 1
    assert size_ratio([]) == 0


def test_calls_too_large_by_themselves_can_be_left_out() -> None:
    meter = Meter()
    result = measure([run(4), run(8, 2 * footprints.MOST_FLOPS)], meter, skips_large=True)
    assert [footprint is None for footprint in result] == [False, True]
    assert len(meter.calls) == 1


def test_temporary_memory_is_extrapolated_with_the_batch_and_retained_memory_is_not() -> None:
    near, far = Footprint(500, 1000, (100, 7)), Footprint(600, 1800, (200, 7))
    assert extrapolated([near, None], [far, None], (4, 8), 16) == [Footprint(600, 3400, (400, 7)), None]


def test_what_shrinks_with_the_batch_stays_as_it_is_with_the_larger_one() -> None:
    near, far = Footprint(0, 7000, ()), Footprint(0, 800, ())
    assert extrapolated([near], [far], (4, 8), 1000) == [Footprint(0, 800, ())]


def test_traces_with_other_kernel_runs_are_not_extrapolated() -> None:
    one = Footprint(0, 10, (1,))
    assert extrapolated([one], [one, one], (1, 2), 4) == [None, None]


@pytest.mark.slow
def test_footprints_become_the_sizes_of_the_kernels_own_memory() -> None:
    result = trace(Question.of(resolve({"model": "lstm"}), Target(DeviceKind.CPU, "the CPU")))
    sizes = [Footprint(300, 200, (4, 4, 4, 70_000)) for _ in result.kernels]
    filled = with_footprints(result, sizes)
    first = next(one for one in result.kernels if one.workspace is not None)
    numbers = (first.retained, first.temporary, first.workspace)
    assert [filled.births[number].size_bytes for number in numbers if number is not None] == [
        300,
        200,
        70_000,
    ]
    assert with_footprints(result, sizes[1:]).births == result.births
