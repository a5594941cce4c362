"""Mixed precision with a GradScaler that skips a step, an averaged copy of the model, activation
checkpointing, and training that is saved and resumed half way: states, and the whole model by pickle."""

import copy
import pickle
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=True) if x.requires_grad else self.first(x)
        return self.second(torch.relu(hidden))


def train(epochs: int, folder: Path) -> int:
    inputs = torch.randn(80, 12)
    loader = DataLoader(TensorDataset(inputs, torch.randint(0, 3, (80,))), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=4)
    average = copy.deepcopy(model)
    steps = 0
    for epoch in range(epochs):
        if (folder / "checkpoint.pt").exists():
            state = torch.load(folder / "checkpoint.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scaler.load_state_dict(state["scaler"])
        for x, y in loader:
            x.requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            with torch.no_grad():
                for kept, weight in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(weight, 0.1)
            steps += 1
            print(f"loss {loss.item().hex()} scale {scaler.get_scale()}")
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "scaler": scaler.state_dict()}, folder / "checkpoint.pt")
        torch.save(model, folder / "whole.pt")
        again = torch.load(folder / "whole.pt", weights_only=False)
        assert type(pickle.loads(pickle.dumps(again))) is Net
        with torch.no_grad():
            print(f"epoch {epoch} {again(inputs).sum().item().hex()} {average(inputs).sum().item().hex()}")
    return steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        print(f"steps {train(3, Path(folder))}")
