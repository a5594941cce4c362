"""A script of two processes with DDP, a DistributedSampler, and a loss that rank 0 prints."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
)
data = TensorDataset(torch.randn(640, 32), torch.randint(0, 10, (640,)))
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
