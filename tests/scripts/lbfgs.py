"""A fit by LBFGS, whose closure runs forward and backward several times per step, over one full batch."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(64, 6)
y = torch.sin(x.sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    print(f"closure {loss.item().hex()}")
    return loss


STEPS = 10
for _ in range(STEPS):
    loss = optimizer.step(closure)
    print(f"loss {loss.item().hex()}")
    with torch.no_grad():
        print(f"error {(model(x) - y).abs().max().item().hex()}")
print(f"steps {STEPS}")
