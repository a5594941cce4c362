"""A script of two processes with DDP, a DistributedSampler, and a loss that rank 0 prints. The backward pass
of rank 1 computes longer in its middle."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

_LATE_S = 0.02


class Late(nn.Module):
    """A layer that only takes time, in its backward pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs."""
        outputs = inputs.view_as(inputs)
        outputs.register_hook(lambda _gradient: work())
        return outputs


def work() -> None:
    """Compute for a while on rank 1."""
    end_s = time.perf_counter() + _LATE_S * distributed.get_rank()
    while time.perf_counter() < end_s:
        pass


distributed.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), Late(), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)]
model = DistributedDataParallel(nn.Sequential(*layers))
data = TensorDataset(torch.randn(1_440, 32), torch.randint(0, 10, (1_440,)))
sampler = DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(data, batch_size=16, sampler=sampler):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        print(f"{loss.item():.9g}")
distributed.destroy_process_group()
# Or threads of Gloo now and then abort the interpreter while it shuts down, with or without Stepscope.
time.sleep(0.2)
