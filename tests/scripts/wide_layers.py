"""Trains layers whose activations grow with the batch, until it is stopped or memory runs out."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

DEADLINE_S = 60.0


class Block(nn.Module):
    """A wide hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(8, 16_384), nn.Linear(16_384, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.widen(inputs))
        narrow: Tensor = self.narrow(hidden)
        return narrow


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(65_536, 8)), batch_size=16)
    began_s = time.monotonic()
    while time.monotonic() - began_s < DEADLINE_S:
        for step, (inputs,) in enumerate(loader):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if step == 20:
                print("training", flush=True)
            time.sleep(0.01)  # The processor is left to who steers it.


if __name__ == "__main__":
    main()
