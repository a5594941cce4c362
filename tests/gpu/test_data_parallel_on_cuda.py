"""DataParallel on two real GPUs, switched in a live workload."""

from collections.abc import Iterator

import pytest
import torch

from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.settings.resolve import resolve
from harness.settings.spec import change
from harness.train.workload import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs"),
]


@pytest.fixture
def device() -> Iterator[Device]:
    result = open_device("cuda")
    yield result
    torch.cuda.empty_cache()


@pytest.mark.parametrize("model", ["mlp", "transformer"])
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_two_gpus_compute_the_loss_of_one(device: Device, model: str, amp: str) -> None:
    settings = resolve({"model": model, "device": "cuda", "amp": amp, "matmul_precision": "highest"})
    source = open_source(settings)
    torch.manual_seed(1)
    with device.torch_device:
        network = build_model(settings, source.shape)
    workload = Workload(settings, device, network, source)
    batch = workload.to_device(workload.next_batch())
    alone = workload.forward(*batch)
    workload.reconfigure(change(settings, {"data_parallel": 2}))
    before = torch.cuda.memory_allocated(1)
    together = workload.forward(*batch)
    assert torch.cuda.memory_allocated(1) > before
    torch.testing.assert_close(together, alone, rtol=2e-2 if amp == "bf16" else 1e-4, atol=0.0)
    workload.backward(together)
    workload.update()
    workload.close()
