"""Trains a small network on the device that its first argument names, for as many steps as the second says,
and prints each loss, or the median time of a step.

Further arguments: "scaler" trains in fp16 with a GradScaler, "accumulate" updates after every fourth batch,
"compile" compiles the model, "timed" reads no loss and prints the time.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    device, steps, options = torch.device(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    every = 4 if "accumulate" in options else 1
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16 * 512, 256), torch.randint(0, 10, (16 * 512,)))
    loader = DataLoader(data, batch_size=512, shuffle=True)
    model: nn.Module = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled="scaler" in options)
    train = torch.compile(model) if "compile" in options else model
    ends_ns: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batches = 0
    while len(ends_ns) < steps:
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            with torch.autocast(device.type, torch.float16, enabled="scaler" in options):
                loss = nn.functional.cross_entropy(train(inputs), targets) / every
            scaler.scale(loss).backward()
            batches += 1
            if batches % every == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ends_ns.append(time.perf_counter_ns())
            if "timed" not in options:
                print(f"loss {loss.item().hex()}")
            if len(ends_ns) == steps:
                break
    if "timed" in options:
        settled = ends_ns[steps // 4 :]
        spans = [after - before for before, after in pairwise(settled)]
        print(f"median step {statistics.median(spans) / 1e3:.1f} us")
    elif device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated()}")
    print(f"steps {steps}")


if __name__ == "__main__":
    main()
