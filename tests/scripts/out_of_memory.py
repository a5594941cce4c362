"""Runs out of memory in the second block of its model, in the first step or after so many."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """A layer that asks for an exbibyte when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.is_full = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.linear(inputs)
        return torch.cat([hidden, torch.empty(1 << 60)]) if self.is_full else hidden


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs,) in enumerate(DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)):
        model[1].is_full = step == int(sys.argv[1])
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
