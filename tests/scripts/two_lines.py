"""A training loop with the two lines of Stepscope, and TensorBoard's calls.

With the argument "fail" it ends by an error.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope

torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), batch_size=8)
run = stepscope.watch(model, optimizer)
for epoch in range(2):
    for inputs, labels in run.steps(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        print(f"{loss.item():.17g}")
    stepscope.SummaryWriter().add_scalar("epoch", epoch)
if "fail" in sys.argv:
    raise RuntimeError("It fails.")
