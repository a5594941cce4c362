"""An optimizer per parameter that steps as soon as the gradient is there, within the backward pass. The first
argument names the device, by default the CPU."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
inputs = torch.randn(48, 6)
loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sign()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizers = {weight: torch.optim.Adam([weight], lr=1e-2) for weight in model.parameters()}


def update(weight: Tensor) -> None:
    optimizers[weight].step()
    optimizers[weight].zero_grad()


hooks = [weight.register_post_accumulate_grad_hook(update) for weight in model.parameters()]
steps = 0
for _ in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        steps += 1
        print(f"loss {loss.item().hex()}")
for hook in hooks:
    hook.remove()
print(f"steps {steps}")
