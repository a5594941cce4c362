"""A variational autoencoder by its `encode` and `decode` methods: the model itself is never called."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(36, 24)
        self.mean, self.spread = nn.Linear(24, 4), nn.Linear(24, 4)
        self.fc3, self.fc4 = nn.Linear(4, 24), nn.Linear(24, 36)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.fc1(x))
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z))))


images = torch.rand(90, 36)
loader = DataLoader(images, batch_size=16, shuffle=True)
held_out = DataLoader(images[:20], batch_size=10)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(x: Tensor) -> Tensor:
    mean, spread = model.encode(x)
    decoded = model.decode(mean + torch.randn_like(spread) * torch.exp(0.5 * spread))
    divergence = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
    return functional.binary_cross_entropy(decoded, x, reduction="sum") + divergence


steps = 0
for epoch in range(3):
    model.train()
    for x in loader:
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        steps += 1
        print(f"loss {loss.item().hex()}")
    model.eval()
    with torch.no_grad():
        print(f"epoch {epoch} test loss {sum(loss_of(x).item() for x in held_out).hex()}")
        print(f"sample {model.decode(torch.randn(2, 4)).sum().item().hex()}")
print(f"steps {steps}")
