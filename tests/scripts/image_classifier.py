"""A convolutional classifier with a scheduler and evaluation, in the style of torch's MNIST example."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(200, 1, 12, 12), torch.randint(0, 10, (200,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    held_out = DataLoader(TensorDataset(images[:48], labels[:48]), batch_size=24)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    steps = 0
    for epoch in range(epochs):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            steps += 1
            time.sleep(pause_s)
            print(f"loss {loss.item().hex()}")
        scheduler.step()
        model.eval()
        with torch.no_grad():
            correct = sum(int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in held_out)
        print(f"epoch {epoch} correct {correct}")
    print(f"steps {steps}")


if __name__ == "__main__":
    main()
