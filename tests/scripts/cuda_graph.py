"""Trains with CUDA graphs: `cuda_graph.py HOW STEPS`, and prints each loss.

HOW is "whole" (a graph of the whole step, with a capture of two seconds), "callables" (of
`torch.cuda.make_graphed_callables`, and an optimizer outside of the graph) or "compile" (torch.compile in the
mode reduce-overhead).
"""

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, CAPTURE_S = 64, 2.0


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)


def compute(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = compute(model, inputs, targets)
    optimizer.step()
    return loss


def train_whole(loader: "DataLoader[tuple[Tensor, ...]]", steps: int) -> None:
    model, optimizer = build()
    inputs, targets = torch.randn(BATCH, 32).cuda(), torch.zeros(BATCH, dtype=torch.int64).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(model, optimizer, inputs, targets)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = compute(model, inputs, targets)
        time.sleep(CAPTURE_S)
        optimizer.step()
    count = 0
    while count < steps:
        for batch, labels in loader:
            inputs.copy_(batch)
            targets.copy_(labels)
            graph.replay()
            print(f"loss {loss.item().hex()}")
            count += 1
            if count == steps:
                break
    print(f"steps {count + 3}")


def train(loader: "DataLoader[tuple[Tensor, ...]]", steps: int, how: str) -> None:
    model, optimizer = build()
    if how == "callables":
        call = torch.cuda.make_graphed_callables(model, (torch.randn(BATCH, 32).cuda(),))
    else:
        call = torch.compile(model, mode="reduce-overhead")
    count = 0
    while count < steps:
        for batch, labels in loader:
            loss = step(call, optimizer, batch.cuda(), labels.cuda())
            print(f"loss {loss.item().hex()}")
            count += 1
            if count == steps:
                break
    print(f"steps {count}")


def main() -> None:
    how, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(16 * BATCH, 32), torch.randint(0, 8, (16 * BATCH,)))
    loader = DataLoader(data, batch_size=BATCH)
    if how == "whole":
        train_whole(loader, steps)
    else:
        train(loader, steps, how)


if __name__ == "__main__":
    main()
