"""Keeps what it should not until memory runs out: `leaking.py DEVICE GIB WHAT`.

WHAT is "outputs" (a list of outputs with their graph), "totals" (a loss summed with its graph), "cat" (a
tensor that grows), "evaluation" (outputs of an evaluation with gradients, after 300 steps of training) or
"caught" (nothing; of 300 steps every hundredth requests too much outside of the model, and goes on).
GIB is all the memory that the allocator may take; on the CPU what the process's data may grow by.
"""

import resource
import sys

import torch
from torch import Tensor, nn

WIDTH, BATCH = 1024, 64


def limit(device: torch.device, gib: float) -> None:
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
        return
    with open("/proc/self/statm", encoding="utf-8") as statm:
        data_bytes = int(statm.read().split()[5]) * resource.getpagesize()
    most_bytes = data_bytes + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.RLIM_INFINITY))


class Training:
    def __init__(self, device: torch.device, what: str) -> None:
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))).to(
            device
        )
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.device, self.what = device, what
        self.history: list[Tensor] = []
        self.total: Tensor | float = 0.0
        self.buffer = torch.empty(0, WIDTH, device=device)

    def step(self) -> None:
        outputs = self.model(torch.randn(BATCH, WIDTH, device=self.device))
        loss = outputs.square().mean()
        loss.backward(retain_graph=self.what == "totals")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.what == "outputs":
            self.history.append(outputs)
        elif self.what == "totals":
            self.total = self.total + loss
        elif self.what == "cat":
            self.buffer = torch.cat([self.buffer, outputs.detach()])


def evaluate(training: Training) -> None:
    predictions = []
    while True:
        predictions.append(training.model(torch.randn(BATCH, WIDTH, device=training.device)))


def request_too_much(device: torch.device) -> None:
    try:
        torch.empty(1 << 46, dtype=torch.uint8, device=device)
    except RuntimeError:
        print("caught")


def main() -> None:
    device, gib, what = torch.device(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training = Training(device, what)
    training.step()
    limit(device, gib)
    for step in range(300 if what in ("evaluation", "caught") else 10**6):
        training.step()
        if what == "caught" and step % 100 == 50:
            request_too_much(device)
    if what == "evaluation":
        evaluate(training)


if __name__ == "__main__":
    main()
