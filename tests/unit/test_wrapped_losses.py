"""Test the losses of scripts that are wrappers of other tensors, as with tensor parallelism."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.attach.scalars import number_of
from harness.device.testing.device import FakeDevice, FakeQueue
from harness.watch.readback import LossReader, plain_scalar
from tests.attach_factories import attached, recorded

pytestmark = pytest.mark.slow

STEPS = 4


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_the_loss_of_tensor_parallelism_is_read(
    tmp_path: Path, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, is_on_gpu: bool
) -> None:
    model = nn.Linear(3, 1)
    for name, weight in list(model.named_parameters()):
        whole = distribute_tensor(weight.detach(), mesh, [Replicate()])
        model.register_parameter(name, nn.Parameter(whole))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    if is_on_gpu:
        monkeypatch.setattr(LossReader, "of", lambda *_: LossReader(torch.empty(8)))
    with attached(tmp_path) as (session, folder, guard):
        if is_on_gpu:
            session._cpu = FakeDevice(queue=FakeQueue())  # type: ignore[assignment]  # in place of the CPU
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert isinstance(loss, DTensor)
        assert guard.is_on
        session.end(None)
    assert [row.loss for row in recorded(folder).steps] == losses


def test_a_value_of_which_a_rank_has_only_a_part_is_unknown(mesh: DeviceMesh) -> None:
    assert plain_scalar(DTensor.from_local(torch.ones(()), mesh, [Partial()])) is None
    on_gpu = DTensor.from_local(torch.ones((), device="meta"), mesh, [Replicate()])
    assert type(plain_scalar(on_gpu)) is torch.Tensor


def test_a_logged_value_of_which_a_rank_has_only_a_part_is_refused(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("is_cpu", "is_meta"):
        monkeypatch.setattr(DTensor, name, False, raising=False)
    part, whole = (DTensor.from_local(torch.ones(()), mesh, [one]) for one in (Partial(), Replicate()))
    assert type(number_of("loss", whole)) is torch.Tensor
    with pytest.raises(ValueError, match="a DTensor of which this process has only a part"):
        number_of("loss", part)
