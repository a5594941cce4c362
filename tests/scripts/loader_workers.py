"""A loader with workers, whose dataset is defined in the script."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.full((4,), index / 48) + 0.01 * torch.randn(4)
        return x, (x * x).sum().reshape(1)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for _ in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            print(f"loss {loss.item().hex()}")
    print(f"steps {steps}")


if __name__ == "__main__":
    main()
