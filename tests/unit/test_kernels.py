"""Kernels run in a process forked for it, as the child process that predicts does."""

import errno
import os
from pathlib import Path

import pytest

from harness.device.cpu.heap import open_heap
from harness.predict.kernels import Kernels, KernelsError
from harness.predict.probe import KernelMemory, KernelReport, kernel_report
from harness.predict.processor import this_processor
from harness.predict.question import REVISION, torch_version
from harness.records.json import to_json
from tests.train_factories import raising
from tests.warm_start import run_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(open_heap() is None, reason="kernels' memory is read from glibc's malloc"),
]

_CHILD = """
import torch
from harness.predict.calls import Call
from harness.predict.kernels import Kernels, KernelsError

torch.set_num_threads(1)
aten = torch.ops.aten

def call(function, *args):
    return Call.of(function, args, {})

images, weight = torch.zeros(8, 16, 32, 32), torch.zeros(32, 16, 3, 3)
ordinary, strange = torch.zeros(64, 8), torch.zeros(64, 8, dtype=torch.bfloat16)
wide = torch.zeros(2048, 2048)
with Kernels(1) as kernels:
    for one in (
        call(aten.convolution.default, images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        call(aten.add.Tensor, torch.zeros(1 << 20), torch.zeros(1 << 20, dtype=torch.bfloat16)),
        call(aten.add.Tensor, torch.zeros(1 << 20), torch.zeros(1 << 20)),
        call(aten.mm.default, wide, wide),
        call(aten.mm.default, wide, wide),
        call(aten.mm.default, ordinary, strange),
    ):
        print(*(kernels.measure(one) or ("none", 0, 0))[:2])
"""


def test_a_kernels_own_memory_is_measured_to_the_page() -> None:
    output = run_script(_CHILD)
    rows = [line.split() for line in output.splitlines()]
    convolution, mixed, plain, wide, again, failed = rows
    output_bytes = 8 * 32 * 32 * 32 * 4
    assert int(convolution[0]) < 1 << 20  # code compiled for the shape
    assert int(convolution[1]) <= 4 * output_bytes
    assert int(mixed[1]) == pytest.approx(4 << 20, abs=8192)  # the bfloat16 operand, converted
    assert int(plain[1]) <= 4096
    assert int(wide[0]) > 1 << 20  # packing buffers, which MKL keeps
    assert int(again[0]) == 0
    assert failed[0] == "none"


_HOLES = """
import torch
from harness.device.cpu.heap import open_heap
from harness.predict.address_space import AddressSpace

space = AddressSpace(open_heap())
for _ in range(2):
    small = [bytes(8_000) for _ in range(2_000)]
    last = bytes(8_000)  # Above them, so that the heap does not shrink.
    del small
    print(space.measure(lambda: torch.empty(1 << 20).numel())[0])
"""


def test_memory_that_would_fit_into_holes_of_the_heap_is_measured_too() -> None:
    """Imports in the meantime leave such holes, above all where Python keeps no compiled modules."""
    assert [int(line) for line in run_script(_HOLES).split()] == pytest.approx([4 << 20] * 2, abs=8192)


_METER = """
import sys
from pathlib import Path
import torch
from harness.predict import metering
from harness.predict.calls import Call

class Counting(metering.Kernels):
    def __init__(self, threads):
        super().__init__(threads)
        print("opened")

metering.Kernels = Counting
torch.set_num_threads(1)
aten = torch.ops.aten
calls = [Call.of(aten.mm.default, (torch.zeros(n, n), torch.zeros(n, n)), {}) for n in (1024, 64)]
for order in (calls, calls, calls[::-1]):
    print(metering.KernelMeter(1, Path(sys.argv[1])).measure(order) == metering.KernelMeter(
        1, Path(sys.argv[1])).measure(order))
"""


def test_a_sequence_of_calls_is_measured_once_and_another_order_is_another_sequence(tmp_path: Path) -> None:
    assert run_script(_METER, str(tmp_path)).split() == ["opened", "True", "True", "opened", "True"]


_RECURRENT = """
import torch
from harness.predict.footprints import measure
from harness.predict.metering import KernelMeter
from harness.predict.question import Question
from harness.predict.tracing import trace
from harness.predict.answer import Target
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

torch.set_num_threads(1)
runs = trace(Question.of(resolve({"model": "lstm"}), Target(DeviceKind.CPU, "the CPU"))).kernels
found = measure(runs, KernelMeter(1, None))
for run, footprint in zip(runs, found):
    if "rnn" in run.call.operator:
        print(run.call.operator, footprint.result_sizes[-1])
"""


def test_a_recurrent_layers_backward_gets_the_workspace_that_its_forward_filled() -> None:
    output = run_script(_RECURRENT)
    sizes = dict(line.split() for line in output.splitlines())
    assert int(sizes["mkldnn_rnn_layer"]) > 1 << 20
    assert "mkldnn_rnn_layer_backward" in sizes


@pytest.mark.long
def test_typical_kernels_are_measured_once_and_then_read_from_the_home(tmp_path: Path) -> None:
    assert kernel_report(tmp_path, measures=False) is None
    report = kernel_report(tmp_path, measures=True)
    assert report is not None
    assert "convolution" in report.words
    by_name = {kernel.name: kernel for kernel in report.kernels}
    assert by_name["convolution"].temporary_bytes > 0
    assert kernel_report(tmp_path, measures=False) == report


def test_the_words_of_a_report_name_kernels_without_memory_as_such() -> None:
    kernels = (KernelMemory("product", 0, 4096), KernelMemory("gradient", 0, 0))
    report = KernelReport(REVISION, torch_version(), this_processor()._replace(variables=()), 2, kernels)
    assert report.words == (
        "2 threads; during a call, and kept after the first one: product 4.00 KiB and 0 B; gradient none"
    )


def test_a_report_of_another_processor_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = KernelReport(REVISION, torch_version(), this_processor(), 2, (KernelMemory("product", 0, 4096),))
    (tmp_path / "kernels.json").write_text(to_json(report))
    assert kernel_report(tmp_path, measures=False) == report
    other = this_processor()._replace(name="another")
    monkeypatch.setattr("harness.predict.probe.this_processor", lambda: other)
    assert kernel_report(tmp_path, measures=False) is None


def test_without_mallocs_figures_nothing_counts_as_measured() -> None:
    script = """
import os
import torch
from harness.predict import kernels
from harness.predict.calls import Call

torch.set_num_threads(1)
kernels.open_heap = lambda: None
with kernels.Kernels(1) as meter:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # Nobody reads the call any more.
    try:
        meter.measure(Call.of(torch.ops.aten.relu.default, (torch.zeros(8),), {}))
    except kernels.KernelsError:
        print("not measured")
"""
    assert run_script(script).strip() == "not measured"


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "fork", raising(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    )
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KernelsError, match="did not start: Resource temporarily unavailable"):
        Kernels(1).__enter__()
    assert os.listdir("/proc/self/fd") == before
