"""The memory of kernels themselves: measured where it can be, continued from smaller batches where not."""

import pytest
import torch

from harness.predict import footprints
from harness.predict.calls import Call, TensorSpec, flops
from harness.predict.footprints import Continued, Measured
from harness.predict.kernels import Footprint

aten = torch.ops.aten


def product(rows: int, inner: int = 64, columns: int = 32) -> Call:
    call = Call.of(aten.mm.default, [torch.zeros(rows, inner), torch.zeros(inner, columns)], {})
    assert call is not None
    return call


class Meter:
    """Takes 10 bytes for each element of the first argument."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def measure(self, call: Call) -> Footprint | None:
        self.calls.append(call)
        return Footprint(100, 10 * call.arguments[0].extent, (8,))


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
    measured = Measured(meter)
    for rows in (4, 8, 4):
        measured.next(product(rows), 1, 4)
    assert [call.arguments[0].shape[0] for call in meter.calls] == [4, 8]
    assert [footprint and footprint.temporary_bytes for footprint in measured.sequence] == [2560, 5120, 2560]


def test_calls_too_large_to_be_run_are_left_out_and_how_much_too_large_is_known() -> None:
    meter = Meter()
    measured = Measured(meter)
    assert measured.next(product(4), footprints.MOST_FLOPS, 4) is not None
    assert measured.next(product(8), footprints.MOST_FLOPS, 4) is None
    assert measured.ratio == pytest.approx(2)
    assert Measured(meter, skips_large=True).next(product(4), 2 * footprints.MOST_FLOPS, 4) is None
    assert Measured(meter).next(product(4), 1, footprints.MOST_CALL_BYTES) is None


def test_what_grows_with_the_batch_is_continued_on_a_line_and_what_is_kept_is_not() -> None:
    near, far = Footprint(500, 1000, (100, 7)), Footprint(600, 1800, (200, 7))
    continued = Continued([near, None], [far, None], (4, 8), 16)
    assert continued.next(product(1), 1, 1) == Footprint(600, 3400, (400, 7))
    assert continued.next(product(1), 1, 1) is None
    assert continued.next(product(1), 1, 1) is None


def test_traces_that_are_not_alike_are_not_continued() -> None:
    one = Footprint(0, 10, (1,))
    assert Continued([one], [one, one], (1, 2), 4).next(product(1), 1, 1) is None
