"""One batch over several GPUs: the mean loss, and what is refused. The GPUs are threads of the CPU here; the
real ones are those of tests/gpu/test_data_parallel_on_cuda.py."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.device.testing.device import FakeDevice
from harness.errors import SettingError
from harness.predict.answer import Impossible, Target
from harness.predict.asking import Predictor
from harness.records.run import DeviceKind
from harness.settings.resolve import check_fit, check_processes, resolve
from harness.settings.spec import SPECS, unavailable_reason
from harness.train.data_parallel import DataParallelLoss, data_parallel

CUDA = torch.device("cuda", 1)


class MeanLoss(nn.Module):
    """A model that returns the mean loss of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layer(inputs), targets)


class OnThreadsOfTheCpu(DataParallelLoss):
    """Its replicas are the model itself, and its GPUs are parts of the batch."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__(model)
        self.device_ids = list(range(count))

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[int | torch.device]) -> Any:
        parts = zip(*(tensor.chunk(len(device_ids)) for tensor in inputs), strict=True)
        return tuple(parts), ({},) * len(device_ids)

    def replicate(self, module: Any, device_ids: Sequence[int | torch.device]) -> list[Any]:
        return [module] * len(device_ids)


class OnTheCpu(OnThreadsOfTheCpu):
    """Its replicas run one after the other."""

    def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        return [replica(*part) for replica, part in zip(replicas, inputs, strict=True)]


@pytest.mark.parametrize("samples", [1, 2, 7, 8])
@pytest.mark.parametrize("gpus", [2, 3])
def test_loss_and_gradients_are_those_of_the_whole_batch(samples: int, gpus: int) -> None:
    torch.manual_seed(7)
    model = MeanLoss()
    inputs, targets = torch.randn(samples, 4), torch.randint(3, (samples,))
    whole = model(inputs, targets)
    whole.backward()
    expected = model.layer.weight.grad
    model.zero_grad(set_to_none=True)
    loss = OnTheCpu(model, gpus)(inputs, targets)
    loss.backward()
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(model.layer.weight.grad, expected)


class NotesDtype(nn.Module):
    """Notes the data type of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dtypes = nn.Linear(4, 3), list[torch.dtype]()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self.layer(inputs)
        self.dtypes.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs.float(), targets)


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "device_index"), reason="this torch replicates on CUDA GPUs only"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_replicas_compute_in_the_data_type_of_autocast(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Torch's own `parallel_apply`, whose threads enter autocast without a data type."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _device: nullcontext())
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _device: nullcontext())
    monkeypatch.setattr(
        sys.modules["torch.nn.parallel.parallel_apply"], "_get_device_index", lambda device, _optional: device
    )
    model = NotesDtype()
    with torch.autocast("cpu", dtype=dtype):
        OnThreadsOfTheCpu(model, 2)(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))
    assert model.dtypes == [dtype] * 2


@pytest.mark.parametrize(
    ("device", "existing", "sentence"),
    [
        (CUDA, 2, "data_parallel=3 needs 3 CUDA GPUs, and this machine has 2."),
        (torch.device("cpu"), 0, "data_parallel=3 needs 3 CUDA GPUs, and this run has none."),
    ],
)
def test_more_gpus_than_there_are_is_refused(device: torch.device, existing: int, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence.replace(".", r"\.")):
        data_parallel(MeanLoss(), device, 3, lambda: existing)


@pytest.mark.parametrize("name", ["compile", "offload_saved_tensors"])
def test_what_does_not_work_in_threads_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="does not work in the threads of DataParallel") as refusal:
        check_fit(resolve({"model": "mlp", "data_parallel": 2, name: True}))
    assert refusal.value.setting == name


def test_several_processes_have_one_gpu_each() -> None:
    with pytest.raises(SettingError, match="DataParallel is for one process, and this run has 4"):
        check_processes(resolve({"model": "mlp", "data_parallel": 2}), 4)


def test_the_cpu_does_not_have_it() -> None:
    reason = unavailable_reason(SPECS["data_parallel"], FakeDevice().facts._replace(kind=DeviceKind.CPU))
    assert reason is not None
    assert "needs a GPU" in reason


def test_its_memory_is_not_predicted() -> None:
    with Predictor(None) as predictor:
        answer = predictor.request(
            resolve({"model": "mlp", "data_parallel": 2}), Target(DeviceKind.CUDA, "a GPU", 8 << 30)
        )
    assert isinstance(answer, Impossible)
    assert "data_parallel" in answer.reason
