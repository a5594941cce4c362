"""Kernels run in a process forked for it, as the child process that predicts does."""

import subprocess
import sys

import pytest

from harness.device.heap import open_heap

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
    child = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True, timeout=120
    )
    rows = [line.split() for line in child.stdout.splitlines()]
    convolution, mixed, plain, wide, again, failed = rows
    output_bytes = 8 * 32 * 32 * 32 * 4
    assert int(convolution[0]) < 1 << 20  # code compiled for the shape
    assert int(convolution[1]) <= 4 * output_bytes
    assert int(mixed[1]) == pytest.approx(4 << 20, abs=8192)  # the bfloat16 operand, converted
    assert int(plain[1]) <= 4096
    assert int(wide[0]) > 1 << 20  # packing buffers, which MKL keeps
    assert int(again[0]) == 0
    assert failed[0] == "none"
